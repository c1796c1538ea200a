"""Phi-3: Llama with fused projections and partial rotary embeddings."""

from typing import Any

from eics.models.base import heads_of, heads_out
from eics.models.families.activations import activation
from eics.models.families.llama import Llama, window
from eics.models.families.norms import rms_norm
from eics.models.spec import MLP, Attention, Block


class Phi3(Llama):
    """transformers' Phi3ForCausalLM."""

    model_types = ("phi3",)

    def block(self, model: Any, layer: Any) -> Block:
        """Splits `qkv_proj` and `gate_up_proj`."""
        attention, config = layer.self_attn, model.config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        sizes = [heads * attention.head_dim, groups * attention.head_dim, groups * attention.head_dim]
        w_q, w_k, w_v = attention.qkv_proj.weight.split(sizes)
        gate, up = layer.mlp.gate_up_proj.weight.chunk(2)
        return Block(
            Attention(
                norm=rms_norm(layer.input_layernorm),
                w_q=heads_of(w_q, heads),
                w_k=heads_of(w_k, groups),
                w_v=heads_of(w_v, groups),
                w_o=heads_out(attention.o_proj.weight, heads),
                scale=attention.scaling,
                window=window(config, attention),
            ),
            MLP(
                norm=rms_norm(layer.post_attention_layernorm),
                w_in=up,
                w_gate=gate,
                w_out=layer.mlp.down_proj.weight,
                activation=activation(config.hidden_act),
            ),
        )
