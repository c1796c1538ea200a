"""How products are rounded for a model of lower precision than float32, on a GPU and in `fast` mode.

bfloat16 weights have an 8-bit significand, and so do the activations computed from them. Products of float32 numbers
are therefore computed in TF32 (an 11-bit significand). If only the norm of a map is wanted, the many rounding errors
average out, and factors are rounded to the weights' own precision. Sums stay in float32. On the CPU, and in the other
modes, nothing is rounded.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_half: ContextVar[bool] = ContextVar("eics products of half precision", default=False)
_norms: ContextVar[bool] = ContextVar("eics norms only", default=False)


@contextmanager
def products(weights: torch.dtype, device: torch.device, mode: str) -> Iterator[None]:
    """Sets the rounding of everything inside, for weights of this dtype on this device."""
    if weights.itemsize >= 4 or device.type != "cuda" or mode not in ("fast", "limit"):
        yield  # leave the user's setting alone
        return
    before, token = torch.get_float32_matmul_precision(), _half.set(True)
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        _half.reset(token)


@contextmanager
def norms() -> Iterator[None]:
    """Says that only the norm of a map is computed inside."""
    token = _norms.set(True)
    try:
        yield
    finally:
        _norms.reset(token)


def rounds(weight: Tensor) -> bool:
    """Whether factors of this weight are rounded to its precision here."""
    return _half.get() and _norms.get() and weight.dtype == torch.bfloat16  # float16 has too few exponents


def rounding() -> str | None:
    """How products are rounded, as records say it; None if they are not."""
    return "tf32; for norms of maps bfloat16" if _half.get() else None
