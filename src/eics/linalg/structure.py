"""Structure as data: what can be computed about a map J without a product with a vector.

`structure(operator)` returns one of the frozen classes below, or None. Each knows the squared Frobenius norm of J, its
squared singular values and log det(I + alpha J J^T) as far as they have a closed form, and what scaling the rows and
columns of J does to them. Which closed form an operator has is registered beside that form
(`transformer/closed_forms`): a new one is a new file.

| class | J J^T is | e.g. |
|---|---|---|
| `Structure` | unknown; only the norm has a closed form | an explicit matrix |
| `GramOnly` | a matrix of a smaller side, with the same non-zero eigenvalues | a head: T e instead of T d |
| `BlockDiagonal` | one block for each position | an MLP |
| `Kronecker` | a product of a map over positions and one of weights alone | a head whose pattern is frozen |
| `LowRankUpdate` | diagonal plus low rank, in some basis | a head on a short prompt |

Everything is lazy: fields that cost something are functions of the scales put on J.

>>> import torch
>>> from eics.linalg.operators import Dense
>>> structure(Dense(2 * torch.eye(3))).frobenius_squared()
tensor([12.])
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TypeVar

import torch
from torch import Tensor

from eics.linalg.blocks import add, by_coordinate, multiply_scales
from eics.linalg.host_device import to_host
from eics.linalg.matrices import log_determinants
from eics.linalg.operators import Dense, HStack, LinearOperator, Transposed
from eics.linalg.scaled import Scaled

OfScales = Callable[[Tensor | None, Tensor | None], Tensor | None]
"""Something of diag(left) J diag(right) for each prompt; None if these scales leave no closed form."""


@dataclass(frozen=True)
class Structure:
    """A map whose Frobenius norm has a closed form, if `norm` gives one.

    Attributes:
        rows, cols: of J.
        norm: ||diag(left) J diag(right)||_F^2, (B,).
        fourth: the sum of its singular values to the fourth power, (B,).
        left, right: the scales that were put on J.
    """

    rows: int
    cols: int
    norm: OfScales | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    fourth: OfScales | None = None

    @property
    def rank(self) -> int:
        """How many singular values can be non-zero."""
        return min(self.rows, self.cols)

    def fourth_powers(self) -> Tensor | None:
        """The sum of sigma^4 for each prompt, (B,), or None."""
        return None if self.fourth is None else self.fourth(self.left, self.right)

    def frobenius_squared(self) -> Tensor | None:
        """||J||_F^2 for each prompt, (B,), or None."""
        return None if self.norm is None else self.norm(self.left, self.right)

    def singular_squares(self) -> Tensor | None:
        """Squared singular values in float64, (B, r), or None."""
        return None

    def log_determinant(self, alpha: float) -> Tensor | None:
        """log det(I + alpha J J^T) in float64, (B,), or None."""
        squares = self.singular_squares()
        return None if squares is None else torch.log1p(alpha * squares).sum(dim=1)

    def scaled(self: "S", left: Tensor | None, right: Tensor | None) -> "S":
        """The structure of diag(left) J diag(right)."""
        return replace(self, left=_both(self.left, left, self.rows), right=_both(self.right, right, self.cols))


S = TypeVar("S", bound=Structure)


def _both(first: Tensor | None, second: Tensor | None, size: int) -> Tensor | None:
    """The product of two scales of one side; None stands for ones."""
    if first is None or second is None:
        return second if first is None else first
    return multiply_scales(first, second, size)


@dataclass(frozen=True)
class GramOnly(Structure):
    """A map with a smaller Gram matrix: non-zero eigenvalues as those of J J^T, block by block.

    Attributes:
        side: of that matrix; None if `gram` knows none.
        gram: (B, blocks, side, side) in float64.
        copies: how many matrices of that size are held while it is made.
        left_factor: what is divided out on the left. Maps side by side with an equal one have the sum of their Gram
            matrices.
    """

    side: int | None = None
    gram: OfScales | None = None
    copies: int = 4
    left_factor: object = None

    def gram_matrix(self) -> Tensor | None:
        """The matrix for the scales in force, or None."""
        return None if self.gram is None else self.gram(self.left, self.right)

    def singular_squares(self) -> Tensor | None:
        gram = self.gram_matrix()
        return None if gram is None else torch.linalg.eigvalsh(gram).flatten(1).clamp(min=0)

    @property
    def rank(self) -> int:
        return min(self.rows, self.cols, self.side or self.rows)

    @property
    def bytes_of_one(self) -> int | None:
        """Of one prompt's matrices while they are made; None if there are none."""
        return None if self.side is None else 8 * self.copies * self.side**2

    @property
    def scaled_left_factor(self) -> object:
        """`left_factor` with the scales of rows in it, or None."""
        return None if self.left_factor is None else (self.left_factor, self.left is not None and _ByValue(self.left))


