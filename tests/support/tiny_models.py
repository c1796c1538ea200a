"""Tiny random models of the real architectures, with weights large enough to be nonlinear."""

import functools
import logging

import torch
import transformers

from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.transformer.adapt import adapt

logging.getLogger("transformers").setLevel(logging.ERROR)
_V = 61
_LLAMA = {
    "vocab_size": _V, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
_GEMMA = _LLAMA | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
_SMALL = {"bos_token_id": None, "eos_token_id": None}

CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(vocab_size=_V, n_embd=24, n_layer=3, n_head=4, n_positions=32, **_SMALL),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        vocab_size=_V, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=32, **_SMALL,
    ),
    "llama": lambda: transformers.LlamaConfig(**_LLAMA, attention_bias=True, mlp_bias=True),
    "mistral": lambda: transformers.MistralConfig(**_LLAMA, sliding_window=4),
    "qwen2": lambda: transformers.Qwen2Config(**_LLAMA),
    "qwen3": lambda: transformers.Qwen3Config(**_LLAMA, head_dim=8),
    "gemma2": lambda: transformers.Gemma2Config(**_GEMMA),
    "gemma3": lambda: transformers.Gemma3TextConfig(**_GEMMA),
    "phi3": lambda: transformers.Phi3Config(**_LLAMA),
}  # fmt: skip
FAMILIES = sorted(CONFIGS)


def tiny_module(family: str, dtype: torch.dtype = torch.float64):
    """A fresh transformers model; weights spread so that softmax and activations bend."""
    torch.manual_seed(0)
    module = transformers.AutoModelForCausalLM.from_config(CONFIGS[family]())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.2))
    return module.to(dtype).eval()


@functools.cache
def tiny_model(family: str) -> Model:
    """The adapted float64 model, made once; tests must not change it."""
    return adapt(tiny_module(family))


def full_circuit(model: Model) -> Circuit:
    """Every node with every upstream node as parent, plain entries."""
    nodes, edges = ["input"], []
    for layer, block in enumerate(model.transformer.blocks):
        heads = [f"a{layer}.h{head}" for head in range(block.attention.heads)]
        edges += [f"{u}->{head}" for head in heads for u in nodes]
        edges += [f"{u}->m{layer}" for u in (nodes if block.parallel else nodes + heads)]
        nodes = [*nodes, *heads, f"m{layer}"]
    return Circuit([*edges, *(f"{u}->logits" for u in nodes)])


def some_circuit(model: Model) -> Circuit:
    """Ports, plain entries, both on one head, several sources, a sink beside the read-out."""
    first = "input->m0" if model.transformer.blocks[0].parallel else "a0.h1->m0"
    return Circuit([
        "input->a0.h1<q>", "input->a0.h1<v>", first, "a0.h1->a1.h2", "m0->a1.h2<k>", "a0.h3->a1.h2<v>", "a1.h2->m2",
        "m2->logits", "a1.h2->logits", "m0->a2.h0",
    ])  # fmt: skip
