"""Matrices that depend on weights alone: computed once, kept beside the weights, dropped when those change.

A cache lives and dies with the description of a model (`spec.py`), so no other model ever meets its matrices. All
caches on one device together stay under a bound; the least recently used matrices go first.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from weakref import WeakSet

import torch
from torch import Tensor

from eics.linalg.host_device import filling_cache, keep_alive

CACHE_BYTES = 1 << 30

_caches: "WeakSet[WeightCache]" = WeakSet()
_clock = count()


class WeightCache:
    """The matrices of one layer, by name."""

    def __init__(self) -> None:
        self.matrices: dict[Hashable, tuple[tuple[int, ...], int, Tensor]] = {}
        _caches.add(self)

    def get(self, name: Hashable, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Tensor:
        """The matrix of that name, made anew if one of the weights was changed in place since."""
        version = tuple(weight._version for weight in weights)
        cached = self.matrices.get(name)
        if cached is not None and cached[0] == version:
            matrix = cached[2]
        else:
            with filling_cache():
                matrix = make()
        self.matrices[name] = (version, next(_clock), matrix)
        if cached is None:
            _make_room(matrix)
        return keep_alive(matrix, weights)


def cache_bytes(device: torch.device) -> int:
    """The bound: a gigabyte, and on a GPU an eighth of its memory."""
    if device.type != "cuda":
        return CACHE_BYTES
    return max(CACHE_BYTES, torch.cuda.get_device_properties(device).total_memory // 8)


def _make_room(newest: Tensor) -> None:
    entries = [
        (last_use, cache, name, matrix)
        for cache in _caches
        for name, (_, last_use, matrix) in cache.matrices.items()
        if matrix is not newest and matrix.device == newest.device
    ]
    total = newest.nbytes + sum(matrix.nbytes for *_, matrix in entries)
    bound = cache_bytes(newest.device)
    for _, cache, name, matrix in sorted(entries, key=lambda entry: entry[0]):
        if total <= bound:
            return
        total -= matrix.nbytes
        del cache.matrices[name]
