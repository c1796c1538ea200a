r"""EI of a map of low effective rank from two Lanczos steps of a few probes: how `--mode fast` reads the macro map.

Two moments do not tell a few large singular values from many small ones; a form x^T log(I + alpha A) x does, and varies
less over probes than moments do. With A = J J^T, a probe x and q = x / ||x||, two products with J give

    a_1 = q^T A q,    b = ||A q - a_1 q||

and a third one a_2 = q_2^T A q_2 with q_2 = (A q - a_1 q) / b. Two rules for the form (`lanczos.py`): Gauss, on the
eigenvalues of [[a_1, b], [b, a_2]], lies above it, and Gauss-Radau with a node at 0, on [[a_1, b], [b, b^2 / a_1]],
below. The latter is the two-atom bound `(s1^2/s2) log(1 + s2/s1)` of the probe's own moments. EI is read as the
geometric mean of the two, each averaged over the probes: on spectra that fall over several decades their errors are
about equal factors, in opposite directions.

How much the second node lowers the Gauss rule, log(1 + alpha a_1) with one node, varies little from probe to probe, so
`SECOND` of them make the third product, and what the rule lost on these stands for all.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.lanczos import sampling_error
from eics.linalg.moments import Moments
from eics.linalg.probes import Stream
from eics.linalg.spectrum import Alpha, Estimate, Gram, Spectrum

_MOST_UNDERSTATED = 8.0  # of the variance of five forms, of which one eigenvalue decides all
SECOND = 2  # probes that take a second step
READING = 0.45
"""Share of the distance of the two rules that is the standard error of their mean. This and the bound above were chosen
on the operators of `tests/linalg/test_coverage.py`, so coverage there is no evidence for other spectra."""


@dataclass(frozen=True)
class TwoSteps(Spectrum):
    """What two steps leave of each probe: a_1, b^2 and ||x||^2, (B, k) each; a_2 of the first few, (B, `SECOND`); and
    the rank, as in `Moments`."""

    first: Tensor
    off_squared: Tensor
    last: Tensor
    norm_squared: Tensor
    rank: Tensor | int
    method: str = "two Lanczos steps"
    exact: bool = False
    sampled: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """The geometric mean of the two rules, inside the bounds of the probes' moments."""
        scale = alpha.double().unsqueeze(1) if isinstance(alpha, Tensor) else alpha
        size = self.norm_squared.double()
        node, share = self._radau
        lower = size * share * 0.5 * torch.log1p(scale * node)  # (B, k)
        upper = 0.5 * size * torch.log1p(scale * self.first.double()) * self._lowered(scale)
        bounds = self._moments.ei(alpha)
        assert bounds.lower is not None
        assert bounds.upper is not None
        value = (upper.mean(dim=1) * lower.mean(dim=1)).sqrt()
        value = value.clamp(min=bounds.lower.double(), max=bounds.upper.double())
        nodes, shares = self._gauss  # what the few probes with two nodes say of the spread of forms
        function = 0.5 * torch.log1p((scale.unsqueeze(2) if isinstance(scale, Tensor) else scale) * nodes)
        sampling = sampling_error(
            (upper * lower).sqrt(), function, size[:, : nodes.shape[1], None] * shares, _MOST_UNDERSTATED
        )
        reading = READING * (upper - lower).mean(dim=1).clamp(min=0)
        dtype = self.first.dtype
        return Estimate(value.to(dtype), sampling.to(dtype), bounds.lower, bounds.upper, reading.to(dtype))

    def _lowered(self, scale: Tensor | float) -> Tensor:
        """The Gauss rule with two nodes over that with one, both summed over the probes that have two, (B, 1)."""
        nodes, shares = self._gauss
        some = self.last.shape[1]
        two = (shares * torch.log1p((scale.unsqueeze(2) if isinstance(scale, Tensor) else scale) * nodes)).sum(dim=2)
        one = torch.log1p(scale * self.first[:, :some].double())
        size = self.norm_squared[:, :some].double()
        below = (size * one).sum(dim=1, keepdim=True)
        return torch.where(below > 0, (size * two).sum(dim=1, keepdim=True) / torch.where(below > 0, below, 1.0), 1.0)

    @property
    def _gauss(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the Gauss rule for a start vector of norm 1, (B, `SECOND`, 2) each: the eigenvalues of
        [[a_1, b], [b, a_2]]."""
        some = self.last.shape[1]
        a_1, off = self.first[:, :some].double(), self.off_squared[:, :some].double().sqrt()
        a_2 = self.last.double()
        middle, half_gap = 0.5 * (a_1 + a_2), 0.5 * (a_1 - a_2)
        radius = torch.hypot(half_gap, off)
        share = torch.where(radius > 0, 0.5 + 0.5 * half_gap / torch.where(radius > 0, radius, 1.0), 1.0)
        nodes = torch.stack([middle + radius, (middle - radius).clamp(min=0)], dim=2)
        return nodes, torch.stack([share, 1.0 - share], dim=2)

    @property
    def _radau(self) -> tuple[Tensor, Tensor]:
        """The node that is not 0, and its weight, (B, k) each."""
        a_1, off_squared = self.first.double(), self.off_squared.double()
        some = a_1 > 0
        node = a_1 + off_squared / torch.where(some, a_1, 1.0)
        return node, torch.where(some, a_1 / torch.where(some, node, 1.0), 0.0)

    @property
    def _moments(self) -> Moments:
        """tr A and tr A^2 from the same probes."""
        first = self.norm_squared * self.first
        second = self.norm_squared * (self.first.square() + self.off_squared)
        return Moments(_replicates(first).unsqueeze(2), _replicates(second).unsqueeze(2), self.rank)


def two_steps(gram: Gram, rank: Tensor | int, *, probes: int, stream: Stream) -> TwoSteps:
    """Two products with a block of probes, and a third one with `SECOND` of them."""
    start = gram.probes(probes, stream)
    norm_squared = start.square().sum(dim=1)
    vector = start / _at_least_tiny(norm_squared.sqrt()).unsqueeze(1)
    half = gram.half(vector)
    first = half.square().sum(dim=1)
    image = gram.other_half(half) - first.unsqueeze(1) * vector
    off = torch.linalg.vector_norm(image, dim=1)
    # Of an exhausted space nothing but rounding is left: the rule has one node.
    alive = off > 8 * torch.finfo(off.dtype).eps * first
    few = slice(0, SECOND)
    second = torch.where(alive.unsqueeze(1), image / _at_least_tiny(off).unsqueeze(1), 0.0)[..., few]
    last = gram.half(second).square().sum(dim=1)
    return TwoSteps(first, torch.where(alive, off, 0.0).square(), last, norm_squared, rank)


def _replicates(by_probe: Tensor) -> Tensor:
    """The mean over probes, and the means that leave out one each: (B, k) to (B, 1 + k)."""
    total, count = by_probe.sum(dim=1, keepdim=True), by_probe.shape[1]
    return torch.cat([total / count, (total - by_probe) / max(1, count - 1)], dim=1)


def _at_least_tiny(norm: Tensor) -> Tensor:
    return norm.clamp(min=torch.finfo(norm.dtype).tiny)
