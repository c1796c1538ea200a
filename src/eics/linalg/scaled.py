"""Operators with their rows and columns scaled: masks of positions, and the units of the relative metric."""

from torch import Tensor

from eics.linalg.blocks import by_coordinate, multiply_scales, rescale
from eics.linalg.operators import LinearOperator, check_same


class Scaled(LinearOperator):
    """diag(left) J diag(right): masks rows and columns, or changes their units.

    `left` is (batch or 1, rows) and `right` (batch or 1, cols), or shorter, each scale for a run of neighbours
    (`eics.linalg.blocks`).
    """

    base: LinearOperator
    left: Tensor
    right: Tensor

    def __init__(self, base: LinearOperator, left: Tensor, right: Tensor) -> None:
        check_same("rows and what the left scales leave of them", base.rows % left.shape[-1], 0)
        check_same("columns and what the right scales leave of them", base.cols % right.shape[-1], 0)
        if isinstance(base, Scaled):  # scales of scales are scales: structure is known of the innermost base
            left = multiply_scales(left, base.left, base.rows)
            right = multiply_scales(right, base.right, base.cols)
            base = base.base
        self.base, self.left, self.right = base, left, right
        batch = max(base.batch, left.shape[0], right.shape[0])
        self._like(base, rows=base.rows, cols=base.cols, batch=batch)

    def mv(self, x: Tensor) -> Tensor:
        return rescale(self.left, self.base.mv(rescale(self.right, x)))

    def rmv(self, y: Tensor) -> Tensor:
        return rescale(self.right, self.base.rmv(rescale(self.left, y)))

    def prompt(self, index: int) -> LinearOperator:
        left, right = (scale[index % scale.shape[0]].unsqueeze(0) for scale in (self.left, self.right))
        return Scaled(self.base.prompt(index), left, right)

    def double(self) -> LinearOperator:
        return Scaled(self.base.double(), self.left.double(), self.right.double())

    def dense(self) -> Tensor:
        left, right = by_coordinate(self.left, self.rows), by_coordinate(self.right, self.cols)
        return left.unsqueeze(2) * self.base.dense() * right.unsqueeze(1)


def rows_scaled(operator: LinearOperator, left: Tensor) -> LinearOperator:
    """diag(left) J."""
    return Scaled(operator, left, left.new_ones(1, 1))


def columns_scaled(operator: LinearOperator, right: Tensor) -> LinearOperator:
    """J diag(right)."""
    return Scaled(operator, right.new_ones(1, 1), right)