@dataclass(frozen=True)
class BlockDiagonal(GramOnly):
    """A block-diagonal map: `blocks` of one shape, which `matrices` gives: (B, blocks, rows/blocks, cols/blocks).

    `norms` gives ||J_t||_F^2 by block. `sketches` gives `X^T J_t S` up to a factor for each block, (B, blocks, k, k),
    with k random signs for each row of X and S, where that costs far less than products with k vectors; both None if
    unknown.
    """

    blocks: int = 1
    matrices: Callable[[], Tensor] | None = None
    norms: OfScales | None = None
    sketches: Callable[[torch.Generator], Tensor] | None = None

    @property
    def rank(self) -> int:
        return min(self.rows, self.cols)

    def frobenius_squared(self) -> Tensor | None:
        norms = self.block_norms()
        return None if norms is None else norms.sum(dim=1)

    def block_norms(self) -> Tensor | None:
        """||J_t||_F^2 of each block, (B, blocks), or None."""
        return None if self.norms is None else self.norms(self.left, self.right)

    def diagonal_blocks(self) -> Tensor:
        """The blocks with the scales in force."""
        assert self.matrices is not None
        blocks = self.matrices()
        for scale, size, axis in ((self.left, self.rows, -1), (self.right, self.cols, -2)):
            if scale is not None:
                blocks = blocks * by_coordinate(scale, size).unflatten(1, (self.blocks, -1)).unsqueeze(axis)
        return blocks


@dataclass(frozen=True)
class Kronecker(GramOnly):
    """J = positions (x) weights: singular values are all products of those of the two factors.

    Attributes:
        positions: over positions, (B, T', T) in float64, with scales by position in it; None if they differ within one.
        weight_squares: squared singular values of the weights' factor, (B or 1, e) in float64.
    """

    positions: OfScales | None = None
    weight_squares: Callable[[], Tensor] | None = None

    def singular_squares(self) -> Tensor | None:
        assert self.positions is not None
        assert self.weight_squares is not None
        positions = self.positions(self.left, self.right)
        if positions is None:
            return None
        if 1 in positions.shape[1:]:  # a vector: its norm
            by_position = positions.square().sum(dim=(1, 2)).unsqueeze(1)
        else:
            by_position = torch.linalg.svdvals(positions).square()  # (B, T)
        return (by_position.unsqueeze(-1) * self.weight_squares().unsqueeze(-2)).flatten(1)


@dataclass(frozen=True)
class LowRankUpdate(GramOnly):
    """`diag(k) + P S P^T` has the non-zero eigenvalues of J J^T: k (B, n), P (B, n, c) and S (B, c, c), c `columns`.

    `update` gives the three for the scales in force, in float64; None if they differ within a position.
    """

    columns: int = 0
    update: Callable[[Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor] | None] | None = None

    def parts(self) -> tuple[Tensor, Tensor, Tensor] | None:
        """k, P and S."""
        assert self.update is not None
        return self.update(self.left, self.right)

    def log_determinant(self, alpha: float | Tensor) -> Tensor | None:
        """`sum log(1 + alpha k) + log det(I + alpha S P^T (I + alpha diag(k))^-1 P)`, by the determinant lemma."""
        parts = self.parts()
        return None if parts is None else updated_log_determinant(*parts, alpha)

    @property
    def bytes_of_one(self) -> int | None:
        return None if self.side is None else 8 * 3 * self.side * self.columns


