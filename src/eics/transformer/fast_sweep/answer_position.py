"""The answer position: what a circuit's read-out sees of its nodes, and maps cut down to it.

The read-out reads one position of each prompt and an MLP acts position by position, so a node whose only readers are
these has to be computed there alone. A head writes there through e numbers, its z.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eics.linalg.blocks import to_block, to_rows
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import Scaled, columns_scaled, rows_scaled
from eics.linearized.circuit import LinearizedCircuit
from eics.transformer.head import HeadMap
from eics.transformer.mlp import MLPMap
from eics.transformer.readout import ReadoutMap


def read_position(operator: LinearOperator) -> Tensor | None:
    """The one position of each prompt that a map reads, (B,); None if it may read more."""
    base = _base(operator)
    if isinstance(base, ReadoutMap):
        return base.answer
    return base.positions if isinstance(base, MLPAt) else None


def restrict_to(operator: LinearOperator, positions: Tensor) -> LinearOperator | None:
    """From one position of each prompt, (B,), to what is written there; None if more is read for it."""
    base = _base(operator)
    if isinstance(base, ReadoutMap):
        own: LinearOperator = base.at_answer()
    elif isinstance(base, MLPAt):
        own = base.at_position
    elif isinstance(base, MLPMap):
        own = base.restrict_to(positions)
    else:
        return None
    if not isinstance(operator, Scaled):
        return own
    left = _at(operator.left, positions, operator.rows // own.rows)
    return Scaled(own, left, _at(operator.right, positions, operator.cols // own.cols))


def factor_at(operator: LinearOperator, positions: Tensor) -> tuple[LinearOperator, LinearOperator] | None:
    """A head's write at one position of each prompt, (B,), as a product over its z there: (from z, to z)."""
    base = _base(operator)
    if not isinstance(base, HeadMap):
        return None
    out, core = WriteAt(base, positions), ZAt(base, positions)
    if not isinstance(operator, Scaled):
        return out, core
    left = _at(operator.left, positions, operator.rows // out.rows)
    return rows_scaled(out, left), columns_scaled(core, operator.right)


def narrowed(linearized: LinearizedCircuit, targets: tuple[str, ...]) -> LinearizedCircuit:
    """The same maps for sweeps to `targets` alone: an MLP that is read at the answer position only is computed there
    only."""
    entries = dict(linearized.entries)
    readers: dict[str, list[Tensor | None]] = {}
    for node in reversed(linearized.circuit.inner):
        positions = readers.get(node, [])
        first = positions[0] if positions and node not in targets else None
        if first is not None and all(other is first for other in positions):
            entries[node] = tuple(replace(e, operator=_written_at(e.operator, first)) for e in entries[node])
        for entry in entries[node]:
            for edge in entry.edges:
                readers.setdefault(edge.source, []).append(read_position(entry.operator))
    changed = any(entries[node] is not linearized.entries[node] for node in entries)
    return replace(linearized, entries=entries) if changed else linearized


def _written_at(operator: LinearOperator, positions: Tensor) -> LinearOperator:
    """The same map for readers of one position of each prompt: elsewhere it may write zero if that is cheaper."""
    if isinstance(operator, Scaled):
        return Scaled(_written_at(operator.base, positions), operator.left, operator.right)
    return MLPAt(operator, positions) if isinstance(operator, MLPMap) else operator


def _base(operator: LinearOperator) -> LinearOperator:
    return operator.base if isinstance(operator, Scaled) else operator


def _at(scale: Tensor, positions: Tensor, length: int) -> Tensor:
    """Scales of a stalk of so many positions at one of each prompt, (B, 1) or (B, d); of a stalk of one position
    themselves."""
    if length == 1 or scale.shape[1] == 1:
        return scale
    rows = scale.unflatten(1, (length, -1)).expand(len(positions), -1, -1)
    own: Tensor = rows[torch.arange(len(positions), device=positions.device), positions]
    return own


class MLPAt(LinearOperator):
    """An MLP's map at one position of each prompt, (B,); zero elsewhere."""

    def __init__(self, whole: MLPMap, positions: Tensor) -> None:
        self.whole, self.positions = whole, positions
        self._like(whole, rows=whole.rows, cols=whole.cols, batch=whole.batch)
        self.prompts = torch.arange(self.batch, device=self.device)
        self.at_position = whole.restrict_to(positions)

    def mv(self, x: Tensor) -> Tensor:
        return self._apply(self.at_position.mv, x)

    def rmv(self, y: Tensor) -> Tensor:
        return self._apply(self.at_position.rmv, y)

    def _apply(self, product: Callable[[Tensor], Tensor], block: Tensor) -> Tensor:
        rows = to_rows(block, self.whole.read.shape[2]).expand(self.batch, -1, -1, -1)  # (B, k, T, d)
        out = torch.zeros_like(rows)
        out[self.prompts, :, self.positions] = product(rows[self.prompts, :, self.positions].mT).mT
        return to_block(out)

    def prompt(self, index: int) -> "MLPAt":
        return MLPAt(self.whole.prompt(index), self.positions[index : index + 1])

    def double(self) -> "MLPAt":
        return MLPAt(self.whole.double(), self.positions)


class ZAt(LinearOperator):
    """z of heads at one position of each prompt, (B,), from all that they read: e rows."""

    def __init__(self, head: HeadMap, positions: Tensor) -> None:
        self.head, self.positions = head, positions
        self._like(head, rows=head.w_o.shape[2], cols=head.cols, batch=head.batch)
        self.prompts = torch.arange(len(positions), device=head.device)

    def mv(self, x: Tensor) -> Tensor:
        z = self.head.z_change(x)[:, self.prompts, :, self.positions]  # (B, H, k, e)
        return z.transpose(0, 1).flatten(0, 1).mT

    def rmv(self, y: Tensor) -> Tensor:
        heads, prompts, length, _ = self.head.shape
        back = y.new_zeros(heads, prompts, y.shape[2], length, self.rows)
        rows = y.expand(self.batch, -1, -1).mT.unflatten(0, (heads, prompts))  # (H, B, k, e)
        back[:, self.prompts, :, self.positions] = rows.transpose(0, 1)
        return self.head.z_back(back)

    def prompt(self, index: int) -> "ZAt":
        return ZAt(self.head.prompt(index), self.positions[index % len(self.positions)].unsqueeze(0))

    def double(self) -> "ZAt":
        return ZAt(self.head.double(), self.positions)


class WriteAt(LinearOperator):
    """What heads write at one position of each prompt, (B,), from their z there: d rows of e columns."""

    def __init__(self, head: HeadMap, positions: Tensor) -> None:
        self.head, self.positions = head, positions
        self._like(head, rows=head.shape[3], cols=head.w_o.shape[2], batch=head.batch)
        self.weight = head.w_o.unsqueeze(1).expand(-1, head.shape[1], -1, -1)  # (H, B, d, e)
        if head.state.post is not None:
            prompts = torch.arange(len(positions), device=head.device)
            self.weight = self.weight * head.state.post[prompts, positions].unsqueeze(-1)
        self.weight = self.weight.flatten(0, 1)

    def mv(self, x: Tensor) -> Tensor:
        return self.weight @ x

    def rmv(self, y: Tensor) -> Tensor:
        return self.weight.mT @ y

    def prompt(self, index: int) -> "WriteAt":
        return WriteAt(self.head.prompt(index), self.positions[index % len(self.positions)].unsqueeze(0))

    def double(self) -> "WriteAt":
        return WriteAt(self.head.double(), self.positions)
