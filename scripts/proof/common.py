"""What the experiments share: prompts as tokens, fits, and tables of numbers."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

import eics
from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.observations import Observations
from eics.studies.statistics import Numbers

Line = dict[str, Any]

SEED = 0
TEST = 0.2
"""The share of groups that neither fits nor calibrates."""

PER_PROMPT = {"write": 10, "read": 6, "mean": 4, "noise": 4, "steer": 4}
"""How many nodes of each test prompt are damaged in each way, one at a time."""

OFF_CIRCUIT = 3
KINDS = tuple(PER_PROMPT)


def read_known(path: Path) -> list[Line]:
    """ROME's known_1000: prompts with their subjects and relations, each prompt once."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    unique = {row["prompt"]: {**row, "group": row["subject"]} for row in rows}
    return list(unique.values())


def tokens_of(model: Model, rows: Sequence[Line]) -> list[list[int]]:
    """The rows' prompts as tokens."""
    return [tokenize(model, Prompt(row["id"], text=row["prompt"])) for row in rows]


def first_token(model: Model, answer: str) -> int:
    """The token with which an answer begins."""
    return int(model.tokenizer(answer, add_special_tokens=False)["input_ids"][0])


def observed(model: Model, circuit: Circuit, rows: Sequence[Line], title: str) -> Prompts:
    """The rows' undamaged runs."""
    with progress(title, len(rows)) as tick:
        groups = [row["group"] for row in rows]
        return Prompts.observed(model, circuit, tokens_of(model, rows), groups, tick=tick, distributions=True)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error."""
    with Progress(console=Console(file=sys.stderr)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.advance(task, done)


def loaded(model: str, circuit: str | Path) -> tuple[Model, Circuit]:
    """A model and a circuit."""
    return eics.load_model(model), eics.load_circuit(circuit)


def mean_statistic(fitted: Fitted, runs: Observations, way: str = "calibrated") -> Numbers:
    """The mean over judged nodes of the standardised log D_v^2, (R,): how differently the whole works."""
    reference = fitted.references[way]
    whole = (fitted.judge(runs, way).whole.numpy() + 1e-9)[:, reference.judged.numpy()]
    usual = reference.log_whole.numpy()[:, reference.judged.numpy()]
    standardised: Numbers = (np.log(whole) - usual.mean(axis=0)) / np.maximum(usual.std(axis=0, ddof=1), 1e-12)
    mean: Numbers = standardised.mean(axis=1)
    return mean


def rows_of(runs: Observations, flags: Sequence[bool] | np.ndarray) -> Observations:
    """The runs whose flag is set."""
    return runs.rows(torch.from_numpy(np.flatnonzero(np.asarray(flags, dtype=bool))))
