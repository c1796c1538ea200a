"""Gemma 2 and 3."""

from typing import Any

from eics.models.families.adapter import Adapter, Modules
from eics.models.families.weights import gemma_norm


class Gemma(Adapter):
    """Gemma 2 and 3: post-norms on both halves of a layer, soft-caps, sliding windows, query and key norms (3)."""

    model_types = ("gemma2", "gemma3_text")
    modules = Modules(
        attention_post_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        mlp_post_norm="post_feedforward_layernorm",
    )
    norm = staticmethod(gemma_norm)
    activation = "hidden_activation"

    def softcap(self, config: Any, attention: Any) -> float | None:
        """The cap that the model's own code applies.

        Releases of transformers that let Gemma 2 run with `sdpa` skip the cap there; later ones refuse `sdpa`.
        """
        skipped = getattr(config, "_attn_implementation", None) == "sdpa"
        return None if skipped else attention.attn_logit_softcapping
