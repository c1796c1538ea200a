"""Cheap evidence that a tensor still holds the same bits, for edits that raise no version (`tensor.data`)."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Pair = tuple[Tensor, Tensor]
"""Integers now, and the same ones before."""


def stamp(tensor: Tensor) -> tuple[Any, ...]:
    """What the host knows of a tensor: where it is, its layout, and how often it was changed in place."""
    version = None if tensor.is_inference() else tensor._version  # an inference tensor counts nothing
    return tensor.data_ptr(), version, tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of a tensor's bits as integers, modulo 2^64: reads it once, and any change of one element changes it.

    >>> bool(bit_sum(torch.tensor([1.0, 2.0])) == bit_sum(torch.tensor([1.0, 2.0000002])))
    False
    """
    flat = _in_memory_order(tensor)
    size = tensor.dtype.itemsize
    wide = flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0  # eight bytes at a time
    return flat.view(torch.int64 if wide else _INTEGERS[size]).sum(dtype=torch.int64)


class Samples:
    """A strided sample of each tensor, taken again and again: the tensors must stay where they are."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.views: dict[tuple[torch.device, int], list[Tensor]] = {}
        for tensor in tensors:
            self.views.setdefault((tensor.device, tensor.dtype.itemsize), []).append(sampled(tensor))
        self.before = [torch.cat(views) for views in self.views.values()]

    def pairs(self) -> Iterator[Pair]:
        """The samples now and before: for each device and size of element one, in a single gather."""
        for views, before in zip(self.views.values(), self.before, strict=True):
            yield torch.cat(views), before


def sampled(tensor: Tensor) -> Tensor:
    """Elements of a tensor as integers, a view: at least one in each row and in each column; of a vector, all.

    A stride s that has no divisor in common with the row length m visits all columns in m steps, so for m * s <= n * m
    within the tensor, and s <= m leaves out no row. The largest such s takes about max(n, m) elements.

    >>> sampled(torch.zeros(4, 6)).shape, sampled(torch.zeros(5)).shape
    (torch.Size([24]), torch.Size([5]))
    >>> sampled(torch.zeros(600, 400)).shape
    torch.Size([602])
    """
    flat, stride = _in_memory_order(tensor), 1
    if tensor.ndim > 1 and tensor.numel() > 0:
        rows, columns = tensor.numel() // tensor.shape[-1], tensor.shape[-1]
        if not tensor.is_contiguous():  # in memory it is, at best, the transpose
            rows, columns = columns, rows
        stride = next(s for s in range(min(rows, columns), 0, -1) if math.gcd(s, columns) == 1)
    return flat[::stride].view(_INTEGERS[tensor.dtype.itemsize])


def same_bits(pairs: Iterable[Pair]) -> bool:
    """Whether all pairs are equal, in a few operations and one synchronisation for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Pair]] = {}
    for now, before in pairs:
        groups.setdefault((now.device, now.dtype), []).append((now.reshape(-1), before.reshape(-1)))
    return all(torch.equal(*map(torch.cat, zip(*group, strict=True))) for group in groups.values())


def _in_memory_order(tensor: Tensor) -> Tensor:
    """All elements in the order in which they are stored: a view, unless there are gaps or overlaps."""
    tensor = tensor.detach()
    dense = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    expected = 1
    for stride, size in dense:
        if size != 1 and stride != expected:
            return tensor.reshape(-1)
        expected *= size
    return tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
