"""Alpha, the quantiles of the score and the means: what a reference set says without a sheaf, or beside one."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from eics.errors import OptionError
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.batch import score_prompts
from eics.scoring.calibration.calibration import QUANTITIES, Calibration
from eics.scoring.calibration.prompt_means import prompt_means
from eics.scoring.calibration.sheaf.judge import Judge, Learned
from eics.scoring.calibration.task import Task
from eics.scoring.result import Score, Scores
from eics.transformer.means import Means

LEAST = 2
"""The fewest scored prompts that have quantiles."""


def quantiles_of(task: Task, learned: Learned | None = None) -> Calibration:
    """The calibration with quantiles; beside a learned sheaf, those of the prompts that taught it nothing."""
    tick = task.phase("means", len(task.prompts))
    means = prompt_means(task.model, task.circuit, task.prompts, task.batch_size, tick)
    columns = _Columns()
    columns.fill(_rows(task, means, learned), task)
    if columns.prompts < LEAST:
        first = next((f" Prompt {id!r} failed: {reason}" for id, reason in task.failures.items()), "")
        raise OptionError(
            f"A calibration must have at least {LEAST} prompts that can be scored. It has {columns.prompts}.{first}"
        )
    return Calibration(
        alpha=columns.alpha,
        chosen=columns.chosen,
        prompts=columns.prompts if learned is None else learned.prompts,
        quantiles=columns.quantiles,
        means=means,
        learned=learned,
        **task.identity,
    )


def _rows(task: Task, means: Means, learned: Learned | None) -> Iterable[Scores]:
    """The scores of the prompts that say what is usual."""
    prompts, judge = task.prompts, None
    if learned is not None:
        usual, judge = set(learned.ids), Judge.of(learned, task.circuit.sha256)
        prompts = [prompt for prompt in prompts if prompt.id in usual]
    tick = task.phase("prompts" if learned is None else "scores", len(prompts))
    rows = score_prompts(
        task.model,
        task.circuit,
        prompts,
        [task.options],
        answer=task.answer,
        tokens=task.tokens,
        batch_size=task.batch_size,
        means=means,
        judge=judge,
    )
    for row in rows:
        tick(1)
        yield row


class _Columns:
    """The numbers of prompts, and the alpha that all share; the results themselves are let go, edges and all."""

    def __init__(self) -> None:
        self.prompts, self.alpha = 0, 0.0
        self.chosen: AlphaCalibration | None = None
        self._values: dict[str, list[float]] = {name: [] for name in QUANTITIES}

    def fill(self, rows: Iterable[Scores], task: Task) -> None:
        """Takes results in; the reasons of prompts that failed go to the task's `failures`."""
        for (score,) in rows:
            if score.failed:
                task.failures[score.id] = str(score.reason)
                continue
            if not self.prompts:
                self.alpha, self.chosen = float(score.alpha or 0.0), _chosen(score)
            self.prompts += 1
            for name, values in self._values.items():
                if (value := getattr(score, name)) is not None:
                    values.append(value)

    @property
    def quantiles(self) -> dict[str, Any]:
        """Of each quantity at 0%, 1%, ..., 100%; one that the configuration lacks is missing."""
        known = {name: values for name, values in self._values.items() if values}
        return {name: tuple(np.quantile(values, np.linspace(0.0, 1.0, 101)).tolist()) for name, values in known.items()}


def _chosen(score: Score) -> AlphaCalibration | None:
    entry = score.diagnostics.get("alpha_calibration")
    if entry is None:
        return None
    return AlphaCalibration(alpha=float(score.alpha or 0.0), **entry | {"quartiles": tuple(entry["quartiles"])})
