"""What a map's singular values say about its effective information, exactly.

    EI(J) = 1/2 logdet(I + alpha J^T J) = 1/2 sum_i log(1 + alpha sigma_i^2)      (equation 3, in nats)

The singular values do not depend on alpha. A `Spectrum` is what one factorization, one Lanczos run or one
norm leaves behind; it answers for every alpha. Estimated spectra live beside their algorithms, in
`eics.lanczos` and `eics.hutchpp`.

>>> import torch
>>> from eics.operators import Dense
>>> print(exact(Dense(torch.eye(2, dtype=torch.float64))).ei(1.0).value)  # log 2
tensor([0.6931], dtype=torch.float64)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.operators import MEMORY_BOUND, LinearOperator
from eics.probes import signs

Alpha = float | Tensor
"""A number, or one for each prompt (B,)."""


@dataclass(frozen=True)
class Estimate:
    """A number for each prompt with its standard error.

    Attributes:
        value: (B,).
        stderr: (B,); zero where nothing was sampled.
        lower, upper: bounds on the true number, where the method gives them.
    """

    value: Tensor
    stderr: Tensor
    lower: Tensor | None = None
    upper: Tensor | None = None


class Spectrum(ABC):
    """Knows EI at every alpha. `method` says how; `exact` whether without error but rounding."""

    method: str
    exact: bool

    @abstractmethod
    def ei(self, alpha: Alpha) -> Estimate:
        """EI at this alpha."""


@dataclass(frozen=True)
class SingularValues(Spectrum):
    """Squared singular values, (B, r). With `exact=False`, only the largest ones (top-k)."""

    squares: Tensor
    method: str = "svd"
    exact: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """1/2 sum_i log(1 + alpha sigma_i^2)."""
        value = 0.5 * torch.log1p(trailing(alpha, 1) * self.squares).sum(dim=1)
        return Estimate(value, torch.zeros_like(value))


@dataclass(frozen=True)
class GramMatrix(Spectrum):
    """The smaller of J J^T and J^T J, (B, m, m), factorized anew for each alpha: the fastest for one alpha."""

    gram: Tensor
    method: str = "cholesky"
    exact: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """sum_i log L_ii with L L^T = I + alpha G; never singular, since G is positive semi-definite."""
        eye = torch.eye(self.gram.shape[1], dtype=self.gram.dtype, device=self.gram.device)
        shifted = eye + trailing(alpha, 2) * self.gram
        value = torch.linalg.cholesky(shifted).diagonal(dim1=1, dim2=2).log().sum(dim=1)
        return Estimate(value, torch.zeros_like(value))


class Gram:
    """A = J J^T or J^T J, whichever is smaller, by products; both have the same non-zero spectrum.

    `support` (not zero on the coordinates that count; for rows, (B or 1, rows), and for columns of J) keeps probes
    to those coordinates, in their order: a padded prompt meets the same probes as an unpadded one.
    """

    def __init__(self, operator: LinearOperator, support: tuple[Tensor, Tensor] | None = None) -> None:
        self.operator = operator
        rows, cols = operator.rows, operator.cols
        counts = (rows, cols) if support is None else tuple(int(side.count_nonzero()) / len(side) for side in support)
        self.by_rows = counts[0] <= counts[1]
        self.size = rows if self.by_rows else cols
        self.support = None if support is None else support[0 if self.by_rows else 1] != 0

    def half(self, x: Tensor) -> Tensor:
        """J^T x or J x: its squared norm is x^T A x, for one product instead of two."""
        return self.operator.rmv(x) if self.by_rows else self.operator.mv(x)

    def mv(self, x: Tensor) -> Tensor:
        """A x for a block (B, size, k)."""
        half = self.half(x)
        return self.operator.mv(half) if self.by_rows else self.operator.rmv(half)

    def probes(self, count: int, stream: torch.Generator) -> Tensor:
        """Rademacher vectors for each prompt, (B, size, count), zero where nothing counts.

        The i-th coordinate that counts gets the i-th row drawn, whatever lies between.
        """
        like = torch.empty(0, dtype=self.operator.dtype, device=self.operator.device)
        if self.support is None:
            return signs(self.size, count, stream, like).expand(self.operator.batch, -1, -1)
        place = (self.support.cumsum(dim=1) - 1).clamp(min=0)
        drawn = signs(int(place.max()) + 1, count, stream, like)[0]
        return (drawn[place] * self.support.unsqueeze(2)).expand(self.operator.batch, -1, -1)

    def dense(self) -> Tensor:
        """The matrix (B, size, size), by chunks of unit vectors."""
        blocks = [self.mv(unit) for unit in self.operator.unit_blocks(self.size)]
        gram = torch.cat(blocks, dim=2)
        return 0.5 * (gram + gram.mT)


def exact(operator: LinearOperator, factorization: str = "svd") -> Spectrum:
    """The exact spectrum: `svd` for every alpha at once, `cholesky` of the smaller Gram side for one alpha.

    A map whose matrix would break the memory bound is never formed: its Gram matrix is, and `svd` then means
    that matrix's eigenvalues.
    """
    count = operator.batch * operator.rows * operator.cols
    fits = count * operator.dtype.itemsize <= MEMORY_BOUND
    if factorization == "svd" and fits:
        return SingularValues(torch.linalg.svdvals(_wide_enough(operator.dense())).square())
    if fits:
        matrix = _wide_enough(operator.dense())
        gram = matrix @ matrix.mT if operator.rows <= operator.cols else matrix.mT @ matrix
    else:
        gram = _wide_enough(Gram(operator).dense())
    if factorization == "cholesky":
        return GramMatrix(gram)
    return SingularValues(torch.linalg.eigvalsh(gram).clamp(min=0), method="eigh")


def trailing(alpha: Alpha, axes: int) -> Alpha:
    """Alpha as something that multiplies a (B, ...) tensor: itself, or (B, 1, ...) with so many axes of 1.

    A plain number stays a Python float: as a tensor it would be rounded to float32.
    """
    return alpha.reshape(-1, *[1] * axes) if isinstance(alpha, Tensor) else alpha


def _wide_enough(matrix: Tensor) -> Tensor:
    """Log-determinants in at least float32: half precisions have no factorizations."""
    return matrix if matrix.dtype.itemsize >= 4 else matrix.float()
