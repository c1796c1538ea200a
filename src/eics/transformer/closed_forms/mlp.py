"""What is known of an MLP's map: block diagonal, with its norm and Gram matrix at each position.

With `J = W_out (diag(a) W_in + diag(b) W_gate) N` and `N N^T = diag(w) (P / sigma^2 + beta c c^T) diag(w)`,

    ||J||^2 = (a^T K_uu a + 2 a^T K_ug b + b^T K_gg b) / sigma^2 + beta ||W_out (a * p_u + b * p_g)||^2

where `K_ug = (W_out^T W_out) * (W_in diag(w) P diag(w) W_gate^T)` elementwise, and `p = W diag(w) c`. The K depend on
weights alone and are cached.
"""

import torch
from torch import Tensor

from eics.linalg.blocks import add, mix_rounded, scale_by_position
from eics.linalg.matrices import gram64
from eics.linalg.memory import memory_bound
from eics.linalg.precision import rounds
from eics.linalg.structure import BlockDiagonal, structure
from eics.models.weight_cache import cache_bytes
from eics.transformer.mlp import MLPMap
from eics.transformer.norm import NormMap


@structure.register
def mlp_structure(mlp: MLPMap) -> BlockDiagonal:
    """Block diagonal; with a post-norm only the blocks themselves are known."""
    return BlockDiagonal(
        mlp.rows,
        mlp.cols,
        norm=lambda left, right: _norm(mlp, left, right),
        side=mlp.read.shape[2] if mlp.post is None else None,
        gram=lambda left, right: _gram(mlp, left, right),
        copies=3 * mlp.length,  # the blocks, what they are made of, and their Gram matrices
        blocks=mlp.length,
        matrices=mlp.blocks,
    )


def _norm(mlp: MLPMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    scales = _by_position(mlp, left, right)
    norms = None if scales is None else mlp_norms(mlp)
    if norms is None or scales is None:
        return None
    for scale in scales:
        norms = norms * scale.square()
    return norms.sum(dim=1)


def _gram(mlp: MLPMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """`M M^T / s^2 + beta M c (M c)^T` at each position, (B, T, d, d), with the norm's gain and centring in M, by the
    rank-one form of N N^T."""
    scales = _by_position(mlp, left, right)
    if mlp.post is not None or scales is None:
        return None
    middle = mlp.folded_blocks()
    norm = NormMap.at(mlp.spec.norm, mlp.read.double(), mlp.frozen)  # what N annihilates is 0 in float64 only
    gram = gram64(middle) * norm.inverse[..., None, None]
    if norm.beta is not None:
        along = middle.double() @ norm.point.unsqueeze(-1)
        gram.addcmul_(norm.beta[..., None, None] * along, along.mT)
    for scale in scales:
        gram *= scale.double().square()[..., None, None]
    return gram


def _by_position(mlp: MLPMap, left: Tensor | None, right: Tensor | None) -> list[Tensor] | None:
    """The scales that are given, by position, (B or 1, T); None if one differs within a position."""
    given = [scale for scale in (left, right) if scale is not None]
    scales = [scale_by_position(scale, mlp.length) for scale in given]
    known = [scale for scale in scales if scale is not None]
    return known if len(known) == len(scales) else None


def mlp_norms(mlp: MLPMap) -> Tensor | None:
    """||J_t||_F^2 at each position, (B, T).

    None with a post-norm, or if the K would break the memory bound or take more than a quarter of the cache: made anew
    for each batch, they cost more than probes.
    """
    size = mlp.w_in.shape[0] ** 2 * mlp.dtype.itemsize
    together = size if mlp.by_gate is None else 3 * size
    if mlp.post is not None or size > memory_bound() or 4 * together > cache_bytes(mlp.device):
        return None
    norm, inverse = mlp.norm, mlp.norm.inverse
    sides = [("u", mlp.by_up)]
    if mlp.by_gate is not None:
        sides.append(("g", mlp.by_gate))
    total = torch.zeros_like(inverse)
    dtype = mlp.spec.w_in.dtype if rounds(mlp.spec.w_in) else mlp.dtype
    for index, (first, a) in enumerate(sides):
        for second, b in sides[index:]:
            matrix = _matrix(mlp, first + second, dtype)
            total = total + (_form(a, matrix) if first == second else 2.0 * (_through(a, matrix) * b).sum(dim=-1))
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
    return mix_rounded(a, matrix, matrix)


def _matrix(mlp: MLPMap, pair: str, dtype: torch.dtype) -> Tensor:
    """K of one pair of sides, cached."""
    spec = mlp.spec
    sides = {"u": mlp.w_in, "g": mlp.w_gate}

    def make() -> Tensor:
        first, second = (mlp.norm.fold(side) for side in (sides[name] for name in pair) if side is not None)
        return ((mlp.w_out.mT @ mlp.w_out) * (first @ second.mT)).to(dtype)

    weights = [weight for weight in (spec.w_in, spec.w_out, spec.w_gate, spec.norm.weight) if weight is not None]
    return spec.cache.get((pair, mlp.dtype, dtype), weights, make)
