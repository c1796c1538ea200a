"""What a computation exchanges with its device, in order: so that it can be recorded once and played again.

Played again (`eics.recordings`), a computation can neither wait for a number from the device nor send one there. On a
`Tape` each answer and each constant of a first run is written down; a run under `Again` takes them from there. The
answers are not believed: whoever plays compares them with what the device says this time.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_tape: "ContextVar[Tape | None]" = ContextVar("eics tape", default=None)


class DivergedError(RuntimeError):
    """A second run exchanged something else with the device than the first."""


class Tape:
    """The exchanges of a first run. `usual` is False where something happened that is not worth a recording."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.constants: list[tuple[Tensor, Tensor]] = []
        self.usual = True

    def asked(self, question: Tensor) -> Any:
        """Waits for the answer, and writes it down."""
        answer = question.tolist()
        self.answers.append(answer)
        return answer

    def sent(self, here: Tensor, device: torch.device) -> Tensor:
        """Sends, and keeps what was sent."""
        there = here.to(device, non_blocking=True)
        self.constants.append((here, there))
        return there

    def held(self, tensor: Tensor, made_of: Sequence[Tensor]) -> None:
        """A first run needs nothing held."""

    def making(self) -> None:
        """A first run may fill caches."""


class Again(Tape):
    """A second run, without an exchange: answers and constants are those of the first.

    `questions` are what the answers answered; `holding` is what the run used that lives elsewhere, `versions` the
    weights that it was made of.
    """

    def __init__(self, first: Tape) -> None:
        super().__init__()
        self.answers, self.constants = first.answers, first.constants
        self.questions: list[Tensor] = []
        self.holding: list[Tensor] = []
        self.versions: dict[int, tuple[Tensor, int]] = {}
        self._constants = iter(first.constants)

    def asked(self, question: Tensor) -> Any:
        """The first run's answer."""
        if len(self.questions) == len(self.answers):
            raise DivergedError("a second run asked more of the device than the first")
        self.questions.append(question)
        return self.answers[len(self.questions) - 1]

    def sent(self, here: Tensor, device: torch.device) -> Tensor:
        """What the first run sent, if it is that."""
        known, there = next(self._constants, (None, None))
        if known is None or there is None or there.device != device or not torch.equal(known, here):
            raise DivergedError("a second run sent other numbers to the device than the first")
        return there

    def finish(self) -> None:
        """Everything must have been asked and sent again."""
        if len(self.questions) < len(self.answers) or next(self._constants, None) is not None:
            raise DivergedError("a second run exchanged less with the device than the first")

    def held(self, tensor: Tensor, made_of: Sequence[Tensor]) -> None:
        """Kept alive for as long as this is."""
        self.holding.append(tensor)
        self.versions |= {id(weight): (weight, weight._version) for weight in made_of}

    def making(self) -> None:
        """What is recorded is not computed before it is played: no cache may have it."""
        raise DivergedError("a second run missed something in a cache that the first had")

    @property
    def holds(self) -> bool:
        """Whether the weights are as they were."""
        return all(weight._version == version for weight, version in self.versions.values())


@contextmanager
def on(tape: Tape) -> Iterator[None]:
    """The exchanges of what runs inside go over the tape."""
    token = _tape.set(tape)
    try:
        yield
    finally:
        _tape.reset(token)


def asked(question: Tensor) -> Any:
    """A tensor as plain numbers, for which the device is waited for."""
    tape = _tape.get()
    return question.tolist() if tape is None else tape.asked(question)


def sent(values: Sequence[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers from Python, or a tensor of the CPU, on a device, which is not waited for."""
    here = values.to(dtype or values.dtype) if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    tape = _tape.get()
    return here.to(device, non_blocking=True) if tape is None else tape.sent(here, device)


def held(tensor: Tensor, made_of: Sequence[Tensor] = ()) -> Tensor:
    """A tensor from a cache, made of these weights: a recording that uses it must keep it."""
    tape = _tape.get()
    if tape is not None:
        tape.held(tensor, made_of)
    return tensor


@contextmanager
def making() -> Iterator[None]:
    """Around what a cache did not have: it is made once, so it is not on the tape."""
    tape = _tape.get()
    if tape is not None:
        tape.making()
    token = _tape.set(None)
    try:
        yield
    finally:
        _tape.reset(token)


def unusual() -> None:
    """Says that this run went a way that will hardly be gone again."""
    tape = _tape.get()
    if tape is not None:
        tape.usual = False
