"""The spectrum of a Kronecker product of which one factor depends on weights alone: a head whose pattern is frozen."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.moments import Moments
from eics.linalg.spectrum import Alpha, Estimate, Spectrum, trailing

_PEELED = 12  # eigenvalues that are taken out of a Gram matrix
_SQUARINGS = 6  # to find each: the power 64
_EXACT_LENGTH = 256  # positions up to which the spectrum of an attention pattern is cheap, on a CPU


@dataclass(frozen=True)
class PositionsTimesWeights(Spectrum):
    """All products of the squared singular values of two factors: `weights` has those of one, `gram` the Gram matrix of
    the other.

    On a CPU both are exact. A GPU would wait longer for a factorization than for everything else, and it could not be
    replayed; there, and on long prompts, the largest eigenvalues of the Gram matrix are taken out by repeated squaring,
    and the others have the moments that remain.

    Attributes:
        gram: over positions, (B, T, T) in float64.
        weights: (B, e) in float64.
    """

    gram: Tensor
    weights: Tensor
    method: str = "closed form"

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether all eigenvalues are computed."""
        return self.gram.device.type != "cuda" and self.gram.shape[1] <= _EXACT_LENGTH

    @property
    def sampled(self) -> bool:  # type: ignore[override]
        """Whether EI has a standard error: that of reading the moments of what remains."""
        return not self.exact

    def ei(self, alpha: Alpha) -> Estimate:
        squares, rest = self._eigenvalues
        scale = trailing(alpha, 2)
        value = 0.5 * torch.log1p(scale * squares.unsqueeze(2) * self.weights.unsqueeze(1)).sum(dim=(1, 2))
        if rest is None:
            return Estimate(value, torch.zeros_like(value))
        others = rest.ei(alpha)
        lower, upper = _plus(value, others.lower), _plus(value, others.upper)
        return replace(others, value=value + others.value, lower=lower, upper=upper)

    @cached_property
    def _eigenvalues(self) -> tuple[Tensor, Moments | None]:
        """The eigenvalues that are known, (B, n), and the moments of the others, weight by weight."""
        length = self.gram.shape[1]
        finite = self.gram.diagonal(dim1=1, dim2=2).sum(dim=1).isfinite()
        gram = torch.where(finite.view(-1, 1, 1), self.gram, 0.0)
        unknown = torch.where(finite, 0.0, torch.nan).unsqueeze(1)
        if self.exact:
            return torch.linalg.eigvalsh(gram).clamp(min=0) + unknown, None
        count = min(_PEELED, length - 1)
        largest, gram = _peeled(gram, count)
        first, second = gram.diagonal(dim1=1, dim2=2).sum(dim=1).clamp(min=0), gram.square().sum(dim=(1, 2))
        moments = Moments(outer(first, self.weights), outer(second, self.weights.square()), length - count)
        return largest + unknown, moments


def _plus(value: Tensor, bound: Tensor | None) -> Tensor:
    assert bound is not None
    return value + bound


def outer(moment: Tensor, weights: Tensor) -> Tensor:
    """A moment over positions (B,) times each weight (B, e): (B, 1, e)."""
    return (moment.unsqueeze(1) * weights).unsqueeze(1)


def _peeled(gram: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest eigenvalues of symmetric matrices (B, T, T), nearly, and the matrices without them."""
    start = torch.linspace(1.0, 2.0, gram.shape[1], dtype=gram.dtype, device=gram.device)
    values = []
    for _ in range(count):
        power = gram
        for _ in range(_SQUARINGS):
            power = power / torch.linalg.matrix_norm(power, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
            power = power @ power
        vector = power @ start  # (B, T)
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=torch.finfo(gram.dtype).tiny)
        image = (gram @ vector.unsqueeze(2)).squeeze(2)
        value = (image * vector).sum(dim=1)
        values.append(value)
        cross = vector.unsqueeze(2) * image.unsqueeze(1)
        gram = gram - cross - cross.mT + value.view(-1, 1, 1) * vector.unsqueeze(2) * vector.unsqueeze(1)
    return torch.stack(values, dim=1).clamp(min=0), gram
