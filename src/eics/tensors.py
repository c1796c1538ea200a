"""Records of tensors, dataclasses in dataclasses, treated as one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
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


def fetch(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors as nested lists of plain numbers. Another device is asked once for each dtype, not for each tensor.

    >>> fetch({"a": torch.ones(2), "b": torch.zeros(1, 2)})
    {'a': [1.0, 1.0], 'b': [[0.0, 0.0]]}
    """
    here: dict[str, Tensor] = {}
    for dtype in {tensor.dtype for tensor in tensors.values()}:
        some = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        if all(tensor.device.type == "cpu" for tensor in some.values()):
            here |= some
            continue
        flat = torch.cat([tensor.reshape(-1) for tensor in some.values()]).cpu()
        pieces = flat.split([tensor.numel() for tensor in some.values()])
        here |= {name: piece.view(some[name].shape) for name, piece in zip(some, pieces, strict=True)}
    return {name: here[name].tolist() for name in tensors}


def sent(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers from Python on a device, which is not waited for."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)
