"""Gemma 2 and 3: outputs normed again before they are added, soft-caps, sliding windows, query and key norms (3)."""

from typing import Any

from torch import nn

from eics.models.base import Adapter, Sites, inner_norms, separate_projections
from eics.models.families.activations import activation
from eics.models.families.llama import window
from eics.models.families.norms import gemma_norm
from eics.models.spec import MLP, Attention, Block, Norm


class Gemma(Adapter):
    """transformers' Gemma2ForCausalLM and Gemma3ForCausalLM."""

    model_types = ("gemma2", "gemma3_text")

    def layers(self, model: Any) -> list[nn.Module]:
        """`model.layers`."""
        return list(model.model.layers)

    def block(self, model: Any, layer: Any) -> Block:
        """Four norms a layer."""
        attention, config = layer.self_attn, model.config
        mlp = layer.mlp
        return Block(
            Attention(
                norm=gemma_norm(layer.input_layernorm),
                scale=attention.scaling,
                softcap=softcap(config, attention),
                window=window(config, attention),
                post_norm=gemma_norm(layer.post_attention_layernorm),
                **separate_projections(attention, config),
                **inner_norms(attention, gemma_norm),
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
            attention_post_norm=layer.post_attention_layernorm,
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
