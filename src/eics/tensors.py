"""Records of tensors, dataclasses in dataclasses, treated as one."""

from collections.abc import Callable, Mapping
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


class Packed:
    """Tensors to be fetched together: on another device laid out one after another, by dtype.

    >>> Packed({"a": torch.ones(2), "b": torch.zeros(1, 2)}).fetch()
    {'a': [1.0, 1.0], 'b': [[0.0, 0.0]]}
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names = tuple(tensors)
        self.here = {name: tensor for name, tensor in tensors.items() if tensor.device.type == "cpu"}
        away = {name: tensor for name, tensor in tensors.items() if name not in self.here}
        self.shapes: dict[torch.dtype, dict[str, torch.Size]] = {}
        for name, tensor in away.items():
            self.shapes.setdefault(tensor.dtype, {})[name] = tensor.shape
        self.flat = {
            dtype: torch.cat([away[name].reshape(-1) for name in shapes]) for dtype, shapes in self.shapes.items()
        }

    def fetch(self) -> dict[str, Any]:
        """All as nested lists of plain numbers; another device is asked once for each dtype."""
        here = dict(self.here)
        for dtype, shapes in self.shapes.items():
            pieces = self.flat[dtype].cpu().split([shape.numel() for shape in shapes.values()])
            here |= {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        return {name: here[name].tolist() for name in self.names}
