"""From rows to correlations: over prompts with the circuit fixed, and over circuits of one size with the prompt fixed.

Every correlation is oriented: it is positive if more coherent (lower C_sh, higher EICS) goes with more faithful (higher
faithfulness, lower KL divergence). A prompt's faithfulness is

    (M(circuit) - M(nothing)) / (M(full) - M(nothing))

for the task's metric M. It is undefined on a prompt where ablating everything costs less than a tenth of the average,
because the quotient would be noise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.run_folder import Row
from eics.studies.statistics import (
    CorrectedInterval,
    Flags,
    Indices,
    Numbers,
    partial_spearman,
    resampled_indices,
    spearman,
)
from eics.studies.tracking.measure import LEAST
from eics.studies.tracking.scores import DIRECTION, SCORES

TARGETS = ("kl", "faithfulness")
FREE = {"max_probability": 1.0, "entropy": -1.0}
"""Predictors that need no circuit, and the direction in which the model is confident."""

OTHER = "another circuit's KL"
POOLED = "all tasks"
RESAMPLES = 2000

_LEAST_DROP = 0.1
_COMPARED_WITH = {"discovered": "random", "rewired": "random", "random": "rewired"}
"""The other circuit for each kind; a rewired one may share most edges with its original."""

Key = tuple[str, str, str]
"""Ablation, target and score."""

Samples = dict[str, Numbers]
"""By quantity, its value followed by its resamples, (1 + resamples,)."""


@dataclass(frozen=True)
class OverPrompts:
    """One score against one target, over the prompts of a task with the circuit fixed, or its mean over tasks.

    Attributes:
        circuit: `discovered`, or the control that was scored and ablated instead.
        raw: rank correlation.
        given_free: partial correlation given group, entropy and max-probability.
        given_other: the same, given also the KL divergence of another circuit of that size under the same ablation.
        other: rank correlation with the *other* circuit's target.
        less_other: `raw` less `other`.
    """

    task: str
    circuit: str
    ablation: str
    target: str
    score: str
    prompts: int
    raw: CorrectedInterval
    given_free: CorrectedInterval
    given_other: CorrectedInterval
    other: CorrectedInterval
    less_other: CorrectedInterval


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
    raw: CorrectedInterval


def faithfulness(rows: Sequence[Row], ablation: str) -> Numbers:
    """Faithfulness of each row; nan if ablating everything costs too little on the prompt."""
    full, empty, circuit = (
        _column(rows, name) for name in ("metric_full", f"metric_empty_{ablation}", f"metric_circuit_{ablation}")
    )
    drop = full - empty
    usable = drop > _LEAST_DROP * abs(drop.mean())
    return np.where(usable, (circuit - empty) / np.where(usable, drop, 1.0), np.nan)


def over_prompts(rows: Sequence[Row], *, seed: int = 0) -> list[OverPrompts]:
    """Correlations by task and circuit, then pooled over tasks."""
    findings: list[OverPrompts] = []
    by_task: dict[tuple[str, Key], list[tuple[int, Samples]]] = {}
    for task, task_rows in _group_by(rows, "task").items():
        first_of_kind = {
            kind: sorted(next(iter(_group_by(kind_rows, "circuit").values())), key=lambda row: int(row["prompt"]))
            for kind, kind_rows in _group_by(task_rows, "kind").items()
        }
        for kind, other in _COMPARED_WITH.items():
            for key, count, samples in _correlate_prompts(first_of_kind[kind], first_of_kind[other], seed):
                findings.append(_over_prompts(task, kind, key, count, samples))
                by_task.setdefault((kind, key), []).append((count, samples))
    for (kind, key), parts in by_task.items():
        pooled = {name: _mean_over_tasks([samples[name] for _, samples in parts]) for name in parts[0][1]}
        findings.append(_over_prompts(POOLED, kind, key, sum(count for count, _ in parts), pooled))
    return findings


def over_circuits(rows: Sequence[Row], *, seed: int = 0) -> list[OverCircuits]:
    """Correlations by task, among discovered and perturbed circuits and with controls, then pooled over tasks."""
    findings: list[OverCircuits] = []
    by_task: dict[tuple[str, Key], list[tuple[int, int, Numbers]]] = {}
    for task, task_rows in _group_by(rows, "task").items():
        circuits = [{r["prompt"]: r for r in own} for own in _group_by(task_rows, "circuit").values()]
        prompts = sorted(set.intersection(*(set(own) for own in circuits)))
        for label, kinds in (("perturbed", ("discovered", "perturbed")), ("with controls", None)):
            members = [own for own in circuits if kinds is None or next(iter(own.values()))["kind"] in kinds]
            if len(members) < 3 or not prompts:
                continue
            table = [[own[prompt] for own in members] for prompt in prompts]
            for key, samples in _correlate_circuits(table, seed):
                by_task.setdefault((label, key), []).append((len(prompts), len(members), samples))
                findings.append(OverCircuits(task, label, *key, len(prompts), len(members), _interval(samples)))
    for (label, key), parts in by_task.items():
        pooled = np.mean([samples for *_, samples in parts], axis=0)
        prompt_count = sum(part[0] for part in parts)
        findings.append(OverCircuits(POOLED, label, *key, prompt_count, parts[0][1], _interval(pooled)))
    return findings


def _correlate_prompts(rows: Sequence[Row], other: Sequence[Row], seed: int) -> Iterator[tuple[Key, int, Samples]]:
    """Every ablation, target and score of one circuit on one task."""
    scores = [name for name in SCORES if all(row.get(name) is not None for row in rows)]
    for ablation in ABLATIONS:
        for target in TARGETS:
            own_target, other_target = _target(rows, ablation, target), _target(other, ablation, target)
            usable = np.isfinite(own_target) & np.isfinite(other_target)
            count = int(usable.sum())
            if count < LEAST:
                continue
            drawn = _resampled(count, seed)
            own_y, other_y = own_target[usable][drawn], other_target[usable][drawn]
            free = [_column(rows, name)[usable][drawn] for name in FREE]
            kl = _column(other, f"kl_{ablation}")[usable][drawn]
            groups = _group_numbers(rows, usable)
            groups = None if groups is None else groups[drawn]
            own_scores = [DIRECTION[name] * _column(rows, name)[usable][drawn] for name in scores]
            x = np.stack([*own_scores, *(FREE[name] * y for name, y in zip(FREE, free, strict=True)), -kl])
            raw, cross = spearman(x, own_y), spearman(x, other_y)
            given_free, given_other = np.full_like([raw, raw], np.nan)  # defined for the scores only
            given_free[: len(scores)] = partial_spearman(x[: len(scores)], own_y, free, groups)
            given_other[: len(scores)] = partial_spearman(x[: len(scores)], own_y, [*free, kl], groups)
            for index, name in enumerate((*scores, *FREE, OTHER)):
                samples = {
                    "raw": raw[index],
                    "given_free": given_free[index],
                    "given_other": given_other[index],
                    "other": cross[index],
                    "less_other": raw[index] - cross[index],
                }
                yield (ablation, target, name), count, samples


def _correlate_circuits(table: Sequence[Sequence[Row]], seed: int) -> Iterator[tuple[Key, Numbers]]:
    """For prompts by circuits; both are resampled, because both are samples."""
    rows = [row for prompt_rows in table for row in prompt_rows]
    shape = (len(table), len(table[0]))
    prompts, circuits = _resampled(shape[0], seed), _resampled(shape[1], seed + 1)
    scores = [name for name in SCORES if all(row.get(name) is not None for row in rows)]

    def resample(values: Numbers) -> Numbers:
        """(P, K) resampled in both directions: (R, P, K)."""
        return values.reshape(shape)[prompts[:, :, None], circuits[:, None, :]]

    for ablation in ABLATIONS:
        for target in TARGETS:
            y = resample(_target(rows, ablation, target))
            for name in scores:
                by_prompt = spearman(resample(DIRECTION[name] * _column(rows, name)), y)
                yield (ablation, target, name), _finite_mean(by_prompt)


def _resampled(count: int, seed: int) -> Indices:
    """Bootstrap indices, (1 + resamples, count); the first row is the sample itself."""
    drawn = resampled_indices(count, RESAMPLES, np.random.default_rng([seed, count]))
    return np.concatenate([np.arange(count)[None], drawn])


def _mean_over_tasks(samples: Sequence[Numbers]) -> Numbers:
    """Over the tasks on which the value itself is defined."""
    stacked = np.stack(samples, axis=-1)
    return _finite_mean(stacked[..., np.isfinite(stacked[0])])


def _finite_mean(values: Numbers) -> Numbers:
    """Mean of the finite values along the last axis; nan if there are none."""
    finite = np.isfinite(values)
    count = finite.sum(axis=-1)
    total = np.where(finite, values, 0.0).sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _over_prompts(task: str, kind: str, key: Key, count: int, samples: Samples) -> OverPrompts:
    ablation, target, score = key
    intervals = {name: _interval(values) for name, values in samples.items()}
    return OverPrompts(task, kind, ablation, target, score, count, **intervals)


def _interval(samples: Numbers) -> CorrectedInterval:
    return CorrectedInterval.corrected(samples[0], samples[1:], len(SCORES))


def _target(rows: Sequence[Row], ablation: str, target: str) -> Numbers:
    """Oriented so that higher is more faithful."""
    return -_column(rows, f"kl_{ablation}") if target == "kl" else faithfulness(rows, ablation)


def _column(rows: Sequence[Row], name: str) -> Numbers:
    return np.array([row[name] for row in rows], dtype=float)


def _group_numbers(rows: Sequence[Row], usable: Flags) -> Indices | None:
    """A number for each usable prompt's group; None if there are fewer than two groups."""
    names = [row["group"] for row, kept in zip(rows, usable, strict=True) if kept]
    distinct = sorted({name for name in names if name is not None})
    if len(distinct) < 2:
        return None
    return np.array([distinct.index(name) if name is not None else len(distinct) for name in names])


def _group_by(rows: Sequence[Row], name: str) -> dict[str, list[Row]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row[name], []).append(row)
    return grouped


def to_record(finding: OverPrompts | OverCircuits) -> Mapping[str, object]:
    """JSON types only; an undefined correlation is None."""
    values = vars(finding).items()
    return {n: (vars(v) if v.is_known else None) if isinstance(v, CorrectedInterval) else v for n, v in values}
