"""Each score on the test split, with intervals, against max-probability and the strongest self-deception baseline."""

from dataclasses import dataclass, replace

import numpy as np

from eics.studies.statistics import Flags, Interval, Numbers, holm, stratified_weights, two_sided
from eics.studies.validation.columns import BY_NAME, KINDS, REFERENCE, SUSPECT, Columns, Kind
from eics.studies.validation.metrics import METRICS, Judged, measure, plain_auroc

SIGNIFICANCE = 0.05
"""Corrected p-values below this count as evidence."""


@dataclass(frozen=True)
class Decision:
    """What the development split decides for a score: direction, thresholds of the directed score, its AUROC there."""

    sign: int
    threshold: float
    youden: float
    auroc: float


@dataclass(frozen=True)
class Result:
    """One score: decided on development, measured on test.

    `p_chance` is the p-value of AUROC 0.5, Holm-corrected for the scores of the same family. `difference` is the AUROC
    less that of max-probability; `p_value` is that of no difference, Holm-corrected for all scores compared.
    `beyond_suspects` is the AUROC less that of the suspect that was best on development. `length_correlation` and
    `confidence_correlation` are rank correlations with prompt length and max-probability.
    """

    name: str
    decision: Decision
    metrics: dict[str, Interval]
    distinct: int
    length_correlation: float | None
    confidence_correlation: float | None
    p_chance: float = 1.0
    difference: Interval | None = None
    p_value: float | None = None
    beyond_suspects: Interval | None = None

    @property
    def kind(self) -> Kind:
        return BY_NAME[self.name]

    @property
    def auroc(self) -> Interval:
        return self.metrics["auroc"]

    @property
    def separates(self) -> bool:
        """Whether it separates correct from wrong in its development direction, after correction."""
        return self.auroc.low > 0.5 and self.p_chance < SIGNIFICANCE


@dataclass(frozen=True)
class Comparison:
    """All results, the suspect that was best on development, and how intervals were computed."""

    results: dict[str, Result]
    suspect: str
    resamples: int
    clustered: bool


Samples = dict[str, dict[str, Numbers]]
"""Resampled values by score and metric."""


def compare(columns: Columns, *, resamples: int, seed: int) -> Comparison:
    """Decides on development, measures on test; every score on the same resamples of the same test prompts."""
    names = [kind.name for kind in KINDS if kind.name in columns.values]
    decisions = {name: decide(columns, name) for name in names}
    judged = {name: _judge(columns, name, decisions[name]) for name in names}
    labels = columns.labels[columns.test]
    ones = np.ones((1, len(labels)))
    values = {name: {m: float(v[0]) for m, v in measure(judged[name], labels, ones).items()} for name in names}
    samples = _sample(judged, labels, columns.test_clusters, resamples, seed)

    def auroc_difference(name: str, other: str) -> Interval | None:
        """Paired: both on the same resamples."""
        if name == other:
            return None
        value = values[name]["auroc"] - values[other]["auroc"]
        return Interval.of(value, samples[name]["auroc"] - samples[other]["auroc"])

    suspects = [name for name in names if BY_NAME[name].family == SUSPECT]
    suspect = max(suspects, key=lambda name: decisions[name].auroc)
    results = {
        name: Result(
            name=name,
            decision=decisions[name],
            metrics={m: Interval.of(values[name][m], samples[name][m]) for m in METRICS},
            distinct=len(np.unique(columns.values[name])),
            length_correlation=_correlation(columns, name, "length"),
            confidence_correlation=_correlation(columns, name, REFERENCE),
            difference=auroc_difference(name, REFERENCE),
            beyond_suspects=None if name in suspects else auroc_difference(name, suspect),
        )
        for name in names
    }
    return Comparison(_with_p_values(results, samples), suspect, resamples, columns.clustered)


def decide(columns: Columns, name: str) -> Decision:
    """Direction by AUROC, thresholds by best F1 and by Youden's J, all on the development split."""
    values, labels = columns.values[name][columns.development], columns.labels[columns.development]
    area = plain_auroc(values, labels)
    sign = 1 if area >= 0.5 else -1
    return Decision(sign, *thresholds(sign * values, labels), max(area, 1 - area))


def thresholds(values: Numbers, labels: Flags) -> tuple[float, float]:
    """The values from which to call a prompt correct: best F1, and best true minus false positive rate.

    A threshold lies halfway between two values; among equally good ones the highest is taken.
    """
    from sklearn.metrics import roc_curve

    false, true, cuts = roc_curve(labels, values, drop_intermediate=False)
    correct, wrong = labels.sum(), (~labels).sum()
    tp, fp = true[1:] * correct, false[1:] * wrong
    f1, youden = 2 * tp / (tp + fp + correct), true[1:] - false[1:]
    best = []
    for quality in (f1, youden):
        index = int(np.argmax(np.round(quality, 12)))
        cut, below = cuts[1 + index], cuts[2 + index] if index + 2 < len(cuts) else -np.inf
        best.append(float((cut + below) / 2 if np.isfinite(below) else cut))
    return best[0], best[1]


def _judge(columns: Columns, name: str, decision: Decision) -> Judged:
    """The directed score of the test prompts, with probabilities by isotonic regression on development."""
    from sklearn.isotonic import IsotonicRegression

    directed = decision.sign * columns.values[name]
    isotonic = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    isotonic.fit(directed[columns.development], columns.labels[columns.development].astype(float))
    test = directed[columns.test]
    return Judged(test, decision.threshold, decision.youden, isotonic.predict(test).astype(float))


def _sample(judged: dict[str, Judged], labels: Flags, clusters: list[str] | None, resamples: int, seed: int) -> Samples:
    blocks: dict[str, list[dict[str, Numbers]]] = {name: [] for name in judged}
    for weights in stratified_weights(labels, clusters, resamples, seed):
        for name, score in judged.items():
            blocks[name].append(measure(score, labels, weights))
    return {name: {m: np.concatenate([b[m] for b in parts]) for m in METRICS} for name, parts in blocks.items()}


def _with_p_values(results: dict[str, Result], samples: Samples) -> dict[str, Result]:
    """Against chance, each family of scores is its own family of hypotheses; against max-probability all are one."""
    areas = {name: by_metric["auroc"] for name, by_metric in samples.items()}
    difference = holm({name: two_sided(areas[name] - areas[REFERENCE]) for name in results if name != REFERENCE})
    chance: dict[str, float] = {}
    for family in dict.fromkeys(result.kind.family for result in results.values()):
        members = [name for name, result in results.items() if result.kind.family == family]
        chance |= holm({name: two_sided(areas[name] - 0.5) for name in members})
    return {
        name: replace(result, p_value=difference.get(name), p_chance=chance[name]) for name, result in results.items()
    }


def _correlation(columns: Columns, name: str, other: str) -> float | None:
    """Spearman's correlation over all prompts; None if either column is constant."""
    from scipy.stats import spearmanr

    x, y = columns.values[name], columns.values[other]
    if name == other or len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
