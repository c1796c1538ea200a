"""Running out of memory, recognised on every device and said in one line."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from eics.errors import ModelError

_ALLOCATIONS = ("not enough memory", "out of memory", "can't allocate memory", "cannot allocate memory")

P = ParamSpec("P")
R = TypeVar("R")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: CUDA and MPS raise errors of their own, the CPU a `RuntimeError`, numpy `MemoryError`.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."))
    True
    """
    if isinstance(error, MemoryError):
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing torch
        return True
    return isinstance(error, RuntimeError | OSError) and any(text in str(error).lower() for text in _ALLOCATIONS)


def memory_advice(batch_size: int | None) -> str:
    """What to do after a batch of this size did not fit.

    >>> memory_advice(8)
    'Batches of 8 do not fit: use a batch size of 4.'
    """
    if batch_size is not None and batch_size > 1:
        return f"Batches of {batch_size} do not fit: use a batch size of {batch_size // 2}."
    return "Use a smaller --memory or batch size, a shorter prompt, bfloat16, or a smaller model."


def memory_explained(function: Callable[P, R]) -> Callable[P, R]:
    """A function with a `batch_size`, made to say which batch size to try when memory runs out."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        given: dict[str, Any] = signature.bind(*args, **kwargs).arguments
        default = signature.parameters["batch_size"].default
        raise ModelError(f"The work must fit in memory. {memory_advice(given.get('batch_size', default))}")

    return explained
