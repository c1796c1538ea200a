"""Which prompts share a forward pass: those of similar length, so that there is little padding.

Prompts are sorted by length within a window of a few batches only, because results are passed on in input order: what
an interrupted run loses is at most the window it was in.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from eics.models.prompts import Prompt

_WINDOW = 4  # batches; sorting 32 prompts into 4 batches of 8 removes most of the padding
_LETTERS = 4  # characters per token, roughly: texts are compared with token lists before they are tokenized

Result = TypeVar("Result")


def batch_indices(prompts: Sequence[Prompt], batch_size: int, *, sort: bool) -> list[list[int]]:
    """The prompts of each batch, by their index; without `sort`, in input order.

    >>> texts = [Prompt(id, text="x" * length) for id, length in enumerate([9, 1, 8, 2])]
    >>> batch_indices(texts, 2, sort=True), batch_indices(texts, 2, sort=False)
    ([[0, 2], [1, 3]], [[0, 1], [2, 3]])
    """
    if not sort:
        return _cut(range(len(prompts)), batch_size)
    return list(batches_by_length([_length(prompt) for prompt in prompts], batch_size))


def batches_by_length(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """The indices of each batch of things that have these lengths.

    >>> list(batches_by_length([9, 1, 8, 2], 2))
    [[0, 2], [1, 3]]
    """
    for window in _cut(range(len(lengths)), _WINDOW * batch_size):
        ordered = sorted(window, key=lambda index: lengths[index])
        yield from sorted(sorted(batch) for batch in _cut(ordered, batch_size))  # so that the first prompt comes first


def in_input_order(scored: Iterable[tuple[Sequence[int], Sequence[Result]]]) -> Iterator[Result]:
    """The results of batches with the indices of their prompts, in the prompts' order, each as early as possible.

    >>> list(in_input_order([([2, 0], "ca"), ([1], "b")]))
    ['a', 'b', 'c']
    """
    waiting: dict[int, Result] = {}
    following = 0
    for indices, results in scored:
        waiting.update(zip(indices, results, strict=True))
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def _cut(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[start : start + size]) for start in range(0, len(indices), size)]


def _length(prompt: Prompt) -> int:
    return len(prompt.text or "") if prompt.tokens is None else _LETTERS * len(prompt.tokens)
