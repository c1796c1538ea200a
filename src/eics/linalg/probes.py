"""Random probes, each stream from a seed of its own.

A stream is keyed by the user's seed and by what it is for, so that no estimate shares random numbers with
another, and adding a node to a circuit changes no other node's estimate. Signs are drawn on the CPU, row by
row: the same on every device, and a padded prompt sees the same probe on its own positions.
"""

import hashlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from eics.linalg.host_device import to_device

Stream = torch.Generator | Sequence[torch.Generator]
"""One stream, or one for each of several stacked maps."""


def generator(seed: int, purpose: str) -> torch.Generator:
    """A stream for one purpose.

    >>> a, b = (torch.rand(1, generator=generator(0, purpose)) for purpose in ("macro", "a1.h2"))
    >>> bool(a == b)
    False
    """
    digest = hashlib.blake2b(f"{seed}:{purpose}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


def fork(stream: Stream) -> Stream:
    """A second stream for each, so that how much is drawn from one (a padded prompt takes more) moves nothing in the
    other."""
    if isinstance(stream, torch.Generator):
        seed = torch.randint(2**62, (1,), generator=stream)
        return torch.Generator().manual_seed(int(seed))
    return [one for one in map(fork, stream) if isinstance(one, torch.Generator)]


def signs(rows: int, count: int, stream: torch.Generator, like: Tensor) -> Tensor:
    """`count` Rademacher vectors as columns, (1, rows, count), in the dtype and on the device of `like`."""
    bits = torch.randint(0, 2, (rows, count), generator=stream, dtype=torch.int8)
    return to_device(2 * bits - 1, like.device).to(like.dtype).unsqueeze(0)  # a byte each


@cache
def student(samples: int, errors: int = 2) -> float:
    """What widens the standard error of the mean of this many normal samples so that this many errors cover what they
    would if the variance were known: 95.4% for 2.

    >>> [round(student(samples), 2) for samples in (4, 8, 12, 1000)], round(student(4, 3), 2)
    ([1.65, 1.21, 1.13, 1.0], 3.07)
    """
    from scipy.special import ndtr, stdtrit

    return float(stdtrit(samples - 1, ndtr(errors))) / errors
