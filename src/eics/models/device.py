"""Where a model runs and in which precision: names from users, checked before any weight is read."""

from typing import TYPE_CHECKING, Any

from eics.errors import OptionError

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float64", "bfloat16", "float16")
"""The precisions that a model may have; in the two short ones everything after the forward pass runs in float32."""


def choose_device(name: "str | torch.device | None" = "auto") -> "torch.device":
    """The device with this name; `auto` is a CUDA device if there is one, else MPS, else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    import torch

    if name is None or name == "auto":
        return torch.device("cuda" if _count("cuda") else "mps" if _count("mps") else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise OptionError.of("device", "'auto', 'cpu', 'cuda', 'cuda:1' or another torch device", name) from None
    count = _count(device.type)
    if count is None:
        raise OptionError.of("device", "a device that computes, such as 'cpu' or 'cuda'", str(name))
    if count == 0:
        raise OptionError(
            f"The device {str(name)!r} must be present. torch finds no {device.type} device here: use 'auto' or 'cpu'."
        )
    if device.index is not None and device.index >= count:
        raise OptionError(
            f"The device {str(name)!r} must be present. torch finds {count} here, numbered from 0: use a smaller one."
        )
    return device


def choose_dtype(name: "str | torch.dtype | None", device: "torch.device") -> "torch.dtype":
    """The precision with this name, float32 by default, if the device has it."""
    import torch

    name = str(name or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise OptionError.of("dtype", f"one of {', '.join(DTYPES)}", name)
    chosen = getattr(torch, name)
    if device.type == "mps" and chosen is torch.float64:
        raise OptionError("MPS devices have no float64: use --dtype float32, or --device cpu.")
    assert isinstance(chosen, torch.dtype)
    return chosen


def _count(kind: str) -> int | None:
    """How many devices of a kind there are; None for kinds that compute nothing, such as `meta`."""
    import torch

    if kind == "cpu":
        return 1
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    module: Any = getattr(torch, kind, None)
    if not hasattr(module, "is_available") or not hasattr(module, "device_count"):
        return None
    return int(module.device_count()) if module.is_available() else 0
