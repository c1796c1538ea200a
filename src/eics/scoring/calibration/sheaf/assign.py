"""Which prompts fit and which calibrate: decided by a hash of seed and group, so never by the order of prompts.

>>> place = assign("the Louvre", seed=0)
>>> place.fits, place.fold
(False, 3)
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

FOLDS = 5
_CALIBRATES = 0.25  # of the groups


@dataclass(frozen=True)
class Place:
    """Where a group belongs: to the part that fits (and which of its folds) or to the part that calibrates."""

    fits: bool
    fold: int


def assign(group: str, seed: int) -> Place:
    """The place of a group, which is never split between parts or folds."""
    digest = _digest(seed, "group", group)
    return _place(digest[0] / 256 >= _CALIBRATES, int.from_bytes(digest[1:5], "big") % FOLDS)


def order(group: str, tokens: Sequence[int], seed: int) -> bytes:
    """A prompt's rank among those that fit: bases come from the smallest."""
    return _digest(seed, "prompt", f"{group}:{','.join(map(str, tokens))}")


def group_of_tokens(tokens: Sequence[int]) -> str:
    """The group of a prompt that was given none: equal token lists are one."""
    return "tokens:" + ",".join(map(str, tokens))


@cache
def _place(fits: bool, fold: int) -> Place:
    """There are only ten places, and many prompts."""
    return Place(fits, fold)


def _digest(seed: int, purpose: str, text: str) -> bytes:
    content = f"{seed}:{purpose}:{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()
