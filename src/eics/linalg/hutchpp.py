"""`--mode limit`: the small-alpha form of EI from ||J||_F^2, in closed form or by Hutch++ (Meyer, Musco, Musco,
Woodruff 2021).

    EI(J) = 1/2 sum_i log(1 + alpha sigma_i^2)  ~  alpha/2 ||J||_F^2      for alpha sigma_max^2 << 1

Hutch++ splits `tr(A) = tr(Q^T A Q) + tr((I-QQ^T) A (I-QQ^T))` with Q an orthonormal basis from a few probes: the
large eigenvalues are summed exactly and only the rest is sampled, with other probes. With A = J J^T a quadratic form
`x^T A x = ||J^T x||^2` costs one product, and so does a column of the sketch if Q spans J (not A) times a few probes.
That leaves more probes to sample with at equal cost, and gives smaller errors on macro maps of SmolLM2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.host_device import to_device
from eics.linalg.operators import LinearOperator
from eics.linalg.precision import norms
from eics.linalg.probes import Stream, fork, student
from eics.linalg.spectrum import Alpha, Estimate, Gram, Spectrum
from eics.linalg.structure import structure

_SKEW = (
    1.2  # forms are skewed: samples without the rare large ones understate their spread (tests/linalg/test_coverage.py)
)


@dataclass(frozen=True)
class SmallAlpha(Spectrum):
    """||J||_F^2 with its standard error, and how many singular values can be non-zero; (B,) each, or for several maps
    at once (B, maps). The rank may be a plain number, and there is no error where nothing was sampled."""

    norm_squared: Tensor
    stderr: Tensor | None
    rank: Tensor | int
    method: str
    exact: bool

    @property
    def sampled(self) -> bool:  # type: ignore[override]
        """Whether there was no closed form."""
        return not self.exact

    def ei(self, alpha: Alpha) -> Estimate:
        """alpha/2 ||J||_F^2, with bounds on the true EI that follow from the norm alone.

        log(1 + x) is concave, so a given norm carries least when one singular value has it all and most when
        all share it: `log(1 + x)/2 <= EI <= r log(1 + x/r)/2 <= x/2` with `x = alpha ||J||_F^2`. The first is
        above `(x - x^2/2)/2`; the last is the small-alpha form itself. An estimated norm is taken three standard errors
        lower and higher.
        """
        rank = at_least_one(self.rank)
        rank = rank.to(self.norm_squared.dtype) if isinstance(rank, Tensor) else rank
        value = 0.5 * alpha * self.norm_squared
        if self.stderr is None:
            low = high = 2.0 * value
            stderr = torch.zeros_like(value)
        else:
            stderr = 0.5 * alpha * self.stderr
            low, high = (2.0 * value - 6.0 * stderr).clamp(min=0), 2.0 * value + 6.0 * stderr
        return Estimate(value, stderr, 0.5 * torch.log1p(low), 0.5 * rank * torch.log1p(high / rank))


def at_least_one(count: Tensor | int) -> Tensor | int:
    """A count to divide by, at least 1."""
    return count.clamp(min=1) if isinstance(count, Tensor) else max(1, count)


def joined(spectra: Sequence[SmallAlpha], batch: int) -> SmallAlpha:
    """Several maps' norms side by side, (B, maps): one EI for all."""
    first = spectra[0].norm_squared
    zero = torch.zeros_like(first[:1])
    errors = [zero if one.stderr is None else one.stderr for one in spectra]
    return SmallAlpha(
        side_by_side([one.norm_squared for one in spectra], batch),
        None if all(one.stderr is None for one in spectra) else side_by_side(errors, batch),
        counts([one.rank for one in spectra], batch, first.device),
        method="joined",
        exact=all(one.exact for one in spectra),
    )


def counts(numbers: Sequence[Tensor | int], batch: int, device: torch.device) -> Tensor:
    """Counts, plain or one for each prompt, as columns: (B or 1, numbers)."""
    if not any(isinstance(number, Tensor) for number in numbers):
        return to_device([list(numbers)], device)
    tensors = [n if isinstance(n, Tensor) else torch.full((1,), n, device=device) for n in numbers]
    return side_by_side(tensors, batch)


def side_by_side(tensors: Sequence[Tensor], batch: int) -> Tensor:
    """Tensors of (B or 1,) as columns: (B, tensors)."""
    return torch.stack([tensor.expand(batch) for tensor in tensors], dim=1)


def closed_form(operator: LinearOperator, rank: Tensor | int) -> SmallAlpha | None:
    """From the norm that the operator's structure gives, without a probe; None if it gives none."""
    with norms():
        known = structure(operator)
        norm = None if known is None else known.frobenius_squared()
    return None if norm is None else SmallAlpha(norm, None, rank, method="closed form", exact=True)


def small_alpha(operator: LinearOperator, gram: Gram, rank: Tensor | int, *, probes: int, stream: Stream) -> SmallAlpha:
    """The closed form if there is one, else Hutch++."""
    closed = closed_form(operator, rank)
    if closed is not None:
        return closed
    with norms():
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
    count = sampled.shape[1]
    error = _SKEW * student(count) * sampled.std(dim=1) / count**0.5
    return captured.sum(dim=1) + sampled.mean(dim=1), error


def _range_basis(block: Tensor) -> Tensor:
    """Orthonormal columns that span the columns of a block (B, n, k) and nothing else; zero columns where it has less.

    By Gram-Schmidt in float64, column by column, each twice: on a GPU a QR takes as long as a sweep, and it would fill
    up with arbitrary directions that differ between a padded prompt and the same prompt alone. A column of which less
    than a millionth is new is left out, and sampled.
    """
    good = block.flatten(1).isfinite().all(dim=1).view(-1, 1, 1)
    columns = torch.where(good, block, 0.0).double()
    least = 1e-6 * torch.linalg.vector_norm(columns, dim=1, keepdim=True).amax(dim=2, keepdim=True)
    basis = columns[..., :0]
    for column in columns.split(1, dim=2):
        for _ in range(2):  # the second removes what rounding left of the first
            column = column - basis @ (basis.mT @ column)  # noqa: PLW2901
        length = torch.linalg.vector_norm(column, dim=1, keepdim=True)
        there = length > least
        basis = torch.cat([basis, torch.where(there, column / torch.where(there, length, 1.0), 0.0)], dim=2)
    return torch.where(good, basis.to(block.dtype), torch.nan)
