"""What a map's singular values say about its effective information, exactly.

    EI(J) = 1/2 logdet(I + alpha J^T J) = 1/2 sum_i log(1 + alpha sigma_i^2)      (equation 3, in nats)

The singular values do not depend on alpha. A `Spectrum` is what one factorization, one Lanczos run or one
norm leaves behind; it answers for every alpha. Estimated spectra live beside their algorithms, in
`eics.linalg.lanczos` and `eics.linalg.hutchpp`.

>>> import torch
>>> from eics.linalg.operators import Dense
>>> print(exact(Dense(torch.eye(2, dtype=torch.float64))).ei(1.0).value)  # log 2
tensor([0.6931], dtype=torch.float64)
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.blocks import cat_batches
from eics.linalg.host_device import map_tensors, to_host
from eics.linalg.matrices import gram64
from eics.linalg.memory import memory_bound
from eics.linalg.operators import LinearOperator
from eics.linalg.probes import Stream, signs
from eics.linalg.structure import (
    BlockDiagonal,
    GramOnly,
    Kronecker,
    LowRankUpdate,
    Structure,
    structure,
    updated_log_determinant,
)

_SVD_LIMIT = 128  # beyond this side, eigenvalues of a Gram matrix are several times faster than an SVD

Alpha = float | Tensor
"""A number, or one for each prompt (B,)."""


@dataclass(frozen=True)
class Estimate:
    """A number for each prompt with its standard error.

    Attributes:
        value: (B,).
        stderr: (B,); zero if nothing was sampled.
        lower, upper: bounds on the true number, if the method gives them.
        reading: error of what was assumed beside what was sampled, if anything. It is alike for maps that are alike, so
            over several maps it adds up, while sampling errors average out.
    """

    value: Tensor
    stderr: Tensor
    lower: Tensor | None = None
    upper: Tensor | None = None
    reading: Tensor | None = None


class Spectrum(ABC):
    """EI at every alpha. `method` says how; it is `exact` up to rounding, or `sampled` with a standard error, or
    neither (top-k)."""

    method: str
    exact: bool
    sampled: bool = False

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
    """The smaller of J J^T and J^T J, (B, blocks, m, m), factorized for each alpha anew: the fastest for one alpha."""

    gram: Tensor
    finite: Tensor
    method: str = "cholesky"
    exact: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """sum_i log L_ii with L L^T = I + alpha G; nan if rounding in a huge alpha G hides the I."""
        shifted = trailing(alpha, 3) * self.gram
        shifted.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        value = factor.diagonal(dim1=-2, dim2=-1).log().sum(dim=(1, 2)) * self.finite[:, 0]
        value = torch.where(failed.any(dim=1), torch.nan, value)
        return Estimate(value, torch.zeros_like(value))


@dataclass(frozen=True)
class Updated(Spectrum):
    """`diag(k) + P S P^T` with the eigenvalues of J J^T: k (B, n), P (B, n, r), S (B, r, r)."""

    diagonal: Tensor
    columns: Tensor
    middle: Tensor
    method: str = "closed form"
    exact: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        value = 0.5 * updated_log_determinant(self.diagonal, self.columns, self.middle, alpha)
        return Estimate(value, torch.zeros_like(value))


@dataclass(frozen=True)
class OneAlpha(Spectrum):
    """EI at one alpha, (B,), by factorizations that are not kept: memory for one map at a time."""

    alpha: float
    value: Tensor
    method: str = "cholesky"
    exact: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """The value, at its own alpha only."""
        assert alpha == self.alpha, f"factorized at alpha = {self.alpha}, not at {alpha}"
        return Estimate(self.value, torch.zeros_like(self.value))


class Gram:
    """A = J J^T or J^T J, whichever is smaller, by products; both have the same non-zero spectrum.

    `support`, non-zero on the rows and on the columns of J that count, keeps probes to those coordinates, in their
    order: a padded prompt meets the same probes as an unpadded one.
    """

    def __init__(
        self, operator: LinearOperator, support: tuple[Tensor, Tensor] | None = None, by_rows: bool | None = None
    ) -> None:
        self.operator, self._sides = operator, support
        self.by_rows = operator.rows <= operator.cols if by_rows is None else by_rows
        self.size = operator.rows if self.by_rows else operator.cols
        self.support = None if support is None else support[0 if self.by_rows else 1] != 0

    @property
    def turned(self) -> "Gram":
        """The Gram matrix of the other side."""
        return Gram(self.operator, self._sides, not self.by_rows)

    def half(self, x: Tensor) -> Tensor:
        """J^T x or J x: its squared norm is x^T A x, for one product instead of two."""
        return self.operator.rmv(x) if self.by_rows else self.operator.mv(x)

    def other_half(self, x: Tensor) -> Tensor:
        """J x or J^T x: the other factor of A."""
        return self.operator.mv(x) if self.by_rows else self.operator.rmv(x)

    def mv(self, x: Tensor) -> Tensor:
        """A x for a block (B, size, k)."""
        return self.other_half(self.half(x))

    def probes(self, count: int, stream: Stream) -> Tensor:
        """Rademacher vectors for each prompt, (B, size, count), zero on coordinates that do not count.

        The i-th coordinate that counts gets the i-th row drawn, whatever lies between. If there are several streams,
        each serves its part of the batch.
        """
        like = torch.empty(0, dtype=self.operator.dtype, device=self.operator.device)
        streams = [stream] if isinstance(stream, torch.Generator) else stream
        batch = self.operator.batch // len(streams)
        if self.support is None:
            return cat_batches([signs(self.size, count, one, like) for one in streams], batch)
        place = (self.support.cumsum(dim=1) - 1).clamp(min=0)
        most = to_host(place.max()) + 1
        drawn = torch.cat([signs(most, count, one, like) for one in streams])  # (streams, most, count)
        if len(streams) == 1:
            found = drawn[0][place]
        else:
            found = cat_batches([one[at] for one, at in zip(drawn, place.chunk(len(streams)), strict=True)], batch)
        return (found * self.support.unsqueeze(2)).expand(self.operator.batch, -1, -1)

    def dense(self) -> Tensor:
        """The matrix (B, size, size), by chunks of unit vectors."""
        blocks = [self.mv(unit) for unit in self.operator.unit_blocks(self.size)]
        gram = torch.cat(blocks, dim=2)
        return 0.5 * (gram + gram.mT)


def exact(operator: LinearOperator, factorization: str = "svd") -> Spectrum:
    """The exact spectrum, from whatever is known of the map's structure.

    | structure | smaller side | `svd` | `cholesky` |
    |---|---|---|---|
    | Kronecker | any | closed form | closed form |
    | LowRankUpdate | any | closed form | closed form |
    | GramOnly | any | eigh | cholesky |
    | none | up to 128 | svd | cholesky |
    | none | above 128 | eigh | cholesky |

    `svd` serves every alpha at once, `cholesky` is fastest for one. A block-diagonal map without a Gram matrix of its
    own counts as "none", block by block. "eigh" and "cholesky" factorize a Gram matrix in float64, since squaring
    halves the digits; a map whose matrix would break the memory bound gets it from products, and the same goes for
    "svd". The choice depends on the size of one prompt's map, never on the batch.
    """
    known = structure(operator)
    closed = _closed_form(known)
    if closed is not None:
        return closed
    if operator.batch > _prompts_at_once(operator, known):
        singles = [exact(operator.prompt(index), factorization) for index in range(operator.batch)]
        stacked: Spectrum = map_tensors(lambda *tensors: torch.cat(tensors), *singles)
        return stacked
    update = known.parts() if isinstance(known, LowRankUpdate) else None
    if update is not None:
        columns, finite = _finite(update[1])
        return Updated(update[0] * finite, columns, torch.where(finite.unsqueeze(2).isfinite(), update[2], 0.0))
    has_gram = isinstance(known, GramOnly) and known.side is not None
    if factorization == "svd" and not has_gram and _side(operator, known) <= _SVD_LIMIT and _fits(operator, known):
        matrix, finite = _finite(_wide_enough(_diagonal_blocks(operator, known)))
        singular: Tensor = torch.linalg.svdvals(matrix)
        return SingularValues(singular.flatten(1).square() * finite)
    gram, finite = _finite(_gram(operator, known))
    if factorization == "cholesky":
        return GramMatrix(gram, finite)
    return SingularValues(torch.linalg.eigvalsh(gram).flatten(1).clamp(min=0) * finite, method="eigh")


def exact_at(operator: LinearOperator, alpha: float, factorization: str = "auto") -> Spectrum:
    """The exact spectrum for a single alpha: large maps by Cholesky, a few prompts at a time, of which no factor is
    kept.

    `auto` is `svd` up to a side of 128, else `cholesky`.
    """
    known = structure(operator)
    if factorization == "svd" or (factorization == "auto" and _side(operator, known) <= _SVD_LIMIT):
        return exact(operator, "svd")
    closed = _closed_form(known)
    if closed is not None:
        return closed
    alone = operator.batch > _prompts_at_once(operator, known)
    prompts = [operator.prompt(index) for index in range(operator.batch)] if alone else [operator]
    spectra = [(spectrum.method, spectrum.ei(alpha).value) for spectrum in (exact(p, "cholesky") for p in prompts)]
    return OneAlpha(alpha, torch.cat([value for _, value in spectra]), method=spectra[0][0])


def _closed_form(known: Structure | None) -> SingularValues | None:
    """The singular values of a Kronecker product, if its scales leave it one."""
    squares = known.singular_squares() if isinstance(known, Kronecker) else None
    if squares is None:
        return None
    squares, finite = _finite(squares)
    return SingularValues(squares * finite, method="closed form")


def _blocks(known: Structure | None) -> int:
    return known.blocks if isinstance(known, BlockDiagonal) else 1


def _side(operator: LinearOperator, known: Structure | None) -> int:
    """The side of the Gram matrix that would be factorized."""
    side = known.side if isinstance(known, GramOnly) else None
    return side or min(operator.rows, operator.cols) // _blocks(known)


def _matrix_bytes(operator: LinearOperator, known: Structure | None) -> int:
    """The size of one prompt's diagonal blocks in float64."""
    return 8 * operator.rows * operator.cols // _blocks(known)


