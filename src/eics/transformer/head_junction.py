"""Heads of a layer, from the z of the heads that they read: virtual weights.

Through a port, head v reads `W N a_u = (W diag(w) P a_u) / s - (W diag(w) c) (c . a_u) / (d s^3)`. Where the parent is
a head, `a_u = W_O z_u`, and the e x e matrix `W diag(w) P W_O` depends on weights alone: it takes z_u through at the
cost of e numbers instead of d, and `c . a_u = (W_O^T c) . z_u`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.circuit import Edge
from eics.junctions import Images, Junction
from eics.linearize import Entry, Stalk
from eics.memory import chunk_width
from eics.operators import LinearOperator, Scaled, Writer
from eics.transformer.attention import pick
from eics.transformer.blocks import mix, project
from eics.transformer.heads import HeadMap
from eics.vectors import rescale, rows_of, to_block

Column = tuple[int, int]
"""A head, and a port of it: places in the junction's lists of them."""


@dataclass(frozen=True)
class _Source:
    """A parent, its edges, and the n columns that they enter, edge by edge.

    `weight` is (n*e, d), or (n*e, e) for a parent that is read as z; `point` is the norm's c, (B, T, d), or W_O^T c,
    (B, T, e).
    """

    edges: tuple[Edge, ...]
    columns: tuple[Column, ...]
    weight: Tensor
    point: Tensor
    short: bool

    @property
    def name(self) -> str:
        return self.edges[0].source


