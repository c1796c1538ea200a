"""Every exchange between host and device, in one place, so that a computation can be recorded once and replayed.

Copy device values to the host with `to_host`, host values to the device with `to_device`. A replayed CUDA graph
(`scoring/cuda_graphs.py`) can do neither: it cannot wait for a number from the device or send one. So a first run
writes every answer and every constant on a `Tape`, and a second one, under `Replay`, reads them from there. Recorded
answers are not trusted: replaying a graph compares them with what the device computed this time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

_tape: "ContextVar[Tape | None]" = ContextVar("eics tape", default=None)


def to_host(values: Tensor) -> Any:
    """A tensor as plain numbers; synchronises with the device."""
    tape = _tape.get()
    return values.tolist() if tape is None else tape.to_host(values)


def to_device(values: Sequence[Any] | Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Python numbers or a CPU tensor on a device, without synchronising."""
    here = values.to(dtype or values.dtype) if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype)
    tape = _tape.get()
    return here.to(device, non_blocking=True) if tape is None else tape.to_device(here, device)


def keep_alive(tensor: Tensor, made_of: Sequence[Tensor] = ()) -> Tensor:
    """A cached tensor made of these weights: a recording that uses it must keep it alive."""
    tape = _tape.get()
    if tape is not None:
        tape.keep_alive(tensor, made_of)
    return tensor


@contextmanager
def filling_cache() -> Iterator[None]:
    """Around what is computed because a cache missed it: that happens once, so it stays off the tape."""
    tape = _tape.get()
    if tape is not None:
        tape.filling_cache()
    token = _tape.set(None)
    try:
        yield
    finally:
        _tape.reset(token)


def skip_recording() -> None:
    """Says that this run is not worth recording: it took a path that hardly any batch takes."""
    tape = _tape.get()
    if tape is not None:
        tape.worth_recording = False


@contextmanager
def exchanging_over(tape: "Tape") -> Iterator[None]:
    """Everything inside exchanges numbers with the device over this tape."""
    token = _tape.set(tape)
    try:
        yield
    finally:
        _tape.reset(token)


class DivergedError(RuntimeError):
    """A second run exchanged something else with the device than the first."""


class Tape:
    """The exchanges of a first run."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.constants: list[tuple[Tensor, Tensor]] = []
        self.worth_recording = True

    def to_host(self, question: Tensor) -> Any:
        """Copies the values to the host, and writes them down."""
        answer = question.tolist()
        self.answers.append(answer)
        return answer

    def to_device(self, here: Tensor, device: torch.device) -> Tensor:
        """Copies the values to the device, and keeps both copies."""
        there = here.to(device, non_blocking=True)
        self.constants.append((here, there))
        return there

    def keep_alive(self, tensor: Tensor, made_of: Sequence[Tensor]) -> None:
        """Nothing: only a recording outlives its caches."""

    def filling_cache(self) -> None:
        """Allowed in a first run."""


class Replay(Tape):
    """A second run without an exchange: answers and constants are those of the first.

    Attributes:
        questions: the tensors that the recorded answers were copied from.
        alive: cached tensors that the run used.
        versions: the weights that those were made of, each with its version counter.
    """

    def __init__(self, first: Tape) -> None:
        super().__init__()
        self.answers, self.constants = first.answers, first.constants
        self.questions: list[Tensor] = []
        self.alive: list[Tensor] = []
        self.versions: dict[int, tuple[Tensor, int]] = {}
        self._constants = iter(first.constants)

    def to_host(self, question: Tensor) -> Any:
        """The first run's answer."""
        if len(self.questions) == len(self.answers):
            raise DivergedError("a second run asked more of the device than the first")
        self.questions.append(question)
        return self.answers[len(self.questions) - 1]

    def to_device(self, here: Tensor, device: torch.device) -> Tensor:
        """The first run's copy, if the values are the same."""
        recorded, there = next(self._constants, (None, None))
        if recorded is None or there is None or there.device != device or not torch.equal(recorded, here):
            raise DivergedError("a second run sent other numbers to the device than the first")
        return there

    def finish(self) -> None:
        """Every exchange of the first run must have happened again."""
        if len(self.questions) < len(self.answers) or next(self._constants, None) is not None:
            raise DivergedError("a second run exchanged less with the device than the first")

    def keep_alive(self, tensor: Tensor, made_of: Sequence[Tensor]) -> None:
        """For as long as this replay lives."""
        self.alive.append(tensor)
        self.versions |= {id(weight): (weight, weight._version) for weight in made_of}

    def filling_cache(self) -> None:
        """Refused: a captured kernel has not run yet, so its output must not enter a cache."""
        raise DivergedError("a second run missed something in a cache that the first had")

    @property
    def weights_unchanged(self) -> bool:
        """Whether every weight still has the version that was recorded."""
        return all(weight._version == version for weight, version in self.versions.values())


def map_tensors(function: Callable[..., Tensor], *records: Any) -> Any:
    """Applies a function to corresponding tensors of records of one type; everything else is the first record's.

    >>> import torch
    >>> map_tensors(lambda a, b: a + b, (torch.tensor(1), "x"), (torch.tensor(2), "x"))
    (tensor(3), 'x')
    """
    first = records[0]
    if isinstance(first, Tensor):
        return function(*records)
    if isinstance(first, tuple | list) and not hasattr(first, "_fields"):  # a named tuple is a name here: an edge
        return type(first)(map_tensors(function, *some) for some in zip(*records, strict=True))
    if isinstance(first, dict):
        return {key: map_tensors(function, *(record[key] for record in records)) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first) if field.init]
        return replace(first, **{n: map_tensors(function, *(getattr(r, n) for r in records)) for n in names})
    return first


class Packed:
    """Tensors to be copied to the host together: on a device they are laid out one after another, by dtype.

    >>> Packed({"a": torch.ones(2), "b": torch.zeros(1, 2)}).fetch()
    {'a': [1.0, 1.0], 'b': [[0.0, 0.0]]}
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names = tuple(tensors)
        self.here = {name: tensor for name, tensor in tensors.items() if tensor.device.type == "cpu"}
        away = {name: tensor for name, tensor in tensors.items() if name not in self.here}
        self.shapes: dict[torch.dtype, dict[str, torch.Size]] = {}
        for name, tensor in away.items():
            self.shapes.setdefault(tensor.dtype, {})[name] = tensor.shape
        self.flat = {
            dtype: torch.cat([away[name].reshape(-1) for name in shapes]) for dtype, shapes in self.shapes.items()
        }

    def fetch(self) -> dict[str, Any]:
        """All values as nested lists; one copy from the device for each dtype."""
        here = dict(self.here)
        for dtype, shapes in self.shapes.items():
            pieces = self.flat[dtype].cpu().split([shape.numel() for shape in shapes.values()])
            here |= {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        return {name: here[name].tolist() for name in self.names}
