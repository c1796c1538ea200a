"""Operators with their rows and columns scaled: masks of positions, and the units of the relative metric.

What an operator knows of itself (norms, spectra, places, writers) it knows with scales too, so that nothing here has to
fall back on products.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.linalg.blocks import by_coordinate, cat_batches, rescale, scale_by_position
from eics.linalg.host_device import to_host
from eics.linalg.operators import Kronecker, LinearOperator, Writer, check_same

if TYPE_CHECKING:
    from eics.linearized.circuit import Entry, Stalk
    from eics.linearized.junctions import Junction


class Scaled(LinearOperator):
    """diag(left) J diag(right): masks rows and columns, or changes their units.

    `left` is (batch or 1, rows), `right` is (batch or 1, cols); or fewer, each for so many neighbours, as masks and
    relative units are by position.
    """

    base: LinearOperator
    left: Tensor
    right: Tensor

    def __init__(self, base: LinearOperator, left: Tensor, right: Tensor) -> None:
        check_same("rows and what the left scales leave of them", base.rows % left.shape[-1], 0)
        check_same("columns and what the right scales leave of them", base.cols % right.shape[-1], 0)
        self.base, self.left, self.right = base, left, right
        if isinstance(base, Scaled):  # scales of scales are scales: keep the closed forms of the innermost base
            self.base = base.base
            self.left, self.right = _both(left, base.left, base.rows), _both(right, base.right, base.cols)
        batch = max(base.batch, left.shape[0], right.shape[0])
        self._like(base, rows=base.rows, cols=base.cols, batch=batch)
        self.blocks = base.blocks

    def mv(self, x: Tensor) -> Tensor:
        """left * J (right * x)."""
        return rescale(self.left, self.base.mv(rescale(self.right, x)))

    def rmv(self, y: Tensor) -> Tensor:
        """right * J^T (left * y)."""
        return rescale(self.right, self.base.rmv(rescale(self.left, y)))

    def prompt(self, index: int) -> LinearOperator:
        """One prompt's map and scales."""
        left, right = (scale[index % scale.shape[0]].unsqueeze(0) for scale in (self.left, self.right))
        return Scaled(self.base.prompt(index), left, right)

    def double(self) -> LinearOperator:
        """Base and scales in float64."""
        return Scaled(self.base.double(), self.left.double(), self.right.double())

    def remembering(self) -> LinearOperator:
        """The base's, scaled."""
        return Scaled(self.base.remembering(), self.left, self.right)

    def singular_squares(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """The base's, with more scales."""
        return self.base.singular_squares(*self._with(left, right))

    @property
    def update_rank(self) -> int | None:
        """The base's."""
        return self.base.update_rank

    def low_rank_update(
        self, left: Tensor | None = None, right: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The base's, with more scales."""
        return self.base.low_rank_update(*self._with(left, right))

    @property
    def gram_side(self) -> int | None:
        """The base's."""
        return self.base.gram_side

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """The base's, with more scales."""
        return self.base.gram(*self._with(left, right))

    def reduced(self, left: Tensor | None = None) -> LinearOperator:
        """The base reduced with the scales on its left put in; the right ones stay outside."""
        base = self.base.reduced(self._with(left, None)[0])
        return Scaled(base, base.left_ones(), self.right)

    def kronecker(self) -> Kronecker | None:
        """The base's, scaled."""
        base = self.base.kronecker()
        return None if base is None else base.scaled(self.left, self.right)

    def at(self, places: Tensor) -> LinearOperator | None:
        """The base's, scaled."""
        base = self.base.at(places)
        if base is None:
            return None
        left = _there(self.left, places, self.rows // base.rows)
        return Scaled(base, left, _there(self.right, places, self.cols // base.cols))

    def through_few(self, places: Tensor) -> tuple[LinearOperator, LinearOperator] | None:
        """The base's, scaled at its ends."""
        base = self.base.through_few(places)
        if base is None:
            return None
        out, core = base
        ones = core.left_ones()
        left = _there(self.left, places, self.rows // out.rows)
        return Scaled(out, left, ones), Scaled(core, ones, self.right)

    def _with(self, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor]:
        return (
            self.left if left is None else _both(self.left, left, self.rows),
            self.right if right is None else _both(self.right, right, self.cols),
        )

    @property
    def reads(self) -> Tensor | None:
        """What the base reads."""
        return self.base.reads

    def written_at(self, places: Tensor) -> LinearOperator:
        """The base's, scaled."""
        return Scaled(self.base.written_at(places), self.left, self.right)

    @property
    def writer(self) -> Writer | None:
        """The base's: a circuit's scales are masks by position."""
        return self.base.writer

    def after(self, read: "Sequence[tuple[Writer, Tensor]]") -> Tensor | None:
        """The base's, rows scaled; only for z that are zero where the columns' scales are, and these else 1."""
        images = self.base.after(read)
        left = None if images is None else scale_by_position(self.left, images.shape[2])
        return None if images is None or left is None else images * left[:, None, :, None]

    @property
    def home(self) -> object:
        """The base's."""
        return self.base.home

    def junction(
        self, entries: "Sequence[Entry]", writers: Mapping[str, Writer], stalks: "Mapping[str, Stalk]"
    ) -> "Junction":
        """The base's, which masks as the nodes' stalks do."""
        return self.base.junction(entries, writers, stalks)

    @property
    def left_factor(self) -> object:
        """The base's, together with the scales."""
        inner = self.base.left_factor
        return None if inner is None else (inner, _Same(self.left))

    @property
    def kin(self) -> object:
        """The base's."""
        return None if self.base.kin is None else ("scaled", self.base.kin)

    def stack(self, others: Sequence[LinearOperator]) -> LinearOperator:
        """The bases stacked, with their scales."""
        if not others:
            return self
        scaled = [self, *(other for other in others if isinstance(other, Scaled))]
        lefts = _alike([one.left for one in scaled], self.rows)
        rights = _alike([one.right for one in scaled], self.cols)
        base = self.base.stack([one.base for one in scaled[1:]])
        return Scaled(base, cat_batches(lefts, self.batch), cat_batches(rights, self.batch))

    def dense(self) -> Tensor:
        """The base's matrix, rows and columns scaled."""
        left, right = by_coordinate(self.left, self.rows), by_coordinate(self.right, self.cols)
        return left.unsqueeze(2) * self.base.dense() * right.unsqueeze(1)

    def frobenius_squared(self) -> Tensor | None:
        """Closed where the base's is, scales included."""
        return self.base.scaled_frobenius_squared(self.left, self.right)


def _there(scale: Tensor, places: Tensor, length: int) -> Tensor:
    """Scales of so many positions at one of each prompt, (B, 1) or (B, d); those of a stalk without positions are
    themselves."""
    if length == 1 or scale.shape[1] == 1:
        return scale
    rows = scale.unflatten(1, (length, -1)).expand(len(places), -1, -1)
    found: Tensor = rows[torch.arange(len(places), device=places.device), places]
    return found


class _Same:
    """A tensor that can be compared: with itself at once, with another by their numbers."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or other.tensor.shape != self.tensor.shape:
            return False
        return other.tensor is self.tensor or to_host((other.tensor == self.tensor).all())

    def __hash__(self) -> int:
        return hash(self.tensor.shape)


def _alike(scales: Sequence[Tensor], size: int) -> list[Tensor]:
    """Scales of one side, each for as many neighbours."""
    if len({scale.shape[1] for scale in scales}) == 1:
        return list(scales)
    return [by_coordinate(scale, size) for scale in scales]


def _both(one: Tensor, two: Tensor, size: int) -> Tensor:
    """The product of two scales of one side."""
    one, two = _alike([one, two], size)
    return one * two
