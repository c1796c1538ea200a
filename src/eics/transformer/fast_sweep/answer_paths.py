"""J_M J_M^T of a circuit that is read out at one position, without J_M.

After its last head, every path to the read-out stays at the answer position: an MLP acts position by position, and the
read-out reads one position. A head h writes there through e numbers, z_h. So

    J_M = sum_h E_h X_h + F

with X_h from the sources to z_h at the answer position, E_h from there to the read-out, and F the paths without a head.
E_h and F are products at one position. X_h takes e vectors through the ancestors of h instead of d through the circuit,
and the stacked X_h have far fewer rows than J_M has columns, so their Gram matrix is small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, cat_blocks, to_block
from eics.linalg.matrices import gram64
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import Scaled, columns_scaled
from eics.linearized.circuit import Entry, LinearizedCircuit
from eics.linearized.sweep import add_to
from eics.transformer.fast_sweep.answer_position import factor_at, read_position, restrict_to
from eics.transformer.fast_sweep.kronecker_paths import KroneckerPaths
from eics.transformer.readout import ReadoutMap

if TYPE_CHECKING:
    from eics.transformer.fast_sweep.engine import TransformerEngine


@dataclass(frozen=True)
class AnswerPaths:
    """The paths from `sources` to a read-out, cut where they reach its position for good.

    Attributes:
        positions: of the answer, (B,).
        readout: the read-out's map from there.
        mlps: nodes that a path crosses at that position alone, those nearest to the read-out first, with their entries'
        maps
            there.
        heads: the last head of each path, with its map from z at that position.
        direct: sources that reach the read-out without a head.
    """

    engine: "TransformerEngine"
    sources: tuple[str, ...]
    positions: Tensor
    readout: LinearOperator
    readout_entry: Entry
    mlps: dict[str, tuple[LinearOperator, ...]]
    heads: dict[str, LinearOperator]
    direct: frozenset[str]

    @classmethod
    def of(
        cls, engine: "TransformerEngine", swept: Sequence[str], targets: Sequence[str], sources: Sequence[str]
    ) -> "AnswerPaths | None":
        """None if the target is not a read-out of one position, or if a node on the way to it is neither head nor
        MLP."""
        linearized = engine.linearized
        entries = linearized.entries.get(targets[0], ()) if len(targets) == 1 else ()
        positions = read_position(entries[0].operator) if len(entries) == 1 else None
        readout = None if positions is None else restrict_to(entries[0].operator, positions)
        if positions is None or readout is None:
            return None
        mlps: dict[str, tuple[LinearOperator, ...]] = {}
        heads: dict[str, LinearOperator] = {}
        reached = frozenset(edge.source for edge in entries[0].edges)
        for node in reversed([node for node in swept if node != targets[0]]):
            if node not in reached or not linearized.entries[node]:
                continue
            factors = factor_at(linearized.entries[node][0].operator, positions)
            if factors is not None:
                heads[node] = factors[0]
                continue
            maps = [restrict_to(entry.operator, positions) for entry in linearized.entries[node]]
            known = tuple(operator for operator in maps if operator is not None)
            if len(known) < len(maps):
                return None
            mlps[node] = known
            reached |= {edge.source for entry in linearized.entries[node] for edge in entry.edges}
        direct = reached & set(sources)
        return cls(engine, tuple(sources), positions, readout, entries[0], mlps, heads, direct)

    @property
    def linearized(self) -> LinearizedCircuit:
        """The circuit whose paths these are."""
        return self.engine.linearized

    @property
    def side(self) -> int:
        """Rows of the read-out, or the width that it reads if that is less."""
        return min(self.readout.rows, self.readout.cols)

    @property
    def by_terms(self) -> bool:
        """Whether the X_h X_h'^T come from `KroneckerPaths`, without the X_h."""
        return self._kronecker is not None

    def gram(self, left: Tensor | None, right: Tensor | None) -> Tensor:
        """(B, side, side) in float64."""
        right = None if right is None else by_coordinate(right, self._width)
        ends, direct = self._to_readout(left)
        batch, side = self.linearized.batch, self.side
        total = torch.zeros(batch, side, side, dtype=torch.float64, device=self.positions.device)
        out = cat_blocks(list(ends.values())).double() if ends else None  # E^T: (B, sum of e, side)
        if out is not None and self._kronecker is not None:
            closed = self._kronecker.gram(right)
            if closed is not None:
                return out.mT @ closed @ out
        if out is not None:
            reach = out.new_empty(*out.shape[:2], self._width, dtype=self.linearized.dtype)  # X: (B, sum of e, columns)
            for rows, node in zip(reach.split([end.shape[1] for end in ends.values()], dim=1), ends, strict=True):
                self._from_sources(node, rows)
            reach = reach if right is None else reach * right.unsqueeze(1)
            total = total + out.mT @ gram64(reach) @ out
        columns = self._columns()
        for source, block in direct.items():
            there = None if right is None else self._at_answer(right.unsqueeze(1), columns[source]).mT
            scaled = (block if there is None else block * there).double()
            total = total + scaled.mT @ scaled
            if out is not None:
                cross = out.mT @ self._at_answer(reach, columns[source]).double() @ scaled
                total = total + cross + cross.mT
        return total

    @cached_property
    def _kronecker(self) -> KroneckerPaths | None:
        """All paths up to their last head, if every path has one and all maps up to it are Kronecker products."""
        if self.direct:
            return None
        return KroneckerPaths.of(self.linearized, self.sources, self.positions, list(self.heads))

    def _to_readout(self, left: Tensor | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """E_h^T, (B, e, side), for each last head, and F^T at the answer position, (B, d, side), for each source."""
        readout = _reduced(self.readout, left)
        eye = torch.eye(readout.rows, dtype=readout.dtype, device=readout.device)
        cotangents: dict[str, Tensor] = {}
        _pass_on(cotangents, self.readout_entry, readout.rmv(eye.expand(self.linearized.batch, -1, -1)))
        for node, operators in self.mlps.items():
            block = cotangents.pop(node)
            for operator, entry in zip(operators, self.linearized.entries[node], strict=True):
                dense = block.shape[2] >= operator.cols  # forming its matrix takes half as many operations
                _pass_on(cotangents, entry, operator.dense().mT @ block if dense else operator.rmv(block))
        ends = {node: out.rmv(cotangents[node]) for node, out in self.heads.items()}
        direct = {}
        for source in self.sources:
            if source in cotangents:
                weights = self.linearized.stalks[source].weights.unsqueeze(1)
                direct[source] = cotangents[source] * self._at_answer(weights, slice(None)).mT
        return ends, direct

    def _from_sources(self, node: str, rows: Tensor) -> None:
        """Fills X_h: the rows of z_h at the answer position, (B, e, columns)."""
        circuit = self.linearized.circuit
        upstream, by_z = circuit.ancestors([node]), node in self.engine.output_factors
        cotangents = self._start(node)
        self.engine.pull_by_z(cotangents, [n for n in circuit.inner if n in upstream and (n != node or by_z)])
        for source, columns in self._columns().items():
            stalk, block = self.linearized.stalks[source], cotangents.get(source)
            if block is None:
                rows[:, :, columns] = 0.0
            else:
                rows[:, :, columns] = (block if stalk.mask is None else block * stalk.weights.unsqueeze(2)).mT

    def _start(self, node: str) -> dict[str, Tensor]:
        """The unit vectors of a head's z at the answer position, pulled back to it or, if it is carried as its write,
        to its parents."""
        linearized, batch = self.linearized, self.linearized.batch
        if node in self.engine.output_factors:
            width = self.engine.output_factors[node].weight.shape[1]
            length = linearized.stalks[node].activation.shape[1]
            rows = torch.zeros(batch, width, length, width, dtype=linearized.dtype, device=linearized.device)
            prompts = torch.arange(batch, device=rows.device)
            rows[prompts, :, self.positions] = torch.eye(width, dtype=rows.dtype, device=rows.device)
            return {node: to_block(rows)}
        cotangents: dict[str, Tensor] = {}
        for entry in linearized.entries[node]:
            factors = factor_at(entry.operator, self.positions)
            assert factors is not None
            core = factors[1]
            eye = torch.eye(core.rows, dtype=core.dtype, device=core.device)
            _pass_on(cotangents, entry, core.rmv(eye.expand(batch, -1, -1)))
        return {source: self.engine.from_write(source, block) for source, block in cotangents.items()}

    @property
    def _width(self) -> int:
        """How many columns there are."""
        return sum(self.linearized.stalks[source].dim for source in self.sources)

    def _columns(self) -> dict[str, slice]:
        """Where each source's stalk stands among the columns."""
        columns, start = {}, 0
        for source in self.sources:
            dim = self.linearized.stalks[source].dim
            columns[source] = slice(start, start + dim)
            start += dim
        return columns

    def _at_answer(self, rows: Tensor, columns: slice) -> Tensor:
        """A source's columns of rows (B or 1, n, columns) at the answer position: (B, n, d)."""
        batch = len(self.positions)
        by_position = rows[:, :, columns].unflatten(2, (-1, self.readout.cols)).expand(batch, -1, -1, -1)
        own: Tensor = by_position[torch.arange(batch, device=self.positions.device), :, self.positions]
        return own


def _pass_on(cotangents: dict[str, Tensor], entry: Entry, block: Tensor) -> None:
    """Adds what comes back through an entry to each of its parents' cotangents."""
    for edge in entry.edges:
        add_to(cotangents, edge.source, block)


def _reduced(readout: LinearOperator, left: Tensor | None) -> LinearOperator:
    """An operator with the J^T J of diag(left) J and as few rows as that needs."""
    if isinstance(readout, Scaled):
        scaled = readout if left is None else Scaled(readout, left, left.new_ones(1, 1))
        return columns_scaled(_reduced(scaled.base, scaled.left), scaled.right)
    assert isinstance(readout, ReadoutMap)
    return readout.reduced(left)
