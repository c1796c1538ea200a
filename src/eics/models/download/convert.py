"""Shared by the converters: weights and vocabularies of other programs become a folder that transformers reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def half_split(weight: Any, heads: int) -> Any:
    """Query or key weights (H*e, d) with rotary pairs side by side, reordered so that pairs are half a head apart.

    >>> half_split(np.arange(8).reshape(8, 1), heads=2).ravel().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def write_model(config: dict[str, Any], tensors: dict[str, Any], folder: Path) -> None:
    """Writes `config.json` and `model.safetensors`."""
    from safetensors.numpy import save_file

    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    contiguous = {name: np.ascontiguousarray(values) for name, values in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(
    tokenizer: Any, tokens: Sequence[str], special: dict[str, int | None], folder: Path, *, add_bos: bool
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`; `special` has the ids of `bos`, `eos` and `pad`, or None."""
    ids = {name: i for name, i in special.items() if i is not None}
    if add_bos:
        from tokenizers.processors import TemplateProcessing

        bos = ids["bos"]
        tokenizer.post_processor = TemplateProcessing(single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {f"{name}_token": tokens[i] for name, i in ids.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def sentence_piece(
    tokens: Sequence[str], scores: Sequence[float], *, unknown: str, first: int = 0, prefix: bool = False
) -> Any:
    """Sentence-piece BPE with byte fallback: two tokens merge if their concatenation is a token, best score first.

    Args:
        tokens: the vocabulary, with blanks as `▁` and bytes as `<0x0A>`.
        scores: the score of each token.
        unknown: the token for unknown text.
        first: index of the first ordinary token; those before it are special or bytes, and nothing merges into them.
        prefix: whether a blank is put before the text.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = _merges(vocabulary, scores, first)
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    blanks = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if prefix else blanks
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return tokenizer


def _merges(vocabulary: dict[str, int], scores: Sequence[float], first: int) -> list[tuple[str, str]]:
    """Every pair whose concatenation is a token, in order of preference.

    Sentence-piece breaks ties from left to right, a list of merges by its order. With the longest left part first, a
    run of blanks (tokens with equal scores) grows from its left end in both.
    """
    candidates = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)) if index >= first else ():
            left, right = token[:cut], token[cut:]
            if min(vocabulary.get(left, -1), vocabulary.get(right, -1)) >= first:
                candidates.append((-scores[index], -cut, index, (left, right)))
    return [pair for *_, pair in sorted(candidates)]
