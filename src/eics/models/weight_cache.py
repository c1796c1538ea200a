"""Matrices that depend on weights alone: computed once, kept beside the weights, dropped when those change.

A cache lives and dies with the description of a model (`spec.py`), so no other model ever meets its matrices. A model
whose weights have changed is described anew (`Model.refresh`), edits through `.data` included: a cache tells the
model's watch (`watch.py`) which weights its matrices are made of. All caches on one device together stay under a bound;
the least recently used matrices go first.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor

from eics.linalg.host_device import filling_cache, keep_alive
from eics.models.bits import stamp

if TYPE_CHECKING:
    from eics.models.watch import Watch

CACHE_BYTES = 1 << 30

_caches: "WeakSet[WeightCache]" = WeakSet()
_clock = count()


class WeightCache:
    """The matrices of one layer, by name; `watch` looks after the weights that they are made of."""

    def __init__(self) -> None:
        self.matrices: dict[Hashable, tuple[tuple[Any, ...], int, Tensor]] = {}
        self.watch: Watch | None = None
        _caches.add(self)

    def get(self, name: Hashable, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Tensor:
        """The matrix of that name, made anew if one of the weights was changed in place since."""
        version = tuple(map(stamp, weights))
        cached = self.matrices.get(name)
        if cached is not None and cached[0] == version:
            matrix = cached[2]
        else:
            with torch.inference_mode(False), filling_cache():  # others will use it, with gradients perhaps
                matrix = make()
                if self.watch is not None:
                    self.watch.depend_on(weights)
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