def updated_log_determinant(diagonal: Tensor, columns: Tensor, middle: Tensor, alpha: float | Tensor) -> Tensor:
    """log det(I + alpha (diag(k) + P S P^T)) for each prompt; alpha is a number, or one for each prompt, (B,)."""
    alphas = [alpha.reshape(-1, *[1] * axes) if isinstance(alpha, Tensor) else alpha for axes in (1, 2)]
    below = 1.0 + alphas[0] * diagonal
    small = alphas[1] * (middle @ (columns.mT @ (columns / below.unsqueeze(2))))
    small.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return below.log().sum(dim=1) + log_determinants(small)


class _ByValue:
    """A tensor that compares equal to itself, and to another tensor with the same numbers."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByValue) or other.tensor.shape != self.tensor.shape:
            return False
        return other.tensor is self.tensor or to_host((other.tensor == self.tensor).all())

    def __hash__(self) -> int:
        return hash(self.tensor.shape)


@singledispatch
def structure(operator: LinearOperator) -> Structure | None:  # noqa: ARG001
    """What is known of an operator without products; None if nothing is."""
    return None


@structure.register
def _(operator: Dense) -> Structure:
    def scaled(left: Tensor | None, right: Tensor | None) -> Tensor:
        matrix = operator.matrix
        matrix = matrix if left is None else by_coordinate(left, operator.rows).unsqueeze(2) * matrix
        return matrix if right is None else matrix * by_coordinate(right, operator.cols).unsqueeze(1)

    def norm(left: Tensor | None, right: Tensor | None) -> Tensor:
        return scaled(left, right).square().sum(dim=(1, 2))

    def fourth(left: Tensor | None, right: Tensor | None) -> Tensor:
        matrix = scaled(left, right)
        gram = matrix @ matrix.mT if operator.rows <= operator.cols else matrix.mT @ matrix
        return gram.square().sum(dim=(1, 2))

    return Structure(operator.rows, operator.cols, norm, fourth=fourth)


@structure.register
def _(operator: Transposed) -> Structure | None:
    base = structure(operator.base)

    def norm(left: Tensor | None, right: Tensor | None) -> Tensor | None:
        assert base is not None
        return base.scaled(right, left).frobenius_squared()

    def fourth(left: Tensor | None, right: Tensor | None) -> Tensor | None:
        assert base is not None
        return base.scaled(right, left).fourth_powers()

    return None if base is None else Structure(operator.rows, operator.cols, norm, fourth=fourth)


@structure.register
def _(operator: Scaled) -> Structure | None:
    base = structure(operator.base)
    return None if base is None else base.scaled(operator.left, operator.right)


@structure.register
def _(operator: HStack) -> Structure | None:
    parts = [structure(part) for part in operator.parts]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None

    def split(left: Tensor | None, right: Tensor | None) -> Sequence[Structure]:
        sizes = [part.cols for part in known]
        rights = [None] * len(sizes) if right is None else by_coordinate(right, operator.cols).split(sizes, dim=1)
        return [part.scaled(left, own) for part, own in zip(known, rights, strict=True)]

    def norm(left: Tensor | None, right: Tensor | None) -> Tensor | None:
        return _added([part.frobenius_squared() for part in split(left, right)])

    def gram(left: Tensor | None, right: Tensor | None) -> Tensor | None:
        return _added([part.gram_matrix() for part in split(left, right) if isinstance(part, GramOnly)])

    grams = [part for part in known if isinstance(part, GramOnly)]
    factors = [part.scaled_left_factor for part in grams]
    if len(grams) < len(known) or factors[0] is None or any(factor != factors[0] for factor in factors):
        return Structure(operator.rows, operator.cols, norm)
    return GramOnly(operator.rows, operator.cols, norm, side=grams[0].side, gram=gram, left_factor=factors[0])


def _added(terms: Sequence[Tensor | None]) -> Tensor | None:
    known = [term for term in terms if term is not None]
    return add(known) if len(known) == len(terms) else None


@singledispatch
def with_cached_blocks(operator: LinearOperator) -> LinearOperator:
    """The same map for many products: one that is made of matrices may make them once."""
    return operator


@with_cached_blocks.register
def _(operator: Scaled) -> LinearOperator:
    return Scaled(with_cached_blocks(operator.base), operator.left, operator.right)
