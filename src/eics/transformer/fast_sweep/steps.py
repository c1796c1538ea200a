"""Steps of a sweep: how values cross from the parents of a level's nodes into them.

A sweep holds blocks of z, (B, T*e, k), for nodes that are carried as z, and blocks of writes, (B, T*d, k), for the
others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import add, cat_batches, to_block, to_rows, zeros_by_vector
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator
from eics.linalg.stacking import stack
from eics.linearized.circuit import Entry, Stalk
from eics.linearized.sweep import EdgePredictions, entry_predictions
from eics.transformer.fast_sweep.answer_position import read_position
from eics.transformer.fast_sweep.from_z import OutputFactor, apply_to_z


@dataclass(frozen=True)
class StepPredictions(EdgePredictions):
    """Predictions of one step. `are_writes`: they are in the basis of the writes, and all edges enter one node."""

    are_writes: bool = True


def merged(predictions: Iterable[StepPredictions]) -> Iterator[StepPredictions]:
    """Predictions that are not writes merged if they have as many numbers at a position, so that a few operations serve
    all.

    No more wait for each other than the memory bound allows. Predictions that are writes pass as they come.
    """
    waiting: dict[tuple[int, ...], list[StepPredictions]] = {}
    for one in predictions:
        if one.are_writes:
            yield one
            continue
        alike = waiting.setdefault(tuple(one.predicted.shape[2:]), [])
        width = chunk_width(2 * one.predicted.numel() // len(one.edges), one.predicted.dtype)
        if alike and sum(len(other.edges) for other in alike) + len(one.edges) > width:
            yield _merge(alike)
            alike.clear()
        alike.append(one)
    yield from (_merge(alike) for alike in waiting.values() if alike)


def _merge(predictions: Sequence[StepPredictions]) -> StepPredictions:
    if len(predictions) == 1:
        return predictions[0]
    return StepPredictions(
        tuple(edge for one in predictions for edge in one.edges),
        torch.cat([one.predicted for one in predictions], dim=1),
        torch.cat([one.observed.expand_as(one.predicted) for one in predictions], dim=1),
        are_writes=False,
    )


class SweepStep(ABC):
    """The maps of some entries of a level, from the values of their parents to those of the nodes entered."""

    @abstractmethod
    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """What the parents' values carry into each node, (B, dim, k); a node may come several times, to be added."""

    @abstractmethod
    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The transpose: what comes back to each parent. A node without a cotangent is passed over."""

    @abstractmethod
    def predictions(self, stalks: Mapping[str, Stalk]) -> Iterator[StepPredictions]:
        """rho a_u for each edge, beside a_v."""


@dataclass(frozen=True)
class StackedEntries(SweepStep):
    """Entries whose maps can be stacked (heads of a layer, entered through the same port) in one operator."""

    operator: LinearOperator
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "StackedEntries":
        """Stacks the entries' maps."""
        return cls(stack([entry.operator for entry in entries]), tuple(entries))

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        sums = [add(values[edge.source] for edge in entry.edges) for entry in self.entries]
        for entry, image in zip(self.entries, self._apply(self.operator.mv, sums), strict=True):
            yield entry.target, image

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        given = [cotangents.get(entry.target) for entry in self.entries]
        known = [block for block in given if block is not None]
        if not known:
            return
        if len(known) < len(given):
            zero = zeros_by_vector(known[0], self.operator.rows)
            known = [zero if block is None else block for block in given]
        backs = self._apply(self.operator.rmv, known)
        for entry, back, block in zip(self.entries, backs, given, strict=True):
            if block is not None:
                yield from ((edge.source, back) for edge in entry.edges)

    def predictions(self, stalks: Mapping[str, Stalk]) -> Iterator[StepPredictions]:
        for one in entry_predictions(self.operator, [entry.edges for entry in self.entries], stalks):
            yield StepPredictions(one.edges, one.predicted, one.observed)

    def _apply(self, product: Callable[[Tensor], Tensor], blocks: Sequence[Tensor]) -> Sequence[Tensor]:
        if len(blocks) == 1:
            return [product(blocks[0])]
        return product(cat_batches(blocks, self.operator.batch // len(self.entries))).chunk(len(self.entries))


class EntryFromZ(SweepStep):
    """One entry, some of whose parents are carried as z: their `W z` are added in one product.

    `factors` are the output factors of those parents.
    """

    def __init__(self, entry: Entry, factors: Mapping[str, OutputFactor]) -> None:
        self.entry, self.factors = entry, factors
        self.target, self.operator = entry.target, entry.operator
        sources = [edge.source for edge in entry.edges]
        self.as_writes = [source for source in sources if source not in factors]
        self.as_z = [source for source in sources if source in factors]
        self.widths = [factors[source].weight.shape[1] for source in self.as_z]

    def carry(self, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """rho (sum of writes + [W ..] [z ..]); for a map that reads one position, the z there only."""
        rows = [to_rows(values[source], width) for source, width in zip(self.as_z, self.widths, strict=True)]
        z = torch.cat([own.expand(self.operator.batch, -1, -1, -1) for own in rows], dim=3)
        total = to_block(self._mix(z, self.weight.mT))
        yield self.target, self.operator.mv(add([total, *(values[source] for source in self.as_writes)]))

    def pull(self, cotangents: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        if self.target not in cotangents:
            return
        back = self.operator.rmv(cotangents[self.target])
        yield from ((source, back) for source in self.as_writes)
        z = self._mix(to_rows(back, self.weight.shape[0]), self.weight)
        yield from zip(self.as_z, map(to_block, z.split(self.widths, dim=3)), strict=True)

    def predictions(self, stalks: Mapping[str, Stalk]) -> Iterator[StepPredictions]:
        """The z through `rho W`, if the map knows a shorter way for that."""
        edges = [edge for edge in self.entry.edges if edge.source in self.factors]
        read = [(self.factors[edge.source], stalks[edge.source].z) for edge in edges]
        images = apply_to_z(self.operator, [(factor, z) for factor, z in read if z is not None])
        if images is None:
            yield from StackedEntries.of([self.entry]).predictions(stalks)
            return
        yield StepPredictions(tuple(edges), images, stalks[self.target].activation.unsqueeze(1))
        others = tuple(edge for edge in self.entry.edges if edge.source not in self.factors)
        if others:
            yield from StackedEntries.of([replace(self.entry, edges=others)]).predictions(stalks)

    @cached_property
    def weight(self) -> Tensor:
        """W of the parents that are carried as z, side by side: (d, all e)."""
        return torch.cat([self.factors[source].weight for source in self.as_z], dim=1)

    def _mix(self, rows: Tensor, weight: Tensor) -> Tensor:
        """(B, k, T, in) through (in, out); only at the one position that is read, if there is one, and zero
        elsewhere."""
        positions = read_position(self.operator)
        if positions is None:
            return (rows.reshape(-1, weight.shape[0]) @ weight).view(*rows.shape[:3], -1)
        prompts = torch.arange(len(positions), device=positions.device)
        out = rows.new_zeros(*rows.shape[:3], weight.shape[1])
        out[prompts, :, positions] = rows[prompts, :, positions] @ weight
        return out
