"""Heads of a layer from the z of the heads that they read, by virtual weights.

Through a port, head v reads `W N a_u = (W diag(w) P a_u) / s - (W diag(w) c) (c . a_u) / (d s^3)`. If the parent is a
head, `a_u = W_O z_u`, and the e x e matrix `W diag(w) P W_O` of weights alone maps z_u at the cost of e numbers instead
of d; likewise `c . a_u = (W_O^T c) . z_u`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import add, cat_batches, mix, project, rescale, to_block, to_rows, zeros_by_vector
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import Scaled
from eics.linearized.circuit import Entry, Stalk
from eics.transformer.attention import pick
from eics.transformer.closed_forms.head import terms_of
from eics.transformer.fast_sweep.from_z import OutputFactor
from eics.transformer.fast_sweep.steps import StepPredictions, SweepStep
from eics.transformer.head import HeadMap

Column = tuple[int, int]
"""A head and one of its ports, as indices into the lists of the step."""


@dataclass(frozen=True)
class _Group:
    """Parents that enter the same n columns, all carried as z (`by_z`) or all as writes.

    `edges` are each parent's, column by column. Their z stand side by side, their writes are added up, in `width`
    numbers: `weight` is (width, n*e), and `point` is the norm's c, (B, T, width), or W_O^T c.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[Edge, ...], ...]
    columns: tuple[Column, ...]
    weight: Tensor
    point: Tensor
    by_z: bool

    def together(self, rows: Sequence[Tensor]) -> Tensor:
        """What the parents carry, (B or 1, k, T, .) each, in one tensor: (B, k, T, width)."""
        if not self.by_z:
            return add(iter(rows))
        shape = torch.broadcast_shapes(*(one.shape for one in rows))
        return torch.cat([one.expand(shape) for one in rows], dim=-1)

    def apart(self, block: Tensor) -> Iterator[Tensor]:
        """The transpose: what comes back to each parent."""
        return iter(block.chunk(len(self.names), dim=-1) if self.by_z else [block] * len(self.names))


