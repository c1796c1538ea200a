"""The linearized circuit: every node's activation, and the linear maps into it, at one forward state.

A node reads through *entries*. An entry is one linear map shared by every edge that enters through it: in a
transformer all parents that use the same port share `D f_v(x_v)`; in an explicit circuit each edge has a
matrix, so each edge is an entry. Therefore

    edge map      rho_{u->v}   the map of the entry that the edge belongs to
    node map      J_v          the entries' maps side by side
    macro map     J_M          sum over all paths of products of edge maps, by one sweep (`eics.linearized.paths`)

Stalks are `T x d` numbers flattened; a batch axis for prompts comes first. A mask says which positions
count: padding, positions that the circuit leaves out and `positions="no_sink"` are all the same mechanism.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import OptionError
from eics.linalg.blocks import rows_of, to_block, zeros_by_vector
from eics.linalg.host_device import to_device, to_host
from eics.linalg.operators import LinearOperator, Writer, hstack
from eics.linalg.scaled import Scaled
from eics.linearized.junctions import Bundle, Junction, Widened


@dataclass(frozen=True)
class Stalk:
    """What a node wrote, for a batch of prompts.

    Attributes:
        activation: `a_v`, (B, T, d); zero where masked.
        constant: `b_v`, what the node would write if every upstream node wrote zero; (B or 1, T, d), zero
            where masked. Zero under `jacobian`.
        positions: the token position of each row, (T,), or None for a stalk without positions, which no
            restriction of positions touches.
        mask: 1 where a position counts, else 0; (B or 1, T). None: all count.
        mean: the reference's mean of `a_v`, (1, T, d), zero where masked. None: there is no reference.
        at_mean: what the linearized node writes where all that it reads is the reference's mean, (B or 1, T, d), zero
            where masked. None: there is no reference, or nothing enters.
        z: what the activation is `W z` of at each position, (B, T, e), zero where masked; None where it is of nothing.
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
    def flat_constant(self) -> Tensor:
        """`b_v` as one vector, (B or 1, T*d)."""
        return self.constant.flatten(1)

    @property
    def flat_rest(self) -> Tensor:
        """What the node writes where its parents write their means, (B or 1, T*d); `b_v` without a reference."""
        return (self.constant if self.at_mean is None else self.at_mean).flatten(1)

    def less_mean(self, block: Tensor) -> Tensor:
        """A block of writes of this node, (B, T*d, k), less the reference's mean; as it is without a reference."""
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
        return spread(self.mask, self.activation)

    @cached_property
    def lengths(self) -> Tensor:
        """||a_v|| at each position, (B, T)."""
        lengths: Tensor = torch.linalg.vector_norm(self.activation, dim=-1)
        return lengths

    @cached_property
    def squares(self) -> Tensor:
        """||a_v||^2 at each position, (B, T)."""
        return self.lengths.square()

    @cached_property
    def norm(self) -> Tensor:
        """||a_v||, (B,)."""
        norm: Tensor = torch.linalg.vector_norm(self.flat, dim=1)
        return norm

    @cached_property
    def rms(self) -> Tensor:
        """Of `a_v` at each position, (B, T); zero where masked."""
        return self.lengths / math.sqrt(self.activation.shape[2])

    @cached_property
    def inverse_rms(self) -> Tensor:
        """1 / rms, (B, T); zero where nothing is written."""
        inverse: Tensor = torch.nan_to_num(1.0 / self.rms, nan=torch.nan, posinf=0.0)
        return inverse

    def prompt(self, index: int) -> "Stalk":
        """The stalk of one prompt alone."""
        return self._each(lambda tensor: _pick(tensor, index))

    def double(self) -> "Stalk":
        """The stalk in float64."""
        return self._each(Tensor.double)

    def masked(self, mask: Tensor) -> "Stalk":
        """Zero where `mask` is."""
        by_row = mask.unsqueeze(2)
        return replace(self._each(lambda tensor: tensor * by_row if tensor.ndim == 3 else tensor), mask=mask)

    def _each(self, function: Callable[[Tensor], Tensor]) -> "Stalk":
        """The stalk with every tensor that goes by prompt changed."""
        others = (self.mask, self.mean, self.at_mean, self.z)
        mask, mean, at_mean, z = (None if tensor is None else function(tensor) for tensor in others)
        return Stalk(function(self.activation), function(self.constant), self.positions, mask, mean, at_mean, z)


@dataclass(frozen=True)
class Entry:
    """One linear map into a node and the edges that enter through it.

    Attributes:
        operator: rows are the node's stalk, columns the stalk that the edges carry.
        edges: never empty; their sources' stalks all have the operator's columns.
        read: what the node reads through this entry, (B, T, d): the residual stream of a transformer, the
            parent's activation where parents have maps of their own. Only its size by position is used.
        mask: 1 where a position is read, (B or 1, T). None: all are.
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
        """Of what is read at each position, (B, T); zero where masked."""
        rms: Tensor = torch.linalg.vector_norm(self.read, dim=-1) / math.sqrt(self.read.shape[2])
        return rms if self.mask is None else rms * self.mask

    def prompt(self, index: int) -> "Entry":
        """The entry of one prompt alone."""
        mask = None if self.mask is None else _pick(self.mask, index)
        return Entry(self.operator.prompt(index), self.edges, _pick(self.read, index), mask)

    def double(self) -> "Entry":
        """The entry in float64."""
        mask = None if self.mask is None else self.mask.double()
        return Entry(self.operator.double(), self.edges, self.read.double(), mask)


@dataclass(frozen=True)
class Level:
    """Nodes that do not read each other, computed together."""

    nodes: tuple[str, ...]
    junctions: tuple[Junction, ...]

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """Of a level whose values are writes all of them: its junctions."""
        return tuple(junction for junction in self.junctions if isinstance(junction, Bundle))


@dataclass(frozen=True)
class LinearizedCircuit:
    """A circuit with its activations and maps: all that the score needs.

    Attributes:
        circuit: the graph.
        stalks: one for each node.
        entries: for each node with parents, its entries. An edge in no entry carries nothing (under `frozen`
            the pattern is held, so `<q>` and `<k>` edges do) and is left out of every term.
        linearization: `jacobian` or `frozen`.
        shared: junctions by their entries' identities, with these entries.
    """

    circuit: Circuit
    stalks: Mapping[str, Stalk]
    entries: Mapping[str, tuple[Entry, ...]]
    linearization: str
    shared: dict[tuple[int, ...], tuple[Sequence[Entry], Junction]] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def batch(self) -> int:
        """How many prompts."""
        return max(stalk.activation.shape[0] for stalk in self.stalks.values())

    @property
    def dtype(self) -> torch.dtype:
        """The working precision."""
        return self.stalks[self.circuit.order[0]].activation.dtype

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges that carry something, node by node in topological order."""
        return tuple(edge for node in self.circuit.inner for entry in self.entries[node] for edge in entry.edges)

    @property
    def edges_left_out(self) -> int:
        """How many edges carry nothing under this linearization."""
        return len(self.circuit.edges) - len(self.edges)

    def edge_map(self, edge: Edge) -> LinearOperator:
        """rho_{u->v}: the entry's map on what this parent may write."""
        for entry in self.entries[edge.target]:
            if edge in entry.edges:
                source = self.stalks[edge.source]
                alike = source.mask is None or (entry.mask is not None and torch.equal(source.mask, entry.mask))
                operator = entry.operator
                return operator if alike else Scaled(operator, operator.left_ones(), source.weights)
        raise KeyError(f"edge {edge} carries nothing under linearization {self.linearization!r}")

    def node_map(self, node: str) -> LinearOperator | None:
        """J_v = [entry maps side by side]; None where nothing enters."""
        entries = self.entries[node]
        return hstack([entry.operator for entry in entries]) if entries else None

    def levels(self, nodes: Sequence[str] | None = None, *, short: bool = False) -> tuple[Level, ...]:
        """These nodes (all with parents, if not given) in topological order, heads of a layer together.

        `short`: for sweeps that carry z in place of the writes `W z` of the nodes that `writers` names.
        """
        chosen = self.circuit.inner if nodes is None else tuple(nodes)
        if (chosen, short) not in self._levels:
            make = self._short_level if short else self._level
            self._levels[chosen, short] = tuple(make(names) for names in _together(chosen))
        return self._levels[chosen, short]

    @cached_property
    def _levels(self) -> dict[tuple[tuple[str, ...], bool], tuple[Level, ...]]:
        return {}

    @cached_property
    def writers(self) -> dict[str, Writer]:
        """W of every node that something enters and that wrote `W z` at each position, z shorter than the write."""
        known = {}
        for node in self.circuit.inner:
            writer = self.entries[node][0].operator.writer if self.entries[node] else None
            z, width = self.stalks[node].z, self.stalks[node].width
            if writer is not None and z is not None and z.shape[2] < width:
                known[node] = writer
        return known

    def written(self, node: str, value: Tensor) -> Tensor:
        """A node's write, W z where z is what was carried."""
        if node not in self.writers:
            return value
        weight = self.writers[node].weight
        return to_block(rows_of(value, weight.shape[1]) @ weight.mT)

    def unwritten(self, node: str, cotangent: Tensor) -> Tensor:
        """The transpose."""
        if node not in self.writers:
            return cotangent
        weight = self.writers[node].weight
        return to_block(rows_of(cotangent, weight.shape[0]) @ weight)

    @property
    def junctions(self) -> Iterator[Junction]:
        """Those of all levels, values of `writers` carried as z."""
        return (junction for level in self.levels(short=True) for junction in level.junctions)

    def _level(self, nodes: tuple[str, ...]) -> Level:
        entries = [entry for node in nodes for entry in self.entries[node]]
        return Level(nodes, tuple(Bundle.of(some) for some in _by_key(entries, lambda e: e.operator.kin)))

    def _short_level(self, nodes: tuple[str, ...]) -> Level:
        entries = [entry for node in nodes for entry in self.entries[node]]
        found: list[Junction] = []
        for some in _by_key(entries, self._short_key):
            if some[0].target in self.writers:
                found.append(self._made(some))
            elif self._reads_short(some[0]):
                found.append(Widened(some[0], self.writers))
            else:
                found.append(Bundle.of(some))
        return Level(nodes, tuple(found))

    def _short_key(self, entry: Entry) -> object:
        """Of the entries that share a junction where z are carried."""
        if entry.target in self.writers:
            return entry.operator.home
        return None if self._reads_short(entry) else entry.operator.kin

    def _reads_short(self, entry: Entry) -> bool:
        return any(edge.source in self.writers for edge in entry.edges)

    def _made(self, entries: Sequence[Entry]) -> Junction:
        """Once for all circuits that have these entries in common, as a narrowed one does."""
        key = tuple(map(id, entries))
        if key not in self.shared:
            self.shared[key] = entries, entries[0].operator.junction(entries, self.writers, self.stalks)
        return self.shared[key][1]

    def carry(self, level: Level, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """sum_u rho_{u->v} values_u: one product for an entry, however many parents share it, or for a bundle of them.

        `values` holds blocks (B, dim_u, k); gives (B, dim_v, k) for each node of the level.
        """
        carried: dict[str, Tensor] = {}
        for junction in level.junctions:
            for node, image in junction.carry(values):
                known = carried.get(node)
                carried[node] = image if known is None else known + image
        like = next(iter(values.values()))
        for node in level.nodes:
            if node not in carried:
                carried[node] = zeros_by_vector(like, self.stalks[node].dim)
        return carried

    def pull(self, level: Level, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """rho_{u->v}^T cotangent_v for each edge into the level's nodes, with its source; computed once for an entry.

        A node without a cotangent has none; `cotangents` must hold that of one of the nodes at least.
        """
        for junction in level.junctions:
            yield from junction.pull(cotangents)

    def narrowed(self, targets: Sequence[str]) -> "LinearizedCircuit":
        """The same maps for sweeps to `targets` alone: a node that is read at one position of each prompt only (the
        read-out's, by MLPs and the read-out) is computed there only."""
        entries = dict(self.entries)
        readers: dict[str, list[Tensor | None]] = {}
        for node in reversed(self.circuit.inner):
            places = readers.get(node, [])
            first = places[0] if places and node not in targets else None
            if first is not None and all(other is first for other in places):
                entries[node] = tuple(replace(e, operator=e.operator.written_at(first)) for e in entries[node])
            for entry in entries[node]:
                for edge in entry.edges:
                    readers.setdefault(edge.source, []).append(entry.operator.reads)
        changed = any(entries[node] is not self.entries[node] for node in entries)
        return replace(self, entries=entries) if changed else self

    def prompt(self, index: int) -> "LinearizedCircuit":
        """The circuit linearized at one prompt alone."""
        return replace(
            self,
            stalks={node: stalk.prompt(index) for node, stalk in self.stalks.items()},
            entries={node: tuple(e.prompt(index) for e in entries) for node, entries in self.entries.items()},
        )

    def remembering(self) -> "LinearizedCircuit":
        """The same maps for many products."""
        entries = {
            node: tuple(replace(e, operator=e.operator.remembering()) for e in entries)
            for node, entries in self.entries.items()
        }
        return replace(self, entries=entries, shared={})

    def without_reference(self) -> "LinearizedCircuit":
        """The same with nothing instead of means off the circuit."""
        return replace(
            self, stalks={node: replace(stalk, mean=None, at_mean=None) for node, stalk in self.stalks.items()}
        )

    def double(self) -> "LinearizedCircuit":
        """Everything in float64."""
        if self.dtype == torch.float64:
            return self
        return replace(
            self,
            stalks={node: stalk.double() for node, stalk in self.stalks.items()},
            entries={node: tuple(e.double() for e in entries) for node, entries in self.entries.items()},
        )

    def restrict(self, positions: str) -> "LinearizedCircuit":
        """Keeps `all` positions, `no_sink` (from the second token on) or the `last` one, and the circuit's own.

        What lies outside is off-circuit and constant: rows and columns of every map, and activations, are
        masked there. The read-out (`logits`) and stalks without positions stay whole.
        """
        known: dict[object, Tensor | None] = {}  # most nodes keep the same positions: asked once
        masks: dict[str, Tensor | None] = {}
        for node in self.circuit.order:
            stalk, own = self.stalks[node], self.circuit.positions.get(node)
            key = (id(stalk.positions), id(stalk.mask), own, Node.parse(node).kind is Kind.LOGITS)
            masks[node] = known[key] if key in known else known.setdefault(key, self._kept(node, positions))
        if all(mask is None for mask in masks.values()):
            return self
        stalks = dict(self.stalks)
        for node, mask in masks.items():
            if mask is not None:
                stalks[node] = stalks[node].masked(mask)
        unions: dict[object, Tensor | None] = {}
        entries = {
            node: tuple(_mask_entry(entry, stalks, unions) for entry in entries)
            for node, entries in self.entries.items()
        }
        return replace(self, stalks=stalks, entries=entries)

    def _kept(self, node: str, option: str) -> Tensor | None:
        """The node's mask under this option, None where nothing changes."""
        stalk = self.stalks[node]
        if stalk.positions is None or Node.parse(node).kind is Kind.LOGITS:
            return stalk.mask
        if option == "all" and node not in self.circuit.positions:
            return stalk.mask
        positions, valid = stalk.positions, stalk.mask
        keep = torch.ones_like(positions, dtype=torch.bool).unsqueeze(0)
        if option == "no_sink":
            keep = keep & (positions >= 1)
        elif option == "last":
            counted = positions if valid is None else positions.masked_fill(valid == 0, -1)
            keep = keep & (positions == counted.amax(dim=-1, keepdim=True))
        if node in self.circuit.positions:
            own = to_device(self.circuit.positions[node], positions.device)
            keep = keep & torch.isin(positions, own)
        if valid is not None:
            keep = keep & (valid > 0)
        some, every = to_host(torch.stack([keep.any(dim=1).all(), keep.all()]))
        if not some:
            raise OptionError(
                f"Restricting positions to {option!r} must leave every node a position. "
                f"Node {node!r} has none left: use positions='all', longer prompts or other positions for the node."
            )
        return None if every else keep.to(self.dtype)


def _together(nodes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Runs of heads of a layer; every other node alone."""
    for _, run in groupby(map(Node.parse, nodes), key=lambda node: node.rank if node.kind is Kind.HEAD else node.name):
        yield tuple(node.name for node in run)


def by_position(stalk: Tensor) -> Tensor:
    """Squared norm at each position: (..., T, d) to (..., T)."""
    lengths: Tensor = torch.linalg.vector_norm(stalk, dim=-1)
    return lengths.square()


def _by_key(entries: Sequence[Entry], key: Callable[[Entry], object]) -> Iterator[list[Entry]]:
    """Entries with an equal key together; one without a key alone."""
    groups: dict[object, list[Entry]] = {}
    for entry in entries:
        known = key(entry)
        groups.setdefault(("alone", id(entry)) if known is None else known, []).append(entry)
    yield from groups.values()


def spread(mask: Tensor | None, like: Tensor) -> Tensor:
    """A mask by position, (B or 1, T), repeated for the coordinates of `like` (B, T, d): (B or 1, T*d)."""
    _, length, width = like.shape
    if mask is None:
        return like.new_ones(1, length * width)
    return mask.repeat_interleave(width, dim=1)


def _pick(tensor: Tensor, index: int) -> Tensor:
    return tensor[index % tensor.shape[0]].unsqueeze(0)


def _mask_entry(entry: Entry, stalks: Mapping[str, Stalk], unions: dict[object, Tensor | None]) -> Entry:
    """Rows as the node keeps them, columns that any parent of the entry keeps; `unions` are those known already."""
    target = stalks[entry.target]
    masks = {id(mask): mask for mask in (stalks[edge.source].mask for edge in entry.edges)}
    key = frozenset(masks)
    read = unions[key] if key in unions else unions.setdefault(key, _union(list(masks.values())))
    left, right = (
        like.new_ones(1, like.shape[1]) if mask is None else mask
        for mask, like in ((target.mask, target.activation), (read, entry.read))
    )
    return replace(entry, operator=Scaled(entry.operator, left, right), mask=read)


def _union(masks: Sequence[Tensor | None]) -> Tensor | None:
    known = [mask for mask in masks if mask is not None]
    if len(known) < len(masks):
        return None
    if len(known) == 1:
        return known[0]
    return torch.stack(torch.broadcast_tensors(*known)).amax(dim=0)
