"""Norm layers: the value at a point and the linear map there.

With `c` the (centred) input, `s = sqrt(mean(c^2) + eps)` and P the centring:

    jacobian   N = diag(w) (P / s - c c^T / (d s^3))         annihilates c itself, up to eps
    frozen     N = diag(w) P / s                              s held at its observed value
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from eics.models.spec import Norm


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
        if spec.centred:
            _, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, spec.eps)
            return cls(spec, spec.weight.to(x.dtype), x - mean, 1.0 / inverse, frozen)
        scale = (x.square().mean(dim=-1, keepdim=True) + spec.eps).sqrt()
        return cls(spec, spec.weight.to(x.dtype), x, scale, frozen)

    @cached_property
    def value(self) -> Tensor:
        """The norm's output at the point."""
        out = self.point / self.scale
        if self.spec.bias is None:
            return self.weight * out
        return torch.addcmul(self.spec.bias.to(out.dtype), self.weight, out)

    @cached_property
    def inverse(self) -> Tensor:
        """1 / s^2 at each position, (..., T)."""
        return self.scale.squeeze(-1).pow(-2)

    @cached_property
    def beta(self) -> Tensor | None:
        """beta in `N N^T = diag(w) (P / s^2 + beta c c^T) diag(w)`, (..., T); None, for 0, under `frozen`."""
        if self.frozen:
            return None
        width = self.point.shape[-1]
        size = self.point.square().sum(dim=-1)
        return self.inverse.square() * (size * self.inverse / width**2 - 2.0 / width)

    @cached_property
    def cubed(self) -> Tensor:
        """d s^3, (..., T, 1)."""
        return self.point.shape[-1] * self.scale**3

    def mv(self, x: Tensor) -> Tensor:
        """N x."""
        return self.weight * self.core(_centre(x) if self.spec.centred else x)

    def rmv(self, y: Tensor) -> Tensor:
        """N^T y."""
        y = self.core(self.weight * y)
        return _centre(y) if self.spec.centred else y

    def core(self, x: Tensor) -> Tensor:
        """N without gain and centring, which is symmetric."""
        point, scale = self.point.unsqueeze(-3), self.scale.unsqueeze(-3)
        out = x / scale
        if not self.frozen:
            along = (point * x).sum(dim=-1, keepdim=True) / self.cubed.unsqueeze(-3)
            out = torch.addcmul(out, point, along, value=-1.0)
        return out

    def fold(self, weight: Tensor) -> Tensor:
        """W diag(w) P for weights (..., d) that read the norm's output: gain and centring folded in."""
        weight = weight * self.weight
        return _centre(weight) if self.spec.centred else weight

    def rest(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What `W norm(x) + bias` is apart from x, (out,)."""
        out = torch.zeros_like(weight[:, 0]) if self.spec.bias is None else weight @ self.spec.bias.to(weight.dtype)
        return out if bias is None else out + bias.to(weight.dtype)

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "NormMap":
        """The map at other points, whose tensors `function` makes of these."""
        return replace(self, point=function(self.point), scale=function(self.scale))


def held_scale(spec: Norm, x: Tensor) -> Tensor:
    """weight / s at x: what a norm multiplies by when its denominator is held. RMS norms only."""
    scale = (x.square().mean(dim=-1, keepdim=True) + spec.eps).sqrt()
    return spec.weight.to(x.dtype) / scale


def derivative(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Derivative of an elementwise function, by autograd."""
    with torch.enable_grad():
        point = at.detach().requires_grad_()
        (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope


def _centre(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)