class HeadStep(SweepStep):
    """Every map into the heads of one layer. All ports of a head go together, since `dS = dq k^T + q dk^T` is one."""

    def __init__(
        self, entries: Sequence[Entry], factors: Mapping[str, OutputFactor], stalks: Mapping[str, Stalk]
    ) -> None:
        maps = [_base(entry.operator) for entry in entries]
        self.places = sorted({one.places[0] for one in maps})
        ports = "".join(port for port in "qkv" if any(port in one.through for one in maps))
        self.heads = HeadMap(maps[0].state, self.places, ports)
        self.maps = {edge: one for one, entry in zip(maps, entries, strict=True) for edge in entry.edges}
        names = {one.places[0]: entry.target for one, entry in zip(maps, entries, strict=True)}
        self.names = [names[place] for place in self.places]
        self.masks = [stalks[name].mask for name in self.names]
        self.core = _Core(self.heads)
        self.every = tuple((head, port) for head in range(len(self.places)) for port in range(len(ports)))
        by_source: dict[str, list[Edge]] = {}
        for edge in sorted(self.maps, key=self._columns):
            by_source.setdefault(edge.source, []).append(edge)
        alike: dict[tuple[tuple[Column, ...], bool], list[str]] = {}
        for name, edges in by_source.items():
            columns = tuple(column for edge in edges for column in self._columns(edge))
            alike.setdefault((columns, name in factors), []).append(name)
        self.groups = [
            self._group(names, [tuple(by_source[name]) for name in names], columns, factors if by_z else None)
            for (columns, by_z), names in alike.items()
        ]

    def _group(
        self,
        names: Sequence[str],
        edges: Sequence[tuple[Edge, ...]],
        columns: tuple[Column, ...],
        factors: Mapping[str, OutputFactor] | None,
    ) -> _Group:
        spec, point = self.heads.state.spec, self.heads.state.norm.point
        weight = self._weight(columns).mT
        if factors is None:
            return _Group(tuple(names), tuple(edges), columns, weight, point, by_z=False)
        some = [factors[name] for name in names]
        known = tuple((self.heads.state.heads[self.places[head]], self.heads.ports[port]) for head, port in columns)
        made_of = (spec.w_q, spec.w_k, spec.w_v, spec.norm.weight, *(factor.origin for factor in some))
        virtual = spec.cache.get(
            ("virtual", tuple(factor.key for factor in some), known, point.dtype),
            made_of,
            lambda: torch.cat([factor.weight.mT @ weight for factor in some]),
        )
        points = mix(point, torch.cat([factor.weight for factor in some], dim=1))
        return _Group(tuple(names), tuple(edges), columns, virtual, points, by_z=True)

    def _columns(self, edge: Edge) -> list[Column]:
        map_ = self.maps[edge]
        return [(self.places.index(map_.places[0]), self.heads.ports.index(port)) for port in map_.ports]

    def _weight(self, columns: Sequence[Column]) -> Tensor:
        """W diag(w) P, (n*e, d)."""
        width = self.core.width
        if tuple(columns) == self.every:
            return self.heads.w_in.flatten(0, 1)
        return torch.cat([self.heads.w_in[head, port * width : (port + 1) * width] for head, port in columns])

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Reads of all parents, added up by column; then the attention patterns."""
        norm = self.heads.state.norm
        found = []
        for group in self.groups:
            width = group.weight.shape[0] // (len(group.names) if group.by_z else 1)
            rows = group.together([to_rows(values[name], width) for name in group.names])
            found.append((group.columns, *self._read(rows, group)))
        reads, along = self._added(found)  # (H, B, k, T, ports*e)
        reads = reads / norm.scale.unsqueeze(1)
        if along is not None:
            reads.addcmul_(self.heads.along, along, value=-1.0)
        z = self.core.mv(to_block(reads.flatten(0, 1))).chunk(len(self.names))
        for name, mask, block in zip(self.names, self.masks, z, strict=True):
            yield name, _masked(block, mask)

    def _read(self, rows: Tensor, group: _Group) -> tuple[Tensor, Tensor | None]:
        """From rows (B, k, T, width) to W diag(w) P a_u for each column, (B, k, T, n*e), and c . a_u, (B, k, T, 1)."""
        images = mix(rows, group.weight)
        if self.heads.state.norm.frozen:
            return images, None
        return images, (rows * group.point.unsqueeze(1)).sum(dim=-1, keepdim=True)

    def _added(self, found: Sequence[tuple[tuple[Column, ...], Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
        """The reads of all groups added up by column, (H, B, k, T, ports*e); and c . a_u likewise."""
        width, ports, heads = self.core.width, len(self.heads.ports), len(self.places)
        if all(columns == self.every for columns, _, _ in found):
            total = add(image for _, image, _ in found).unflatten(-1, (heads, -1)).movedim(-2, 0)
            known = [taken for _, _, taken in found if taken is not None]
            return total, add(iter(known)) if known else None
        shape = torch.broadcast_shapes(*(image.shape[:-1] for _, image, _ in found))
        total = found[0][1].new_zeros(heads, *shape, ports * width)
        along = None if self.heads.state.norm.frozen else torch.zeros_like(total)
        for columns, image, taken in found:
            for (head, port), one in zip(columns, image.split(width, dim=-1), strict=True):
                there = slice(port * width, (port + 1) * width)
                total[head, ..., there].add_(one)
                if along is not None and taken is not None:
                    along[head, ..., there].add_(taken)
        return total, along

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        if not any(name in cotangents for name in self.names):
            return
        norm, width = self.heads.state.norm, self.core.width
        like = next(iter(cotangents.values()))
        zero = zeros_by_vector(like, self.core.rows)
        pairs = zip(self.names, self.masks, strict=True)
        z = [_masked(cotangents[name], mask) if name in cotangents else zero for name, mask in pairs]
        block = z[0] if len(z) == 1 else cat_batches([one.mT for one in z], self.heads.shape[1]).mT
        back = to_rows(self.core.rmv(block), self.core.cols // self.heads.shape[2])
        rows = self.heads.by_head(back)  # (H, B, k, T, ports*e)
        along = None if norm.frozen else (rows * self.heads.along).unflatten(-1, (-1, width)).sum(dim=-1)
        reads = rows / norm.scale.unsqueeze(1)
        for group in self.groups:
            block = mix(self._picked(reads, group.columns), group.weight.mT)
            if along is not None:
                taken = self._picked(along, group.columns).sum(dim=-1, keepdim=True)
                block.addcmul_(group.point.unsqueeze(1), taken, value=-1.0)
            yield from zip(group.names, map(to_block, group.apart(block)), strict=True)

    def _picked(self, by_head: Tensor, columns: Sequence[Column]) -> Tensor:
        """The columns of (H, B, k, T, ports*m) side by side: (B, k, T, n*m)."""
        if tuple(columns) == self.every:
            return by_head[0] if len(by_head) == 1 else by_head.movedim(0, -2).flatten(-2)
        width = by_head.shape[-1] // len(self.heads.ports)
        return torch.cat([by_head[head, ..., port * width : (port + 1) * width] for head, port in columns], dim=-1)

    def predictions(self, stalks: Mapping[str, Stalk]) -> Iterator[StepPredictions]:
        """`R dz` beside `R z` in place of `W_O dz` beside `W_O z`, with W_O = Q R: e numbers a position instead of d.

        Edges through the same ports are computed together, each as one vector of its head.
        """
        by_ports: dict[str, list[_Read]] = {}
        for group in self.groups:
            reads, taken = self._read_apart(group, stalks)
            start = 0
            for edges in zip(*group.edges, strict=True):
                ports = "".join(self.maps[edges[0]].ports)
                end = start + len(ports) * self.core.width
                by_ports.setdefault(ports, []).append(_Read(edges, reads[..., start:end], taken))
                start = end
        _, batch, length, _ = self.heads.shape
        width = chunk_width(batch * length * max(length, self.core.width), self.heads.dtype)
        for ports, some in by_ports.items():
            ordered = sorted(some, key=lambda one: self.maps[one.edges[0]].places)
            for together in _at_most(ordered, width):
                yield self._predictions(ports, together, stalks)

    def _read_apart(self, group: _Group, stalks: Mapping[str, Stalk]) -> tuple[Tensor, Tensor | None]:
        """The reads of each parent of a group: (parents, B, T, n*e), and c . a_u, (parents, B, T, 1)."""
        of = [stalks[name].z if group.by_z else stalks[name].activation for name in group.names]
        rows = torch.stack([one.expand(self.heads.shape[1], -1, -1) for one in of if one is not None])
        weight, point = group.weight, group.point
        if group.by_z:
            weight = weight.unflatten(0, (len(group.names), -1))
            point = point.unflatten(-1, (len(group.names), -1)).movedim(-2, 0)
            reads = project(rows, weight)
        else:
            reads = mix(rows, weight)
        if self.heads.state.norm.frozen:
            return reads, None
        return reads, (rows * point).sum(dim=-1, keepdim=True)

    def _predictions(self, ports: str, some: Sequence["_Read"], stalks: Mapping[str, Stalk]) -> StepPredictions:
        norm = self.heads.state.norm
        edges = [edge for one in some for edge in one.edges]
        places = [self.maps[edge].places[0] for edge in edges]
        rows = torch.cat([one.rows for one in some]) / norm.scale  # (edges, B, T, ports*e)
        taken = None if norm.frozen else torch.cat([one.taken for one in some if one.taken is not None])
        one = len(set(places)) == 1  # the edges of one head are vectors of it
        heads = HeadMap(self.heads.state, places[:1] if one else places, ports)
        at = [self.places.index(place) for place in heads.places]
        rows = rows.transpose(0, 1).unsqueeze(0) if one else rows.unsqueeze(2)  # (heads, B, k, T, ports*e)
        if taken is not None:
            taken = taken.transpose(0, 1).unsqueeze(0) if one else taken.unsqueeze(2)
            rows = torch.addcmul(rows, self._along(at, ports), taken, value=-1.0)
        z = heads.z_from(dict(zip(ports, rows.chunk(len(ports), dim=-1), strict=True)))
        predicted = project(z, pick(self._r, at).mT)
        image = predicted.squeeze(0) if one else predicted.squeeze(2).transpose(0, 1)  # (B, edges, T, e)
        if any(mask is not None for mask in self.masks):
            ones = image.new_ones(1, image.shape[2])
            masks = [ones if self.masks[head] is None else self.masks[head] for head in at]
            image = image * torch.stack([m.expand(len(image), -1) for m in masks if m is not None], dim=1).unsqueeze(-1)
        observed = pick(self._observed(stalks), at).transpose(0, 1)
        return StepPredictions(tuple(edges), image, observed, are_writes=False)

    def _along(self, at: Sequence[int], ports: str) -> Tensor:
        """W diag(w) c over d s^3 of these heads through these ports, (heads, B, 1, T, ports*e)."""
        along, width = pick(self.heads.along, at), self.core.width
        if tuple(ports) == self.heads.ports:
            return along
        columns = along.split(width, dim=-1)
        return torch.cat([columns[self.heads.ports.index(port)] for port in ports], dim=-1)

    def _observed(self, stalks: Mapping[str, Stalk]) -> Tensor:
        """R z by head as it was observed, (H, B, T, e)."""
        known = [stalks[name].z for name in self.names]
        return project(torch.stack([z for z in known if z is not None]), self._r.mT)

    @cached_property
    def _r(self) -> Tensor:
        """R of W_O = Q R by head, (H, e, e)."""
        return terms_of(self.heads).factor


class _Core(LinearOperator):
    """From what heads read through their ports, side by side, (H*B, T*ports*e, k), to z, (H*B, T*e, k)."""

    def __init__(self, heads: HeadMap) -> None:
        self.heads, self.width = heads, heads.w_o.shape[2]
        rows = heads.shape[2] * self.width
        self._like(heads, rows=rows, cols=len(heads.ports) * rows, batch=heads.batch)

    def mv(self, x: Tensor) -> Tensor:
        reads = self.heads.by_head(to_rows(x, self.cols // self.heads.shape[2])).chunk(len(self.heads.ports), dim=-1)
        z = self.heads.z_from(dict(zip(self.heads.ports, reads, strict=True)))
        return to_block(z.flatten(0, 1))

    def rmv(self, y: Tensor) -> Tensor:
        z = self.heads.by_head(to_rows(y, self.width))
        return to_block(torch.cat([rows for _, rows in self.heads.from_z(z)], dim=-1).flatten(0, 1))

    def prompt(self, index: int) -> "_Core":
        return _Core(self.heads.prompt(index))

    def double(self) -> "_Core":
        return _Core(self.heads.double())


@dataclass(frozen=True)
class _Read:
    """Edges of several parents into the same columns of a head: the read of each, (edges, B, T, ports*e), and c . a_u,
    (edges, B, T, 1)."""

    edges: tuple[Edge, ...]
    rows: Tensor
    taken: Tensor | None


def _at_most(reads: Sequence[_Read], width: int) -> Iterator[list[_Read]]:
    """The reads in order, in chunks of at most `width` edges."""
    some: list[_Read] = []
    count = 0
    for read in reads:
        for start in range(0, len(read.edges), width):
            end = min(start + width, len(read.edges))
            if some and count + end - start > width:
                yield some
                some, count = [], 0
            taken = None if read.taken is None else read.taken[start:end]
            some.append(_Read(read.edges[start:end], read.rows[start:end], taken))
            count += end - start
    if some:
        yield some


def layer_key(operator: LinearOperator) -> int:
    """Entries of one layer, whatever the port, share a step."""
    return id(_base(operator).state)


def _base(operator: LinearOperator) -> HeadMap:
    base = operator.base if isinstance(operator, Scaled) else operator
    assert isinstance(base, HeadMap)
    return base


def _masked(block: Tensor, mask: Tensor | None) -> Tensor:
    """A block of z, (B, T*e, k), zero where the node's stalk is."""
    return block if mask is None else rescale(mask, block)
