"""Batches that do not fit in memory are halved until they do."""

from collections.abc import Callable, Sequence

import torch

from eics.models.prompts import Prompt
from eics.scoring.result import Scores

REASON = "out of memory, even alone: lower --memory, restrict positions or shorten the prompt"


def score_halving(
    score: Callable[[Sequence[Prompt]], list[Scores]],
    prompts: Sequence[Prompt],
    *,
    release: Callable[[], bool],
    failed: Callable[[Prompt, str], Scores],
) -> list[Scores]:
    """Scores a batch; when memory runs out, its two halves, down to single prompts, which then fail.

    Before it halves anything it tries again with the memory that `release` gave back, if it gave any back.
    """
    try:
        return score(prompts)
    except torch.OutOfMemoryError:
        pass  # the traceback holds tensors: continue only after it is gone
    if release():
        return score_halving(score, prompts, release=release, failed=failed)
    if len(prompts) == 1:
        return [failed(prompts[0], REASON)]
    middle = len(prompts) // 2
    halves = (prompts[:middle], prompts[middle:])
    return [scores for half in halves for scores in score_halving(score, half, release=release, failed=failed)]