class HeadJunction(Junction):
    """Every map into heads of one layer. All ports of a head go together: `dS = dq k^T + q dk^T` is one."""

    def __init__(self, entries: Sequence[Entry], writers: Mapping[str, Writer], stalks: Mapping[str, Stalk]) -> None:
        maps = [_base(entry.operator) for entry in entries]
        self.places = sorted({one.places[0] for one in maps})
        ports = "".join(port for port in "qkv" if any(port in one.through for one in maps))
        self.heads = HeadMap(maps[0].state, self.places, ports)
        self.ways = {edge: one for one, entry in zip(maps, entries, strict=True) for edge in entry.edges}
        names = {one.places[0]: entry.target for one, entry in zip(maps, entries, strict=True)}
        self.names = [names[place] for place in self.places]
        self.masks = [stalks[name].mask for name in self.names]
        self.core = _Core(self.heads)
        by_source: dict[str, list[Edge]] = {}
        for edge in self.ways:
            by_source.setdefault(edge.source, []).append(edge)
        short = [writers[name] for name in by_source if name in writers]
        points = iter(self._points(short))
        self.sources = [
            self._source(tuple(edges), writers[name], next(points))
            if name in writers
            else self._source(tuple(edges), None, self.heads.state.norm.point)
            for name, edges in by_source.items()
        ]

    def _points(self, writers: Sequence[Writer]) -> Sequence[Tensor]:
        """W_O^T c of each, (B, T, e)."""
        if not writers:
            return []
        weights = torch.cat([writer.weight for writer in writers], dim=1)
        points = mix(self.heads.state.norm.point, weights)
        return list(points.split([writer.weight.shape[1] for writer in writers], dim=2))

    def _source(self, edges: tuple[Edge, ...], writer: Writer | None, point: Tensor) -> _Source:
        columns = tuple(column for edge in edges for column in self._columns(edge))
        if writer is None:
            return _Source(edges, columns, self._weight(columns), point, short=False)
        spec = self.heads.state.spec
        known = tuple((self.heads.state.heads[self.places[head]], self.heads.ports[port]) for head, port in columns)
        weights = (spec.w_q, spec.w_k, spec.w_v, spec.norm.weight, writer.origin)
        weight = spec.kept.get(
            ("virtual", writer.key, known, point.dtype), weights, lambda: self._weight(columns) @ writer.weight
        )
        return _Source(edges, columns, weight, point, short=True)

    def _columns(self, edge: Edge) -> list[Column]:
        way = self.ways[edge]
        return [(self.places.index(way.places[0]), self.heads.ports.index(port)) for port in way.ports]

    def _weight(self, columns: Sequence[Column]) -> Tensor:
        """W diag(w) P, (n*e, d)."""
        width = self.core.width
        return torch.cat([self.heads.w_in[head, port * width : (port + 1) * width] for head, port in columns])

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Reads of every parent, added up by column; then patterns."""
        norm, width = self.heads.state.norm, self.core.width
        heads, batch, length, _ = self.heads.shape
        vectors = max(values[source.name].shape[2] for source in self.sources)
        reads = self.heads.state.read.new_zeros(heads, batch, vectors, len(self.heads.ports), length, width)
        along = torch.zeros_like(reads[..., :1])
        for source in self.sources:
            images, taken = self._read(source, rows_of(values[source.name], source.weight.shape[1]))
            for (head, port), image in zip(source.columns, images, strict=True):
                reads[head, :, :, port] += image
                if taken is not None:
                    along[head, :, :, port] += taken
        reads /= norm.scale[:, None, None]
        if not norm.frozen:
            reads.addcmul_(self.core.along, along, value=-1.0)
        z = self.core.mv(reads.flatten(3).flatten(0, 1).mT).chunk(heads)
        for name, mask, block in zip(self.names, self.masks, z, strict=True):
            yield name, _masked(block, mask)

    def _read(self, source: _Source, rows: Tensor) -> tuple[Sequence[Tensor], Tensor | None]:
        """W diag(w) P a_u for each column, (B, k, T, e), and c . a_u, (B, k, T, 1), for rows (B, k, T, .)."""
        images = mix(rows, source.weight.mT).split(self.core.width, dim=-1)
        if self.heads.state.norm.frozen:
            return images, None
        return images, (rows * source.point.unsqueeze(1)).sum(dim=-1, keepdim=True)

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The transpose."""
        if not any(name in cotangents for name in self.names):
            return
        norm, width = self.heads.state.norm, self.core.width
        heads, batch, length, _ = self.heads.shape
        like = next(iter(cotangents.values()))
        z = like.new_zeros(heads, batch, like.shape[2], length * width)
        for place, (name, mask) in enumerate(zip(self.names, self.masks, strict=True)):
            if name in cotangents:
                z[place] = _masked(cotangents[name], mask).mT
        rows = self.core.rmv(z.flatten(0, 1).mT).mT
        reads = rows.view(heads, batch, like.shape[2], len(self.heads.ports), length, width)
        along = None if norm.frozen else (reads * self.core.along).sum(dim=-1, keepdim=True)
        reads = reads / norm.scale[:, None, None]
        for source in self.sources:
            back = mix(torch.cat([reads[head, :, :, port] for head, port in source.columns], dim=-1), source.weight)
            if along is not None:
                taken = torch.stack([along[head, :, :, port] for head, port in source.columns]).sum(dim=0)
                back.addcmul_(source.point.unsqueeze(1), taken, value=-1.0)
            yield source.name, to_block(back)

    def images(self, stalks: Mapping[str, Stalk]) -> Iterator[Images]:
        """`W_O dz` beside `W_O z` as `R dz` beside `R z`, with W_O = Q R: e numbers a position instead of d.

        Edges through the same ports go together, each with its head's state and with one vector.
        """
        by_way: dict[str, list[tuple[Edge, list[Tensor], Tensor | None]]] = {}
        for source in self.sources:
            stalk = stalks[source.name]
            activation = stalk.z if source.short else stalk.activation
            assert activation is not None
            images, taken = self._read(source, activation.expand(self.heads.shape[1], -1, -1).unsqueeze(1))
            left = iter(images)
            for edge in source.edges:
                ports = "".join(self.ways[edge].ports)
                by_way.setdefault(ports, []).append((edge, [next(left) for _ in ports], taken))
        _, batch, length, _ = self.heads.shape
        width = chunk_width(batch * length * max(length, self.core.width), self.heads.dtype)
        for ports, some in by_way.items():
            ordered = sorted(some, key=lambda one: self.ways[one[0]].places)
            for start in range(0, len(ordered), width):
                yield from self._images(ports, ordered[start : start + width], stalks)

    def _images(
        self, ports: str, some: Sequence[tuple[Edge, list[Tensor], Tensor | None]], stalks: Mapping[str, Stalk]
    ) -> Iterator[Images]:
        norm = self.heads.state.norm
        edges = [edge for edge, _, _ in some]
        heads = HeadMap(self.heads.state, [self.ways[edge].places[0] for edge in edges], ports)
        at = [self.places.index(place) for place in heads.places]
        read = {}
        for place, port in enumerate(ports):
            rows = torch.stack([reads[place] for _, reads, _ in some]) / norm.scale.unsqueeze(1)  # (edges, B, 1, T, e)
            if not norm.frozen:
                taken = torch.stack([one for _, _, one in some if one is not None])
                rows.addcmul_(pick(self.core.along, at)[:, :, :, self.heads.ports.index(port)], taken, value=-1.0)
            read[port] = rows
        predicted = project(heads.z_from(read), pick(self._r, at).mT).squeeze(2)  # (edges, B, T, e)
        image = predicted.transpose(0, 1)  # (B, edges, T, e)
        if any(mask is not None for mask in self.masks):
            ones = image.new_ones(1, image.shape[2])
            masks = [ones if self.masks[head] is None else self.masks[head] for head in at]
            image = image * torch.stack([m.expand(len(image), -1) for m in masks if m is not None], dim=1).unsqueeze(-1)
        yield Images(tuple(edges), image, pick(self._observed(stalks), at).transpose(0, 1), written=False)

    def _observed(self, stalks: Mapping[str, Stalk]) -> Tensor:
        """R z by head as it was observed, (H, B, T, e)."""
        known = [stalks[name].z for name in self.names]
        return project(torch.stack([z for z in known if z is not None]), self._r.mT)

    @cached_property
    def _r(self) -> Tensor:
        """R of W_O = Q R by head, (H, e, e)."""
        return self.heads.terms.factor


