"""A model's fingerprint: a short name for its config and weights, the same in every process and on every device.

SHA-256 over the config and, for each parameter (and each buffer of a checkpoint), its name, shape and dtype, its sum
and sum of squares in float64, and 64 strided elements. The order of additions decides the last digits of a sum, and a
library's own sums differ with threads and devices; so these are trees of elementwise additions, which IEEE arithmetic
rounds the same way everywhere. Every weight is read once, which takes about as long as a forward pass of eight short
prompts.
"""

import hashlib
import json
from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor, nn

ELEMENTS = 64
_CHUNK = 1 << 16  # elements added up in one tree; part of the definition, since it fixes the order of the additions
_TOGETHER = {"cuda": 256}  # trees added up at once where launching an operation takes longer than running it

_NOT_THE_MODEL = frozenset(
    {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"}
)
"""Fields of a config that say where, how or by what version it was loaded."""


def fingerprint(module: nn.Module) -> str:
    """The fingerprint of a transformers model, 64 hexadecimal digits."""
    digest = hashlib.sha256(_line(_settings(module)))
    for name, tensor in sorted(weights_of(module)):
        values = tensor.detach()
        total, squares = _moments(values)
        exact = [total.hex(), squares.hex(), [element.hex() for element in _elements(values)]]
        digest.update(_line([name, list(values.shape), str(values.dtype), *exact]))
    return digest.hexdigest()


def weights_of(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters and the buffers that a checkpoint holds, by name; one that has several names under the first."""
    yield from module.named_parameters()
    held: set[int] = set()
    for prefix, part in module.named_modules():
        for name, buffer in part._buffers.items():
            if buffer is not None and name not in part._non_persistent_buffers_set and id(buffer) not in held:
                held.add(id(buffer))
                yield f"{prefix}.{name}" if prefix else name, buffer


def _settings(module: Any) -> dict[str, Any]:
    """What the config says beyond its family's defaults."""
    config = getattr(module, "config", None)
    fields: dict[str, Any] = {} if config is None else config.to_diff_dict() | {"model_type": config.model_type}
    return {name: value for name, value in fields.items() if name not in _NOT_THE_MODEL}


def _line(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode() + b"\n"


def _moments(values: Tensor) -> tuple[float, float]:
    """The sum and the sum of squares: a tree for each chunk, the chunks one after another."""
    flat = values.reshape(-1)
    whole = flat.numel() // _CHUNK * _CHUNK
    blocks = list(flat[:whole].view(-1, _CHUNK).split(_TOGETHER.get(flat.device.type, 1)))
    if whole < flat.numel():
        rest = flat[whole:]
        width = 1 << (rest.numel() - 1).bit_length()
        blocks.append(nn.functional.pad(rest, (0, width - rest.numel())).unsqueeze(0))
    totals: list[float] = []
    squares: list[float] = []
    for block in blocks:
        double = _double(block)
        totals += _tree(double)
        squares += _tree(double * double)
    return reduce(add, totals, 0.0), reduce(add, squares, 0.0)  # not `sum`, which compensates since Python 3.12


def _tree(rows: Tensor) -> list[float]:
    """The sum of each row, whose length is a power of two: the second half is added to the first, again and again."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    sums: list[float] = rows.squeeze(1).tolist()
    return sums


def _elements(values: Tensor) -> list[float]:
    count = min(ELEMENTS, values.numel())
    at = torch.arange(count, device=values.device) * values.numel() // max(count, 1)
    elements: list[float] = _double(values.reshape(-1)[at]).tolist()
    return elements


def _double(values: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (values.cpu() if values.device.type == "mps" else values).to(torch.float64)
