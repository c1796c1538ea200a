"""Blocks of vectors, (B, n, k): k vectors for each of B prompts; put together, added, laid out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eics.memory import chunk_width

_WHOLE = 512  # up to this side half of a Gram matrix is not worth the smaller products


def cat_blocks(blocks: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenates blocks whose batches may be 1 or B."""
    batch = max(block.shape[0] for block in blocks)
    return torch.cat([block.expand(batch, -1, -1) for block in blocks], dim=dim)


def cat_batches(tensors: Sequence[Tensor], batch: int) -> Tensor:
    """Tensors whose first axis is 1 or `batch`, one after another: (batch * tensors, ...)."""
    return torch.cat([tensor.expand(batch, *tensor.shape[1:]) for tensor in tensors])


def by_vector(block: Tensor) -> Tensor:
    """A block (B, n, k) laid out in memory vector by vector, as products with rows of a residual stream leave it."""
    return block.mT.contiguous().mT


def zeros_by_vector(like: Tensor, size: int) -> Tensor:
    """Zeros for as many prompts and vectors, (B, size, k), laid out vector by vector."""
    return like.new_zeros(like.shape[0], like.shape[2], size).mT


def by_position(scale: Tensor, width: int) -> Tensor | None:
    """Scales by coordinate, (n, T*width), as scales by position, (n, T); None where they differ within one."""
    rows = scale.unflatten(1, (-1, width))
    return rows[..., 0] if bool((rows == rows[..., :1]).all()) else None


def add(terms: Iterator[Tensor]) -> Tensor:
    """Sum of tensors, broadcast against each other."""
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def gram64(matrix: Tensor) -> Tensor:
    """M M^T in float64, (..., m, n) to (..., m, m), some columns at a time; of a large one the blocks on and below the
    diagonal, seven twelfths of the product."""
    side = matrix.shape[-2]
    gram = torch.zeros(*matrix.shape[:-1], side, dtype=torch.float64, device=matrix.device)
    width = -(-side // 6) if side > _WHOLE else side
    for columns in matrix.split(chunk_width(matrix[..., 0].numel(), torch.float64), dim=-1):
        wide = columns.double()
        for first in range(0, side, width):
            last = min(first + width, side)
            gram[..., first:last, :last] += wide[..., first:last, :] @ wide[..., :last, :].mT
    for first in range(width, side, width):
        last = min(first + width, side)
        gram[..., :first, first:last] = gram[..., first:last, :first].mT
    return gram
