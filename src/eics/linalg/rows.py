"""Blocks of vectors as operators see them, (B, T*d, k), and as rows of a residual stream, (B, k, T, d).

Where a block lies in memory vector by vector (`eics.linalg.blocks.by_vector`), neither way is a copy.
"""

import torch
from torch import Tensor

from eics.linalg.precision import rounds


def to_rows(block: Tensor, like: Tensor) -> Tensor:
    """(B, T*d, k) to (B, k, T, d), where `like` is (B, T, d)."""
    _, length, width = like.shape
    return block.reshape(block.shape[0], length, width, block.shape[2]).permute(0, 3, 1, 2)


def to_columns(rows: Tensor) -> Tensor:
    """(B, k, T, d) to (B, T*d, k)."""
    return rows.permute(0, 2, 3, 1).flatten(1, 2)


def project(x: Tensor, weight: Tensor) -> Tensor:
    """Rows (H or 1, ..., in) through weights by head (H, in, out): (H, ..., out).

    All rows of a head go in one product; left to broadcasting, each prompt and vector would be a small one of its own.
    """
    heads, width, out = weight.shape
    if heads == 1:
        return mix(x, weight[0])
    rows = x.reshape(x.shape[0], -1, width)
    return torch.bmm(rows if len(rows) == heads else rows.expand(heads, -1, -1), weight).view(
        heads, *x.shape[1:-1], out
    )


def by_matrix(rows: Tensor, matrix: Tensor) -> Tensor:
    """Rows (H, B, k, T, n) by a matrix of each head and prompt, (H, B, n, m), all vectors at once: (H, B, k, T, m)."""
    product: Tensor = (rows.flatten(2, 3) @ matrix).unflatten(2, rows.shape[2:4])
    return product


def by_weight(x: Tensor, weight: Tensor, own: Tensor) -> Tensor:
    """`mix` with a matrix of weights (in, out), which `own` is as the model has it: rounded where
    `eics.linalg.precision` says so."""
    if not rounds(own):
        return mix(x, weight)
    rows = x.reshape(-1, own.shape[0]).to(own.dtype)
    return torch.mm(rows, own, out_dtype=x.dtype).view(*x.shape[:-1], own.shape[1])


def mix(x: Tensor, weight: Tensor) -> Tensor:
    """Rows (..., in) through one matrix (in, out), all in one product."""
    return torch.mm(x.reshape(-1, weight.shape[0]), weight).view(*x.shape[:-1], weight.shape[1])