def _fits(operator: LinearOperator, known: Structure | None) -> bool:
    return _matrix_bytes(operator, known) <= memory_bound()


def _prompts_at_once(operator: LinearOperator, known: Structure | None) -> int:
    """How many prompts' matrices fit under the memory bound; at least one."""
    own = known.bytes_of_one if isinstance(known, GramOnly) else None
    return max(1, memory_bound() // (own or _matrix_bytes(operator, known)))


def _diagonal_blocks(operator: LinearOperator, known: Structure | None) -> Tensor:
    """The map's matrices by diagonal block, (batch, blocks, m, n)."""
    return known.diagonal_blocks() if isinstance(known, BlockDiagonal) else operator.dense().unsqueeze(1)


def _gram(operator: LinearOperator, known: Structure | None) -> Tensor:
    """The smaller Gram matrix of each diagonal block in float64, (batch, blocks, m, m)."""
    closed = known.gram_matrix() if isinstance(known, GramOnly) else None
    if closed is not None:
        return closed
    if _fits(operator, known) or _blocks(known) > 1:
        matrix = _diagonal_blocks(operator, known)
        return gram64(matrix if operator.rows <= operator.cols else matrix.mT)
    return Gram(operator.double()).dense().unsqueeze(1)


def _finite(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices (B, ...) with those of prompts that have a non-finite entry set to 0, and (B, 1): nan for those, else 1.

    A factorization would refuse the whole batch for one prompt's overflow.
    """
    good = matrices.flatten(1).sum(dim=1).isfinite()
    finite = torch.where(good, 1.0, torch.nan).to(matrices.dtype).unsqueeze(1)
    if to_host(good.all()):
        return matrices, finite
    return torch.where(good.view(-1, *[1] * (matrices.ndim - 1)), matrices, 0.0), finite


def trailing(alpha: Alpha, axes: int) -> Alpha:
    """Alpha as something that multiplies a (B, ...) tensor: itself, or (B, 1, ...) with `axes` axes of 1.

    A plain number stays a Python float: as a tensor it would be rounded to float32.
    """
    return alpha.reshape(-1, *[1] * axes) if isinstance(alpha, Tensor) else alpha


def _wide_enough(matrix: Tensor) -> Tensor:
    """At least float32: half precisions have no factorizations."""
    return matrix if matrix.dtype.itemsize >= 4 else matrix.float()
