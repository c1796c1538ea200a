"""How much memory one temporary block of vectors may take before work is cut into chunks."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

DEFAULT_MB = 64
_bound: ContextVar[int] = ContextVar("eics memory bound", default=DEFAULT_MB << 20)


def memory_bound() -> int:
    """The bound in force, in bytes."""
    return _bound.get()


@contextmanager
def memory_limit(megabytes: float) -> Iterator[None]:
    """Sets the bound for what runs inside."""
    token = _bound.set(int(megabytes * (1 << 20)))
    try:
        yield
    finally:
        _bound.reset(token)


def chunk_width(length: int, dtype: torch.dtype) -> int:
    """How many vectors of this many numbers fit under the bound; at least one."""
    return max(1, memory_bound() // max(1, length * dtype.itemsize))
