"""A task: clean prompts with their answers and, optionally, corrupted prompts and wrong answers (foils).

A line of a task file is

    {"clean": "The capital of France is", "corrupted": "The capital of Spain is", "answer": " Paris", "foil": " Madrid"}

`corrupted` and `foil` are optional; answers and foils are text, token ids, or lists of either. A corrupted prompt must
have as many tokens as the clean one, since activations are compared position by position. `relation` (or `group`) names
the kind of prompt. The file may also be a JSON array or a table with these columns (`eics.models.row_files`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import as_prompt, encode, tokenize
from eics.models.row_files import read_rows
from eics.studies.discovery.metrics import METRICS, Targets
from eics.studies.discovery.reference import ABLATIONS


@dataclass(frozen=True)
class Pair:
    """One line of a task, as tokens."""

    clean: tuple[int, ...]
    corrupted: tuple[int, ...] | None
    answers: tuple[int, ...]
    foils: tuple[int, ...]
    group: str | None = None


@dataclass(frozen=True)
class Task:
    """The pairs that a model can run, and why other lines were skipped."""

    name: str
    pairs: tuple[Pair, ...]
    skipped: tuple[str, ...] = ()

    def check(self, metric: str, ablation: str) -> None:
        """Refuses an unknown metric or ablation, and one that needs what the task does not have."""
        for name, value, choices in (("metric", metric, METRICS), ("ablation", ablation, ABLATIONS)):
            if value not in choices:
                raise OptionError.of(name, f"one of {', '.join(choices)}", value)
        if ablation == "corrupted" and any(pair.corrupted is None for pair in self.pairs):
            raise OptionError(
                f"Ablation 'corrupted' needs a corrupted prompt on every line of {self.name!r}: use 'mean' or 'zero'."
            )
        if metric == "logit_diff" and not all(pair.foils for pair in self.pairs):
            raise OptionError(f"Metric 'logit_diff' needs a foil on every line of {self.name!r}: use 'log_prob'.")

    def batches(self, size: int) -> Iterator[list[Pair]]:
        """Batches of pairs of similar length, so that there is little padding."""
        ordered = sorted(self.pairs, key=lambda pair: len(pair.clean))
        for start in range(0, len(ordered), size):
            yield ordered[start : start + size]


def read_task(path: str | Path, model: Model, limit: int | None = None) -> Task:
    """Reads a task file, or a bundled task by name. Lines that the model cannot run are skipped and reported.

    `limit` is the number of usable lines to read.
    """
    pairs, skipped = [], []
    for row in read_rows(path, "tasks", "task"):
        try:
            if row.error is not None:
                raise PromptError(row.error)
            pairs.append(_pair(row.item, model))
        except PromptError as error:
            skipped.append(f"{row.place.lower()}: {error}")
        if len(pairs) == limit:
            break
    if not pairs:
        why = skipped[0] if skipped else "it is empty"
        raise OptionError(f"A task must have a line that the model can run. {str(path)!r} has none: {why}.")
    return Task(str(path), tuple(pairs), tuple(skipped))


def targets(pairs: Sequence[Pair], model: Model) -> Targets:
    """The answers and foils of a batch as weights over the vocabulary."""
    weights = torch.zeros(2, len(pairs), model.vocabulary, dtype=model.dtype, device=model.device)
    for row, pair in enumerate(pairs):
        for kind, tokens in enumerate((pair.answers, pair.foils)):
            for token in tokens:
                weights[kind, row, token] += 1.0 / len(tokens)
    return Targets(weights[0], weights[1])


def _pair(item: Any, model: Model) -> Pair:
    if not isinstance(item, dict) or "clean" not in item or "answer" not in item:
        raise PromptError("a line must be an object with 'clean' and 'answer'")
    clean = _tokens(item["clean"], model)
    corrupted = _tokens(item["corrupted"], model) if item.get("corrupted") is not None else None
    if corrupted is not None and len(corrupted) != len(clean):
        raise PromptError(
            f"the corrupted prompt must have as many tokens as the clean one; it has {len(corrupted)}, not {len(clean)}"
        )
    answers, foils = (_single_tokens(item.get(name), name, model) for name in ("answer", "foil"))
    if not answers:
        raise PromptError("there must be an answer")
    group = item.get("relation", item.get("group"))
    return Pair(clean, corrupted, answers, foils, None if group is None else str(group))


def _tokens(prompt: Any, model: Model) -> tuple[int, ...]:
    return tuple(tokenize(model, as_prompt(prompt, 0)))


def _single_tokens(given: Any, name: str, model: Model) -> tuple[int, ...]:
    """One token id per answer. Text of several tokens is refused: the metric is measured at a single position."""
    if given is None:
        return ()
    ids = []
    for item in given if isinstance(given, list) else [given]:
        if isinstance(item, int) and not isinstance(item, bool):
            tokens = [item]
        elif not isinstance(item, str):
            raise PromptError(f"the {name} must be text or a token id; got {item!r}")
        elif model.tokenizer is None:
            raise PromptError(f"the model has no tokenizer: give the {name} as a token id")
        else:
            tokens = encode(model, item, add_special_tokens=False)
        if len(tokens) != 1 or not 0 <= tokens[0] < model.vocabulary:
            raise PromptError(f"the {name} must be one token of the model; {item!r} is {len(tokens)} tokens: {tokens}")
        ids.append(tokens[0])
    return tuple(ids)
