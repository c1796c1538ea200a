"""Gemma 2 and 3: outputs normed again before they are added, soft-caps, sliding windows, query and key norms (3)."""

from typing import Any

from torch import nn

from eics.models.activations import activation
from eics.models.base import Adapter, Sites, head_biases, heads_of, heads_out
from eics.models.llama import window
from eics.models.norms import gemma_norm
from eics.transformer.spec import MLP, Attention, Block, Norm


class Gemma(Adapter):
    """transformers' Gemma2ForCausalLM and Gemma3ForCausalLM."""

    model_types = ("gemma2", "gemma3_text")

    def layers(self, model: Any) -> list[nn.Module]:
        """`model.layers`."""
        return list(model.model.layers)

    def block(self, model: Any, layer: Any) -> Block:
        """Four norms a layer."""
        attention, config = layer.self_attn, model.config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        q, k, v, o = attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj
        names = [f"{port}_norm" for port in "qk" if hasattr(attention, f"{port}_norm")]
        inner: dict[str, Any] = {name: gemma_norm(getattr(attention, name)) for name in names}
        mlp = layer.mlp
        return Block(
            Attention(
                norm=gemma_norm(layer.input_layernorm),
                w_q=heads_of(q.weight, heads), b_q=head_biases(q.bias, heads),
                w_k=heads_of(k.weight, groups), b_k=head_biases(k.bias, groups),
                w_v=heads_of(v.weight, groups), b_v=head_biases(v.bias, groups),
                w_o=heads_out(o.weight, heads), b_o=o.bias,
                scale=attention.scaling,
                softcap=softcap(config, attention),
                window=window(config, attention),
                post_norm=gemma_norm(layer.post_attention_layernorm),
                **inner,
            ),
            MLP(
                norm=gemma_norm(layer.pre_feedforward_layernorm),
                w_in=mlp.up_proj.weight,
                w_gate=mlp.gate_proj.weight,
                w_out=mlp.down_proj.weight,
                activation=activation(config.hidden_activation),
                post_norm=gemma_norm(layer.post_feedforward_layernorm),
            ),
        )  # fmt: skip

    def sites(self, layer: Any) -> Sites:
        """The layer's modules; what an MLP writes is the output of its post-norm."""
        return Sites(
            layer.input_layernorm,
            layer.self_attn,
            layer.self_attn.o_proj,
            layer.pre_feedforward_layernorm,
            layer.post_feedforward_layernorm,
        )

    def final_norm(self, model: Any) -> tuple[nn.Module, Norm]:
        """`model.norm`."""
        return model.model.norm, gemma_norm(model.model.norm)


def softcap(config: Any, attention: Any) -> float | None:
    """The cap on scores, as the model's own code applies it.

    Releases of transformers that let Gemma 2 run with `sdpa` skip the cap there; later ones refuse `sdpa`. What is
    described is what runs.
    """
    skipped = getattr(config, "_attn_implementation", None) == "sdpa"
    return None if skipped else attention.attn_logit_softcapping
