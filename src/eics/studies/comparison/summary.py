"""What two models' rows say together: sizes and effects by part, with intervals, and sentences.

made_here   rms of the norm of what the part made, over that of what it wrote in A; inherited likewise
effect      mean over prompts of g^T J m, less the second order (`targets.py`), with a bootstrap interval over
            prompts or groups of them; the mean of the latter is over the prompts on which it was sampled
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from eics import __version__
from eics.circuits.formats.shared import json_safe
from eics.circuits.graph import Circuit
from eics.studies.comparison.attribution import SQUARES
from eics.studies.comparison.model_sentences import sentences
from eics.studies.comparison.targets import CURVATURE
from eics.studies.run_folder import Row
from eics.studies.statistics import Interval, Numbers, resampled_counts

FORMAT, VERSION = "eics-comparison", 1
_LARGEST = 10  # effects that a prompt's entry lists
_STREAM = 7  # random stream of the resamples


@dataclass(frozen=True)
class PartChange:
    """One part: how much of its write was made here and inherited, and what the first of these does to the metric.

    Attributes:
        made_here, inherited, residue: sizes relative to what the part wrote in A.
        effect: on the metric, from gradients. restored: how much of the metric's move goes away if A's value is written
            in B's run.
    """

    node: str
    made_here: float
    inherited: float
    residue: float
    effect: Interval
    restored: Interval | None = None


@dataclass(frozen=True)
class PromptChange:
    """One prompt: how far the metric moved, whether anything did, and the parts whose effect is largest.

    Effects here are to first order, halved for KL: for a small change those of all parts, `added`, are the `total`.
    """

    id: str | int
    prompt: str | None
    status: str
    reason: str | None = None
    total: float | None = None
    touched: bool | None = None
    before: str | None = None
    after: str | None = None
    added: float | None = None
    effects: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, repr=False)
class ModelComparison:
    """What changed between two models, largest effect first.

    Attributes:
        model, against: names of A and B. fingerprints: of their weights, by these two words.
        circuit: whose nodes were compared; None for all parts of the model.
        metric, dtype, seed: what was used.
        nodes: one for each part. prompts: one for each prompt, in the order given.
        total: mean of the metric's move. residue: what no part accounts for, as a share of what was written.
        sentences: what was found, in words.
    """

    model: str
    against: str
    fingerprints: dict[str, str]
    circuit: Circuit | None
    metric: str
    dtype: str
    seed: int
    nodes: tuple[PartChange, ...]
    prompts: tuple[PromptChange, ...]
    total: Interval
    residue: float
    sentences: tuple[str, ...] = ()

    def __getitem__(self, node: str) -> PartChange:
        for change in self.nodes:
            if change.node == node:
                return change
        raise KeyError(node)

    def __repr__(self) -> str:
        worst = ", ".join(f"{change.node} {change.effect.value:.3g}" for change in self.nodes[:3])
        return f"ModelComparison({self.model} to {self.against}: {self.metric} {self.total.value:.3g}; {worst})"

    def to_record(self) -> dict[str, Any]:
        """The comparison as JSON types; a number that is not finite is null."""
        circuit = self.circuit
        record = {
            "format": FORMAT,
            "version": VERSION,
            "kind": "models",
            "eics": __version__,
            "model": self.model,
            "against": self.against,
            "fingerprints": self.fingerprints,
            "circuit": None if circuit is None else circuit.label(),
            "edges": [] if circuit is None else [str(edge) for edge in circuit.edges],
            "metric": self.metric,
            "dtype": self.dtype,
            "seed": self.seed,
            "nodes": [asdict(change) for change in self.nodes],
            "total": asdict(self.total),
            "residue": self.residue,
            "prompts": [asdict(prompt) for prompt in self.prompts],
            "sentences": list(self.sentences),
        }
        safe: dict[str, Any] = json_safe(record)
        return safe


def summarize(
    rows: Sequence[Row],
    restored: Sequence[Row],
    names: Sequence[str],
    *,
    groups: Sequence[str] | None,
    resamples: int,
    **about: Any,
) -> ModelComparison:
    """From a row for each prompt, in order, and rows of restored parts; `groups` are the prompts'."""
    scored = [index for index, row in enumerate(rows) if row["status"] == "ok"]
    clusters = None if groups is None else [groups[index] for index in scored]
    weights = _weights(len(scored), clusters, resamples, about["seed"])
    kept = [rows[index] for index in scored]
    numbers = {name: _column(kept, name, len(names)) for name in SQUARES}
    effects = _effects(kept, about["metric"], len(names), weights)
    true = _restored(kept, restored, names, weights)
    sizes = {name: np.sqrt(numbers[name].sum(axis=0) / _at_least(numbers["write"].sum(axis=0))) for name in SQUARES[1:]}
    changes = [
        PartChange(
            name,
            made_here=float(sizes["made"][index]),
            inherited=float(sizes["inherited"][index]),
            residue=float(sizes["residue"][index]),
            effect=effects[index],
            restored=true.get(name),
        )
        for index, name in enumerate(names)
    ]
    totals = np.array([row["total"] for row in kept], dtype=float).reshape(-1, 1)
    found = ModelComparison(
        nodes=tuple(sorted(changes, key=lambda change: -_size(change))),
        prompts=tuple(_prompt(row, names, about["metric"]) for row in rows),
        total=_intervals(totals, weights)[0],
        residue=_residue(numbers, kept),
        **about,
    )
    return replace(found, sentences=tuple(sentences(found)))


