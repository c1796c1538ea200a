"""Each score on the test split, with intervals, beside max-probability and beside the best of the suspects."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from eics.studies.validation.columns import BY_NAME, KINDS, REFERENCE, SUSPECT, Columns, Kind
from eics.studies.validation.metrics import METRICS, Judged, holm, interval, measure, plain, resamples, two_sided

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]


LEVEL = 0.05
"""Of a corrected p-value, below which a thing counts as shown."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"

    def excludes(self, value: float) -> bool:
        """Whether the interval lies on one side of a value."""
        return self.low > value or self.high < value


@dataclass(frozen=True)
class Decision:
    """What the development split decided on a score: direction, thresholds of the directed score; its AUROC there."""

    sign: int
    threshold: float
    youden: float
    auroc: float


@dataclass(frozen=True)
class Result:
    """One score: decided on development, measured on test.

    `p_chance` is the p-value of its AUROC being 0.5, corrected by Holm for the scores of its family. `difference` is
    its AUROC less max-probability's, `p_value` that of no difference, corrected by Holm for all scores compared.
    `beyond_suspects` is its AUROC less that of the suspect which was best on development.
    `length_correlation` and `confidence_correlation` are rank correlations with prompt length and max-probability.
    """

    name: str
    decision: Decision
    metrics: dict[str, Estimate]
    distinct: int
    length_correlation: float | None
    confidence_correlation: float | None
    p_chance: float = 1.0
    difference: Estimate | None = None
    p_value: float | None = None
    beyond_suspects: Estimate | None = None

    @property
    def kind(self) -> Kind:
        """What it is."""
        return BY_NAME[self.name]

    @property
    def auroc(self) -> Estimate:
        """On the test split."""
        return self.metrics["auroc"]

    @property
    def tells(self) -> bool:
        """Whether it tells correct from wrong, in development's direction and corrected for the scores tried."""
        return self.auroc.low > 0.5 and self.p_chance < LEVEL


@dataclass(frozen=True)
class Comparison:
    """All results, the suspect that was best on development, and how intervals were made."""

    results: dict[str, Result]
    suspect: str
    resamples: int
    clustered: bool


def compare(columns: Columns, *, clusters: Sequence[str] | None, count: int, seed: int) -> Comparison:
    """Decides on development, measures on test; every score on the same resamples of the same test prompts."""
    names = [kind.name for kind in KINDS if kind.name in columns.values]
    decisions = {name: decide(columns, name) for name in names}
    judged = {name: _judged(columns, name, decisions[name]) for name in names}
    labels = columns.labels[columns.test]
    ones = np.ones((1, len(labels)))
    values = {name: {m: float(v[0]) for m, v in measure(judged[name], labels, ones).items()} for name in names}
    some = None if clusters is None else [clusters[at] for at in np.flatnonzero(columns.test).tolist()]
    samples = _samples(judged, labels, some, count, seed)
    suspects = [name for name in names if BY_NAME[name].family == SUSPECT]
    suspect = max(suspects, key=lambda name: decisions[name].auroc)
    results = {
        name: Result(
            name=name,
            decision=decisions[name],
            metrics={m: Estimate(values[name][m], *interval(samples[name][m])) for m in METRICS},
            distinct=len(np.unique(columns.values[name])),
            length_correlation=_correlation(columns, name, "length"),
            confidence_correlation=_correlation(columns, name, REFERENCE),
            difference=_difference(name, REFERENCE, values, samples),
            beyond_suspects=None if name in suspects else _difference(name, suspect, values, samples),
        )
        for name in names
    }
    return Comparison(_corrected(results, samples), suspect, count, clusters is not None)


def decide(columns: Columns, name: str) -> Decision:
    """Direction by AUROC, thresholds by best F1 and by Youden's J, all on the development split."""
    values, labels = columns.values[name][columns.development], columns.labels[columns.development]
    area = plain(values, labels)
    sign = 1 if area >= 0.5 else -1
    return Decision(sign, *thresholds(sign * values, labels), max(area, 1 - area))


def thresholds(values: Numbers, labels: Flags) -> tuple[float, float]:
    """From which value on to call a prompt correct: best F1, and best true less false positive rate.

    A cut lies halfway between two values; of equally good ones the highest is taken.
    """
    from sklearn.metrics import roc_curve

    false, true, cuts = roc_curve(labels, values, drop_intermediate=False)
    correct, wrong = labels.sum(), (~labels).sum()
    tp, fp = true[1:] * correct, false[1:] * wrong
    f1, youden = 2 * tp / (tp + fp + correct), true[1:] - false[1:]
    found = []
    for quality in (f1, youden):
        at = int(np.argmax(np.round(quality, 12)))
        cut, below = cuts[1 + at], cuts[2 + at] if at + 2 < len(cuts) else -np.inf
        found.append(float((cut + below) / 2 if np.isfinite(below) else cut))
    return found[0], found[1]


def _judged(columns: Columns, name: str, decision: Decision) -> Judged:
    """The directed score of the test prompts, with probabilities by isotonic regression on development."""
    from sklearn.isotonic import IsotonicRegression

    directed = decision.sign * columns.values[name]
    isotonic = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    isotonic.fit(directed[columns.development], columns.labels[columns.development].astype(float))
    test = directed[columns.test]
    return Judged(test, decision.threshold, decision.youden, isotonic.predict(test).astype(float))


def _samples(
    judged: dict[str, Judged], labels: Flags, clusters: list[str] | None, count: int, seed: int
) -> dict[str, dict[str, Numbers]]:
    blocks: dict[str, list[dict[str, Numbers]]] = {name: [] for name in judged}
    for weights in resamples(labels, clusters, count, seed):
        for name, one in judged.items():
            blocks[name].append(measure(one, labels, weights))
    return {name: {m: np.concatenate([b[m] for b in found]) for m in METRICS} for name, found in blocks.items()}


def _difference(
    name: str, other: str, values: dict[str, dict[str, float]], samples: dict[str, dict[str, Numbers]]
) -> Estimate | None:
    """The paired difference of AUROC: the same resamples of both."""
    if name == other:
        return None
    value = values[name]["auroc"] - values[other]["auroc"]
    return Estimate(value, *interval(samples[name]["auroc"] - samples[other]["auroc"]))


def _corrected(results: dict[str, Result], samples: dict[str, dict[str, Numbers]]) -> dict[str, Result]:
    reference = samples[REFERENCE]["auroc"]
    raw = {name: two_sided(samples[name]["auroc"] - reference) for name in results if name != REFERENCE}
    adjusted, chance = holm(raw), _above_chance(results, samples)
    return {
        name: replace(result, p_value=adjusted.get(name), p_chance=chance[name]) for name, result in results.items()
    }


def _above_chance(results: dict[str, Result], samples: dict[str, dict[str, Numbers]]) -> dict[str, float]:
    """The circuit's own scores are one family of hypotheses, each other kind of score another."""
    found: dict[str, float] = {}
    for family in dict.fromkeys(result.kind.family for result in results.values()):
        members = [name for name, result in results.items() if result.kind.family == family]
        found |= holm({name: two_sided(samples[name]["auroc"] - 0.5) for name in members})
    return found


def _correlation(columns: Columns, name: str, other: str) -> float | None:
    """Spearman's, over all prompts; None where either does not vary."""
    from scipy.stats import spearmanr

    one, two = columns.values[name], columns.values[other]
    if name == other or len(np.unique(one)) < 2 or len(np.unique(two)) < 2:
        return None
    return float(spearmanr(one, two).statistic)
