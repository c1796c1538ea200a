"""Matrices that depend on weights alone: computed once, kept beside the weights, forgotten when those change.

They live and die with the model's description, so no other model can ever meet them. All of them on a device together
stay under a bound; the least recently used go first.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from weakref import WeakSet

import torch
from torch import Tensor

from eics.linalg.host_device import filling_cache, keep_alive

KEPT_BYTES = 1 << 30

_everyone: "WeakSet[Kept]" = WeakSet()
_clock = count()


class Kept:
    """One layer's matrices by name."""

    def __init__(self) -> None:
        self.found: dict[Hashable, tuple[tuple[int, ...], int, Tensor]] = {}
        _everyone.add(self)

    def get(self, name: Hashable, weights: Sequence[Tensor], make: Callable[[], Tensor]) -> Tensor:
        """The matrix of that name, made anew where one of the weights was changed in place since."""
        version = tuple(weight._version for weight in weights)
        known = self.found.get(name)
        if known is not None and known[0] == version:
            matrix = known[2]
        else:
            with filling_cache():
                matrix = make()
        self.found[name] = (version, next(_clock), matrix)
        if known is None:
            _make_room(matrix)
        return keep_alive(matrix, weights)


def kept_bytes(device: torch.device) -> int:
    """The bound: a gigabyte, and on a GPU an eighth of its memory."""
    if device.type != "cuda":
        return KEPT_BYTES
    return max(KEPT_BYTES, torch.cuda.get_device_properties(device).total_memory // 8)


def _make_room(newest: Tensor) -> None:
    entries = [
        (when, one, name, m)
        for one in _everyone
        for name, (_, when, m) in one.found.items()
        if m is not newest and m.device == newest.device
    ]
    total = (
        sum(matrix.numel() * matrix.dtype.itemsize for *_, matrix in entries) + newest.numel() * newest.dtype.itemsize
    )
    bound = kept_bytes(newest.device)
    for _, one, name, matrix in sorted(entries, key=lambda entry: entry[0]):
        if total <= bound:
            return
        total -= matrix.numel() * matrix.dtype.itemsize
        del one.found[name]
