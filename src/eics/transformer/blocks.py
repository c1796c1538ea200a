"""Blocks of vectors as operators see them, (B, T*d, k), and as rows of a residual stream, (B, k, T, d)."""

from torch import Tensor


def to_rows(block: Tensor, like: Tensor) -> Tensor:
    """(B, T*d, k) to (B, k, T, d), where `like` is (B, T, d)."""
    _, length, width = like.shape
    return block.reshape(block.shape[0], length, width, block.shape[2]).permute(0, 3, 1, 2)


def to_columns(rows: Tensor) -> Tensor:
    """(B, k, T, d) to (B, T*d, k)."""
    return rows.permute(0, 2, 3, 1).flatten(1, 2)


def by_position(scale: Tensor, like: Tensor) -> Tensor | None:
    """Scales by coordinate, (n, T*d), as scales by position, (n, T); None where they differ within one."""
    rows = scale.reshape(scale.shape[0], like.shape[1], -1)
    return rows[..., 0] if bool((rows == rows[..., :1]).all()) else None
