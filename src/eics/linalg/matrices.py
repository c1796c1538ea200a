"""Explicit matrices: Gram matrices in float64, and factorizations that are right on every device."""

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width

_WHOLE = 512  # up to this side, half of a Gram matrix is not worth the smaller products


def gram64(matrix: Tensor) -> Tensor:
    """M M^T in float64, (..., m, n) to (..., m, m), a chunk of columns at a time.

    For a large and long matrix only the blocks on and below the diagonal are computed, seven twelfths of the product.
    """
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

    After `torch.set_num_threads`, torch 2.13 on the CPU factorizes a batch of matrices wrongly: "Parameter 6 was
    incorrect on entry to DLASWP", and other numbers. Only LU does that; Cholesky, QR and eigenvalues are right.
    """
    if matrices.device.type != "cpu":
        together: Tensor = torch.linalg.slogdet(matrices).logabsdet
        return together
    return torch.stack([torch.linalg.slogdet(matrix).logabsdet for matrix in matrices])


def solve(matrices: Tensor, right: Tensor) -> Tensor:
    """M^-1 R for many matrices, (..., n, n) and (..., n, m); on the CPU one after another, like `log_determinants`."""
    if matrices.ndim == 2 or matrices.device.type != "cpu":
        solution: Tensor = torch.linalg.solve(matrices, right)
        return solution
    pairs = zip(matrices.flatten(0, -3), right.flatten(0, -3), strict=True)
    return torch.stack([torch.linalg.solve(*pair) for pair in pairs]).view_as(right)


def small_eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of many small symmetric matrices, always on the CPU.

    A GPU's solver takes longer to start than the CPU takes to finish, and fails to converge on some.
    """
    values, vectors = torch.linalg.eigh(matrices.cpu())
    return values.to(matrices.device), vectors.to(matrices.device)
