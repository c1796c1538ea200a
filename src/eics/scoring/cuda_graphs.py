"""What follows a forward pass on a GPU, recorded as a CUDA graph and played again for batches of the same shape.

The score of a batch is some thousand small operations; started from Python one by one they take several times as long
as the GPU computes. The first batch of a shape is computed as on any device, its exchanges with the host on a tape
(`eics.linalg.host_device`); with the second it is recorded; from then on its kernels are played without Python. What
decided the way through the code is asked again each time, and where an answer differs the batch is computed the plain
way.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from eics.linalg.host_device import Packed, Replay, Tape, exchanging_over

if TYPE_CHECKING:
    from eics.models.base import Model
    from eics.transformer.forward import ForwardState

_MOST = 8  # shapes of batches that a model keeps recordings of: each holds the memory of its temporary blocks

_allowed: ContextVar[bool] = ContextVar("eics recordings", default=True)

Result = TypeVar("Result")

_recordings: "WeakKeyDictionary[Model, Recordings[Any]]" = WeakKeyDictionary()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Every batch inside is computed the plain way, as the first of its shape is."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


def recordings_of(model: "Model") -> "Recordings[Any]":
    """A model's recordings; they end with the model."""
    return _recordings.setdefault(model, Recordings())


class Recordings(Generic[Result]):
    """One model's, by what a computation depends on besides the numbers of a state. `played` counts."""

    def __init__(self) -> None:
        self.known: OrderedDict[Hashable, Tape | Recording[Result] | None] = OrderedDict()
        self.played = 0

    def run(self, key: Hashable, state: "ForwardState", work: Callable[["ForwardState"], Result]) -> Result:
        """What `work` makes of a state. Its tensors are those of the recording, good until the next batch.

        `key` says all that `work` depends on but the state. `work` may exchange numbers with the device by
        `eics.linalg.host_device` only, and must leave its inputs as they are.
        """
        if not _allowed.get() or state.lengths.device.type != "cuda":
            return work(state)
        tensors, pattern = _tensors(state)
        key = (key, state.longest, state.padded, pattern)
        known = self.known.get(key, self)
        if known is self:
            tape = Tape()
            with exchanging_over(tape):
                result = work(state)
            if tape.worth_recording:
                self._keep(key, tape)
            return result
        if isinstance(known, Tape):
            known = self._record(known, state, work)
            self._keep(key, known)
        if isinstance(known, Recording):
            result, good = known.play(tensors)
            if good:
                self.known.move_to_end(key)
                self.played += 1
                return result
            if not known.tape.weights_unchanged:  # weights were changed: recorded anew with the next batches
                del self.known[key]
        return work(state)

    def forget(self) -> bool:
        """Gives the memory of all recordings back; False where there were none."""
        held = any(isinstance(one, Recording) for one in self.known.values())
        self.known.clear()
        return held

    def _keep(self, key: Hashable, value: "Tape | Recording[Result] | None") -> None:
        self.known[key] = value
        self.known.move_to_end(key)
        while len(self.known) > _MOST:
            self.known.popitem(last=False)

    def _record(
        self, tape: Tape, state: "ForwardState", work: Callable[["ForwardState"], Result]
    ) -> "Recording[Result] | None":
        """None where it cannot be done: what fails here is computed the plain way, which says what is wrong."""
        others = (one for one in self.known.values() if isinstance(one, Recording))
        pool = next((one.graph.pool() for one in others), None)
        try:
            return Recording(tape, state, work, pool)
        except RuntimeError:
            return None


class Recording(Generic[Result]):
    """One computation's kernels, and where they find and leave their numbers.

    Recordings share their temporary memory: a result must be fetched before another is played.
    """

    def __init__(
        self, tape: Tape, state: "ForwardState", work: Callable[["ForwardState"], Result], pool: Any = None
    ) -> None:
        copies = {id(tensor): tensor.clone() for tensor in _tensors(state)[0]}
        self.inputs = list(copies.values())
        static = _each(state, lambda tensor: copies[id(tensor)])
        self.tape, self.graph = Replay(tape), torch.cuda.CUDAGraph()
        # Other threads may do with the GPU what they like meanwhile.
        capture = torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local")
        with torch.cuda.device(state.lengths.device), capture, exchanging_over(self.tape):
            self.result = work(static)
            self.tape.finish()
            self.questions = Packed({str(place): question for place, question in enumerate(self.tape.questions)})

    def play(self, tensors: Sequence[Tensor]) -> tuple[Result, bool]:
        """The result for these inputs; and whether it is one: the questions have the recorded answers, and the weights
        are the same."""
        if not self.tape.weights_unchanged:
            return self.result, False
        with torch.cuda.device(tensors[0].device):
            torch._foreach_copy_(list(self.inputs), list(tensors))
            self.graph.replay()
        answers = list(self.questions.fetch().values())
        return self.result, answers == self.tape.answers


def _each(state: "ForwardState", function: Callable[[Tensor], Tensor]) -> "ForwardState":
    """A state with every tensor of the pass changed."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value)
        if isinstance(value, dict):
            return {key: changed(one) for key, one in value.items()}
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return replace(state, **{field.name: changed(getattr(state, field.name)) for field in fields(state)})


def _tensors(state: "ForwardState") -> tuple[list[Tensor], Hashable]:
    """Those of a state, each once (layers share their rotations); and what can be said of them but their numbers."""
    found: dict[int, Tensor] = {}
    places: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        known = found.setdefault(id(tensor), tensor)
        places.append(list(found).index(id(tensor)))
        return known

    _each(state, note)
    tensors = list(found.values())
    return tensors, (tuple(places), tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors))
