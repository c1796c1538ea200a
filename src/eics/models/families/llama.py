"""Llama, Mistral, Qwen2, Qwen3: RMSNorm, rotary embeddings, grouped-query attention, gated MLP.

The four differ in biases (Qwen2 has them on queries, keys and values), in norms of single queries and keys (Qwen3)
and in sliding windows (Mistral, Qwen2); a module that is absent is absent here too.
"""

from typing import Any

from torch import nn

from eics.models.base import Adapter, Sites, inner_norms, separate_projections
from eics.models.families.activations import activation
from eics.models.families.norms import rms_norm
from eics.models.spec import MLP, Attention, Block, Norm


class Llama(Adapter):
    """transformers' LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM."""

    model_types: tuple[str, ...] = ("llama", "mistral", "qwen2", "qwen3")

    def layers(self, model: Any) -> list[nn.Module]:
        """`model.layers`."""
        return list(model.model.layers)

    def block(self, model: Any, layer: Any) -> Block:
        """Separate projections, grouped keys and values."""
        attention, config = layer.self_attn, model.config
        mlp = layer.mlp
        return Block(
            Attention(
                norm=rms_norm(layer.input_layernorm),
                scale=attention.scaling,
                window=window(config, attention),
                **separate_projections(attention, config),
                **inner_norms(attention, rms_norm),
            ),
            MLP(
                norm=rms_norm(layer.post_attention_layernorm),
                w_in=mlp.up_proj.weight, b_in=mlp.up_proj.bias,
                w_gate=mlp.gate_proj.weight, b_gate=mlp.gate_proj.bias,
                w_out=mlp.down_proj.weight, b_out=mlp.down_proj.bias,
                activation=activation(config.hidden_act),
            ),
        )  # fmt: skip

    def sites(self, layer: Any) -> Sites:
        """The layer's modules."""
        attention = layer.self_attn
        return Sites(layer.input_layernorm, attention, attention.o_proj, layer.post_attention_layernorm, layer.mlp)

    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """`model.norm`."""
        return model.model.norm, rms_norm(model.model.norm)


def window(config: Any, attention: Any) -> int | None:
    """The sliding window of this layer, None where it sees everything.

    Families with windows in some layers only say so in `layer_types`; Mistral and Phi-3 have one for all or none.
    """
    types = getattr(config, "layer_types", None)
    if types is not None:
        return config.sliding_window if types[attention.layer_idx] == "sliding_attention" else None
    return getattr(config, "sliding_window", None)
