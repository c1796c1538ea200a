"""How much memory one temporary block of vectors may take before work is cut into chunks."""

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from eics.errors import OptionError

if TYPE_CHECKING:  # the command line reads the default below, and must not wait for torch
    import torch

MEMORY_MB = 64
"""Megabytes that one temporary block may take on the CPU unless the user sets another bound."""

_bound: ContextVar[int] = ContextVar("eics memory bound", default=MEMORY_MB << 20)


def memory_bound() -> int:
    """The bound in force, in bytes."""
    return _bound.get()


def default_megabytes(device: "torch.device | None") -> float:
    """The default bound: small on the CPU, an eighth of the memory of a GPU."""
    if device is None or device.type != "cuda":
        return MEMORY_MB
    import torch

    return max(MEMORY_MB, torch.cuda.get_device_properties(device).total_memory / 8 / (1 << 20))


@contextmanager
def memory_limit(megabytes: float | None, device: "torch.device | None" = None) -> Iterator[None]:
    """Sets the bound for what runs inside; None stands for the device's default."""
    chosen = default_megabytes(device) if megabytes is None else megabytes
    if not 0 < chosen < math.inf:
        raise OptionError.of("memory", "a finite number > 0", chosen)
    token = _bound.set(int(min(chosen * (1 << 20), sys.maxsize)))
    try:
        yield
    finally:
        _bound.reset(token)


def chunk_width(length: int, dtype: "torch.dtype") -> int:
    """How many vectors of this many numbers fit under the bound; at least one."""
    return max(1, memory_bound() // max(1, length * dtype.itemsize))
