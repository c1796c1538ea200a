"""Llama, Mistral, Qwen2 and Qwen3."""

from eics.models.families.adapter import Adapter


class Llama(Adapter):
    """Llama, Mistral, Qwen2, Qwen3: RMSNorm, rotary embeddings, grouped-query attention, gated MLP.

    The four differ in biases (Qwen2: on queries, keys and values), in norms of single queries and keys (Qwen3) and in
    sliding windows (Mistral, Qwen2); the base class reads all of these from the modules and the config.
    """

    model_types: tuple[str, ...] = ("llama", "mistral", "qwen2", "qwen3")
