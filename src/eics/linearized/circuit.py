"""The linearized circuit: every node's activation, and the linear maps into it, at one forward state.

A node reads through *entries*. An entry is one linear map shared by every edge that enters through it: in a transformer
all parents that use the same port share `D f_v(x_v)`; in an explicit circuit each edge has a matrix, so each edge is an
entry. Therefore

    edge map      rho_{u->v}   the map of the entry that the edge belongs to
    node map      J_v          the entries' maps side by side
    macro map     J_M          sum over all paths of products of edge maps, by one sweep (`paths.py`)

Stalks are `T x d` numbers flattened; a batch axis for prompts comes first. A mask says which positions count: padding,
positions that the circuit leaves out and `positions="no_sink"` are all the same mechanism (`positions.py`). An engine
(`sweep.py`) carries values along the maps.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge
from eics.linalg.blocks import by_coordinate
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import columns_scaled

if TYPE_CHECKING:
    from eics.linearized.sweep import Engine


@dataclass(frozen=True)
class Stalk:
    """What a node wrote, for a batch of prompts.

    Attributes:
        activation: `a_v`, (B, T, d); zero where masked.
        constant: `b_v`, what the node would write if every upstream node wrote zero; (B or 1, T, d), zero where masked.
            Zero under `jacobian`.
        positions: the token position of each row, (T,), or None for a stalk without positions, which no restriction of
            positions touches.
        mask: 1 at positions that count, else 0; (B or 1, T). None: all count.
        mean: the reference set's mean of `a_v`, (1, T, d), zero where masked. None: there is no reference set.
        at_mean: what the linearized node writes if everything that it reads is at the reference set's mean, (B or 1, T,
        d),
            zero where masked. None: there is no reference set, or nothing enters.
        z: a shorter vector at each position, (B, T, e), of which the activation is a linear image `W z`; zero where
        masked.
            None if there is none.
    """

    activation: Tensor
    constant: Tensor
    positions: Tensor | None = None
    mask: Tensor | None = None
    mean: Tensor | None = None
    at_mean: Tensor | None = None
    z: Tensor | None = None

    @property
    def flat(self) -> Tensor:
        """`a_v` as one vector, (B, T*d)."""
        return self.activation.flatten(1)

    @property
    def flat_rest(self) -> Tensor:
        """What the node writes if its parents write their means, (B or 1, T*d); `b_v` without a reference set."""
        return (self.constant if self.at_mean is None else self.at_mean).flatten(1)

    def less_mean(self, block: Tensor) -> Tensor:
        """A block of writes of this node, (B, T*d, k), less the reference set's mean, if there is one."""
        return block if self.mean is None else block - self.mean.flatten(1).unsqueeze(2)

    @property
    def dim(self) -> int:
        """Length of the flattened stalk, masked positions included."""
        return self.activation.shape[1] * self.activation.shape[2]

    @property
    def width(self) -> int:
        """Numbers at one position."""
        return self.activation.shape[2]

    @property
    def size(self) -> Tensor:
        """How many coordinates count, for each prompt: (B,)."""
        return self.weights.count_nonzero(dim=1).expand(self.activation.shape[0])

    @property
    def weights(self) -> Tensor:
        """The mask by coordinate, (B or 1, T*d)."""
        mask = self.activation.new_ones(1, self.activation.shape[1]) if self.mask is None else self.mask
        return by_coordinate(mask, self.dim)

    @cached_property
    def lengths(self) -> Tensor:
        """||a_v|| at each position, (B, T)."""
        lengths: Tensor = torch.linalg.vector_norm(self.activation, dim=-1)
        return lengths

    @cached_property
    def norm(self) -> Tensor:
        """||a_v||, (B,)."""
        norm: Tensor = torch.linalg.vector_norm(self.flat, dim=1)
        return norm

    @cached_property
    def rms(self) -> Tensor:
        """Rms of `a_v` at each position, (B, T); zero where masked."""
        return self.lengths / math.sqrt(self.activation.shape[2])

    @cached_property
    def inverse_rms(self) -> Tensor:
        """1 / rms, (B, T); zero where nothing is written."""
        inverse: Tensor = torch.nan_to_num(1.0 / self.rms, nan=torch.nan, posinf=0.0)
        return inverse

    def prompt(self, index: int) -> "Stalk":
        """The stalk of one prompt."""
        return self._each(lambda tensor: _pick(tensor, index))

    def double(self) -> "Stalk":
        """The stalk in float64."""
        return self._each(Tensor.double)

    def masked(self, mask: Tensor) -> "Stalk":
        """The stalk with its masked positions set to zero."""
        by_row = mask.unsqueeze(2)
        return replace(self._each(lambda tensor: tensor * by_row if tensor.ndim == 3 else tensor), mask=mask)

    def _each(self, function: Callable[[Tensor], Tensor]) -> "Stalk":
        """The stalk with every tensor changed but `positions`, which has no prompt axis."""
        optional = (self.mask, self.mean, self.at_mean, self.z)
        mask, mean, at_mean, z = (None if tensor is None else function(tensor) for tensor in optional)
        return Stalk(function(self.activation), function(self.constant), self.positions, mask, mean, at_mean, z)


