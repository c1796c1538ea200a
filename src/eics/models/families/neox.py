"""GPT-NeoX and Pythia."""

from typing import Any

from torch import Tensor

from eics.models.families.adapter import Adapter, Modules
from eics.models.families.weights import interleaved_heads, layer_norm, linear, plain_mlp


class GPTNeoX(Adapter):
    """GPT-NeoX and Pythia: LayerNorm, partial rotary embeddings, attention and MLP in parallel."""

    model_types = ("gpt_neox",)
    modules = Modules(
        layers="gpt_neox.layers",
        final_norm="gpt_neox.final_layer_norm",
        attention="attention",
        out_proj="attention.dense",
        mlp_activation="mlp.act",
    )
    norm = staticmethod(layer_norm)

    def projections(self, attention: Any, heads: int, groups: int) -> dict[str, Tensor | None]:  # noqa: ARG002
        return interleaved_heads(linear(attention.query_key_value), heads)

    def mlp_weights(self, mlp: Any) -> dict[str, Tensor | None]:
        return plain_mlp(linear(mlp.dense_h_to_4h), linear(mlp.dense_4h_to_h))

    def parallel(self, layer: Any) -> bool:
        return bool(layer.use_parallel_residual)
