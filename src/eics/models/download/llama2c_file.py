"""Converts llama2.c files, a float32 model followed by its tokenizer, into a folder that transformers reads.

The model is a header of seven int32, then the weights in a fixed order, each kind for all layers together. Query and
key weights are in Meta's order, with rotary pairs side by side. The tokenizer is Llama's sentence-piece vocabulary with
scores.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from eics.errors import ModelError
from eics.models.download.convert import half_split, sentence_piece, write_model, write_tokenizer

_HEADER = struct.Struct("<7i")
_SPECIAL = ("<unk>", "<s>", "</s>")
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


@dataclass(frozen=True)
class Header:
    """The first bytes of the file."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    shared: bool

    @classmethod
    def read(cls, path: Path) -> "Header":
        """Reads and checks the header; a negative vocabulary means that the classifier has weights of its own."""
        with path.open("rb") as file:
            start = file.read(_HEADER.size)
        values = _HEADER.unpack(start) if len(start) == _HEADER.size else (0,) * 7
        dim, hidden, layers, heads, kv_heads, vocabulary, context = values
        sizes = (dim, hidden, layers, heads, kv_heads, abs(vocabulary), context)
        if min(sizes) < 1 or dim % (2 * heads) or heads % kv_heads:
            raise ModelError(f"A llama2.c file must begin with seven sizes that fit together. Got {values}.")
        return cls(*sizes, shared=vocabulary > 0)

    @property
    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names in transformers and shapes of the weights, in the order of the file; `{}` stands for the layer."""
        kv = self.dim // self.heads * self.kv_heads
        layer, square = "model.layers.{}.", (self.layers, self.dim, self.dim)
        shapes: list[tuple[str, tuple[int, ...]]] = [
            ("model.embed_tokens", (self.vocabulary, self.dim)),
            (layer + "input_layernorm", (self.layers, self.dim)),
            (layer + "self_attn.q_proj", square),
            (layer + "self_attn.k_proj", (self.layers, kv, self.dim)),
            (layer + "self_attn.v_proj", (self.layers, kv, self.dim)),
            (layer + "self_attn.o_proj", square),
            (layer + "post_attention_layernorm", (self.layers, self.dim)),
            (layer + "mlp.gate_proj", (self.layers, self.hidden, self.dim)),
            (layer + "mlp.down_proj", (self.layers, self.dim, self.hidden)),
            (layer + "mlp.up_proj", (self.layers, self.hidden, self.dim)),
            ("model.norm", (self.dim,)),
            ("", (self.context, self.dim // self.heads)),  # cosines and sines, which transformers computes
        ]
        return shapes if self.shared else [*shapes, ("lm_head", (self.vocabulary, self.dim))]

    @property
    def size(self) -> int:
        """Bytes of header and weights; the tokenizer follows."""
        return _HEADER.size + 4 * sum(prod(shape) for _, shape in self.shapes)


def convert_llama2c(path: Path, folder: Path, tick: Callable[[], None] = lambda: None) -> None:
    """Writes `config.json`, `model.safetensors` and a tokenizer into the folder; `tick` is called for each tensor."""
    header = Header.read(path)
    tokens, scores = _read_vocabulary(path, header)
    write_model(_config(header, path.name), _weights(path, header, tick), folder)
    tokenizer = sentence_piece(tokens, scores, unknown=_SPECIAL[0], first=len(_SPECIAL) + len(_BYTES), prefix=True)
    tokenizer.add_special_tokens(list(_SPECIAL))
    write_tokenizer(tokenizer, tokens, {"bos": 1, "eos": 2}, folder, add_bos=True)


def count_tensors(path: Path) -> int:
    """The number of tensors in the file."""
    header = Header.read(path)
    return sum(header.layers if "{}" in name else bool(name) for name, _ in header.shapes)


def _weights(path: Path, header: Header, tick: Callable[[], None]) -> dict[str, Any]:
    flat = np.memmap(path, dtype="<f4", mode="r", offset=_HEADER.size, shape=((header.size - _HEADER.size) // 4,))
    rotated = {"q_proj": header.heads, "k_proj": header.kv_heads}
    tensors, start = {}, 0
    for name, shape in header.shapes:
        values = flat[start : start + prod(shape)].reshape(shape)
        start += prod(shape)
        layers = enumerate(values) if "{}" in name else [(0, values)] if name else []
        heads = rotated.get(name.rpartition(".")[2])
        for layer, weight in layers:
            tensors[f"{name.format(layer)}.weight"] = half_split(weight, heads) if heads else np.array(weight)
            tick()
    return tensors


def _config(header: Header, source: str) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": header.vocabulary,
        "hidden_size": header.dim,
        "intermediate_size": header.hidden,
        "num_hidden_layers": header.layers,
        "num_attention_heads": header.heads,
        "num_key_value_heads": header.kv_heads,
        "max_position_embeddings": header.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": header.shared,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "eics_note": f"converted from {source}, a llama2.c file in float32",
    }


def _read_vocabulary(path: Path, header: Header) -> tuple[list[str], list[float]]:
    """Reads tokens and scores: an int32 (the longest token), then for each token its score, length and bytes."""
    with path.open("rb") as file:
        file.seek(header.size)
        content = file.read()
    pieces: list[str] = []
    scores: list[float] = []
    offset = 4
    try:
        for _ in range(header.vocabulary):
            score, length = struct.unpack_from("<fi", content, offset)
            offset += 8 + length
            pieces.append(content[offset - length : offset].decode("utf-8"))
            scores.append(score)
    except (struct.error, UnicodeDecodeError):
        pieces = []
    fixed = [*_SPECIAL, *_BYTES]
    if offset != len(content) or len(pieces) < len(fixed):
        raise ModelError(
            f"A llama2.c file must hold {header.size} bytes of model and then a tokenizer of {header.vocabulary} "
            f"tokens. This one has {path.stat().st_size} bytes, and another tokenizer or none."
        )
    # Versions differ in how they spell special and byte tokens, but not in their order.
    return [*fixed, *(piece.replace(" ", "▁") for piece in pieces[len(fixed) :])], scores
