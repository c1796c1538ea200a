"""The small-alpha form of EI from ||J||_F^2, in closed form or by Hutch++ (Meyer, Musco, Musco, Woodruff 2021).

    EI(J) = 1/2 sum_i log(1 + alpha sigma_i^2)  ~  alpha/2 ||J||_F^2      for alpha sigma_max^2 << 1

Hutch++ splits `tr(A) = tr(Q^T A Q) + tr((I-QQ^T) A (I-QQ^T))` with Q an orthonormal basis from a few probes: the
large eigenvalues are summed exactly and only the rest is sampled, with other probes. With A = J J^T a quadratic form
`x^T A x = ||J^T x||^2` costs one product, and so does a column of the sketch: Q spans J times a few probes, not A times
them. At equal cost that leaves more to sample with, and on macro maps of SmolLM2 the error is smaller.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.operators import LinearOperator
from eics.probes import Stream, fork
from eics.spectrum import Alpha, Estimate, Gram, Spectrum


@dataclass(frozen=True)
class SmallAlpha(Spectrum):
    """||J||_F^2 with its standard error, and how many singular values can be non-zero; (B,) each."""

    norm_squared: Tensor
    stderr: Tensor
    rank: Tensor
    method: str
    exact: bool

    @property
    def sampled(self) -> bool:  # type: ignore[override]
        """Where there was no closed form."""
        return not self.exact

    def ei(self, alpha: Alpha) -> Estimate:
        """alpha/2 ||J||_F^2, with bounds on the true EI that follow from the norm alone.

        log(1 + x) is concave, so a given norm carries least when one singular value has it all and most when
        all share it: `log(1 + x)/2 <= EI <= r log(1 + x/r)/2 <= x/2` with `x = alpha ||J||_F^2`. The first is
        above `(x - x^2/2)/2`; the last is the small-alpha form itself. An estimated norm is taken three standard errors
        lower and higher.
        """
        rank = self.rank.clamp(min=1).to(self.norm_squared.dtype)
        low = alpha * (self.norm_squared - 3 * self.stderr).clamp(min=0)
        high = alpha * (self.norm_squared + 3 * self.stderr)
        value, stderr = 0.5 * alpha * self.norm_squared, 0.5 * alpha * self.stderr
        return Estimate(value, stderr, 0.5 * torch.log1p(low), 0.5 * rank * torch.log1p(high / rank))


def small_alpha(operator: LinearOperator, gram: Gram, rank: Tensor, *, probes: int, stream: Stream) -> SmallAlpha:
    """The closed form where the operator has one, Hutch++ elsewhere."""
    closed = operator.frobenius_squared()
    if closed is not None:
        return SmallAlpha(closed, torch.zeros_like(closed), rank, method="closed form", exact=True)
    trace, stderr = hutchpp(gram, probes=probes, stream=stream)
    return SmallAlpha(trace, stderr, rank, method="hutch++", exact=False)


def hutchpp(gram: Gram, *, probes: int, stream: Stream) -> tuple[Tensor, Tensor]:
    """tr(A) and its standard error, (B,) each, from `probes` vectors: a third of them sketch, the others sample."""
    sketch = probes // 3
    turned, other = gram.turned, fork(stream)
    basis = _range_basis(turned.half(turned.probes(sketch, other)))
    samples = gram.probes(probes - sketch, stream)
    rest = samples - basis @ (basis.mT @ samples)
    forms = gram.half(torch.cat([basis, rest], dim=2)).square().sum(dim=1)  # (B, probes)
    captured, sampled = forms[:, : basis.shape[2]], forms[:, basis.shape[2] :]
    return captured.sum(dim=1) + sampled.mean(dim=1), sampled.std(dim=1) / sampled.shape[1] ** 0.5


def _range_basis(block: Tensor) -> Tensor:
    """Orthonormal columns that span the columns of a block (B, n, k) and nothing else; zero columns where it has less.

    From the eigenvectors of the k x k Gram matrix in float64, twice: a QR takes as long as a sweep on a GPU, and would
    fill up with arbitrary directions, others for a padded prompt than for the same one alone. What is a millionth of
    the rest is left out, and to be sampled.
    """
    good = block.flatten(1).isfinite().all(dim=1).view(-1, 1, 1)
    basis = torch.where(good, block, 0.0).double()
    for _ in range(2):  # the second makes orthonormal what the first left by its rounding
        squares, directions = torch.linalg.eigh(basis.mT @ basis)
        there = squares > 1e-12 * squares.amax(dim=1, keepdim=True)
        scale = torch.where(there, torch.where(there, squares, 1.0).rsqrt(), 0.0)
        basis = basis @ (directions * scale.unsqueeze(1))
    return torch.where(good, basis.to(block.dtype), torch.nan)
