"""Norm layers: the value at a point and the linear map there.

With `c` the (centred) input, `s = sqrt(mean(c^2) + eps)` and P the centring:

    jacobian   N = diag(w) (P / s - c c^T / (d s^3))         annihilates c itself, up to eps
    frozen     N = diag(w) P / s                              s held at its observed value
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.transformer.spec import Norm


@dataclass(frozen=True)
class NormMap:
    """A norm linearized at `x`, (..., T, d). Blocks have one more axis before the positions: (..., k, T, d)."""

    spec: Norm
    weight: Tensor
    point: Tensor
    scale: Tensor
    frozen: bool

    @classmethod
    def at(cls, spec: Norm, x: Tensor, frozen: bool) -> "NormMap":
        """Linearizes at a point, in the point's dtype."""
        point = _centre(x) if spec.centred else x
        scale = (point.square().mean(dim=-1, keepdim=True) + spec.eps).sqrt()
        return cls(spec, spec.weight.to(x.dtype), point, scale, frozen)

    @property
    def value(self) -> Tensor:
        """The norm's output at the point."""
        out = self.weight * self.point / self.scale
        return out if self.spec.bias is None else out + self.spec.bias.to(out.dtype)

    @property
    def beta(self) -> Tensor:
        """Of the rank-one form `N N^T = diag(w) (P / s^2 + beta c c^T) diag(w)`, (..., T, 1)."""
        inverse, width = self.scale**-2, self.point.shape[-1]
        if self.frozen:
            return torch.zeros_like(inverse)
        size = self.point.square().sum(dim=-1, keepdim=True)
        return -2.0 * inverse**2 / width + size * inverse**3 / width**2

    def mv(self, x: Tensor) -> Tensor:
        """N x."""
        x = _centre(x) if self.spec.centred else x
        return self.weight * self._core(x)

    def rmv(self, y: Tensor) -> Tensor:
        """N^T y; the core is symmetric."""
        y = self._core(self.weight * y)
        return _centre(y) if self.spec.centred else y

    def _core(self, x: Tensor) -> Tensor:
        point, scale = self.point.unsqueeze(-3), self.scale.unsqueeze(-3)
        out = x / scale
        if not self.frozen:
            along = (point * x).sum(dim=-1, keepdim=True) / (point.shape[-1] * scale**3)
            out = out - point * along
        return out

    def __getitem__(self, places: list[int]) -> "NormMap":
        """The map at some of the points."""
        return replace(self, point=self.point[places], scale=self.scale[places])


def held_scale(spec: Norm, x: Tensor) -> Tensor:
    """weight / s at x: what a norm multiplies by when its denominator is held. RMS norms only."""
    scale = (x.square().mean(dim=-1, keepdim=True) + spec.eps).sqrt()
    return spec.weight.to(x.dtype) / scale


def _centre(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Derivative of an elementwise function, by autograd."""
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope
