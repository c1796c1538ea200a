"""Calibration on a set of prompts: the learned sheaf if asked for, the means, then alpha, the scores, their quantiles.

Under `residual="calibrated"` the quantiles are those of the calibration part: the other prompts taught the sheaf what
is usual, so they look more usual than any new prompt does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.linalg.memory import memory_limit
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.models.prompt_values import token_ids
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.batch import score_prompts
from eics.scoring.calibration.calibration import QUANTITIES, Calibration, compared
from eics.scoring.calibration.sheaf.fit import Reader, learn, learn_more
from eics.scoring.calibration.sheaf.judge import Judge, Learned
from eics.scoring.checks import check_readout, check_whole
from eics.scoring.options import CALIBRATED, Options, resolve
from eics.scoring.result import Score, Scores
from eics.transformer.adapt import adapt
from eics.transformer.explained import AT
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
        at: where nodes are judged: at the `answer` position, or at `all` positions, pooled.
        keep_moments: keep what the fit summed up, so that more prompts can be added.
        add_to: a calibration that kept its moments, to go on from; its options and seed are taken.
        tick: called with the number of prompts finished since the last call.
        failures: filled with the reason of each prompt that could not be scored.

    The default preset learns a sheaf (`residual="calibrated"`) and takes at least 100 prompts; with `terms="sheaf"` it
    keeps nothing else. The other presets keep alpha, quantiles and means, from at least two prompts.
    Prompts that cannot be scored are left out. Under `residual="propagated"` the means of
    these prompts stand in for everything outside the circuit, as they will for later prompts.
    """
    adapted = adapt(model)
    chosen = resolve(preset, options)
    listed = as_prompts(prompts)
    adapted.check_circuit(circuit)
    circuit.carrying(chosen.linearization)  # refuses a circuit of which nothing remains
    failures = {} if failures is None else failures
    groups, batch_size = check_groups(group, listed), check_whole("batch_size", batch_size, least=1)
    identity: dict[str, Any] = {
        "model": adapted.name,
        "circuit": circuit.label(),
        "options": compared(chosen),
        "answer": answer,
        "tokens": None if tokens is None else token_ids(tokens),
        "fingerprint": adapted.fingerprint(),
        "seed": chosen.seed,
    }
    if chosen.terms == "sheaf" and chosen.residual != "calibrated":
        raise OptionError.of("terms", f"'all' to calibrate with residual {chosen.residual!r}", chosen.terms)
    learned = None
    if chosen.residual == "calibrated":
        readout = check_readout(adapted, [chosen], tokens)
        earlier = _check_earlier(add_to, adapted, circuit, chosen, answer, tokens)
        at = _check_at(at) if earlier is None else earlier.sheaf.at
        reader = Reader(adapted, circuit, chosen, at, batch_size, answer, readout, tick, failures)
        with memory_limit(chosen.memory, adapted.device):
            if earlier is not None and add_to is not None:
                learned = learn_more(reader, earlier, listed, groups, add_to.seed)
                return replace(add_to, prompts=learned.prompts, learned=learned)
            learned = learn(reader, listed, groups, chosen.seed, keep_moments=keep_moments)
    if learned is not None and chosen.terms == "sheaf":
        return Calibration(
            alpha=None, chosen=None, prompts=learned.prompts, quantiles={}, means=None, learned=learned, **identity
        )
    means = prompt_means(adapted, circuit, listed, batch_size)
    judge = None if learned is None else Judge.of(learned, circuit.sha256)
    usual = set(learned.ids) if learned is not None else {prompt.id for prompt in listed}
    rows = score_prompts(
        adapted,
        circuit,
        [prompt for prompt in listed if prompt.id in usual],
        [chosen],
        answer=answer,
        tokens=tokens,
        batch_size=batch_size,
        means=means,
        judge=judge,
    )
    scored = list(_scored(rows, failures, tick if learned is None else lambda _: None))
    if len(scored) < LEAST:
        first_failure = next((f" Prompt {id!r} failed: {reason}" for id, reason in failures.items()), "")
        raise OptionError(
            f"A calibration must have at least {LEAST} prompts that can be scored. It has {len(scored)}.{first_failure}"
        )
    return Calibration(
        alpha=float(scored[0].alpha or 0.0),
        chosen=_chosen(scored[0]),
        prompts=len(scored) if learned is None else learned.prompts,
        quantiles=dict(_quantiles(scored)),
        means=means,
        learned=learned,
        **identity,
    )


def _scored(rows: Iterable[Scores], failures: dict[str | int, str], tick: Callable[[int], None]) -> Iterator[Score]:
    """The results of prompts that could be scored; the others' reasons go to `failures`."""
    for (score,) in rows:
        tick(1)
        if score.failed:
            failures[score.id] = str(score.reason)
        else:
            yield score


def check_groups(group: Any, prompts: Sequence[Prompt]) -> list[str] | None:
    """The group of each prompt as text; refuses another number of them than there are prompts."""
    if group is None:
        return None
    groups = list(group) if isinstance(group, Iterable) and not isinstance(group, str | bytes) else None
    if groups is None or len(groups) != len(prompts):
        came = group if groups is None else f"{len(groups)} of them"
        raise OptionError.of("group", f"a list with one for each of the {len(prompts)} prompts", came)
    return [str(one) for one in groups]


def _check_earlier(
    add_to: Calibration | None,
    model: Model,
    circuit: Circuit,
    options: Options,
    answer: int | None,
    tokens: Sequence[int] | None,
) -> Learned | None:
    """What was learned earlier and is to be gone on from; refuses what cannot be."""
    if add_to is None:
        return None
    add_to.fit(options, circuit.label(), answer, tokens)
    add_to.check_model(model)
    if add_to.learned is None or add_to.learned.kept is None or add_to.alpha is not None:
        raise OptionError(
            "Prompts can be added to a calibration that was made with --terms sheaf --keep-moments "
            '(terms="sheaf", keep_moments=True). This one was not: calibrate again on all prompts.'
        )
    return add_to.learned


def _check_at(at: Any) -> str:
    if at not in AT:
        raise OptionError.of("at", f"one of {', '.join(AT)}", at)
    return str(at)


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