def mean_effects(rows: Sequence[Row], metric: str) -> Numbers:
    """The mean effect of each part over rows that were scored."""
    count = len(rows[0]["slope"])
    means: Numbers = _point(_column(rows, "slope", count), *_seconds(rows, metric, count), np.ones((1, len(rows))))[0]
    return means


def _effects(rows: Sequence[Row], metric: str, count: int, weights: Numbers) -> list[Interval]:
    """Of each part, with intervals over the resamples' weights."""
    if not rows:
        return [Interval(math.nan, math.nan, math.nan)] * count
    slopes, (seconds, sampled) = _column(rows, "slope", count), _seconds(rows, metric, count)
    value = _point(slopes, seconds, sampled, np.ones((1, len(rows))))[0]
    drawn = _point(slopes, seconds, sampled, weights)
    return [Interval.of(mean, samples) for mean, samples in zip(value, drawn.T, strict=True)]


def _point(slopes: Numbers, seconds: Numbers, sampled: Numbers, weights: Numbers) -> Numbers:
    """The estimate for each row of weights, (resamples, parts); a resample without samples gives nan."""
    estimate: Numbers = weights @ slopes / _at_least(weights.sum(axis=1, keepdims=True))
    if not seconds.any():
        return estimate
    of_sampled = weights * sampled
    count = of_sampled.sum(axis=1, keepdims=True)
    return estimate - np.where(count > 0, of_sampled @ seconds / _at_least(count), np.nan)


def _seconds(rows: Sequence[Row], metric: str, count: int) -> tuple[Numbers, Numbers]:
    """The second order of each row and part, 0 where none was sampled, and which rows were, as 0 and 1."""
    sampled = np.array([row["second"] is not None for row in rows], dtype=float)
    values = [row["second"] if row["second"] is not None else [0.0] * count for row in rows]
    return CURVATURE[metric] * np.array(values, dtype=float).reshape(len(rows), count), sampled


def _column(rows: Sequence[Row], name: str, count: int) -> Numbers:
    """A field of all rows, (rows, parts)."""
    return np.array([row[name] for row in rows], dtype=float).reshape(len(rows), count)


def _size(change: PartChange) -> float:
    """What parts are ordered by: the effect, truly measured if it was, and then what was made here."""
    return abs(change.effect.value) + 1e-12 * change.made_here


def _weights(count: int, clusters: Sequence[str] | None, resamples: int, seed: int) -> Numbers:
    """How often each prompt is drawn in each resample, whole groups together, (resamples, count)."""
    draw = np.random.default_rng([seed, _STREAM])
    if clusters is None or not count:
        return resampled_counts(count, resamples, draw) if count else np.zeros((resamples, 0))
    names, cluster = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    return resampled_counts(len(names), resamples, draw)[:, cluster]


def _intervals(values: Numbers, weights: Numbers) -> list[Interval]:
    """The mean of each column over prompts, (prompts, n), with its interval."""
    if not len(values):
        return [Interval(math.nan, math.nan, math.nan)] * values.shape[1]
    drawn = weights @ values / _at_least(weights.sum(axis=1, keepdims=True))
    return [Interval.of(mean, samples) for mean, samples in zip(values.mean(axis=0), drawn.T, strict=True)]


def _restored(
    rows: Sequence[Row], restored: Sequence[Row], names: Sequence[str], weights: Numbers
) -> dict[str, Interval]:
    """The true effect of each part that was restored on every prompt."""
    by_part: dict[str, dict[Any, float]] = {}
    for row in restored:
        by_part.setdefault(row["node"], {})[row["id"]] = row["effect"]
    found = {}
    for name in names:
        values = by_part.get(name, {})
        if values and all(row["id"] in values for row in rows):
            found[name] = _intervals(np.array([[values[row["id"]]] for row in rows], dtype=float), weights)[0]
    return found


def _residue(numbers: Mapping[str, Numbers], rows: Sequence[Row]) -> float:
    """The largest share of a part's write, or of the residual stream, that is neither made nor inherited."""
    if not rows:
        return math.nan
    left = np.sqrt(numbers["residue"].sum(axis=0) / _at_least(numbers["write"].sum(axis=0)))
    streams = [row["stream"] for row in rows if row["stream"] is not None]
    if not streams:
        return float(left.max())
    lost, size = np.array(streams, dtype=float).sum(axis=0)
    return float(max(left.max(), math.sqrt(lost / max(size, 1e-300))))


def _at_least(values: Numbers) -> Numbers:
    least: Numbers = np.maximum(values, 1e-300)
    return least


def _prompt(row: Row, names: Sequence[str], metric: str) -> PromptChange:
    shared: dict[str, Any] = {name: row.get(name) for name in ("id", "prompt", "status", "reason")}
    if row["status"] != "ok":
        return PromptChange(**shared)
    effects = np.array(row["slope"]) * (0.5 if metric == "kl" else 1.0)
    order = np.argsort(-np.abs(effects), kind="stable")[:_LARGEST]
    largest = tuple((names[index], float(effects[index])) for index in order if effects[index])
    shared |= {name: row[name] for name in ("total", "touched", "before", "after")}
    return PromptChange(**shared, added=float(effects.sum()), effects=largest)
