"""GPT-NeoX and Pythia: LayerNorm, partial rotary embeddings, attention and MLP in parallel."""

from typing import Any

from torch import nn

from eics.models.base import Adapter, Sites, heads_out
from eics.models.families.activations import activation
from eics.models.families.norms import layer_norm
from eics.models.spec import MLP, Attention, Block, Norm


class GPTNeoX(Adapter):
    """transformers' GPTNeoXForCausalLM."""

    model_types = ("gpt_neox",)

    def layers(self, model: Any) -> list[nn.Module]:
        """`gpt_neox.layers`."""
        return list(model.gpt_neox.layers)

    def block(self, model: Any, layer: Any) -> Block:
        """`query_key_value` holds each head's query, key and value together."""
        attention, heads = layer.attention, model.config.num_attention_heads
        fused = attention.query_key_value
        by_head = fused.weight.view(heads, 3, attention.head_size, -1)
        w_q, w_k, w_v = by_head.unbind(dim=1)
        b_q = b_k = b_v = None
        if fused.bias is not None:
            b_q, b_k, b_v = fused.bias.view(heads, 3, attention.head_size).unbind(dim=1)
        return Block(
            Attention(
                norm=layer_norm(layer.input_layernorm),
                w_q=w_q, w_k=w_k, w_v=w_v, b_q=b_q, b_k=b_k, b_v=b_v,
                w_o=heads_out(attention.dense.weight, heads),
                b_o=attention.dense.bias,
                scale=attention.scaling,
            ),
            MLP(
                norm=layer_norm(layer.post_attention_layernorm),
                w_in=layer.mlp.dense_h_to_4h.weight,
                b_in=layer.mlp.dense_h_to_4h.bias,
                w_out=layer.mlp.dense_4h_to_h.weight,
                b_out=layer.mlp.dense_4h_to_h.bias,
                activation=activation(model.config.hidden_act),
            ),
            parallel=layer.use_parallel_residual,
        )  # fmt: skip

    def sites(self, layer: Any) -> Sites:
        """The layer's modules."""
        attention = layer.attention
        return Sites(layer.input_layernorm, attention, attention.dense, layer.post_attention_layernorm, layer.mlp)

    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """`gpt_neox.final_layer_norm`."""
        return model.gpt_neox.final_layer_norm, layer_norm(model.gpt_neox.final_layer_norm)