@dataclass(frozen=True)
class Entry:
    """One linear map into a node and the edges that enter through it.

    Attributes:
        operator: rows are the node's stalk, columns the stalk that the edges carry.
        edges: never empty; their sources' stalks all have the operator's columns.
        read: what the node reads through this entry, (B, T, d): the residual stream of a transformer, the parent's
            activation where parents have maps of their own. Only its size by position is used.
        mask: 1 at positions that are read, (B or 1, T). None: all are.
    """

    operator: LinearOperator
    edges: tuple[Edge, ...]
    read: Tensor
    mask: Tensor | None = None

    @property
    def target(self) -> str:
        """The node that is entered."""
        return self.edges[0].target

    @cached_property
    def rms(self) -> Tensor:
        """Rms of what is read at each position, (B, T); zero where masked."""
        rms: Tensor = torch.linalg.vector_norm(self.read, dim=-1) / math.sqrt(self.read.shape[2])
        return rms if self.mask is None else rms * self.mask

    def prompt(self, index: int) -> "Entry":
        """The entry of one prompt."""
        mask = None if self.mask is None else _pick(self.mask, index)
        return Entry(self.operator.prompt(index), self.edges, _pick(self.read, index), mask)

    def double(self) -> "Entry":
        """The entry in float64."""
        mask = None if self.mask is None else self.mask.double()
        return Entry(self.operator.double(), self.edges, self.read.double(), mask)


@dataclass(frozen=True)
class LinearizedCircuit:
    """A circuit with its activations and maps: all that the score needs.

    Attributes:
        circuit: the graph of the edges that carry something (`Circuit.carrying`): the given one without those that
            the linearization holds constant.
        stalks: one for each node.
        entries: for each node with parents, its entries; every edge is in one.
        linearization: `jacobian` or `frozen`.
        make_engine: which engine sweeps over these maps.
        edges_left_out: how many edges of the given circuit carry nothing under this linearization.
    """

    circuit: Circuit
    stalks: Mapping[str, Stalk]
    entries: Mapping[str, tuple[Entry, ...]]
    linearization: str
    make_engine: "Callable[[LinearizedCircuit], Engine]"
    edges_left_out: int = 0

    def engine(self) -> "Engine":
        """A new engine over these maps. Whatever it caches ends with it."""
        return self.make_engine(self)

    @property
    def batch(self) -> int:
        """How many prompts."""
        return max(stalk.activation.shape[0] for stalk in self.stalks.values())

    @property
    def dtype(self) -> torch.dtype:
        """The working precision."""
        return self.stalks[self.circuit.order[0]].activation.dtype

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.stalks[self.circuit.order[0]].activation.device

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, node by node in topological order."""
        return tuple(edge for node in self.circuit.inner for entry in self.entries[node] for edge in entry.edges)

    def edge_map(self, edge: Edge) -> LinearOperator:
        """rho_{u->v}: the entry's map on what this parent may write."""
        for entry in self.entries.get(edge.target, ()):
            if edge in entry.edges:
                source = self.stalks[edge.source]
                alike = source.mask is None or (entry.mask is not None and torch.equal(source.mask, entry.mask))
                return entry.operator if alike else columns_scaled(entry.operator, source.weights)
        raise KeyError(f"edge {edge} is not in the circuit under linearization {self.linearization!r}")

    def with_operators(self, change: Callable[[LinearOperator], LinearOperator]) -> "LinearizedCircuit":
        """The same circuit with every entry's operator changed."""
        return self._each_entry(lambda entry: replace(entry, operator=change(entry.operator)))

    def prompt(self, index: int) -> "LinearizedCircuit":
        """The circuit linearized at one prompt."""
        stalks = {node: stalk.prompt(index) for node, stalk in self.stalks.items()}
        return replace(self._each_entry(lambda entry: entry.prompt(index)), stalks=stalks)

    def double(self) -> "LinearizedCircuit":
        """Everything in float64."""
        if self.dtype == torch.float64:
            return self
        stalks = {node: stalk.double() for node, stalk in self.stalks.items()}
        return replace(self._each_entry(Entry.double), stalks=stalks)

    def without_reference(self) -> "LinearizedCircuit":
        """The same circuit without a reference set: zeros instead of means off the circuit."""
        stalks = {node: replace(stalk, mean=None, at_mean=None) for node, stalk in self.stalks.items()}
        return replace(self, stalks=stalks)

    def restrict(self, positions: str) -> "LinearizedCircuit":
        """Keeps `all` positions, `no_sink` (from the second token on) or the `last` one, and the circuit's own.

        What lies outside is off-circuit and constant: rows and columns of every map, and activations, are masked there.
        The read-out (`logits`) and stalks without positions stay whole.
        """
        from eics.linearized.positions import restricted

        return restricted(self, positions)

    def _each_entry(self, function: Callable[[Entry], Entry]) -> "LinearizedCircuit":
        entries = {node: tuple(map(function, entries)) for node, entries in self.entries.items()}
        return replace(self, entries=entries)


def _pick(tensor: Tensor, index: int) -> Tensor:
    return tensor[index % tensor.shape[0]].unsqueeze(0)
