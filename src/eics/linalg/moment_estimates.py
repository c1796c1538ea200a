"""The moments of a map's spectrum for `--mode fast`: in closed form as far as there is one, otherwise sampled.

With probes x_i and images `y_i = J^T x_i`, the mean of ||y_i||^2 is tr(J J^T) and, for i != j, that of (y_i . y_j)^2 is
tr((J J^T)^2): the second moment costs no product beyond those of the first. An MLP, whose norm has a closed form, is
sketched on both sides, which costs far less than a product: with `C = X^T J S`, the mean of `C_ij C_kj C_kl C_il` over
i != k and j != l is tr((J J^T)^2).
"""

import torch
from torch import Tensor

from eics.linalg.kronecker_spectrum import PositionsTimesWeights
from eics.linalg.moments import Moments
from eics.linalg.operators import LinearOperator
from eics.linalg.precision import norms
from eics.linalg.probes import Stream
from eics.linalg.spectrum import Gram, SingularValues, Spectrum, Updated
from eics.linalg.structure import BlockDiagonal, Kronecker, LowRankUpdate, Structure, structure

_FEW_COLUMNS = 2  # of a low-rank update: its determinant is then cheaper than a moment


def closed_moments(operator: LinearOperator, channels: Tensor | int, stream: Stream) -> Spectrum | None:
    """What the structure of a map says about its spectrum without a product with a vector, or None.

    The spectrum itself, if it is a Kronecker product or a diagonal with a few columns; else its moments. The second one
    may come from sketches.
    """
    known = structure(operator)
    if isinstance(known, Kronecker):
        return _of_kronecker(known)
    if isinstance(known, LowRankUpdate) and known.columns <= _FEW_COLUMNS:
        update = known.parts()
        return None if update is None else Updated(*update)
    with norms():
        if isinstance(known, BlockDiagonal) and known.blocks > 1:
            return _of_blocks(known, stream)
        first = None if known is None else known.frobenius_squared()
        second = None if known is None or first is None else known.fourth_powers()
    if first is None or second is None:
        return None
    return Moments(first.view(-1, 1, 1), second.view(-1, 1, 1), channels, method="moments in closed form")


