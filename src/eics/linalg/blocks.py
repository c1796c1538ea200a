"""Blocks of vectors, (B, n, k): k vectors for each of B prompts; put together, added, laid out."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eics.linalg.host_device import to_host
from eics.linalg.memory import chunk_width

_WHOLE = 512  # up to this side half of a Gram matrix is not worth the smaller products


def cat_blocks(blocks: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenates blocks whose batches may be 1 or B."""
    batch = max(block.shape[0] for block in blocks)
    return torch.cat([block.expand(batch, -1, -1) for block in blocks], dim=dim)


def cat_batches(tensors: Sequence[Tensor], batch: int) -> Tensor:
    """Tensors whose first axis is 1 or `batch`, one after another: (batch * tensors, ...)."""
    return torch.cat([tensor.expand(batch, *tensor.shape[1:]) for tensor in tensors])


def rescale(scale: Tensor, block: Tensor) -> Tensor:
    """A block (B, n, k) with coordinates multiplied by (B or 1, n); or (B or 1, m), each for n / m neighbours."""
    if scale.shape[1] == block.shape[1]:
        return scale.unsqueeze(2) * block
    rows: Tensor = block.unflatten(1, (scale.shape[1], -1))
    return (scale[:, :, None, None] * rows).flatten(1, 2)


def by_coordinate(scale: Tensor, size: int) -> Tensor:
    """Scales that each serve several neighbours, (B or 1, m), one by one: (B or 1, size)."""
    return scale if scale.shape[1] == size else scale.repeat_interleave(size // scale.shape[1], dim=1)


def by_vector(block: Tensor) -> Tensor:
    """A block (B, n, k) laid out in memory vector by vector, as products with rows of a residual stream leave it."""
    return block.mT.contiguous().mT


def zeros_by_vector(like: Tensor, size: int) -> Tensor:
    """Zeros for as many prompts and vectors, (B, size, k), laid out vector by vector."""
    return like.new_zeros(like.shape[0], like.shape[2], size).mT


def scale_by_position(scale: Tensor, length: int) -> Tensor | None:
    """Scales by coordinate, (n, T*d), as scales by position, (n, T); None where they differ within one.

    Those that came by position stay as they are, and nothing has to be compared.
    """
    if scale.shape[1] <= length:
        return scale.expand(-1, length)
    rows = scale.unflatten(1, (length, -1))
    return rows[..., 0] if to_host((rows == rows[..., :1]).all()) else None


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


def gram64(matrix: Tensor) -> Tensor:
    """M M^T in float64, (..., m, n) to (..., m, m), some columns at a time; of a large and long one the blocks on and
    below the diagonal, seven twelfths of the product."""
    side = matrix.shape[-2]
    if matrix.shape[-1] <= side:  # smaller products would cost more than they save
        wide = matrix.double()
        return wide @ wide.mT
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


def log_determinants(matrices: Tensor) -> Tensor:
    """log |det| of many matrices, (B, n, n) to (B,); on the CPU one after another.

    After `torch.set_num_threads` torch 2.13 factorizes several matrices at once wrongly there: "Parameter 6 was
    incorrect on entry to DLASWP", and other numbers. LU alone does that; Cholesky, QR and eigenvalues are right.
    """
    if matrices.device.type != "cpu":
        together: Tensor = torch.linalg.slogdet(matrices).logabsdet
        return together
    return torch.stack([torch.linalg.slogdet(one).logabsdet for one in matrices])


def solved(matrices: Tensor, right: Tensor) -> Tensor:
    """M^-1 R for many matrices, (..., n, n) and (..., n, m); on the CPU one after another, like `log_determinants`."""
    if matrices.ndim == 2 or matrices.device.type != "cpu":
        found: Tensor = torch.linalg.solve(matrices, right)
        return found
    pairs = zip(matrices.flatten(0, -3), right.flatten(0, -3), strict=True)
    return torch.stack([torch.linalg.solve(*pair) for pair in pairs]).view_as(right)


def small_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of many small symmetric matrices, on the CPU wherever they are: a GPU's solver takes
    longer to start than that, and gives up on some."""
    values, vectors = torch.linalg.eigh(matrices.cpu())
    return values.to(matrices.device), vectors.to(matrices.device)
