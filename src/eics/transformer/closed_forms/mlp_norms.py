"""||J||_F^2 of an MLP's map in closed form, position by position, from weights-only matrices.

With `J = W_out (diag(a) W_in + diag(b) W_gate) N` and `N N^T = diag(w) (P / sigma^2 + beta c c^T) diag(w)`,

    ||J||^2 = (a^T K_uu a + 2 a^T K_ug b + b^T K_gg b) / sigma^2 + beta ||W_out (a * p_u + b * p_g)||^2

where `K_ug = (W_out^T W_out) * (W_in diag(w) P diag(w) W_gate^T)` elementwise, and `p = W diag(w) c`. The K depend on
weights alone and are kept (`eics.models.weight_cache`).
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.linalg.blocks import add
from eics.linalg.memory import memory_bound
from eics.linalg.precision import rounds
from eics.linalg.rows import by_weight
from eics.models.weight_cache import kept_bytes

if TYPE_CHECKING:
    from eics.transformer.mlp import MLPMap


def mlp_norms_squared(mlp: "MLPMap") -> Tensor | None:
    """||J_t||_F^2 at each position, (B, T); None where a norm follows, or where the matrices would break the bound or
    take more than a quarter of the room for what is kept: made anew for each batch they cost more than probes."""
    size = mlp.w_in.shape[0] ** 2 * mlp.dtype.itemsize
    together = size if mlp.by_gate is None else 3 * size
    if mlp.post is not None or size > memory_bound() or 4 * together > kept_bytes(mlp.device):
        return None
    norm, inverse = mlp.norm, mlp.norm.inverse
    sides = [("u", mlp.by_up)]
    if mlp.by_gate is not None:
        sides.append(("g", mlp.by_gate))
    total = torch.zeros_like(inverse)
    kind = mlp.spec.w_in.dtype if rounds(mlp.spec.w_in) else mlp.dtype
    for place, (one, a) in enumerate(sides):
        for two, b in sides[place:]:
            matrix = _matrix(mlp, one + two, kind)
            total = total + (_form(a, matrix) if one == two else 2.0 * (_through(a, matrix) * b).sum(dim=-1))
    total = total * inverse
    if norm.beta is not None:
        spec = mlp.spec
        known = {"u": (mlp.w_in, mlp.up, spec.b_in), "g": (mlp.w_gate, mlp.gate, spec.b_gate)}
        hidden = add(a * mlp.along(*known[side]) for side, a in sides)  # type: ignore[arg-type]
        total = total + norm.beta * (hidden @ mlp.w_out.mT).square().sum(dim=-1)
    return total


def _form(a: Tensor, matrix: Tensor) -> Tensor:
    """a^T K a for a symmetric K, (..., n) to (...): blocks on and above the diagonal, five eighths of the product."""
    total, width = torch.zeros_like(a[..., 0]), -(-a.shape[-1] // 4)
    for start in range(0, a.shape[-1], width):
        image = _through(a[..., start : start + width], matrix[start : start + width, start:])
        twice = image * a[..., start:]
        total = total + 2.0 * twice.sum(dim=-1) - twice[..., :width].sum(dim=-1)
    return total


def _through(a: Tensor, matrix: Tensor) -> Tensor:
    return by_weight(a, matrix, matrix)


def _matrix(mlp: "MLPMap", pair: str, kind: torch.dtype) -> Tensor:
    spec = mlp.spec
    sides = {"u": mlp.w_in, "g": mlp.w_gate}

    def make() -> Tensor:
        one, two = (side * mlp.norm.weight for side in (sides[name] for name in pair) if side is not None)
        gram = one @ two.mT
        if spec.norm.centred:  # P takes out the mean over the width
            gram = gram - one.sum(dim=1, keepdim=True) @ two.sum(dim=1, keepdim=True).mT / one.shape[1]
        return ((mlp.w_out.mT @ mlp.w_out) * gram).to(kind)

    weights = [weight for weight in (spec.w_in, spec.w_out, spec.w_gate, spec.norm.weight) if weight is not None]
    return spec.kept.get((pair, mlp.dtype, kind), weights, make)