def sampled_moments(
    operator: LinearOperator, gram: Gram, channels: Tensor | int, *, probes: int, stream: Stream
) -> Moments:
    """Moments from products with probes.

    A map whose norm is known needs half of the probes, for the second moment alone.
    """
    known = structure(operator)
    blocks = known.blocks if isinstance(known, BlockDiagonal) else 1
    with norms():
        first = _block_norms(known)
        count = probes if first is None else max(4, probes // 2)
        images = gram.half(gram.probes(count, stream))
        moments = from_images(images.unflatten(1, (blocks, -1)), first)
    return Moments(*moments, rank=_rank(operator, known, channels, blocks))


def _of_kronecker(known: Kronecker) -> Spectrum | None:
    assert known.positions is not None
    assert known.weight_squares is not None
    positions = known.positions(known.left, known.right)
    if positions is None:
        return None
    gram = positions @ positions.mT if positions.shape[1] <= positions.shape[2] else positions.mT @ positions
    weights = known.weight_squares()
    if gram.shape[1] == 1:
        return SingularValues(gram.flatten(1) * weights, method="closed form")
    return PositionsTimesWeights(gram, weights.expand(len(gram), -1))


def _of_blocks(known: BlockDiagonal, stream: Stream) -> Moments | None:
    """Norms in closed form, and second moments from sketches; None if one of them is unknown."""
    first = known.block_norms()
    streams = [stream] if isinstance(stream, torch.Generator) else stream
    if first is None or known.sketches is None or len(streams) > 1:
        return None
    first = first.unsqueeze(1)
    second = shape_from_sketch(known.sketches(streams[0])) * first.square()
    return Moments(first, second, known.rank // known.blocks)


def _block_norms(known: Structure | None) -> Tensor | None:
    """||J_t||_F^2 by block, (B, blocks), or None."""
    if isinstance(known, BlockDiagonal):
        return known.block_norms()
    norm = None if known is None else known.frobenius_squared()
    return None if norm is None else norm.unsqueeze(1)


def _rank(operator: LinearOperator, known: Structure | None, channels: Tensor | int, blocks: int) -> Tensor | int:
    """Of a block; of a map without blocks, as much of its rank as the positions that count have."""
    smaller = min(operator.rows, operator.cols)
    if blocks > 1:
        return smaller // blocks
    return channels if known is None else channels * known.rank // smaller


# Sampled moments. Groups of probes are left out in turn: replicate 0 leaves out none.


def from_images(images: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Moments by block, (B, replicates, blocks) each, from the images (B, blocks, n, k) of k plain probes.

    A first moment (B, blocks) that is known is taken as it is.
    """
    gram = images.mT @ images  # (B, blocks, k, k)
    count = gram.shape[-1]
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    squares = gram.square()
    by_probe = squares.sum(dim=-1) - diagonal.square()  # pairs that each probe is in
    total = by_probe.sum(dim=-1, keepdim=True)
    whole = total / (count * (count - 1))
    without = (total - 2.0 * by_probe) / ((count - 1) * (count - 2))
    second = torch.cat([whole, without], dim=-1).transpose(1, 2)
    if first is not None:
        return first.unsqueeze(1), second
    summed = diagonal.sum(dim=-1, keepdim=True)
    traces = torch.cat([summed / count, (summed - diagonal) / (count - 1)], dim=-1)
    return traces.transpose(1, 2), second


def shape_from_sketch(sketch: Tensor, groups: int = 4) -> Tensor:
    """`tr(A^2) / tr(A)^2` by block, (B, replicates, blocks), from sketches C = X^T J S, (B, blocks, k, k).

    The mean over i != k, j != l of `C_ij C_kj C_kl C_il` is unbiased for tr(A^2), the mean of C_ij^2 for tr(A). Each
    replicate leaves out a group of rows and a group of columns. What lies below the noise of a flat spectrum is told
    apart from noise only together: such blocks share their mean.
    """
    size = sketch.shape[-1]
    group = torch.arange(size, device=sketch.device) * groups // size
    left_out = torch.arange(-1, groups, device=sketch.device).unsqueeze(1)
    kept = (group != left_out).to(sketch.dtype)  # (replicates, k); the first keeps all
    masked = sketch.unsqueeze(1) * (kept.unsqueeze(2) * kept.unsqueeze(1)).unsqueeze(1)
    return _shapes(masked, kept.sum(dim=1).unsqueeze(1))


def _shapes(sketch: Tensor, size: Tensor) -> Tensor:
    """For sketches (B, replicates, blocks, k, k) with `size` rows and columns that are not zero, (replicates, 1)."""
    squares = sketch.square()
    rows, columns = squares.sum(dim=-1), squares.sum(dim=-2)
    repeated = rows.square().sum(dim=-1) + columns.square().sum(dim=-1) - squares.square().sum(dim=(-2, -1))
    total = rows.sum(dim=-1)
    pairs = (size * (size - 1)).square()
    second = ((sketch @ sketch.mT).square().sum(dim=(-2, -1)) - repeated) / pairs
    square = (total.square() - repeated) / pairs  # tr(A)^2 from entries that share neither row nor column
    has = total > 0
    own = torch.where(has, second / torch.where(has, square, 1.0), 0.0)
    return _shrunk(own, has, 16.0 / pairs.sqrt())


def _shrunk(own: Tensor, has: Tensor, least: Tensor) -> Tensor:
    """Shapes below `least` replaced by their mean over the prompt's blocks."""
    noisy = has & (own < least)
    mean = torch.where(noisy, own, 0.0).sum(dim=-1, keepdim=True) / noisy.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(noisy, mean.clamp(min=0), own)
