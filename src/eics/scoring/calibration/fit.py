"""Calibration on a set of prompts: means first, then alpha and the scores, then their quantiles."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.models.base import Model
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
"""Prompts that must be scored: of one there is nothing to compare with."""


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
    **options: Any,
) -> Calibration:
    """Scores a reference set and keeps what later scores are read by.

    Args:
        model, circuit, prompts, preset, answer, tokens, batch_size, **options: as `eics.score` takes them.
            `alpha="auto"` is chosen on these prompts; a number is kept.
        tick: called with the number of prompts done.

    Prompts that cannot be scored are left out; at least two must remain. Under `residual="propagated"` the prompts are
    scored against their own means, as later ones will be.
    """
    adapted = adapt(model)
    chosen = resolve(preset, options)
    listed = as_prompts(prompts)
    adapted.check_circuit(circuit)
    means = prompt_means(adapted, circuit, listed, batch_size)
    scored: list[Score] = []
    found = score_prompts(
        adapted, circuit, listed, [chosen], answer=answer, tokens=tokens, batch_size=batch_size, means=means
    )
    failed = ""
    for (score,) in found:
        tick(1)
        if score.eics is None:
            failed = failed or f" Prompt {score.id!r} failed: {score.reason}"
        else:
            scored.append(score)
    if len(scored) < LEAST:
        raise OptionError(
            f"A calibration must have at least {LEAST} prompts that can be scored. It has {len(scored)}.{failed}"
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
        tokens=None if tokens is None else tuple(tokens),
    )


def prompt_means(model: Model, circuit: Circuit, prompts: Sequence[Prompt], batch_size: int = 8) -> Means:
    """Means of what the circuit's nodes write and read, over prompts that the model can run and all their positions."""
    token_lists = []
    why = "there is none"
    for prompt in prompts:
        try:
            token_lists.append(tokenize(model, prompt))
        except PromptError as error:
            why = str(error)
    if not token_lists:
        raise OptionError(f"A calibration must have a prompt that the model can run. It has none: {why}.")
    means = mean_of(_runs(model, circuit, token_lists, batch_size))
    if not all(bool(mean.isfinite().all()) for part in (means.writes, means.reads) for mean in part.values()):
        raise OptionError("The model's activations must be finite on every prompt of a calibration. Some are not.")
    return means


def _runs(
    model: Model, circuit: Circuit, token_lists: Sequence[Sequence[int]], batch_size: int
) -> Iterator[TransformerRun]:
    ordered = sorted(token_lists, key=len)  # prompts of similar length together: little padding
    for start in range(0, len(ordered), batch_size):
        with torch.no_grad():
            yield TransformerRun(run(model, ordered[start : start + batch_size], circuit), circuit)


def _quantiles(scored: Sequence[Score]) -> Iterator[tuple[str, tuple[float, ...]]]:
    for name in QUANTITIES:
        values = [value for score in scored if (value := getattr(score, name)) is not None]
        if values:
            yield name, tuple(np.quantile(values, np.linspace(0.0, 1.0, 101)).tolist())


def _chosen(score: Score) -> AlphaCalibration | None:
    about = score.diagnostics.get("alpha_calibration")
    if about is None:
        return None
    low, high = about["quartiles"]
    return AlphaCalibration(float(score.alpha or 0.0), about["target"], about["median"], (low, high), about["prompts"])
