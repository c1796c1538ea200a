"""The world of repeated pairs: contexts in which a word was always followed by the same word, and broken ones.

A context is a row of pairs "key value" from a small table drawn for it alone, then a key:

    ba du  ki so  me lo  ki so  ba        coherent: the answer is du

A broken context is a coherent one with one change, so that both have the same length, the same last word and the same
given answer: `unseen`, where the last key never stood in the context (another word has its place), or `inconsistent`,
where it stood twice and was followed by two different words.
"""

import random
from itertools import product
from typing import Any

import torch
from torch import Tensor

WORDS = tuple(start + end for start, end in product("bdfgklmn", "aeio"))
TABLE = 6  # pairs of a context's table
LENGTHS = (8, 9, 10, 11)  # pairs of a prompt before its last key; the model is trained on up to TRAINED
TRAINED = 14
CHAIN, QUESTIONS = 12, 8  # of the other contexts that the model is trained on
TWINS = 120  # of each kind


def batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Coherent contexts of token ids from `first` on, and what is to be learned of each: -100 where nothing is.

    Half are pairs; half are chains, without which the model is slow to give up guessing any of the table's values.
    """
    halves = pair_batch(size // 2, first, draw), chain_batch(size - size // 2, first, draw)
    tokens, asked = (torch.cat(parts) for parts in zip(*halves, strict=True))
    return tokens, asked


def chain_batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Different words in a row, then one of them and the word that followed it, over and over."""
    shown = torch.rand(size, len(WORDS), generator=draw).argsort(dim=1)[:, :CHAIN] + first
    at = torch.randint(0, CHAIN - 1, (size, QUESTIONS), generator=draw)
    answers = shown.gather(1, at + 1)
    tokens = torch.stack([shown.gather(1, at), answers], dim=2).flatten(1)
    asked = torch.stack([torch.full_like(answers, -100), answers], dim=2).flatten(1)
    return torch.cat([shown, tokens], dim=1), torch.cat([torch.full_like(shown, -100), asked], dim=1)


def pair_batch(size: int, first: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs as in the prompts; what follows a key seen before is asked."""
    words = torch.rand(size, len(WORDS), generator=draw).argsort(dim=1)[:, : 2 * TABLE] + first
    keys, values = words[:, :TABLE], words[:, TABLE:]
    chosen = torch.randint(0, TABLE, (size, TRAINED), generator=draw)
    same = chosen.unsqueeze(1) == chosen.unsqueeze(2)
    seen = same.tril(-1).any(dim=2)
    answers = values.gather(1, chosen)
    tokens = torch.stack([keys.gather(1, chosen), answers], dim=2)
    asked = torch.stack([torch.full_like(answers, -100), answers.masked_fill(~seen, -100)], dim=2)
    return tokens.flatten(1), asked.flatten(1)


def prompts(twins: int = TWINS) -> list[dict[str, Any]]:
    """Coherent contexts and their broken twins, so many of each kind."""
    lines: list[dict[str, Any]] = []
    for kind in ("unseen", "inconsistent"):
        draw = random.Random(f"induction {kind}")
        for place in range(twins):
            coherent, broken, answer, _ = twin(draw, kind, LENGTHS[place % len(LENGTHS)])
            for label, prompt in (("coherent", coherent), ("broken", broken)):
                name = f"{kind}-{place}"
                lines.append({
                    "prompt": prompt, "answer": " " + answer, "label": label, "relation": kind, "pair": name,
                    "id": f"{label}-{name}",
                })  # fmt: skip
    random.Random("order").shuffle(lines)
    return lines


def pairs(part: int, count: int) -> list[dict[str, str]]:
    """A task: coherent contexts, corrupted by taking their last key out of them; the foil is another value in them."""
    draw = random.Random(f"induction pairs {part}")
    lines = []
    for place in range(count):
        clean, corrupted, answer, foil = twin(draw, "unseen", LENGTHS[place % len(LENGTHS)])
        lines.append({"clean": clean, "corrupted": corrupted, "answer": " " + answer, "foil": " " + foil})
    return lines


def twin(draw: random.Random, kind: str, length: int) -> tuple[str, str, str, str]:
    """A coherent context of so many pairs, its broken twin, the answer, and another value that stands in both."""
    words = draw.sample(WORDS, 2 * TABLE + 1)
    keys, values, spare = words[:TABLE], words[TABLE:-1], words[-1]
    times = 2 if kind == "inconsistent" else draw.choice((1, 2))
    others = [draw.randrange(1, TABLE) for _ in range(length - times)]
    row = draw.sample([0] * times + others, length)
    coherent = [(keys[place], values[place]) for place in row]
    foil = values[draw.choice(others)]
    broken = list(coherent)
    asked = [place for place, pair in enumerate(coherent) if pair[0] == keys[0]]
    if kind == "unseen":
        for place in asked:
            broken[place] = (spare, values[0])
    else:
        broken[draw.choice(asked)] = (keys[0], foil)
    texts = (" ".join([*(word for pair in context for word in pair), keys[0]]) for context in (coherent, broken))
    return next(texts), next(texts), values[0], foil
