"""The calibration part of a reference set: what is usual, and how unusual a prompt is against it.

    z_v      log d_v^2, standardised over the calibration prompts (for one of them: over the others)
    p_v      (1 + #{calibration >= here}) / (1 + n)
    p_value  the same in the largest z_v: something broke
    p_value_mean  the same in the mean over nodes of the standardised log D_v^2: the whole works differently
    suspects nodes whose z_v would, as the largest, have a p-value of at most `level`
    C_ref    root of the mean of D_v^2 over nodes, over its median on the calibration prompts

Conformal p-values assume that the prompt is exchangeable with the calibration prompts: of the same kind.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.learned import TINY, Distances


@dataclass(frozen=True)
class Judgement:
    """Of each prompt of a batch; (B,) or (B, nodes), nan for a node that cannot be judged.

    Attributes:
        whole: D_v^2. z, p: of each node. suspect: whether its z reaches the threshold.
        c_ref, p_value, p_value_mean: of the prompt. p_value_input: how unusual what the nodes were given is, together.
    """

    whole: Tensor
    z: Tensor
    p: Tensor
    suspect: Tensor
    c_ref: Tensor
    p_value: Tensor
    p_value_mean: Tensor
    p_value_input: Tensor

    @property
    def counted(self) -> Tensor:
        """D_v^2 of the nodes that can be judged, 0 for the others, (B, nodes)."""
        return torch.where(self.z.isnan(), 0.0, self.whole)


@dataclass(frozen=True)
class Reference:
    """The calibration prompts' distances; float64.

    Attributes:
        log_allowed, log_whole: log d_v^2 and log D_v^2, (n, nodes). log_input: log u_v.
        judged: which nodes count, (nodes,).
    """

    log_allowed: Tensor
    log_whole: Tensor
    log_input: Tensor
    judged: Tensor

    @classmethod
    def of(cls, distances: Distances, judged: Tensor) -> "Reference":
        """From the distances of calibration prompts, (nodes, n)."""
        parts = (distances.allowed, distances.whole, distances.unusual_input)
        allowed, whole, given = ((part + TINY).log().mT.contiguous() for part in parts)
        return cls(allowed, whole, given, judged)

    def to(self, device: torch.device) -> "Reference":
        """The reference on another device."""
        parts = (self.log_allowed, self.log_whole, self.log_input, self.judged)
        return Reference(*(part.to(device) for part in parts))

    def __len__(self) -> int:
        return len(self.log_allowed)

    @property
    def least_level(self) -> float:
        """The smallest level that there are enough prompts for, to three digits; rounded up, so that it is accepted."""
        least = 1 / (1 + len(self))
        scale = 10.0 ** (2 - math.floor(math.log10(least)))
        return math.ceil(least * scale) / scale

    def judge(self, distances: Distances, level: float) -> Judgement:
        """Prompts, (nodes, B), against the reference."""
        allowed, whole = ((part + TINY).log().mT for part in (distances.allowed, distances.whole))
        z = _standardised(allowed, self.log_allowed)
        largest = self._masked(z, -torch.inf).amax(dim=1)
        own = conformal(allowed.T, self._sorted_allowed).T
        as_largest = conformal(z.T.reshape(1, -1), self._sorted_largest).view(z.shape[1], -1).T
        mean = self._mean(_standardised(whole, self.log_whole))
        given = self._mean((distances.unusual_input + TINY).log().mT)
        nothing = torch.full_like(z, torch.nan)
        return Judgement(
            whole=distances.whole.mT,
            z=torch.where(self.judged, z, nothing),
            p=torch.where(self.judged, own, nothing),
            suspect=self.judged & (as_largest <= level),
            c_ref=self._c(distances.whole.mT) / self._median_c,
            p_value=conformal(largest.unsqueeze(0), self._sorted_largest).squeeze(0),
            p_value_mean=conformal(mean.unsqueeze(0), self._sorted_means).squeeze(0),
            p_value_input=conformal(given.unsqueeze(0), self._sorted_inputs).squeeze(0),
        )

    @cached_property
    def z(self) -> Tensor:
        """The calibration prompts' own z, each over the others, (n, nodes)."""
        return _among_the_others(self.log_allowed)

    @cached_property
    def largest(self) -> Tensor:
        """The largest z of each calibration prompt, (n,)."""
        return self._masked(self.z, -torch.inf).amax(dim=1)

    @cached_property
    def means(self) -> Tensor:
        """The mean statistic of each calibration prompt, (n,)."""
        return self._mean(_among_the_others(self.log_whole))

    @cached_property
    def _sorted_allowed(self) -> Tensor:
        """(nodes, n)."""
        return self.log_allowed.mT.sort(dim=1).values.contiguous()

    @cached_property
    def _sorted_largest(self) -> Tensor:
        return self.largest.sort().values.unsqueeze(0)

    @cached_property
    def _sorted_means(self) -> Tensor:
        return self.means.sort().values.unsqueeze(0)

    @cached_property
    def _sorted_inputs(self) -> Tensor:
        return self._mean(self.log_input).sort().values.unsqueeze(0)

    @cached_property
    def _median_c(self) -> Tensor:
        return self._c(self.log_whole.exp() - TINY).quantile(0.5)

    def _masked(self, values: Tensor, other: float) -> Tensor:
        return torch.where(self.judged, values, other)

    def _mean(self, values: Tensor) -> Tensor:
        """The mean over the nodes that count."""
        return self._masked(values, 0.0).sum(dim=1) / self.judged.sum().clamp(min=1)

    def _c(self, whole: Tensor) -> Tensor:
        """The root of the mean of D_v^2, (B,)."""
        return self._mean(whole).sqrt()


def _standardised(values: Tensor, reference: Tensor) -> Tensor:
    """Values (B, nodes) over the mean and standard deviation of the reference, (n, nodes)."""
    return (values - _mean(reference)) / at_least(reference.std(dim=0))


def _among_the_others(values: Tensor) -> Tensor:
    """Each row over the mean and standard deviation of the other rows, (n, nodes)."""
    n = len(values)
    deviation = values - _mean(values)
    squares = deviation.square().sum(dim=0)
    mean = -deviation / (n - 1)  # of the others, about the mean of all
    variance = (squares - deviation.square() - (n - 1) * mean.square()).clamp(min=0) / max(1, n - 2)
    return (deviation - mean) / at_least(variance.sqrt())


def _mean(values: Tensor) -> Tensor:
    """The mean of rows (n, nodes); of equal rows exactly that row, or rounding would rank them."""
    return values[:1] + (values - values[:1]).mean(dim=0)


def at_least(deviation: Tensor) -> Tensor:
    """Standard deviations to divide by: a constant has none."""
    return deviation.clamp(min=1e-12)


def conformal(values: Tensor, ordered: Tensor) -> Tensor:
    """(1 + #{reference >= value}) / (1 + n) for values (m, B) against sorted references (m, n)."""
    below = torch.searchsorted(ordered, values.contiguous(), side="left")
    return (1.0 + (ordered.shape[1] - below).double()) / (1.0 + ordered.shape[1])
