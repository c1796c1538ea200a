"""How values cross from the parents of a level's nodes into them, in a sweep.

A node that writes `W z` at each position, z much shorter than the write (a head's `W_O z`), can be carried as z: the
sum over all paths stays the same, and whoever reads the node reads `rho W` at once. So a sweep holds blocks of z for
such nodes, (B, T*e, k), and blocks of writes, (B, T*d, k), for the others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import add, cat_batches, rows_of, to_block, zeros_by_vector
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator, Writer

if TYPE_CHECKING:
    from eics.linearized.circuit import Entry, Stalk


@dataclass(frozen=True)
class Images:
    """What edges predict that a node writes, (B, edges, T, n), and what it wrote, (B, edges or 1, T, n).

    In any orthonormal basis of a space in which both lie: their norms and products are those of the writes themselves.
    `written`: they are the writes themselves, and all edges enter one node.
    """

    edges: tuple[Edge, ...]
    predicted: Tensor
    observed: Tensor
    written: bool = True


def joined(images: Iterable[Images]) -> Iterator[Images]:
    """Images that are not the writes themselves together where they have as many numbers at a position, as many as the
    memory bound allows: no more are held than that. The others as they come."""
    waiting: dict[tuple[int, ...], list[Images]] = {}
    for one in images:
        if one.written:
            yield one
            continue
        some = waiting.setdefault(tuple(one.predicted.shape[2:]), [])
        width = chunk_width(2 * one.predicted.numel() // len(one.edges), one.predicted.dtype)
        if some and sum(len(known.edges) for known in some) + len(one.edges) > width:
            yield _as_one(some)
            some.clear()
        some.append(one)
    yield from (_as_one(some) for some in waiting.values() if some)


def _as_one(images: Sequence[Images]) -> Images:
    if len(images) == 1:
        return images[0]
    return Images(
        tuple(edge for one in images for edge in one.edges),
        torch.cat([one.predicted for one in images], dim=1),
        torch.cat([one.observed.expand_as(one.predicted) for one in images], dim=1),
        written=False,
    )


class Junction(ABC):
    """The maps of some entries of a level, from the values of their parents to those of the nodes entered."""

    @abstractmethod
    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """What the parents' values carry into each node, (B, dim, k); a node may come several times, to be added."""

    @abstractmethod
    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The transpose: what comes back to each parent. A node without a cotangent has none."""

    @abstractmethod
    def images(self, stalks: "Mapping[str, Stalk]") -> Iterator[Images]:
        """rho a_u for each edge, beside a_v."""


@dataclass(frozen=True)
class Bundle(Junction):
    """Entries whose maps are kin (heads of a layer, entered through the same port), in one operator: one product
    serves them all. Its batch is the prompts', entry by entry."""

    operator: LinearOperator
    entries: "tuple[Entry, ...]"

    @classmethod
    def of(cls, entries: "Sequence[Entry]") -> "Bundle":
        """Stacks the entries' maps."""
        first, *rest = (entry.operator for entry in entries)
        return cls(first.stack(rest), tuple(entries))

    def mv(self, blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each entry's map applied to its block."""
        return self._apply(self.operator.mv, blocks)

    def rmv(self, blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        """Each entry's transposed map applied to its block."""
        return self._apply(self.operator.rmv, blocks)

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """One product for an entry, however many parents share it."""
        images = self.mv([add(values[edge.source] for edge in entry.edges) for entry in self.entries])
        yield from ((entry.target, image) for entry, image in zip(self.entries, images, strict=True))

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Computed once for an entry."""
        here = [cotangents.get(entry.target) for entry in self.entries]
        if any(block is not None for block in here):
            known = [block for block in here if block is not None]
            if len(known) < len(here):
                zero = zeros_by_vector(known[0], self.operator.rows)
                known = [zero if block is None else block for block in here]
            backs = self.rmv(known)
            for entry, back, block in zip(self.entries, backs, here, strict=True):
                if block is not None:
                    yield from ((edge.source, back) for edge in entry.edges)

    def images(self, stalks: "Mapping[str, Stalk]") -> Iterator[Images]:
        """All parents of all entries go through the map in one block, or in as few as the memory bound allows."""
        operator = self.operator
        width = chunk_width(operator.batch * max(operator.rows, operator.cols), operator.dtype)
        most = max(len(entry.edges) for entry in self.entries)
        for start in range(0, most, width):
            edges = [entry.edges[start : start + width] for entry in self.entries]
            images = self.mv([self._parents(stalks, some, min(width, most - start)) for some in edges])
            for some, image in zip(edges, images, strict=True):
                if some:
                    observed = stalks[some[0].target].activation.unsqueeze(1)
                    yield Images(some, rows_of(image[:, :, : len(some)], observed.shape[3]), observed)

    def _parents(self, stalks: "Mapping[str, Stalk]", edges: Sequence[Edge], width: int) -> Tensor:
        """The edges' sources as columns, (B, dim, width); zero past the last."""
        like = torch.empty(0, dtype=self.operator.dtype, device=self.operator.device)
        zero = like.new_zeros(self.operator.batch // len(self.entries), self.operator.cols)
        sources = [stalks[edge.source].flat for edge in edges] + [zero] * (width - len(edges))
        return torch.stack(torch.broadcast_tensors(*sources), dim=1).mT

    def _apply(self, product: Callable[[Tensor], Tensor], blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        if len(blocks) == 1:
            return [product(blocks[0])]
        return product(cat_batches(blocks, self.operator.batch // len(self.entries))).chunk(len(self.entries))


class Widened(Junction):
    """One entry, some of whose parents are carried as z: their `W z` are added in one product.

    `writers` are those parents'.
    """

    def __init__(self, entry: "Entry", writers: Mapping[str, Writer]) -> None:
        self.entry, self.writers = entry, writers
        self.target, self.operator = entry.target, entry.operator
        sources = [edge.source for edge in entry.edges]
        self.wide = [source for source in sources if source not in writers]
        self.short = [source for source in sources if source in writers]
        self.widths = [writers[source].weight.shape[1] for source in self.short]

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """rho (sum of writes + [W ..] [z ..]); of a map that reads one position, the z there only."""
        pairs = zip(self.short, self.widths, strict=True)
        rows = [rows_of(values[source], width) for source, width in pairs]
        z = torch.cat([one.expand(self.operator.batch, -1, -1, -1) for one in rows], dim=3)
        total = to_block(self._at(z, self.weight.mT))
        yield self.target, self.operator.mv(add(iter([total, *(values[source] for source in self.wide)])))

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The transpose."""
        if self.target not in cotangents:
            return
        back = self.operator.rmv(cotangents[self.target])
        yield from ((source, back) for source in self.wide)
        z = self._at(rows_of(back, self.weight.shape[0]), self.weight)
        yield from zip(self.short, map(to_block, z.split(self.widths, dim=3)), strict=True)

    def images(self, stalks: "Mapping[str, Stalk]") -> Iterator[Images]:
        """The z of the short ones through `rho W`, where the map knows a shorter way for that."""
        observed = stalks[self.target].activation.unsqueeze(1)
        short = [edge for edge in self.entry.edges if edge.source in self.writers]
        read = [(self.writers[edge.source], stalks[edge.source].z) for edge in short]
        images = self.operator.after([(writer, z) for writer, z in read if z is not None])
        if images is None:
            yield from Bundle.of([self.entry]).images(stalks)
            return
        yield Images(tuple(short), images, observed)
        wide = tuple(edge for edge in self.entry.edges if edge.source not in self.writers)
        if wide:
            yield from Bundle.of([replace(self.entry, edges=wide)]).images(stalks)

    @cached_property
    def weight(self) -> Tensor:
        """Of the short ones, side by side: (d, all e)."""
        return torch.cat([self.writers[source].weight for source in self.short], dim=1)

    def _at(self, rows: Tensor, weight: Tensor) -> Tensor:
        """(B, k, T, in) through (in, out); zero but at the one position that is read, where there is one."""
        places = self.operator.reads
        if places is None:
            return (rows.reshape(-1, weight.shape[0]) @ weight).view(*rows.shape[:3], -1)
        prompts = torch.arange(len(places), device=places.device)
        out = rows.new_zeros(*rows.shape[:3], weight.shape[1])
        out[prompts, :, places] = rows[prompts, :, places] @ weight
        return out
