"""The maps whose effective information counts: J_M, J_v of every node with parents, and branches; in the chosen units.

In the relative metric a map is `S^-1 J R`: R the rms of what it reads at each position, S of what it writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, cat_batches, equally_long
from eics.linalg.operators import LinearOperator, hstack
from eics.linalg.scaled import Scaled
from eics.linalg.stacking import stack
from eics.linearized.circuit import LinearizedCircuit
from eics.linearized.paths import branch_maps
from eics.linearized.sweep import Engine


@dataclass(frozen=True)
class Part:
    """A map whose effective information counts.

    `left` and `right` are non-zero on the rows and columns that count, scales as `Scaled` takes them: 1, or the units
    of the relative metric. None: all count, and are 1. Parts whose maps can be stacked may become one with all their
    names.
    """

    names: tuple[str, ...]
    operator: LinearOperator
    left: Tensor | None
    right: Tensor | None

    @classmethod
    def stacked(cls, parts: "Sequence[Part]") -> "Part":
        """Several parts as one, part by part along the batch."""
        if len(parts) == 1:
            return parts[0]
        names, like = tuple(name for part in parts for name in part.names), parts[0].operator
        left = _stacked([part.left for part in parts], like.rows, like)
        right = _stacked([part.right for part in parts], like.cols, like)
        return cls(names, stack([part.operator for part in parts]), left, right)

    @cached_property
    def rows(self) -> Tensor | int:
        """How many rows count, (B or 1,), or one number for all."""
        return _counted(self.left, self.operator.rows)

    @cached_property
    def cols(self) -> Tensor | int:
        """How many columns count, (B or 1,), or one number for all."""
        return _counted(self.right, self.operator.cols)

    @cached_property
    def channels(self) -> Tensor | int:
        """min(rows, columns) over those that count, (B or 1,), or one number for all."""
        rows, cols = self.rows, self.cols
        if isinstance(rows, Tensor) and isinstance(cols, Tensor):
            return torch.minimum(rows, cols)
        if isinstance(rows, Tensor):
            return rows.clamp(max=cols)
        return cols.clamp(max=rows) if isinstance(cols, Tensor) else min(rows, cols)

    @property
    def support(self) -> tuple[Tensor, Tensor] | None:
        """Non-zero on the rows and on the columns that count, by coordinate; None if all do."""
        if self.left is None and self.right is None:
            return None
        like, sides = self.operator, ((self.left, self.operator.rows), (self.right, self.operator.cols))
        left, right = (by_coordinate(_ones(like) if one is None else one, size) for one, size in sides)
        return left, right


def macro_part(engine: Engine, *, relative: bool) -> Part:
    """J_M, or `S^-1 J_M R` with the rms of the sinks' and sources' writes."""
    operator = engine.macro_map()
    left = _units(engine.linearized, operator.targets, inverse=True, relative=relative)
    right = _units(engine.linearized, operator.sources, inverse=False, relative=relative)
    return _part("the macro map", operator, left, right, relative)


def node_parts(engine: Engine, *, relative: bool) -> list[Part]:
    """J_v of every node with a parent, or `S_v^-1 J_v R_v`; a node that nothing is carried into has none."""
    parts = []
    for node, entries in engine.node_maps():
        left = _units(engine.linearized, [node], inverse=True, relative=relative)
        rights = [entry.rms if relative else entry.mask for entry in entries]
        maps = [_in_units(e.operator, left, right, relative) for e, right in zip(entries, rights, strict=True)]
        parts.append(Part((node,), hstack(maps), left, _side_by_side(rights, [entry.read for entry in entries])))
    return parts


def branch_parts(engine: Engine, *, relative: bool) -> list[Part]:
    """One part for each edge into a sink, from the sources that reach it."""
    parts, circuit = [], engine.linearized.circuit
    for edge, operator in branch_maps(engine).items():
        upstream = circuit.ancestors([edge.source])
        sources = [node for node in circuit.sources if node in upstream]
        left = _units(engine.linearized, [edge.target], inverse=True, relative=relative)
        right = _units(engine.linearized, sources, inverse=False, relative=relative)
        parts.append(_part(str(edge), operator, left, right, relative))
    return parts


def _part(name: str, operator: LinearOperator, left: Tensor | None, right: Tensor | None, relative: bool) -> Part:
    return Part((name,), _in_units(operator, left, right, relative), left, right)


def _in_units(operator: LinearOperator, left: Tensor | None, right: Tensor | None, relative: bool) -> LinearOperator:
    if not relative:
        return operator  # masks are in it already
    assert left is not None
    assert right is not None
    return Scaled(operator, left, right)


def _units(linearized: LinearizedCircuit, nodes: Sequence[str], *, inverse: bool, relative: bool) -> Tensor | None:
    """Rms of what nodes write at each position, or its inverse; else their masks. None: 1 everywhere.

    A position where nothing is written has no unit of its own: it does not count.
    """
    stalks = [linearized.stalks[node] for node in nodes]
    units = [(s.inverse_rms if inverse else s.rms) if relative else s.mask for s in stalks]
    return _side_by_side(units, [stalk.activation for stalk in stalks])


def _side_by_side(units: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor | None:
    """Units by position, (B or 1, T) each, of tensors (B, T, d); by coordinate if the d differ."""
    if all(unit is None for unit in units):
        return None
    if len(units) == 1:
        return units[0]
    given = [one.new_ones(1, one.shape[1]) if unit is None else unit for unit, one in zip(units, like, strict=True)]
    if len({one.shape[2] for one in like}) > 1:
        sizes = [one.shape[1] * one.shape[2] for one in like]
        given = [by_coordinate(unit, size) for unit, size in zip(given, sizes, strict=True)]
    batch = max(unit.shape[0] for unit in given)
    return torch.cat([unit.expand(batch, -1) for unit in given], dim=1)


def _stacked(scales: Sequence[Tensor | None], size: int, like: LinearOperator) -> Tensor | None:
    """Scales of one side of several parts, part by part along the batch."""
    if all(scale is None for scale in scales):
        return None
    given = [_ones(like) if scale is None else scale for scale in scales]
    return cat_batches(equally_long(given, size), like.batch)


def _ones(like: LinearOperator) -> Tensor:
    return torch.ones(1, 1, dtype=like.dtype, device=like.device)


def _counted(scale: Tensor | None, size: int) -> Tensor | int:
    """How many of `size` coordinates count."""
    return size if scale is None else scale.count_nonzero(dim=1) * (size // scale.shape[1])
