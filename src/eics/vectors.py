"""Blocks of vectors, (B, n, k): k vectors for each of B prompts; put together, added, laid out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


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


def add(terms: Iterator[Tensor]) -> Tensor:
    """Sum of tensors, broadcast against each other."""
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def rows_of(block: Tensor, width: int) -> Tensor:
    """A block (B, T*width, k) position by position, (B, k, T, width); no copy of a block laid out vector by vector."""
    rows: Tensor = block.mT.unflatten(2, (-1, width))
    return rows


def to_block(rows: Tensor) -> Tensor:
    """Rows (B, k, T, width) as a block (B, T*width, k), laid out vector by vector."""
    return rows.flatten(2).mT
