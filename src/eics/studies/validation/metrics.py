"""How well a score tells correct (positive) from wrong prompts, for many resamples of the prompts at once.

A resample gives every prompt a weight: how often it was drawn. The score's order does not depend on the weights, so
each metric is made of cumulated weights along that order. With TP and n the weights of the correct and of all prompts
from the most confident one down to a place (ties together), P and N the weights of all correct and all wrong ones:

    AUROC  area under TP / P over FP / N
    AUPRC  average precision, sum of the steps of TP / P times TP / n
    PRR    prediction rejection ratio (A - P/(P+N)) / (A* - P/(P+N)): A is the mean accuracy TP / n of what is kept
           over all kept fractions, A* that of an oracle which rejects every wrong prompt first
    F1     at a given threshold
    ECE    of given probabilities, in 10 bins of equal width
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

METRICS = ("auroc", "auprc", "f1", "f1_youden", "prr", "ece")
BINS = 10
_STREAM = 4
_BLOCK = 2_000_000


@dataclass(frozen=True)
class Judged:
    """A score on some prompts, higher for correct, with what the development split decided."""

    values: Numbers
    threshold: float
    youden: float
    probabilities: Numbers


def measure(judged: Judged, labels: Flags, weights: Numbers) -> dict[str, Numbers]:
    """Every metric under each row of weights, (R, n): (R,) each. nan where a resample lacks one of the labels."""
    tp, n = cumulated(judged.values, labels, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "auroc": auroc(tp, n),
            "auprc": auprc(tp, n),
            "f1": f1(judged.values >= judged.threshold, labels, weights),
            "f1_youden": f1(judged.values >= judged.youden, labels, weights),
            "prr": prr(tp, n),
            "ece": ece(judged.probabilities, labels, weights),
        }


def plain(values: Numbers, labels: Flags) -> float:
    """AUROC of the prompts as they are."""
    return float(auroc(*cumulated(values, labels, np.ones((1, len(labels)))))[0])


def cumulated(values: Numbers, labels: Flags, weights: Numbers) -> tuple[Numbers, Numbers]:
    """TP and n at the end of each run of ties, from the most confident prompt down; (R, runs) each."""
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    sorted_weights = weights[:, order]
    n = np.cumsum(sorted_weights, axis=1)[:, ends]
    tp = np.cumsum(sorted_weights * labels[order], axis=1)[:, ends]
    return tp, n


def auroc(tp: Numbers, n: Numbers) -> Numbers:
    """By trapezoids: a tie counts half."""
    fp = n - tp
    area = (_steps(fp) * (tp - _steps(tp) / 2)).sum(axis=1)
    found: Numbers = area / (tp[:, -1] * fp[:, -1])
    return found


def auprc(tp: Numbers, n: Numbers) -> Numbers:
    """Average precision."""
    precision = np.where(n > 0, tp / np.where(n > 0, n, 1.0), 0.0)
    found: Numbers = (_steps(tp) * precision).sum(axis=1) / tp[:, -1]
    return found


def prr(tp: Numbers, n: Numbers) -> Numbers:
    """Within a run of ties prompts are kept in random order: TP grows in a straight line from t0 to t1 as n goes from
    n0 to n1, and the integral of TP / n is slope (n1 - n0) + (t0 - slope n0) log(n1 / n0)."""
    steps, widths = _steps(tp), _steps(n)
    t0, n0 = tp - steps, n - widths
    slope = np.where(widths > 0, steps / np.where(widths > 0, widths, 1.0), 0.0)
    ratio = np.where(n0 > 0, n / np.where(n0 > 0, n0, 1.0), 1.0)
    area = (slope * widths + (t0 - slope * n0) * np.log(ratio)).sum(axis=1)
    correct, total = tp[:, -1], n[:, -1]
    found: Numbers = (area - correct) / (correct * np.log(total / correct))
    return found


def f1(chosen: Flags, labels: Flags, weights: Numbers) -> Numbers:
    """2 TP / (predicted correct + truly correct)."""
    tp = weights @ (chosen & labels)
    found: Numbers = 2 * tp / (weights @ chosen.astype(float) + weights @ labels.astype(float))
    return found


def ece(probabilities: Numbers, labels: Flags, weights: Numbers) -> Numbers:
    """sum over bins of |weight of the correct - sum of probabilities| over all weight."""
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = np.zeros((len(labels), BINS))
    gaps[np.arange(len(labels)), bins] = labels - probabilities
    found: Numbers = np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)
    return found


def log_loss(probabilities: Numbers, labels: Flags, weights: Numbers) -> Numbers:
    """Mean of -log of the probability given to what was true."""
    given = np.clip(np.where(labels, probabilities, 1 - probabilities), 1e-12, 1.0)
    found: Numbers = -(weights @ np.log(given)) / weights.sum(axis=1)
    return found


def resamples(labels: Flags, clusters: Sequence[str] | None, count: int, seed: int) -> Iterator[Numbers]:
    """Weights of `count` bootstrap resamples, in blocks of bounded size.

    Prompts are drawn with replacement within each label, so that every resample has both. With clusters whole clusters
    are drawn, whatever labels they hold: prompts of one relation are not independent.
    """
    draw = np.random.default_rng([seed, _STREAM])
    block = max(1, _BLOCK // len(labels))
    strata = [np.flatnonzero(labels), np.flatnonzero(~labels)]
    if clusters is not None:
        names, cluster = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    for start in range(0, count, block):
        rows = min(block, count - start)
        if clusters is not None:
            yield _counts(draw, rows, len(names))[:, cluster]
        else:
            weights = np.empty((rows, len(labels)))
            for members in strata:
                weights[:, members] = _counts(draw, rows, len(members))
            yield weights


def interval(samples: Numbers, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval, leaving out resamples without a value."""
    known = samples[np.isfinite(samples)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def two_sided(samples: Numbers) -> float:
    """Bootstrap p-value of a difference being 0: twice the smaller tail, never below what the resamples can show."""
    known = samples[np.isfinite(samples)]
    tail = min(int((known <= 0).sum()), int((known >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (len(known) + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the k-th smallest of m times m - k + 1, never below the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in p_values}


def _steps(cumulative: Numbers) -> Numbers:
    return np.diff(cumulative, axis=1, prepend=0.0)


def _counts(draw: np.random.Generator, rows: int, size: int) -> Numbers:
    """How often each of `size` things is drawn in `size` draws with replacement, (rows, size)."""
    drawn = draw.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size).astype(float)
