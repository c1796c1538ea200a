"""Shared pieces of the families: norms, projections, MLPs and activations as fields of `models/spec.py`.

Weights stay views of the model's parameters, (out, in) as in `torch.nn.Linear`. H query heads, G key/value heads, head
width e, residual width d.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from eics.errors import EICSError
from eics.models.spec import Norm

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
"""Activation functions by the names that configs use."""


class Linear(NamedTuple):
    """A linear map: weight (out, in) and bias (out,), or None."""

    weight: Tensor
    bias: Tensor | None

    def split(self, sizes: Sequence[int]) -> "list[Linear]":
        """The map cut into consecutive groups of output rows."""
        biases = [None] * len(sizes) if self.bias is None else self.bias.split(list(sizes))
        return [Linear(*part) for part in zip(self.weight.split(list(sizes)), biases, strict=True)]


def linear(module: Any) -> Linear:
    """`torch.nn.Linear`."""
    return Linear(module.weight, module.bias)


def conv1d(module: Any) -> Linear:
    """transformers' `Conv1D`, whose weight is (in, out)."""
    return Linear(module.weight.mT, module.bias)


def layer_norm(module: Any) -> Norm:
    """`torch.nn.LayerNorm`."""
    return Norm(module.weight, module.bias, module.eps, centred=True)


def rms_norm(module: Any) -> Norm:
    """RMSNorm of Llama, Mistral, Qwen and Phi."""
    return Norm(module.weight, None, module.variance_epsilon, centred=False)


def gemma_norm(module: Any) -> Norm:
    """RMSNorm of Gemma: the weight is stored as an offset from 1."""
    return Norm(1.0 + module.weight, None, module.eps, centred=False)


def separate_heads(projections: Iterable[Linear], heads: int, groups: int) -> dict[str, Tensor | None]:
    """Projections to queries, keys and values, each cut by head: `w_q`, `b_q` and so on."""
    query, key, value = projections
    return _heads("q", query, heads) | _heads("k", key, groups) | _heads("v", value, groups)


def stacked_heads(fused: Linear, heads: int, groups: int) -> dict[str, Tensor | None]:
    """One projection whose rows are all queries, then all keys, then all values."""
    width = fused.weight.shape[0] // (heads + 2 * groups)
    return separate_heads(fused.split([heads * width, groups * width, groups * width]), heads, groups)


def interleaved_heads(fused: Linear, heads: int) -> dict[str, Tensor | None]:
    """One projection whose rows are, head by head, that head's query, key and value."""
    weights = fused.weight.view(heads, 3, -1, fused.weight.shape[-1]).unbind(dim=1)
    biases = [None] * 3 if fused.bias is None else fused.bias.view(heads, 3, -1).unbind(dim=1)
    return {f"w_{port}": weight for port, weight in zip("qkv", weights, strict=True)} | {
        f"b_{port}": bias for port, bias in zip("qkv", biases, strict=True)
    }


def output_heads(projection: Linear, heads: int) -> dict[str, Tensor | None]:
    """The output projection cut by head: `w_o` (H, d, e) from (d, H*e), and `b_o`."""
    weight = projection.weight
    return {"w_o": weight.view(weight.shape[0], heads, -1).transpose(0, 1), "b_o": projection.bias}


def plain_mlp(up: Linear, down: Linear) -> dict[str, Tensor | None]:
    """`down(act(up(n)))`."""
    return {"w_in": up.weight, "b_in": up.bias, "w_out": down.weight, "b_out": down.bias}


def gated_mlp(gate: Linear, up: Linear, down: Linear) -> dict[str, Tensor | None]:
    """`down(act(gate(n)) * up(n))`."""
    return plain_mlp(up, down) | {"w_gate": gate.weight, "b_gate": gate.bias}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The activation function with this name."""
    if name not in ACTIVATIONS:
        raise EICSError(f"The model's activation must be one of {', '.join(ACTIVATIONS)}. Got {name!r}.")
    return ACTIVATIONS[name]


def _heads(port: str, projection: Linear, heads: int) -> dict[str, Tensor | None]:
    """(H*e, d) as (H, e, d), and (H*e,) as (H, e)."""
    weight, bias = projection
    by_head = weight.view(heads, -1, weight.shape[-1])
    return {f"w_{port}": by_head, f"b_{port}": None if bias is None else bias.view(heads, -1)}
