"""Phi-3."""

from typing import Any

from torch import Tensor

from eics.models.families.adapter import Adapter, Modules
from eics.models.families.weights import gated_mlp, linear, stacked_heads


class Phi3(Adapter):
    """Phi-3: Llama with fused projections and partial rotary embeddings."""

    model_types = ("phi3",)
    modules = Modules(mlp_activation="mlp.activation_fn")

    def projections(self, attention: Any, heads: int, groups: int) -> dict[str, Tensor | None]:
        return stacked_heads(linear(attention.qkv_proj), heads, groups)

    def mlp_weights(self, mlp: Any) -> dict[str, Tensor | None]:
        fused = linear(mlp.gate_up_proj)
        gate, up = fused.split([fused.weight.shape[0] // 2] * 2)
        return gated_mlp(gate, up, linear(mlp.down_proj))
