"""Converts GGUF files into a folder that transformers reads: config, safetensors, tokenizer.

The result has dequantized low-bit weights, not those of the original checkpoint; the config says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from eics.errors import ModelError
from eics.models.download.convert import half_split, sentence_piece, write_model, write_tokenizer

_COMMON = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAMES = {
    "llama": _COMMON | {"ffn_norm": "post_attention_layernorm"},
    "gemma3": _COMMON
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
    },
}
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


def convert_gguf(path: Path, folder: Path, tick: Callable[[], None] = lambda: None) -> None:
    """Writes `config.json`, `model.safetensors` and a tokenizer into the folder; `tick` is called for each tensor."""
    from gguf import GGUFReader, dequantize

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    architecture = str(fields["general.architecture"])
    if architecture not in _NAMES:
        raise ModelError(f"A GGUF file must hold one of {', '.join(_NAMES)}. Got {architecture!r}.")
    config = _config(architecture, fields)
    tensors = {}
    for tensor in reader.tensors:
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        name = _name(tensor.name, _NAMES[architecture])
        tensors[name] = _as_transformers(name, values, architecture, config)
        tick()
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["eics_note"] = f"dequantized from {path.name}, not the original checkpoint"
    write_model(config, tensors, folder)
    _write_tokenizer(fields, folder)


def count_tensors(path: Path) -> int:
    """The number of tensors in the file."""
    from gguf import GGUFReader

    return len(GGUFReader(path).tensors)


def _name(name: str, names: dict[str, str]) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{names[parts[2]]}.{parts[3]}"
    return f"{names[parts[0]]}.{parts[1]}"


def _as_transformers(name: str, values: Any, architecture: str, config: dict[str, Any]) -> Any:
    """Undoes what llama.cpp's converter did to individual tensors."""
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        return half_split(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
    if architecture == "gemma3" and "norm" in name:
        return values - 1.0  # Gemma's norm weights are offsets from 1
    return values


def _config(architecture: str, fields: dict[str, Any]) -> dict[str, Any]:
    get = {name.removeprefix(f"{architecture}."): value for name, value in fields.items()}
    ids = {f"{name}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    config = {name: get[field] for name, field in _SIZES.items()} | ids
    if architecture == "llama":
        own = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
        return config | own | {"vocab_size": get["vocab_size"]}
    layers = range(get["block_count"])
    return config | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "head_dim": get["attention.key_length"],
        "query_pre_attn_scalar": get["attention.key_length"],
        "rope_local_base_freq": 10000.0,
        "sliding_window": get["attention.sliding_window"],
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in layers],
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Writes a fast tokenizer with the file's vocabulary."""
    kind = fields["tokenizer.ggml.model"]
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    else:
        unknown = tokens[fields["tokenizer.ggml.unknown_token_id"]]
        tokenizer = sentence_piece(tokens, fields["tokenizer.ggml.scores"], unknown=unknown)
    control = [token for token, type_ in zip(tokens, types, strict=True) if type_ == 3]
    tokenizer.add_special_tokens(control)
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    special = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    write_tokenizer(tokenizer, tokens, special, folder, add_bos=bool(fields.get("tokenizer.ggml.add_bos_token")))
    template = fields.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _byte_level(fields: dict[str, Any]) -> Any:
    """Byte-level BPE; SmolLM first splits numbers into single digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    steps: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if fields["tokenizer.ggml.pre"] == "smollm":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
