"""Models of well-known shapes with random weights: nothing to download, and the cost of the real model.

A model is created on its device and in its dtype: an 8B model in bfloat16 never exists in float32 or in CPU memory. The
caller's random state is left as it was.
"""

from typing import TYPE_CHECKING, Any

from eics.errors import ModelError
from eics.models.device import choose_device, choose_dtype

if TYPE_CHECKING:
    from eics.models.base import Model


Shape = dict[str, Any]
"""The config of a model: its family under `model_type`, and its sizes."""


def gpt2(width: int, layers: int, heads: int, vocabulary: int, context: int) -> Shape:
    """LayerNorm, plain MLP of four times the width, learned positions."""
    return {
        "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocabulary,
        "n_positions": context, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def llama(width: int, hidden: int, layers: int, heads: int, groups: int, vocabulary: int, *, tied: bool) -> Shape:
    """RMSNorm, rotary embeddings, grouped queries, gated MLP."""
    return {
        "model_type": "llama", "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "vocab_size": vocabulary,
        "max_position_embeddings": 8192, "tie_word_embeddings": tied, "bos_token_id": None, "eos_token_id": None,
        "pad_token_id": None,
    }  # fmt: skip


SHAPES: dict[str, Shape] = {
    "gpt2": gpt2(768, 12, 12, 50257, 1024),
    "llama-1b": llama(2048, 8192, 16, 32, 8, 128256, tied=True),
    "llama-8b": llama(4096, 14336, 32, 32, 8, 128256, tied=False),
    # for tests: as many layers and heads as GPT-2, so that the reference circuits fit, and otherwise small
    "gpt2-tiny": gpt2(48, 12, 12, 97, 64),
    "llama-tiny": llama(48, 80, 12, 12, 4, 97, tied=False),
}


def shape_named(name: str) -> Shape:
    """One of the built-in shapes."""
    if name not in SHAPES:
        raise ModelError(f"The shape must be one of {', '.join(SHAPES)}. Got {name!r}.")
    return SHAPES[name]


def random_model(shape: Shape, *, name: str, device: str = "cpu", dtype: str = "float32", seed: int = 0) -> "Model":
    """An adapted model of that shape, with the random initialisation of its family."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from eics.transformer.adapt import adapt

    target = choose_device(device)
    torch_dtype = choose_dtype(dtype, target)
    config = AutoConfig.for_model(**shape)
    used = [target.index or 0] if target.type == "cuda" else []
    with torch.random.fork_rng(devices=used), target:
        torch.manual_seed(seed)
        module = AutoModelForCausalLM.from_config(config, dtype=torch_dtype).eval()
    return adapt(module, name=name)
