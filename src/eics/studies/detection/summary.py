"""Localisation, AUROC and false alarms, with intervals.

Damaged runs are averaged by node, then over nodes. Intervals come from drawing the groups of test prompts with
replacement, the undamaged runs and the damaged ones of a prompt together.

first, three   how often the damaged node has the largest z, or one of the three largest (ties: the expected value)
own            AUROC of the damaged node's z against the same node's z on undamaged test prompts
prompt         AUROC of the largest z against that of undamaged test prompts
caught         how often the prompt's p-value is at most the level
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import betabinom, ks_2samp

from eics.scoring.calibration.sheaf.reference import Judgement, Reference
from eics.studies.statistics import Flags, Indices, Interval, Numbers, resampled_counts, wins

TIMES = 1000
"""Bootstrap resamples."""

LEVELS = (0.01, 0.05, 0.1)


@dataclass(frozen=True)
class Verdicts:
    """What a way says of runs, as numpy arrays.

    Attributes:
        z: (R, nodes), -inf for nodes that cannot be judged.
        p_value, p_value_mean: (R,). suspect: (R, nodes).
    """

    z: Numbers
    p_value: Numbers
    p_value_mean: Numbers
    suspect: Flags

    @classmethod
    def of(cls, judgement: Judgement) -> "Verdicts":
        """From a judgement."""
        z = judgement.z.double().numpy()
        parts = (judgement.p_value.numpy(), judgement.p_value_mean.numpy(), judgement.suspect.numpy())
        return cls(np.where(np.isnan(z), -np.inf, z), *parts)

    @property
    def largest(self) -> Numbers:
        """The largest z of each run, (R,)."""
        top: Numbers = self.z.max(axis=1)
        return top


def as_json(interval: Interval) -> dict[str, float]:
    """An interval for a file."""
    return {"value": interval.value, "low": interval.low, "high": interval.high}


class Resamples:
    """Weights of test prompts in each resample, (prompts, TIMES), drawn by group."""

    def __init__(self, groups: Sequence[str], seed: int = 0, times: int = TIMES) -> None:
        names, number = np.unique(np.asarray(groups, dtype=str), return_inverse=True)
        drawn = resampled_counts(len(names), times, np.random.default_rng([seed, 3]))
        self.weights: Numbers = drawn[:, number].T

    def mean(self, values: Numbers, prompt: Indices) -> Interval:
        """The mean of runs' values, (R,)."""
        weights = self.weights[prompt]
        with np.errstate(invalid="ignore"):
            samples = (weights * values[:, None]).sum(axis=0) / weights.sum(axis=0)
        return Interval.of(float(values.mean()), samples)

    def node_mean(self, values: Numbers, node: Indices, prompt: Indices) -> Interval:
        """The mean over nodes of the mean over a node's runs; values are (R,) or (R, 1 + TIMES), the first column being
        the value without resampling."""
        plain = np.ones((len(prompt), 1))
        weights = np.concatenate([plain, self.weights[prompt]], axis=1)
        columns = values[:, None] if values.ndim == 1 else values
        one_hot = (node[:, None] == np.unique(node)).astype(float).T  # (nodes, R)
        runs = one_hot @ weights
        of_node = np.divide(one_hot @ (weights * columns), runs, out=np.zeros_like(runs), where=runs > 0)
        with np.errstate(invalid="ignore"):  # a resample may have no damaged run at all
            means = of_node.sum(axis=0) / (runs > 0).sum(axis=0)
        return Interval.of(float(means[0]), means[1:])

    def against(self, damaged: Numbers, clean: Numbers) -> Numbers:
        """How often each run's number wins against undamaged prompts, (R, 1 + TIMES); clean is (N,) or (R, N).

        What cannot be judged, -inf on both sides, is a tie.
        """
        least = np.finfo(np.float64).min
        shape = (len(damaged), clean.shape[-1])
        won = wins(np.maximum(damaged, least)[:, None], np.broadcast_to(np.maximum(clean, least), shape))
        weights = np.concatenate([np.ones((clean.shape[-1], 1)), self.weights], axis=1)
        rates: Numbers = (won @ weights) / weights.sum(axis=0)
        return rates


