"""Activation functions by the names that configs use, in the dtype of their input."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from eics.errors import EICSError

_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "gelu_fast": _TANH,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "tanh": torch.tanh,
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function with this name."""
    if name not in ACTIVATIONS:
        raise EICSError(f"The model's activation must be one of {', '.join(ACTIVATIONS)}. Got {name!r}.")
    return ACTIVATIONS[name]
