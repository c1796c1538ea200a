"""Records of tensors, dataclasses in dataclasses, treated as one."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor


def each(function: Callable[..., Tensor], *records: Any) -> Any:
    """Applies a function to the tensors at each place of records of one kind; the rest is the first one's.

    >>> import torch
    >>> each(lambda a, b: a + b, (torch.tensor(1), "x"), (torch.tensor(2), "x"))
    (tensor(3), 'x')
    """
    first = records[0]
    if isinstance(first, Tensor):
        return function(*records)
    if isinstance(first, tuple | list) and not hasattr(first, "_fields"):  # a named tuple is a name here: an edge
        return type(first)(each(function, *some) for some in zip(*records, strict=True))
    if isinstance(first, dict):
        return {key: each(function, *(record[key] for record in records)) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        changed = {f.name: each(function, *(getattr(r, f.name) for r in records)) for f in fields(first) if f.init}
        return replace(first, **changed)
    return first


def on_cpu(record: Any) -> Any:
    """The same with every tensor in the CPU's memory."""
    return each(Tensor.cpu, record)
