"""What the model would say next: its own logits at the answer position, from the pass that is recorded anyway.

The model's own code makes them, so that biases, tied weights, scales and soft caps of a family need no second version
here. Its unembedding is given the answer position alone: the logits of every position would be the largest tensor of
the pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


@contextmanager
def answer_only(module: Any, answer: Tensor) -> Iterator[None]:
    """Cuts what the unembedding reads down to each prompt's answer position, after the user's own hooks."""

    def hook(_: Any, arguments: Any) -> tuple[Any, ...]:
        return (_at(arguments[0], answer), *arguments[1:])

    handle = module.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def answer_logits(logits: Tensor, answer: Tensor) -> Tensor:
    """The logits at the answer position, (B, V), of those that the model returned."""
    # A wrapped model may unembed without calling its unembedding module, and so return every position.
    return (logits if logits.shape[1] == 1 else _at(logits, answer)).squeeze(1)


def likeliest_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ids of the likeliest tokens and their probabilities, (B, k) each, likeliest first."""
    best, ids = logits.topk(min(count, logits.shape[1]), dim=1)
    return ids, (best - logits.logsumexp(dim=1, keepdim=True)).exp()


def _at(values: Tensor, answer: Tensor) -> Tensor:
    """The answer position of each prompt: from (B, T, n) to (B, 1, n)."""
    return values[torch.arange(len(answer), device=values.device), answer].unsqueeze(1)
