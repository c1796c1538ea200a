"""From rows to correlations: over prompts with the circuit fixed, over circuits of one size with the prompt fixed.

Every correlation is oriented: positive where more coherent (a lower C_sh, a higher EICS) goes with more faithful (a
higher faithfulness, a lower KL divergence). A prompt's faithfulness is

    (M(circuit) - M(nothing)) / (M(full) - M(nothing))

of the task's metric M; a prompt on which ablating everything costs less than a tenth of what it costs on average has
none, since its quotient is noise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.tracking.measure import LEAST, Row
from eics.studies.tracking.scores import COHERENT, SCORES
from eics.studies.tracking.statistics import Estimate, Numbers, Places, partial, resamples, spearman

TARGETS = ("kl", "faithfulness")
FREE = {"max_probability": 1.0, "entropy": -1.0}
"""Predictors that know nothing of any circuit, and the side on which the model is sure."""

OTHER = "another circuit's KL"
POOLED = "all tasks"
_LEAST_DROP = 0.1
_AGAINST = {"discovered": "random", "rewired": "random", "random": "rewired"}
"""Which circuit is the other one; a rewired one may share most edges with its original."""

Samples = dict[str, Numbers]
"""By quantity a value and its resamples, (1 + resamples,)."""


@dataclass(frozen=True)
class OverPrompts:
    """One score against one target, over the prompts of a task with the circuit fixed; or the mean over tasks.

    Attributes:
        circuit: `discovered`, or the control that was scored and ablated instead.
        raw: rank correlation. given_free: partial, given group, entropy and max-probability. given_other: given also
            the KL divergence of another circuit (a random one) of the same size under the same ablation.
        other: rank correlation with the *other* circuit's target. less_other: raw less that.
    """

    task: str
    circuit: str
    ablation: str
    target: str
    score: str
    prompts: int
    raw: Estimate
    given_free: Estimate
    given_other: Estimate
    other: Estimate
    less_other: Estimate


@dataclass(frozen=True)
class OverCircuits:
    """One score against one target over circuits of one size: the mean over prompts of the rank correlation."""

    task: str
    circuits: str
    ablation: str
    target: str
    score: str
    prompts: int
    members: int
    raw: Estimate


def faithfulness(rows: Sequence[Row], ablation: str) -> Numbers:
    """Of each row; nan where ablating everything costs too little on the prompt."""
    full, empty, circuit = (
        np.array([row[name] for row in rows], dtype=float)
        for name in ("metric_full", f"metric_empty_{ablation}", f"metric_circuit_{ablation}")
    )
    drop = full - empty
    usable = drop > _LEAST_DROP * abs(drop.mean())
    found: Numbers = np.where(usable, (circuit - empty) / np.where(usable, drop, 1.0), np.nan)
    return found


def over_prompts(rows: Sequence[Row], *, seed: int = 0) -> list[OverPrompts]:
    """Task by task, circuit by circuit, and pooled over tasks."""
    found: list[OverPrompts] = []
    kept: dict[tuple[str, str, str, str], list[tuple[int, Samples]]] = {}
    for task, here in _by(rows, "task").items():
        firsts = {kind: _ordered(next(iter(_by(some, "circuit").values()))) for kind, some in _by(here, "kind").items()}
        for kind, other_kind in _AGAINST.items():
            some, other = firsts[kind], firsts[other_kind]
            for key, count, samples in _over(some, other, seed):
                found.append(_estimates(task, kind, key, count, samples))
                kept.setdefault((kind, *key), []).append((count, samples))
    for (kind, *rest), parts in kept.items():
        pooled = {
            name: _mean_known(np.stack([one[name] for _, one in parts], axis=-1), whole=True) for name in parts[0][1]
        }
        found.append(_estimates(POOLED, kind, tuple(rest), sum(count for count, _ in parts), pooled))
    return found


def over_circuits(rows: Sequence[Row], *, seed: int = 0) -> list[OverCircuits]:
    """Task by task, among the discovered and perturbed ones and with the controls; and pooled over tasks."""
    found: list[OverCircuits] = []
    kept: dict[tuple[str, str, str, str], list[tuple[int, int, Numbers]]] = {}
    for task, here in _by(rows, "task").items():
        circuits = {name: {row["prompt"]: row for row in some} for name, some in _by(here, "circuit").items()}
        prompts = sorted(set.intersection(*(set(some) for some in circuits.values())))
        for label, kinds in (("perturbed", ("discovered", "perturbed")), ("with controls", None)):
            chosen = [some for some in circuits.values() if kinds is None or next(iter(some.values()))["kind"] in kinds]
            table = [[some[prompt] for some in chosen] for prompt in prompts]
            if len(chosen) < 3 or not prompts:
                continue
            for key, samples in _across(table, seed):
                kept.setdefault((label, *key), []).append((len(prompts), len(chosen), samples))
                estimate = Estimate.of(samples[0], samples[1:], len(SCORES))
                found.append(OverCircuits(task, label, *key, len(prompts), len(chosen), estimate))
    for (label, ablation, target, score), parts in kept.items():
        pooled = np.mean([samples for *_, samples in parts], axis=0)
        prompts_, members = sum(part[0] for part in parts), parts[0][1]
        estimate = Estimate.of(pooled[0], pooled[1:], len(SCORES))
        found.append(OverCircuits(POOLED, label, ablation, target, score, prompts_, members, estimate))
    return found


def _over(rows: Sequence[Row], other: Sequence[Row], seed: int) -> Iterator[tuple[tuple[str, str, str], int, Samples]]:
    """Every ablation, target and score of one circuit on one task."""
    scores = [name for name in SCORES if all(name in row and row[name] is not None for row in rows)]
    for ablation in ABLATIONS:
        for target in TARGETS:
            ours, theirs = _target(rows, ablation, target), _target(other, ablation, target)
            usable = np.isfinite(ours) & np.isfinite(theirs)
            count = int(usable.sum())
            if count < LEAST:
                continue
            places = resamples(count, seed)
            y, away = ours[usable][places], theirs[usable][places]
            free = [_column(rows, name)[usable][places] for name in FREE]
            kl = _column(other, f"kl_{ablation}")[usable][places]
            groups = _groups(rows, usable)
            groups = None if groups is None else groups[places]
            x = np.stack([COHERENT[name] * _column(rows, name)[usable][places] for name in scores])
            raw, cross = spearman(x, y), spearman(x, away)
            samples = {
                "raw": raw,
                "given_free": partial(x, y, free, groups),
                "given_other": partial(x, y, [*free, kl], groups),
                "other": cross,
                "less_other": raw - cross,
            }
            for place, name in enumerate(scores):
                yield (ablation, target, name), count, {quantity: all_[place] for quantity, all_ in samples.items()}
            none = np.full(len(places), np.nan)
            for name, values in (*zip(FREE, free, strict=True), (OTHER, kl)):
                one = FREE.get(name, -1.0) * values
                raw, cross = spearman(one, y), spearman(one, away)
                empty = {"given_free": none, "given_other": none}
                yield (ablation, target, name), count, {"raw": raw, **empty, "other": cross, "less_other": raw - cross}


def _across(table: Sequence[Sequence[Row]], seed: int) -> Iterator[tuple[tuple[str, str, str], Numbers]]:
    """Prompts by circuits; prompts and circuits are both resampled, since both are samples."""
    flat = [row for some in table for row in some]
    shape = (len(table), len(table[0]))
    prompts, circuits = resamples(shape[0], seed), resamples(shape[1], seed + 1)
    scores = [name for name in SCORES if all(row.get(name) is not None for row in flat)]
    for ablation in ABLATIONS:
        for target in TARGETS:
            y = _target(flat, ablation, target).reshape(shape)
            for name in scores:
                x = COHERENT[name] * _column(flat, name).reshape(shape)
                by_prompt = spearman(_taken(x, prompts, circuits), _taken(y, prompts, circuits))
                yield (ablation, target, name), _mean_known(by_prompt)


def _taken(table: Numbers, prompts: Places, circuits: Places) -> Numbers:
    """(P, K) resampled both ways: (R, P, K)."""
    return table[prompts[:, :, None], circuits[:, None, :]]


def _mean_known(values: Numbers, *, whole: bool = False) -> Numbers:
    """Mean over the last axis of what is not nan; with `whole`, of the places whose first value is not."""
    values = values[..., np.isfinite(values[0])] if whole else values
    known = np.isfinite(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    found: Numbers = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found


def _estimates(task: str, kind: str, key: tuple[str, ...], count: int, samples: Samples) -> OverPrompts:
    ablation, target, score = key
    numbers = {name: Estimate.of(one[0], one[1:], len(SCORES)) for name, one in samples.items()}
    return OverPrompts(task, kind, ablation, target, score, count, **numbers)


def _target(rows: Sequence[Row], ablation: str, target: str) -> Numbers:
    """Oriented: more is more faithful. A nan ranks last and makes the quantity nan where it cannot be left out."""
    if target == "kl":
        return -_column(rows, f"kl_{ablation}")
    return faithfulness(rows, ablation)


def _column(rows: Sequence[Row], name: str) -> Numbers:
    return np.array([row[name] for row in rows], dtype=float)


def _groups(rows: Sequence[Row], usable: NDArray[np.bool_]) -> Places | None:
    names = [row["group"] for row, kept in zip(rows, usable, strict=True) if kept]
    known = sorted({name for name in names if name is not None})
    if len(known) < 2:
        return None
    return np.array([known.index(name) if name is not None else len(known) for name in names])


def _ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["prompt"]))


def _by(rows: Sequence[Row], name: str) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row[name], []).append(row)
    return grouped


def to_record(found: OverPrompts | OverCircuits) -> Mapping[str, object]:
    """JSON types only; an estimate that is not known is None."""
    record: dict[str, object] = {}
    for field in fields(found):
        value = getattr(found, field.name)
        if isinstance(value, Estimate):
            value = vars(value) if value.known else None
        record[field.name] = value
    return record
