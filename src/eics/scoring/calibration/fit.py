"""Calibration on a set of prompts: the learned sheaf if asked for, the means, then alpha, the scores, their quantiles.

Under `residual="calibrated"` the quantiles are those of the calibration part: the other prompts taught the sheaf what
is usual, so they look more usual than any new prompt does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from eics.circuits.graph import Circuit
from eics.linalg.memory import memory_limit
from eics.models.out_of_memory import memory_explained
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.quantiles import quantiles_of
from eics.scoring.calibration.sheaf.fit import learn, learn_more
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.reader import unseen
from eics.scoring.calibration.task import Task, checked_task
from eics.scoring.options import CALIBRATED, Options


@memory_explained
def calibrate(
    model: Any,
    circuit: Circuit,
    prompts: Any,
    *,
    preset: Options | str = CALIBRATED,
    group: Any = None,
    at: str = "answer",
    keep_moments: bool = False,
    add_to: Calibration | None = None,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    batch_size: int = 8,
    tick: Callable[[int], None] = lambda _: None,
    failures: dict[str | int, str] | None = None,
    **options: Any,
) -> Calibration:
    """Learns what is usual from a reference set, so that later scores can be compared with it.

    Args:
        model, circuit, prompts, preset, answer, tokens, batch_size, **options: as `eics.score` takes them.
            `alpha="auto"` is chosen on these prompts; a number is kept.
        group: for each prompt what it belongs to (its subject, its template, ...): prompts of a group never stand on
            both sides of a split. Without it, equal token lists are a group.
        at: where nodes are judged: at the `answer` position, or at `all` positions but the first, pooled; tracing
            (`eics.trace`) needs the latter.
        keep_moments: keep what the fit summed up, so that more prompts can be added.
        add_to: a calibration that kept its moments, to go on from; its options and seed are taken.
        tick: called with the number of prompts finished since the last call.
        failures: filled with the reason of each prompt that could not be scored.

    The default preset learns a sheaf (`residual="calibrated"`) and takes at least 100 prompts; with `terms="sheaf"` it
    keeps nothing else. The other presets keep alpha, quantiles and means, from at least two prompts.
    Prompts that cannot be scored are left out. Under `residual="propagated"` the means of
    these prompts stand in for everything outside the circuit, as they will for later prompts.
    """
    task = checked_task(
        model,
        circuit,
        prompts,
        preset=preset,
        options=options,
        group=group,
        at=at,
        keep_moments=keep_moments,
        add_to=add_to,
        answer=answer,
        tokens=tokens,
        batch_size=batch_size,
        phase=lambda what, steps: tick if what == "prompts" else unseen(what, steps),
        failures={} if failures is None else failures,
    )
    return made(task)


@memory_explained
def made(task: Task) -> Calibration:
    """The calibration that was asked for."""
    if task.add_to is not None:
        return _added(task, task.add_to)
    learned = _learned(task) if task.learns else None
    if learned is not None and task.options.terms == "sheaf":
        return _sheaf_alone(task, learned)
    return quantiles_of(task, learned)


def _learned(task: Task) -> Learned:
    with memory_limit(task.options.memory, task.model.device):
        return learn(task.reader, task.prompts, task.groups, task.options.seed, keep_moments=task.keep_moments)


def _added(task: Task, add_to: Calibration) -> Calibration:
    """The earlier calibration with what these prompts teach; its options and its seed stay."""
    with memory_limit(task.options.memory, task.model.device):
        learned = learn_more(task.reader, task.earlier, task.prompts, task.groups, add_to.seed)
    return replace(add_to, prompts=learned.prompts, learned=learned)


def _sheaf_alone(task: Task, learned: Learned) -> Calibration:
    return Calibration(
        alpha=None, chosen=None, prompts=learned.prompts, quantiles={}, means=None, learned=learned, **task.identity
    )