def localisation(
    damaged: Verdicts, clean: Verdicts, node: Indices, prompt: Indices, resamples: Resamples, level: float = 0.05
) -> dict[str, Any]:
    """How well a way finds damage: `node` is where it is, `prompt` the number of the test prompt, (R,)."""
    own = np.take_along_axis(damaged.z, node[:, None], axis=1)
    greater = (damaged.z > own).sum(axis=1)
    equal = (damaged.z == own).sum(axis=1) - 1
    named = damaged.suspect.sum(axis=1)
    right = np.take_along_axis(damaged.suspect, node[:, None], axis=1)[:, 0]
    results = {
        "first": resamples.node_mean(_place_within(1, greater, equal), node, prompt),
        "three": resamples.node_mean(_place_within(3, greater, equal), node, prompt),
        "own": resamples.node_mean(resamples.against(own[:, 0], clean.z[:, node].T), node, prompt),
        "prompt": resamples.node_mean(resamples.against(damaged.largest, clean.largest), node, prompt),
        "caught": resamples.node_mean((damaged.p_value <= level).astype(float), node, prompt),
        "named": resamples.node_mean(right.astype(float), node, prompt),
    }
    summary: dict[str, Any] = {name: as_json(interval) for name, interval in results.items()}
    summary["wrong_suspects"] = float((named - right).sum() / max(1, named.sum()))
    return summary | {"runs": len(node), "nodes": len(np.unique(node))}


def by_node(damaged: Verdicts, node: Indices, names: Sequence[str]) -> dict[str, float]:
    """How often each node comes first when it is the damaged one."""
    own = np.take_along_axis(damaged.z, node[:, None], axis=1)
    first = _place_within(1, (damaged.z > own).sum(axis=1), (damaged.z == own).sum(axis=1) - 1)
    return {names[index]: float(first[node == index].mean()) for index in np.unique(node)}


def _place_within(places: int, greater: Indices, equal: Indices) -> Numbers:
    """The chance to be among the first `places` if ties are broken at random.

    >>> _place_within(3, np.array([0, 2, 2, 3]), np.array([0, 0, 1, 0]))
    array([1. , 1. , 0.5, 0. ])
    """
    chance: Numbers = np.clip((places - greater) / (1 + equal), 0.0, 1.0)
    return chance


def false_alarms(p_values: Numbers, calibration: int) -> dict[str, Any]:
    """Alarms on undamaged prompts at each level, with the central 95% of what a valid p-value would give.

    With n calibration prompts and k = floor(level (n + 1)), the chance of an alarm given the calibration part is
    Beta(k, n + 1 - k), so the number of alarms is beta-binomial.
    """
    results = {}
    for level in LEVELS:
        k = int(np.floor(level * (calibration + 1) + 1e-9))
        entry: dict[str, Any] = {"rate": float((p_values <= level).mean()), "expected": k / (calibration + 1)}
        if k > 0:
            low, high = betabinom.ppf([0.025, 0.975], len(p_values), k, calibration + 1 - k) / len(p_values)
            entry |= {"low": float(low), "high": float(high), "within": bool(low <= entry["rate"] <= high)}
        results[f"{level:g}"] = entry
    return results


def calm(clean: Verdicts, reference: Reference) -> dict[str, Any]:
    """False alarms of the largest z, of the mean and of single nodes on undamaged prompts, and two-sample KS tests."""
    count = len(reference)
    usual = reference.largest.numpy(), reference.means.numpy()
    judged = np.isfinite(clean.z).all(axis=0)
    return {
        "prompts": len(clean.p_value),
        "calibration": count,
        "largest": false_alarms(clean.p_value, count),
        "mean": false_alarms(clean.p_value_mean, count),
        "any_suspect": float(clean.suspect.any(axis=1).mean()),
        "ks_largest": float(ks_2samp(clean.largest, usual[0]).pvalue),
        "judged": int(judged.sum()),
    }


def auroc(positive: Numbers, negative: Numbers) -> float:
    """How often a positive number exceeds a negative one."""
    return float(np.mean(wins(positive[:, None], negative[None, :])))


def paired_auroc(
    positive: Numbers, negative: Numbers, positive_groups: Sequence[str], negative_groups: Sequence[str], seed: int = 0
) -> Interval:
    """AUROC with an interval from drawing groups, which both sides share, with replacement."""
    names, number = np.unique(np.asarray([*positive_groups, *negative_groups], dtype=str), return_inverse=True)
    drawn = resampled_counts(len(names), TIMES, np.random.default_rng([seed, 4]))[:, number]
    first, second = drawn[:, : len(positive)], drawn[:, len(positive) :]
    won = wins(positive[:, None], negative[None, :])
    with np.errstate(invalid="ignore"):
        samples = np.einsum("tp,pn,tn->t", first, won, second, optimize=True) / (first.sum(1) * second.sum(1))
    return Interval.of(float(won.mean()), samples)
