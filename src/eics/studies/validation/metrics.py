"""Metrics of how well a score separates correct (positive) from wrong prompts, for many bootstrap resamples at once.

A resample gives each prompt a weight: how often it was drawn. The order of the scores does not depend on the weights,
so every metric is computed from cumulative weights along that order; scikit-learn would sort again for each resample.
With TP and n the weights of correct and of all prompts from the most confident one down to some rank (ties together),
P and N the total weights of correct and wrong prompts:

    AUROC  area under TP / P over FP / N
    AUPRC  average precision: the sum of the steps of TP / P times TP / n
    PRR    prediction rejection ratio (A - P/(P+N)) / (A* - P/(P+N)): A is the mean accuracy TP / n over all kept
           fractions, A* the same for an oracle that rejects every wrong prompt first
    F1     at a given threshold
    ECE    of given probabilities, in 10 bins of equal width
"""

from dataclasses import dataclass

import numpy as np

from eics.studies.statistics import Flags, Numbers

METRICS = ("auroc", "auprc", "f1", "f1_youden", "prr", "ece")
BINS = 10


@dataclass(frozen=True)
class Judged:
    """A score on some prompts, oriented so that higher means correct, with the decisions of the development split."""

    values: Numbers
    threshold: float
    youden: float
    probabilities: Numbers


def measure(judged: Judged, labels: Flags, weights: Numbers) -> dict[str, Numbers]:
    """Every metric under each row of weights, (R, n): (R,) each. nan for a resample that lacks one of the labels."""
    tp, n = cumulative(judged.values, labels, weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "auroc": auroc(tp, n),
            "auprc": auprc(tp, n),
            "f1": f1(judged.values >= judged.threshold, labels, weights),
            "f1_youden": f1(judged.values >= judged.youden, labels, weights),
            "prr": prr(tp, n),
            "ece": ece(judged.probabilities, labels, weights),
        }


def plain_auroc(values: Numbers, labels: Flags) -> float:
    """AUROC without resampling; an exact quotient of counts, so that 0.5 is exactly 0.5."""
    return float(auroc(*cumulative(values, labels, np.ones((1, len(labels)))))[0])


def cumulative(values: Numbers, labels: Flags, weights: Numbers) -> tuple[Numbers, Numbers]:
    """TP and n after each group of tied prompts, from the most confident down; (R, groups) each."""
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(order) - 1)
    sorted_weights = weights[:, order]
    n = np.cumsum(sorted_weights, axis=1)[:, ends]
    tp = np.cumsum(sorted_weights * labels[order], axis=1)[:, ends]
    return tp, n


def auroc(tp: Numbers, n: Numbers) -> Numbers:
    """By the trapezoid rule: a tie counts half."""
    fp = n - tp
    area = (_steps(fp) * (tp - _steps(tp) / 2)).sum(axis=1)
    result: Numbers = area / (tp[:, -1] * fp[:, -1])
    return result


def auprc(tp: Numbers, n: Numbers) -> Numbers:
    """Average precision."""
    precision = np.where(n > 0, tp / np.where(n > 0, n, 1.0), 0.0)
    result: Numbers = (_steps(tp) * precision).sum(axis=1) / tp[:, -1]
    return result


def prr(tp: Numbers, n: Numbers) -> Numbers:
    """Tied prompts are kept in random order: TP grows linearly from t0 to t1 as n goes from n0 to n1, so that the
    integral of TP / n is slope (n1 - n0) + (t0 - slope n0) log(n1 / n0)."""
    steps, widths = _steps(tp), _steps(n)
    t0, n0 = tp - steps, n - widths
    slope = np.where(widths > 0, steps / np.where(widths > 0, widths, 1.0), 0.0)
    ratio = np.where(n0 > 0, n / np.where(n0 > 0, n0, 1.0), 1.0)
    area = (slope * widths + (t0 - slope * n0) * np.log(ratio)).sum(axis=1)
    correct, total = tp[:, -1], n[:, -1]
    result: Numbers = (area - correct) / (correct * np.log(total / correct))
    return result


def f1(chosen: Flags, labels: Flags, weights: Numbers) -> Numbers:
    """2 TP / (predicted correct + truly correct)."""
    tp = weights @ (chosen & labels)
    result: Numbers = 2 * tp / (weights @ chosen.astype(float) + weights @ labels.astype(float))
    return result


def ece(probabilities: Numbers, labels: Flags, weights: Numbers) -> Numbers:
    """Sum over bins of |weight of correct prompts - sum of probabilities|, divided by the total weight."""
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    gaps = np.zeros((len(labels), BINS))
    gaps[np.arange(len(labels)), bins] = labels - probabilities
    result: Numbers = np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)
    return result


def log_loss(probabilities: Numbers, labels: Flags, weights: Numbers) -> Numbers:
    """Mean of minus the log of the probability given to the true label."""
    of_label = np.clip(np.where(labels, probabilities, 1 - probabilities), 1e-12, 1.0)
    result: Numbers = -(weights @ np.log(of_label)) / weights.sum(axis=1)
    return result


def _steps(cumulative: Numbers) -> Numbers:
    return np.diff(cumulative, axis=1, prepend=0.0)
