"""How products are rounded where a model's weights have less than float32, on a GPU and in `fast` mode.

The weights have 8 bits (bfloat16), and what was observed was computed with as many. So products of float32 numbers are
rounded to 11 bits (TF32). Where only the norm of a map is asked for, rounding errors, as many as there are numbers,
average out: there what is multiplied with weights is rounded to the weights' own precision. Every sum is in float32
still. On the CPU, and in the other modes, nothing is rounded.
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
    """Around what is computed with weights of this dtype on this device."""
    if weights.itemsize >= 4 or device.type != "cuda" or mode != "fast":
        yield  # nothing is asked of a setting that is not ours
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
    """Around what is computed for a norm alone."""
    token = _norms.set(True)
    try:
        yield
    finally:
        _norms.reset(token)


def rounds(weight: Tensor) -> bool:
    """Whether what is multiplied with this weight here is rounded to its precision."""
    return _half.get() and _norms.get() and weight.dtype == torch.bfloat16  # float16 has too few exponents


def said() -> str | None:
    """For records: how products are rounded, None where they are not."""
    return "tf32; for norms of maps bfloat16" if _half.get() else None