class _Core(LinearOperator):
    """From what heads read through their ports, port by port, (H*B, ports*T*e, k), to z, (H*B, T*e, k)."""

    def __init__(self, heads: HeadMap) -> None:
        self.heads, self.width = heads, heads.w_o.shape[2]
        self.inside = (len(heads.ports), heads.shape[2], self.width)
        rows = heads.shape[2] * self.width
        self._like(heads, rows=rows, cols=len(heads.ports) * rows, batch=heads.batch)

    @cached_property
    def along(self) -> Tensor:
        """The heads', port by port: (H, B, 1, ports, T, e)."""
        by_port: Tensor = self.heads.along.unflatten(-1, (-1, self.width))
        return by_port.movedim(-2, -3).contiguous()

    def mv(self, x: Tensor) -> Tensor:
        """dz."""
        reads = x.mT.reshape(*self.heads.shape[:2], x.shape[2], *self.inside)
        z = self.heads.z_from(dict(zip(self.heads.ports, reads.unbind(dim=3), strict=True)))
        return to_block(z.flatten(0, 1))

    def rmv(self, y: Tensor) -> Tensor:
        """The transpose."""
        z = y.mT.reshape(*self.heads.shape[:2], y.shape[2], *self.inside[1:])
        reads = torch.stack([rows for _, rows in self.heads.from_z(z)], dim=3)
        return reads.flatten(0, 1).flatten(2).mT

    def prompt(self, index: int) -> "_Core":
        """One head's, for one prompt."""
        return _Core(self.heads.prompt(index))

    def double(self) -> "_Core":
        """In float64."""
        return _Core(self.heads.double())


def _base(operator: LinearOperator) -> HeadMap:
    base = operator.base if isinstance(operator, Scaled) else operator
    assert isinstance(base, HeadMap)
    return base


def _masked(block: Tensor, mask: Tensor | None) -> Tensor:
    """A block of z, (B, T*e, k), zero where the node's stalk is."""
    return block if mask is None else rescale(mask, block)
