"""Calibration on a set of prompts: first the means, then alpha and the scores, then their quantiles."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompt_values import token_ids
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.batch import score_prompts
from eics.scoring.calibration.calibration import QUANTITIES, Calibration, compared
from eics.scoring.options import PAPER, Options, resolve
from eics.scoring.result import Score
from eics.transformer.adapt import adapt
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means, mean_of

LEAST = 2
"""The fewest scored prompts that have quantiles."""


@memory_explained
def calibrate(
    model: Any,
    circuit: Circuit,
    prompts: Any,
    *,
    preset: Options | str = PAPER,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    batch_size: int = 8,
    tick: Callable[[int], None] = lambda _: None,
    failures: dict[str | int, str] | None = None,
    **options: Any,
) -> Calibration:
    """Scores a reference set and summarises it, so that later scores can be compared with it.

    Args:
        model, circuit, prompts, preset, answer, tokens, batch_size, **options: as `eics.score` takes them.
            `alpha="auto"` is chosen on these prompts; a number is kept.
        tick: called with the number of prompts finished since the last call.
        failures: filled with the reason of each prompt that could not be scored.

    Prompts that cannot be scored are left out; at least two must remain. Under `residual="propagated"` the means of
    these prompts stand in for everything outside the circuit, as they will for later prompts.
    """
    adapted = adapt(model)
    chosen = resolve(preset, options)
    listed = as_prompts(prompts)
    adapted.check_circuit(circuit)
    circuit.carrying(chosen.linearization)  # refuses a circuit of which nothing remains
    means = prompt_means(adapted, circuit, listed, batch_size)
    scored: list[Score] = []
    rows = score_prompts(
        adapted, circuit, listed, [chosen], answer=answer, tokens=tokens, batch_size=batch_size, means=means
    )
    failures = {} if failures is None else failures
    for (score,) in rows:
        tick(1)
        if score.eics is None:
            failures[score.id] = str(score.reason)
        else:
            scored.append(score)
    if len(scored) < LEAST:
        first_failure = next((f" Prompt {id!r} failed: {reason}" for id, reason in failures.items()), "")
        raise OptionError(
            f"A calibration must have at least {LEAST} prompts that can be scored. It has {len(scored)}.{first_failure}"
        )
    return Calibration(
        model=adapted.name,
        circuit=circuit.label(),
        options=compared(chosen),
        alpha=float(scored[0].alpha or 0.0),
        chosen=_chosen(scored[0]),
        prompts=len(scored),
        quantiles=dict(_quantiles(scored)),
        means=means,
        answer=answer,
        tokens=None if tokens is None else token_ids(tokens),
    )


def prompt_means(model: Model, circuit: Circuit, prompts: Sequence[Prompt], batch_size: int = 8) -> Means:
    """The means of the nodes' writes and reads over all positions of the prompts that the model can run."""
    token_lists = []
    reason = "no prompt was given"
    for prompt in prompts:
        try:
            token_lists.append(tokenize(model, prompt))
        except PromptError as error:
            reason = str(error)
    if not token_lists:
        raise OptionError(f"A calibration must have a prompt that the model can run. It has none: {reason}.")
    means = mean_of(_runs(model, circuit, token_lists, batch_size))
    if _is_finite(means):
        return means
    # A prompt on which the model overflows fails when it is scored; here it must not spoil the others' means.
    finite = [tokens for tokens in token_lists if _is_finite(mean_of(_runs(model, circuit, [tokens], 1)))]
    if not finite:
        raise OptionError("A calibration must have a prompt with finite activations. The model overflows on each one.")
    return mean_of(_runs(model, circuit, finite, batch_size))


def _is_finite(means: Means) -> bool:
    return all(bool(mean.isfinite().all()) for part in (means.writes, means.reads) for mean in part.values())


def _runs(
    model: Model, circuit: Circuit, token_lists: Sequence[Sequence[int]], batch_size: int
) -> Iterator[TransformerRun]:
    ordered = sorted(token_lists, key=len)  # prompts of similar length share a batch: little padding
    for start in range(0, len(ordered), batch_size):
        with torch.no_grad():
            yield TransformerRun(run(model, ordered[start : start + batch_size], circuit), circuit)


def _quantiles(scored: Sequence[Score]) -> Iterator[tuple[str, tuple[float, ...]]]:
    for name in QUANTITIES:
        values = [value for score in scored if (value := getattr(score, name)) is not None]
        if values:
            yield name, tuple(np.quantile(values, np.linspace(0.0, 1.0, 101)).tolist())


def _chosen(score: Score) -> AlphaCalibration | None:
    entry = score.diagnostics.get("alpha_calibration")
    if entry is None:
        return None
    return AlphaCalibration(alpha=float(score.alpha or 0.0), **entry | {"quartiles": tuple(entry["quartiles"])})
