"""Everything after a forward pass on a GPU, recorded as a CUDA graph and replayed for batches of the same shape.

The score of a batch takes some thousand small operations; launched one by one from Python, they take several times as
long as the GPU needs to compute them. The first batch of a shape runs as on any device, with its host-device exchanges
on a tape (`eics.linalg.host_device`); the second is recorded; from then on the kernels are replayed without Python.
Each replay copies the values on which the code branched once more; if one differs, the batch is computed without the
graph.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor

from eics.linalg.host_device import Packed, Replay, Tape, exchanging_over, map_tensors
from eics.models.base import Model
from eics.models.spec import Transformer
from eics.transformer.forward import ForwardState

_CAPACITY = 8  # batch shapes for which a model keeps a graph: each holds the memory of its temporary blocks

_enabled: ContextVar[bool] = ContextVar("eics cuda graphs", default=True)

Result = TypeVar("Result")

_caches: "WeakKeyDictionary[Model, GraphCache[Any]]" = WeakKeyDictionary()


@contextmanager
def without_cuda_graphs() -> Iterator[None]:
    """Computes every batch inside without graphs, as the first batch of a shape is."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def graph_cache(model: Model) -> "GraphCache[Any]":
    """The recorded graphs of a model; they are freed with the model."""
    return _caches.setdefault(model, GraphCache())


class ByIdentity:
    """A key equal only to keys of the same object, which it keeps alive."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


class GraphCache(Generic[Result]):
    """The graphs of one model, by everything a computation depends on besides the numbers in a forward state.

    Attributes:
        entries: a tape after the first batch of a key, a graph after the second; None if recording failed.
        replayed: how many batches were replayed.
    """

    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, Tape | RecordedGraph[Result] | None] = OrderedDict()
        self.replayed = 0
        self._weights: ReferenceType[Transformer] | None = None

    def run(self, key: Hashable, state: ForwardState, work: Callable[[ForwardState], Result]) -> Result:
        """`work(state)`, replayed if possible. Tensors of the result are valid until the next batch.

        `key` holds everything that `work` depends on besides the state; None computes without a graph. `work` may
        exchange numbers with the device only through `eics.linalg.host_device`, and must not change its inputs.
        """
        if key is None or not _enabled.get() or state.lengths.device.type != "cuda":
            return work(state)
        self._check_weights(state.model.transformer)
        tensors, layout = _tensors(state)
        key = (key, state.longest, state.padded, layout)
        if key not in self.entries:
            tape = Tape()
            with exchanging_over(tape):
                result = work(state)
            if tape.worth_recording:
                self._keep(key, tape)
            return result
        entry = self.entries[key]
        if isinstance(entry, Tape):
            entry = self._record(entry, state, work)
            self._keep(key, entry)
        if isinstance(entry, RecordedGraph):
            result, valid = entry.replay(tensors)
            if valid:
                self.entries.move_to_end(key)
                self.replayed += 1
                return result
            if not entry.tape.weights_unchanged:  # the next batches record it again
                del self.entries[key]
        return work(state)

    def forget(self) -> bool:
        """Frees the memory of all graphs; returns whether there were any."""
        held = any(isinstance(entry, RecordedGraph) for entry in self.entries.values())
        self.entries.clear()
        return held

    def _check_weights(self, weights: Transformer) -> None:
        """Forgets graphs of other weights: they read memory that may be freed, and matrices made of what was there."""
        if self._weights is None or self._weights() is not weights:
            self.forget()
            self._weights = ref(weights)

    def _keep(self, key: Hashable, entry: "Tape | RecordedGraph[Result] | None") -> None:
        self.entries[key] = entry
        self.entries.move_to_end(key)
        while len(self.entries) > _CAPACITY:
            self.entries.popitem(last=False)

    def _record(
        self, tape: Tape, state: ForwardState, work: Callable[[ForwardState], Result]
    ) -> "RecordedGraph[Result] | None":
        """None if recording fails: the batch is then computed without a graph, which shows what is wrong."""
        graphs = (entry for entry in self.entries.values() if isinstance(entry, RecordedGraph))
        pool = next((recorded.graph.pool() for recorded in graphs), None)
        try:
            return RecordedGraph(tape, state, work, pool)
        except RuntimeError:
            return None


class RecordedGraph(Generic[Result]):
    """The kernels of one computation, with their inputs and results.

    Graphs share their temporary memory: a result must be copied to the host before another graph is replayed.
    """

    def __init__(
        self, tape: Tape, state: ForwardState, work: Callable[[ForwardState], Result], pool: Any = None
    ) -> None:
        copies = {id(tensor): tensor.clone() for tensor in _tensors(state)[0]}
        self.inputs = list(copies.values())
        static = _map_state(lambda tensor: copies[id(tensor)], state)
        self.tape, self.graph = Replay(tape), torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile.
        capture = torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local")
        with torch.cuda.device(state.lengths.device), capture, exchanging_over(self.tape):
            self.result = work(static)
            self.tape.finish()
            self.questions = Packed({str(index): question for index, question in enumerate(self.tape.questions)})

    def replay(self, tensors: Sequence[Tensor]) -> tuple[Result, bool]:
        """The result for these inputs, and whether it is valid: same answers as recorded, and the same weights."""
        if not self.tape.weights_unchanged:
            return self.result, False
        with torch.cuda.device(tensors[0].device):
            torch._foreach_copy_(list(self.inputs), list(tensors))
            self.graph.replay()
        answers = list(self.questions.fetch().values())
        return self.result, answers == self.tape.answers


def _map_state(function: Callable[[Tensor], Tensor], state: ForwardState) -> ForwardState:
    """The state of the same model with a function applied to every tensor of the pass."""
    names = [field.name for field in fields(state) if field.name != "model"]
    return replace(state, **{name: map_tensors(function, getattr(state, name)) for name in names})


def _tensors(state: ForwardState) -> tuple[list[Tensor], Hashable]:
    """The tensors of a state, each once (layers share their rotations), and their layout: order, shapes, dtypes."""
    tensors: dict[int, Tensor] = {}
    order: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        tensors.setdefault(id(tensor), tensor)
        order.append(list(tensors).index(id(tensor)))
        return tensor

    _map_state(note, state)
    layouts = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors.values())
    return list(tensors.values()), (tuple(order), layouts)
