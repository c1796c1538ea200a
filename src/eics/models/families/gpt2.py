"""GPT-2."""

from typing import Any

from torch import Tensor

from eics.models.families.adapter import Adapter, Modules
from eics.models.families.weights import conv1d, layer_norm, plain_mlp, stacked_heads


class GPT2(Adapter):
    """GPT-2: LayerNorm, learned positions, fused projections stored transposed (Conv1D)."""

    model_types = ("gpt2",)
    modules = Modules(
        layers="transformer.h",
        final_norm="transformer.ln_f",
        attention_norm="ln_1",
        attention="attn",
        out_proj="attn.c_proj",
        mlp_norm="ln_2",
        mlp_activation="mlp.act",
    )
    norm = staticmethod(layer_norm)
    linear = staticmethod(conv1d)
    activation = "activation_function"

    def projections(self, attention: Any, heads: int, groups: int) -> dict[str, Tensor | None]:
        return stacked_heads(conv1d(attention.c_attn), heads, groups)

    def mlp_weights(self, mlp: Any) -> dict[str, Tensor | None]:
        return plain_mlp(conv1d(mlp.c_fc), conv1d(mlp.c_proj))
