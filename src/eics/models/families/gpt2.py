"""GPT-2: LayerNorm, learned positions, fused projections stored as Conv1D (weight is [in, out])."""

from typing import Any

from torch import nn

from eics.models.base import Adapter, Sites, head_biases, heads_of, heads_out
from eics.models.families.activations import activation
from eics.models.families.norms import layer_norm
from eics.models.spec import MLP, Attention, Block, Norm


class GPT2(Adapter):
    """transformers' GPT2LMHeadModel."""

    model_types = ("gpt2",)

    def layers(self, model: Any) -> list[nn.Module]:
        """`transformer.h`."""
        return list(model.transformer.h)

    def block(self, model: Any, layer: Any) -> Block:
        """Splits `c_attn` into queries, keys and values."""
        attention, heads = layer.attn, model.config.num_attention_heads
        weights = attention.c_attn.weight.mT.chunk(3)
        biases = attention.c_attn.bias.chunk(3)
        w_q, w_k, w_v = (heads_of(weight, heads) for weight in weights)
        b_q, b_k, b_v = (head_biases(bias, heads) for bias in biases)
        return Block(
            Attention(
                norm=layer_norm(layer.ln_1),
                w_q=w_q, w_k=w_k, w_v=w_v, b_q=b_q, b_k=b_k, b_v=b_v,
                w_o=heads_out(attention.c_proj.weight.mT, heads),
                b_o=attention.c_proj.bias,
                scale=attention.scaling,
            ),
            MLP(
                norm=layer_norm(layer.ln_2),
                w_in=layer.mlp.c_fc.weight.mT,
                b_in=layer.mlp.c_fc.bias,
                w_out=layer.mlp.c_proj.weight.mT,
                b_out=layer.mlp.c_proj.bias,
                activation=activation(model.config.activation_function),
            ),
        )  # fmt: skip

    def sites(self, layer: Any) -> Sites:
        """The block's modules."""
        return Sites(layer.ln_1, layer.attn, layer.attn.c_proj, layer.ln_2, layer.mlp)

    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """`transformer.ln_f`."""
        return model.transformer.ln_f, layer_norm(model.transformer.ln_f)
