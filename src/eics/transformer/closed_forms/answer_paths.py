"""J_M J_M^T of a circuit that is read out at one position, without J_M.

Behind its last head every path to the read-out stays at the answer position: an MLP acts position by position, and the
read-out reads one. A head h writes there through e numbers, z_h. So

    J_M = sum_h E_h X_h + F

with X_h from the sources to z_h at the answer position, E_h from there to the read-out, and F the paths without a head.
E_h and F are products at one position. X_h takes e vectors through the ancestors of h instead of d through the circuit,
and the Gram matrix of all X_h together is that of fewer rows than J_M has columns by far.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, cat_blocks, gram64, to_block
from eics.linalg.operators import LinearOperator
from eics.linearized.circuit import Entry, LinearizedCircuit
from eics.linearized.sweep import sweep_back
from eics.transformer.closed_forms.kronecker_terms import KroneckerTerms


@dataclass(frozen=True)
class AnswerPaths:
    """The paths from `sources` to a read-out, cut where they come to its position for good.

    `here` are the nodes on the way at that position alone, those nearest to the read-out first, each with its entries'
    maps there; `last` those that end the rest of a path, with the map from the few numbers that they write through.
    `whole` are sources that lie on the way themselves.
    """

    linearized: LinearizedCircuit
    sources: tuple[str, ...]
    places: Tensor
    readout: LinearOperator
    readout_entry: Entry
    here: dict[str, tuple[LinearOperator, ...]]
    last: dict[str, LinearOperator]
    whole: frozenset[str]

    @classmethod
    def of(
        cls, linearized: LinearizedCircuit, swept: Sequence[str], targets: Sequence[str], sources: Sequence[str]
    ) -> "AnswerPaths | None":
        """None where there is no read-out of one position, or a node on the way to it that is neither kind."""
        entries = linearized.entries.get(targets[0], ()) if len(targets) == 1 else ()
        places = entries[0].operator.reads if len(entries) == 1 else None
        readout = None if places is None else entries[0].operator.at(places)
        if places is None or readout is None:
            return None
        here: dict[str, tuple[LinearOperator, ...]] = {}
        last: dict[str, LinearOperator] = {}
        reached = frozenset(edge.source for edge in entries[0].edges)
        for node in reversed([node for node in swept if node != targets[0]]):
            if node not in reached or not linearized.entries[node]:
                continue
            few = linearized.entries[node][0].operator.through_few(places)
            if few is not None:
                last[node] = few[0]
                continue
            there = [entry.operator.at(places) for entry in linearized.entries[node]]
            known = tuple(operator for operator in there if operator is not None)
            if len(known) < len(there):
                return None
            here[node] = known
            reached |= {edge.source for entry in linearized.entries[node] for edge in entry.edges}
        return cls(linearized, tuple(sources), places, readout, entries[0], here, last, reached & set(sources))

    @property
    def side(self) -> int:
        """Rows of the read-out, or the width that it reads if that is less."""
        return min(self.readout.rows, self.readout.cols)

    @property
    def by_terms(self) -> bool:
        """Whether the X_h need not be made."""
        return self._terms is not None

    def gram(self, left: Tensor | None, right: Tensor | None) -> Tensor:
        """(B, side, side) in float64."""
        right = None if right is None else by_coordinate(right, self._width)
        ends, direct = self._to_readout(left)
        total = torch.zeros(self.linearized.batch, self.side, self.side, dtype=torch.float64, device=self.places.device)
        out = cat_blocks(list(ends.values())).double() if ends else None  # E^T: (B, sum of e, side)
        if out is not None and self._terms is not None:
            known = self._terms.gram(right)
            if known is not None:
                return out.mT @ known @ out
        if out is not None:
            reach = out.new_empty(*out.shape[:2], self._width, dtype=self.linearized.dtype)  # X: (B, sum of e, columns)
            for rows, node in zip(reach.split([end.shape[1] for end in ends.values()], dim=1), ends, strict=True):
                self._from_sources(node, rows)
            reach = reach if right is None else reach * right.unsqueeze(1)
            total = total + out.mT @ gram64(reach) @ out
        columns = self._columns()
        for source, block in direct.items():
            there = None if right is None else self._there(right.unsqueeze(1), columns[source]).mT
            scaled = (block if there is None else block * there).double()
            total = total + scaled.mT @ scaled
            if out is not None:
                cross = out.mT @ self._there(reach, columns[source]).double() @ scaled
                total = total + cross + cross.mT
        return total

    @cached_property
    def _terms(self) -> "KroneckerTerms | None":
        """The X_h, where all paths end in a head and all maps up to it are Kronecker products."""
        return None if self.whole else KroneckerTerms.of(self.linearized, self.sources, self.places, list(self.last))

    def _to_readout(self, left: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """E_h^T, (B, e, side), for each last node, and F^T at the answer position, (B, d, side), for each source."""
        readout = self.readout.reduced(left)
        eye = torch.eye(readout.rows, dtype=readout.dtype, device=readout.device)
        known: dict[str, Tensor] = {}
        _pass_on(known, self.readout_entry, readout.rmv(eye.expand(self.linearized.batch, -1, -1)))
        for node, operators in self.here.items():
            block = known.pop(node)
            for operator, entry in zip(operators, self.linearized.entries[node], strict=True):
                dense = block.shape[2] >= operator.cols  # its matrix takes half of so many products
                _pass_on(known, entry, operator.dense().mT @ block if dense else operator.rmv(block))
        ends = {node: out.rmv(known[node]) for node, out in self.last.items()}
        direct = {}
        for source in self.sources:
            if source in known:
                weights = self.linearized.stalks[source].weights.unsqueeze(1)
                direct[source] = known[source] * self._there(weights, slice(None)).mT
        return ends, direct

    def _from_sources(self, node: str, rows: Tensor) -> None:
        """Fills X_h: the rows of z_h at the answer position, (B, e, columns)."""
        linearized, circuit = self.linearized, self.linearized.circuit
        upstream = circuit.ancestors([node])
        chosen = [one for one in circuit.inner if one in upstream and (one != node or node in linearized.writers)]
        cotangents = self._start(node)
        for _ in sweep_back(linearized, linearized.levels(chosen, short=True), cotangents):
            pass
        for source, some in self._columns().items():
            stalk = linearized.stalks[source]
            block = cotangents.get(source)
            if block is None:
                rows[:, :, some] = 0.0
            else:
                rows[:, :, some] = (block if stalk.mask is None else block * stalk.weights.unsqueeze(2)).mT

    def _start(self, node: str) -> dict[str, Tensor]:
        """The unit vectors of a last node's few numbers at the answer position, as they come back to it or, where what
        it writes is not carried as these numbers, to its parents."""
        linearized = self.linearized
        cotangents: dict[str, Tensor] = {}
        if node in linearized.writers:
            width = linearized.writers[node].weight.shape[1]
            rows = torch.zeros(
                linearized.batch, width, linearized.stalks[node].activation.shape[1], width,
                dtype=linearized.dtype, device=self.places.device,
            )  # fmt: skip
            prompts = torch.arange(linearized.batch, device=self.places.device)
            rows[prompts, :, self.places] = torch.eye(width, dtype=rows.dtype, device=rows.device)
            return {node: to_block(rows)}
        for entry in linearized.entries[node]:
            few = entry.operator.through_few(self.places)
            assert few is not None
            core = few[1]
            eye = torch.eye(core.rows, dtype=core.dtype, device=core.device)
            _pass_on(cotangents, entry, core.rmv(eye.expand(linearized.batch, -1, -1)))
        return {source: linearized.unwritten(source, block) for source, block in cotangents.items()}

    @property
    def _width(self) -> int:
        """How many columns there are."""
        return sum(self.linearized.stalks[source].dim for source in self.sources)

    def _columns(self) -> dict[str, slice]:
        """Where each source's stalk stands among the columns."""
        found, start = {}, 0
        for source in self.sources:
            dim = self.linearized.stalks[source].dim
            found[source] = slice(start, start + dim)
            start += dim
        return found

    def _there(self, rows: Tensor, some: slice) -> Tensor:
        """A source's columns of rows (B or 1, n, columns) at the answer position: (B, n, d)."""
        width = self.readout.cols
        by_position = rows[:, :, some].unflatten(2, (-1, width)).expand(len(self.places), -1, -1, -1)
        found: Tensor = by_position[torch.arange(len(self.places), device=self.places.device), :, self.places]
        return found


def _pass_on(known: dict[str, Tensor], entry: Entry, block: Tensor) -> None:
    """Adds what comes back through an entry to each of its parents' cotangents."""
    for edge in entry.edges:
        before = known.get(edge.source)
        known[edge.source] = block if before is None else before + block
