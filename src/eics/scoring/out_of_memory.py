"""Batches that do not fit in memory are halved until they do, and the size that fits is said."""

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

from eics.models.out_of_memory import is_out_of_memory
from eics.models.prompts import Prompt

Result = TypeVar("Result")

REASON = "out of memory, even alone: lower --memory, restrict positions or shorten the prompt"


def halving(
    work: Callable[[Sequence[Prompt]], list[Result]],
    prompts: Sequence[Prompt],
    *,
    failed: Callable[[Prompt, str], Result],
    release: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """Does the work on a batch; when memory runs out, its two halves, down to single prompts, which then fail.

    Before it halves anything it tries again with the memory that `release` gave back, if it gave any back. A warning
    names the largest batch size that fitted, if it is not the one that was asked for.
    """
    fitted: list[int] = []
    results = _halving(work, prompts, release=release, failed=failed, fitted=fitted)
    if fitted and max(fitted) < len(prompts):
        warnings.warn(
            f"A batch of {len(prompts)} prompts ran out of memory and was cut; {max(fitted)} fit: batch size "
            f"{max(fitted)} saves the failed attempts.",
            RuntimeWarning,
            stacklevel=3,
        )
    return results


def _halving(
    work: Callable[[Sequence[Prompt]], list[Result]],
    prompts: Sequence[Prompt],
    *,
    release: Callable[[], bool],
    failed: Callable[[Prompt, str], Result],
    fitted: list[int],
) -> list[Result]:
    try:
        results = work(prompts)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    else:
        fitted.append(len(prompts))
        return results
    # Only here is the traceback gone, which holds tensors.
    if release():
        return _halving(work, prompts, release=release, failed=failed, fitted=fitted)
    if len(prompts) == 1:
        return [failed(prompts[0], REASON)]
    middle = len(prompts) // 2
    halves = (prompts[:middle], prompts[middle:])
    return [result for half in halves for result in _halving(work, half, release=release, failed=failed, fitted=fitted)]
