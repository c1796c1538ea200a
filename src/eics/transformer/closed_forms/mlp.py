"""What is known of an MLP's map: block diagonal, with its norm and Gram matrix at each position.

With `J = W_out (diag(a) W_in + diag(b) W_gate) N` and `N N^T = diag(w) (P / sigma^2 + beta c c^T) diag(w)`,

    ||J||^2 = (a^T K_uu a + 2 a^T K_ug b + b^T K_gg b) / sigma^2 + beta ||W_out (a * p_u + b * p_g)||^2

where `K_ug = (W_out^T W_out) * (W_in diag(w) P diag(w) W_gate^T)` elementwise, and `p = W diag(w) c`. The K depend on
weights alone and are cached.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch
from torch import Tensor

from eics.linalg.blocks import add, mix, mix_rounded, scale_by_position
from eics.linalg.matrices import gram64
from eics.linalg.memory import memory_bound
from eics.linalg.precision import rounds
from eics.linalg.probes import signs
from eics.linalg.structure import BlockDiagonal, structure
from eics.models.weight_cache import cache_bytes
from eics.transformer.mlp import MLPMap
from eics.transformer.norm import NormMap

SKETCH = 32  # random signs on each side: a second moment to a few percent over the positions of a prompt


@structure.register
def mlp_structure(mlp: MLPMap) -> BlockDiagonal:
    """Block diagonal; with a post-norm only the blocks themselves are known."""
    return BlockDiagonal(
        mlp.rows,
        mlp.cols,
        norms=lambda left, right: _norms(mlp, left, right),
        sketches=None if mlp.post is not None else lambda stream: mlp_sketches(mlp, stream),
        side=mlp.read.shape[2] if mlp.post is None else None,
        gram=lambda left, right: _gram(mlp, left, right),
        copies=3 * mlp.length,  # the blocks, what they are made of, and their Gram matrices
        blocks=mlp.length,
        matrices=mlp.blocks,
    )


def _norms(mlp: MLPMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    scales = _by_position(mlp, left, right)
    norms = None if scales is None else mlp_norms(mlp)
    if norms is None or scales is None:
        return None
    for scale in scales:
        norms = norms * scale.square()
    return norms


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


def mlp_sketches(mlp: MLPMap, stream: torch.Generator) -> Tensor:
    """s X^T J_t S at each position, (B, T, k, k), with k = 32 columns of random signs in X and S.

    `X^T J_t S = U^T diag(a) V / s - (U^T (a * p)) (c^T S) / (d s^3)` with `U = W_out^T X` and `V = W_in diag(w) P S`,
    summed over both sides of a gated MLP: linear in a, with a matrix of weights alone, and k^2 numbers instead of
    products with d.
    """
    seed, width, spec = stream.initial_seed(), mlp.read.shape[2], mlp.spec
    written, read = (signs(width, SKETCH, stream, mlp.read).squeeze(0) for _ in range(2))  # (d, k) each
    u = _cached(mlp, ("sketch of writes", seed), [spec.w_out], lambda: mlp.w_out.mT @ written)
    sides = [(mlp.by_up, mlp.w_in, spec.w_in, mlp.up, spec.b_in)]
    if mlp.by_gate is not None:
        assert mlp.w_gate is not None
        assert spec.w_gate is not None
        sides.append((mlp.by_gate, mlp.w_gate, spec.w_gate, mlp.gate, spec.b_gate))
    total, along = [], []
    for index, (a, weight, own, value, bias) in enumerate(sides):
        made_of = [own, spec.norm.weight]
        v = _cached(mlp, ("sketch of reads", index, seed), made_of, partial(_folded, mlp, weight, read))
        total.append(mix(a, (u.unsqueeze(2) * v.unsqueeze(1)).flatten(1)))
        if mlp.norm.beta is not None:
            assert value is not None
            along.append(mix(a * mlp.along(weight, value, bias), u))
    sketches: Tensor = add(total).unflatten(-1, (SKETCH, SKETCH))
    if along:
        point = mix(mlp.norm.point, read) * (mlp.norm.inverse / width).unsqueeze(-1)
        sketches = sketches - add(along).unsqueeze(-1) * point.unsqueeze(-2)
    return sketches


def _folded(mlp: MLPMap, weight: Tensor, read: Tensor) -> Tensor:
    return mlp.norm.fold(weight) @ read


def _cached(mlp: MLPMap, name: Hashable, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Tensor:
    return mlp.spec.cache.get((name, mlp.dtype), weights, make)


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
