r"""`--mode fast`: EI at the requested alpha from the first two moments of a spectrum.

With `x_i = alpha sigma_i^2`, `s1 = sum x_i`, `s2 = sum x_i^2` and r the rank, the spectrum is read as that of a Gamma
distribution with the same moments: mean `m = s1/r`, shape `k = 1 / (r s2/s1^2 - 1)`, scale `theta = m/k`. By Frullani's
integral, log(1 + x) = \int (e^-t - e^-t(1+x)) / t dt, and the distribution's Laplace transform (1 + theta t)^-k,

    2 EI = r E log(1 + X) = r \int exp(-e^v) (1 - (1 + theta e^v)^-k) dv,

whose integrand is analytic and decays at both ends: the trapezoidal rule gives it to seven digits. Any distribution on
[0, inf) with these moments lies between the bounds

    (s1^2/s2) log(1 + s2/s1)  <=  r E log(1 + X)  <=  r log(1 + s1/r),

the first of which two atoms reach, one of them at 0. So the estimate cannot leave them. A log-normal distribution with
the same moments is a second reading; the distance of the two measures what two moments leave open.

Where the moments come from: `moment_estimates.py`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.linalg.probes import student
from eics.linalg.spectrum import Alpha, Estimate, Spectrum, trailing

_NODES = 64
_LEAST_EXCESS = 1e-6  # of r s2/s1^2 over 1: a spectrum flatter than this is flat
READING = 0.6  # of the distance between the two readings is their standard error (tests/linalg/test_coverage.py)


@dataclass(frozen=True)
class Moments(Spectrum):
    """Moments of the spectra of J's diagonal blocks; a map without blocks is a single one.

    Attributes:
        first: sum of sigma^2 in each block, (B, replicates or 1, blocks).
        second: sum of sigma^4, (B, replicates or 1, blocks).
        rank: how many singular values of a block can be non-zero; a number, or (B or 1,).

    Replicate 0 is the estimate. The others leave out a group of probes each (jackknife); none if nothing was sampled.
    """

    first: Tensor
    second: Tensor
    rank: Tensor | int
    method: str = "moments"
    exact: bool = False
    sampled: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """EI from the Gamma reading, with its standard error, bounds, and the error of the reading."""
        scale = trailing(alpha, 2)
        first, second = (scale * self.first).double(), (scale * (scale * self.second)).double()
        rank = self._rank.double()
        values = 0.5 * _gamma(first, second, rank).sum(dim=2)  # (B, replicates)
        reading = 0.5 * _log_normal(first[:, :1], second[:, :1], rank).sum(dim=2).squeeze(1)
        lower, upper = _bounds(first, second, rank)
        value = values[:, 0].clamp(min=lower, max=upper)  # the rule's own rounding
        error = READING * (reading - value).abs()
        return Estimate(*(t.to(self.first.dtype) for t in (value, jackknife(values), lower, upper, error)))

    @property
    def _rank(self) -> Tensor:
        """(B or 1, 1, blocks or 1)."""
        if not isinstance(self.rank, Tensor):
            return torch.full((1, 1, 1), max(1, self.rank), dtype=torch.float64, device=self.first.device)
        return self.rank.clamp(min=1).view(-1, 1, 1)


def jackknife(replicates: Tensor, errors: int = 2) -> Tensor:
    """Standard error of replicate 0, (B,), from replicates (B, 1 + groups) that leave out a group each.

    With few groups the spread is itself uncertain, so that the usual two standard errors (or as many as `errors` says)
    would cover too little: it is widened by Student's t over the normal quantile.
    """
    left_out = replicates[:, 1:]
    groups = left_out.shape[1]
    if groups < 2:
        return torch.zeros_like(replicates[:, 0])
    spread = (left_out - left_out.mean(dim=1, keepdim=True)).square().sum(dim=1)
    return student(groups, errors) * ((groups - 1) / groups * spread).sqrt()


def _excess(first: Tensor, second: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """The mean m and `r s2/s1^2 - 1`, between 0 (flat) and r - 1 (a single singular value)."""
    spread = rank * second / torch.where(first > 0, first, 1.0).square() - 1.0
    return first / rank, torch.minimum(spread, rank - 1.0).clamp(min=_LEAST_EXCESS)


def _gamma(first: Tensor, second: Tensor, rank: Tensor) -> Tensor:
    """r E log(1 + X) for a Gamma-distributed X."""
    mean, excess = _excess(first, second, rank)
    theta = mean * excess
    low, high = -16.0 - torch.log1p(theta), math.log(40.0)
    step = (high - low) / (_NODES - 1)
    total = mean * low.exp() - 0.5 * step * _integrand(low, theta, excess)  # what lies below the first node
    nodes = torch.arange(_NODES, dtype=theta.dtype, device=theta.device)
    for some in nodes.split(chunk_width(theta.numel(), theta.dtype)):  # all at once, unless memory forbids
        at = low.unsqueeze(-1) + some * step.unsqueeze(-1)
        total = total + step * _integrand(at, theta.unsqueeze(-1), excess.unsqueeze(-1)).sum(dim=-1)
    return rank * total


def _integrand(v: Tensor, theta: Tensor, excess: Tensor) -> Tensor:
    t = v.exp()
    return -torch.exp(-t) * torch.expm1(-torch.log1p(theta * t) / excess)


def _log_normal(first: Tensor, second: Tensor, rank: Tensor) -> Tensor:
    """r E log(1 + X) for a log-normal X, by the trapezoidal rule over its logarithm."""
    mean, excess = _excess(first, second, rank)
    variance = torch.log1p(excess)
    nodes = torch.arange(-24, 25, dtype=first.dtype, device=first.device) / 4.0
    weights = torch.exp(-0.5 * nodes.square())
    values = (mean * torch.exp(-0.5 * variance)).unsqueeze(-1) * torch.exp(variance.sqrt().unsqueeze(-1) * nodes)
    return rank * (torch.log1p(values) @ (weights / weights.sum()))


def _bounds(first: Tensor, second: Tensor, rank: Tensor) -> tuple[Tensor, Tensor]:
    """On EI of the whole map, (B,) each; sampled moments are taken three standard errors down and up, on a logarithmic
    scale: estimates from few probes are skewed."""
    low, high, most = first[:, 0], first[:, 0], second[:, 0]
    rank = rank.squeeze(1)
    if first.shape[1] > 2:
        factor = _three_errors(first)
        low, high = low / factor, high * factor
    if second.shape[1] > 2:
        most = most * _three_errors(second)
    most = torch.maximum(most, low.square() / rank)
    ratio = torch.where(low > 0, most / torch.where(low > 0, low, 1.0), 1.0).clamp(min=torch.finfo(low.dtype).tiny)
    ratio = torch.minimum(ratio, torch.where(low > 0, low, 1.0))  # s2 <= s1^2
    lower = 0.5 * (low / ratio * torch.log1p(ratio)).sum(dim=1)
    upper = 0.5 * (rank * torch.log1p(high / rank)).sum(dim=1)
    return lower, upper


def _three_errors(moments: Tensor) -> Tensor:
    """The factor between each block's moment and what is three standard errors above it, (B, blocks)."""
    error = jackknife(moments.transpose(1, 2).flatten(0, 1), errors=3).view(moments.shape[0], moments.shape[2])
    value = moments[:, 0]
    return torch.where(value > 0, 3.0 * error / torch.where(value > 0, value, 1.0), 0.0).clamp(max=50.0).exp()
