"""The world of repeated pairs: contexts in which a word is always followed by the same word, and broken ones.

A context is a sequence of pairs "key value" from a small table of its own, then a key:

    ba du  ki so  me lo  ki so  ba        coherent: the answer is du

A broken context is a coherent one with one change, so that both have the same length, last word and answer: `unseen`,
in which another word replaces the last key throughout the context, or `inconsistent`, in which the key occurs twice and
is followed by two different words.
"""

import random
from itertools import product
from typing import Any

import torch
from torch import Tensor

WORDS = tuple(start + end for start, end in product("bdfgklmn", "aeio"))
TABLE = 6  # pairs in the table of a context
LENGTHS = (8, 9, 10, 11)  # pairs in a prompt before its last key
TRAINED = 14  # pairs in a training context
CHAIN, QUESTIONS = 12, 8  # words and questions in a training chain
TWINS = 120  # of each kind


def batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coherent contexts with token ids from `first` on, and their labels: -100 where nothing is to be learned.

    Half are pairs, half are chains; without chains the model keeps guessing among the values of the table for long.
    """
    halves = pair_batch(size // 2, first, draw), chain_batch(size - size // 2, first, draw)
    tokens, labels = (torch.cat(parts) for parts in zip(*halves, strict=True))
    return tokens, labels


def chain_batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """A row of different words, then repeatedly one of them and the word that followed it."""
    shown = torch.rand(size, len(WORDS), generator=draw).argsort(dim=1)[:, :CHAIN] + first
    at = torch.randint(0, CHAIN - 1, (size, QUESTIONS), generator=draw)
    answers = shown.gather(1, at + 1)
    tokens = torch.stack([shown.gather(1, at), answers], dim=2).flatten(1)
    labels = torch.stack([torch.full_like(answers, -100), answers], dim=2).flatten(1)
    return torch.cat([shown, tokens], dim=1), torch.cat([torch.full_like(shown, -100), labels], dim=1)


def pair_batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs as in the prompts; the labels are the values of keys seen before."""
    words = torch.rand(size, len(WORDS), generator=draw).argsort(dim=1)[:, : 2 * TABLE] + first
    keys, values = words[:, :TABLE], words[:, TABLE:]
    chosen = torch.randint(0, TABLE, (size, TRAINED), generator=draw)
    same = chosen.unsqueeze(1) == chosen.unsqueeze(2)
    seen = same.tril(-1).any(dim=2)
    answers = values.gather(1, chosen)
    tokens = torch.stack([keys.gather(1, chosen), answers], dim=2)
    labels = torch.stack([torch.full_like(answers, -100), answers.masked_fill(~seen, -100)], dim=2)
    return tokens.flatten(1), labels.flatten(1)


def prompts(twins: int = TWINS) -> list[dict[str, Any]]:
    """Coherent contexts and their broken twins, `twins` of each kind."""
    lines: list[dict[str, Any]] = []
    for kind in ("unseen", "inconsistent"):
        draw = random.Random(f"induction {kind}")
        for index in range(twins):
            coherent, broken, answer, _ = twin(draw, kind, LENGTHS[index % len(LENGTHS)])
            for label, prompt in (("coherent", coherent), ("broken", broken)):
                name = f"{kind}-{index}"
                lines.append({
                    "prompt": prompt, "answer": " " + answer, "label": label, "relation": kind, "pair": name,
                    "id": f"{label}-{name}",
                })  # fmt: skip
    random.Random("order").shuffle(lines)
    return lines


def pairs(part: int, count: int) -> list[dict[str, str]]:
    """A task: coherent contexts, corrupted by replacing the last key in them; the foil is another value in them."""
    draw = random.Random(f"induction pairs {part}")
    lines = []
    for index in range(count):
        clean, corrupted, answer, foil = twin(draw, "unseen", LENGTHS[index % len(LENGTHS)])
        lines.append({"clean": clean, "corrupted": corrupted, "answer": " " + answer, "foil": " " + foil})
    return lines


def twin(draw: random.Random, kind: str, length: int) -> tuple[str, str, str, str]:
    """A coherent context of `length` pairs, its broken twin, the answer, and another value that occurs in both."""
    words = draw.sample(WORDS, 2 * TABLE + 1)
    keys, values, spare = words[:TABLE], words[TABLE:-1], words[-1]
    times = 2 if kind == "inconsistent" else draw.choice((1, 2))
    others = [draw.randrange(1, TABLE) for _ in range(length - times)]
    row = draw.sample([0] * times + others, length)
    coherent = [(keys[entry], values[entry]) for entry in row]
    foil = values[draw.choice(others)]
    broken = list(coherent)
    occurrences = [index for index, pair in enumerate(coherent) if pair[0] == keys[0]]
    if kind == "unseen":
        for index in occurrences:
            broken[index] = (spare, values[0])
    else:
        broken[draw.choice(occurrences)] = (keys[0], foil)
    texts = (" ".join([*(word for pair in context for word in pair), keys[0]]) for context in (coherent, broken))
    return next(texts), next(texts), values[0], foil
