"""Blocks of vectors, (B, n, k): k vectors for each of B prompts, and the same as rows of a residual stream, (B, k, T,
d).

A block that lies in memory vector by vector (`by_vector`) becomes rows, and rows a block, without a copy.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from eics.linalg.host_device import to_host
from eics.linalg.precision import rounds


def to_rows(block: Tensor, width: int) -> Tensor:
    """A block (B, T*width, k) position by position: (B, k, T, width)."""
    rows: Tensor = block.mT.unflatten(2, (-1, width))
    return rows


def to_block(rows: Tensor) -> Tensor:
    """Rows (B, k, T, width) as a block (B, T*width, k)."""
    return rows.flatten(2).mT


def by_vector(block: Tensor) -> Tensor:
    """A block (B, n, k) laid out in memory vector by vector, as products with rows of a residual stream leave it."""
    return block.mT.contiguous().mT


def zeros_by_vector(like: Tensor, size: int) -> Tensor:
    """Zeros for as many prompts and vectors, (B, size, k), laid out vector by vector."""
    return like.new_zeros(like.shape[0], like.shape[2], size).mT


def cat_blocks(blocks: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenates blocks whose batches may be 1 or B."""
    batch = max(block.shape[0] for block in blocks)
    return torch.cat([block.expand(batch, -1, -1) for block in blocks], dim=dim)


def cat_batches(tensors: Sequence[Tensor], batch: int) -> Tensor:
    """Tensors whose first axis is 1 or `batch`, one after another: (batch * tensors, ...)."""
    return torch.cat([tensor.expand(batch, *tensor.shape[1:]) for tensor in tensors])


def add(terms: Iterable[Tensor]) -> Tensor:
    """Sum of tensors, broadcast against each other; each is freed before the next is made."""
    remaining = iter(terms)
    total = next(remaining)
    for term in remaining:
        total = total + term
    return total


# Scales: (B or 1, n), one for each coordinate, or (B or 1, m) with m dividing n, each for n / m neighbours. Masks and
# the units of the relative metric go by position, so they come as (B or 1, T) and stay that short.


def rescale(scale: Tensor, block: Tensor) -> Tensor:
    """A block (B, n, k) with its coordinates scaled."""
    if scale.shape[1] == block.shape[1]:
        return scale.unsqueeze(2) * block
    rows: Tensor = block.unflatten(1, (scale.shape[1], -1))
    return (scale[:, :, None, None] * rows).flatten(1, 2)


def by_coordinate(scale: Tensor, size: int) -> Tensor:
    """Scales one for each coordinate: (B or 1, size)."""
    return scale if scale.shape[1] == size else scale.repeat_interleave(size // scale.shape[1], dim=1)


def scale_by_position(scale: Tensor, length: int) -> Tensor | None:
    """Scales one for each position, (B or 1, T); None if they differ within a position.

    Scales that came by position are not compared, which would synchronise with the device.
    """
    if scale.shape[1] <= length:
        return scale.expand(-1, length)
    rows = scale.unflatten(1, (length, -1))
    return rows[..., 0] if to_host((rows == rows[..., :1]).all()) else None


def equally_long(scales: Sequence[Tensor], size: int) -> list[Tensor]:
    """Scales of one side, each for as many neighbours as the others."""
    if len({scale.shape[1] for scale in scales}) == 1:
        return list(scales)
    return [by_coordinate(scale, size) for scale in scales]


def multiply_scales(first: Tensor, second: Tensor, size: int) -> Tensor:
    """The product of two scales of one side."""
    first, second = equally_long([first, second], size)
    return first * second


# Products of rows with weights, as few and as large as possible.


def mix(x: Tensor, weight: Tensor) -> Tensor:
    """Rows (..., in) through one matrix (in, out), all in one product."""
    return torch.mm(x.reshape(-1, weight.shape[0]), weight).view(*x.shape[:-1], weight.shape[1])


def mix_rounded(x: Tensor, weight: Tensor, own: Tensor) -> Tensor:
    """`mix`, rounded where `eics.linalg.precision` says so; `own` is the same weight in the model's own dtype."""
    if not rounds(own):
        return mix(x, weight)
    rows = x.reshape(-1, own.shape[0]).to(own.dtype)
    return torch.mm(rows, own, out_dtype=x.dtype).view(*x.shape[:-1], own.shape[1])


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Rows (H or 1, ..., in) through one matrix for each head, (H, in, out): (H, ..., out).

    All rows of a head go in one product; broadcasting would make a small one for each prompt and vector.
    """
    heads, width, out = weight.shape
    if heads == 1:
        return mix(x, weight[0])
    rows = x.reshape(x.shape[0], -1, width)
    return torch.bmm(rows if len(rows) == heads else rows.expand(heads, -1, -1), weight).view(
        heads, *x.shape[1:-1], out
    )


def by_matrix(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows (H, B, k, T, n) by one matrix for each head and prompt, (H, B, n, m), all vectors at once."""
    product: Tensor = (rows.flatten(2, 3) @ matrix).unflatten(2, rows.shape[2:4])
    return product
