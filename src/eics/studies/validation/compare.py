"""Each score on the test split, with intervals, against max-probability and the strongest self-deception baseline.

The AUROC within groups of similar prompts removes whatever the grouping itself says about the labels:

    share of pairs (correct i, wrong j) in one group with s_i > s_j, ties counting half

Groups are prompts with the same predicted token, the same length, or the same value of the chosen field. A score that
is a function of the grouping alone has exactly 0.5 here, however well it separates overall: each such pair is a tie. A
regression on the groups' shares of correct prompts only removes what the development split is large enough to estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eics.studies.statistics import Flags, Indices, Interval, Numbers, holm, stratified_weights, two_sided, wins
from eics.studies.validation.columns import BY_NAME, KINDS, REFERENCE, SUSPECT, Columns, Kind
from eics.studies.validation.metrics import METRICS, Judged, measure, plain_auroc

SIGNIFICANCE = 0.05
"""Corrected p-values below this count as evidence."""

LEAST_PAIRS = 20
"""Pairs below which a grouping is not reported."""

MOST_PAIRS = 20_000
"""Pairs above which a random subset is used: the cost of intervals grows with their number."""

_STREAM = 5
_BLOCK = 2_000_000  # pair weights in memory at once


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
    p_chance: float
    difference: Interval | None
    p_value: float | None
    beyond_suspects: Interval | None

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
class WithinGroup:
    """One grouping: its number of pairs, and each score's AUROC over them."""

    pairs: int
    auroc: dict[str, Interval]


def compare(columns: Columns, *, resamples: int, seed: int) -> dict[str, Result]:
    """Decides on development, measures on test; every score on the same resamples of the same test prompts."""
    names = [kind.name for kind in KINDS if kind.name in columns.values]
    decisions = {name: decide(columns, name) for name in names}
    judged = [_judge(columns, name, decisions[name]) for name in names]
    labels = columns.labels[columns.test]

    def measure_all(weights: Numbers) -> Numbers:
        """(scores, metrics, R)."""
        return np.array([list(measure(score, labels, weights).values()) for score in judged])

    exact = dict(zip(names, measure_all(np.ones((1, len(labels))))[..., 0], strict=True))
    blocks = stratified_weights(labels, columns.test_clusters, resamples, seed)
    samples = dict(zip(names, np.concatenate([measure_all(block) for block in blocks], axis=-1), strict=True))
    areas = {name: by_metric[METRICS.index("auroc")] for name, by_metric in samples.items()}

    def auroc_difference(name: str, other: str) -> Interval | None:
        """Paired: both on the same resamples."""
        if name == other:
            return None
        value = exact[name] - exact[other]
        return Interval.of(value[METRICS.index("auroc")], areas[name] - areas[other])

    families = {name: BY_NAME[name].family for name in names}
    suspect = strongest_suspect(decisions)
    p_value = holm({name: two_sided(areas[name] - areas[REFERENCE]) for name in names if name != REFERENCE})
    p_chance: dict[str, float] = {}
    for family in dict.fromkeys(families.values()):  # against chance, each family has its own correction
        p_chance |= holm({name: two_sided(areas[name] - 0.5) for name in names if families[name] == family})
    return {
        name: Result(
            name=name,
            decision=decisions[name],
            metrics={m: Interval.of(*pair) for m, *pair in zip(METRICS, exact[name], samples[name], strict=True)},
            distinct=len(np.unique(columns.values[name])),
            length_correlation=_correlation(columns, name, "length"),
            confidence_correlation=_correlation(columns, name, REFERENCE),
            p_chance=p_chance[name],
            difference=auroc_difference(name, REFERENCE),
            p_value=p_value.get(name),
            beyond_suspects=None if families[name] == SUSPECT else auroc_difference(name, suspect),
        )
        for name in names
    }


def strongest_suspect(decisions: dict[str, Decision]) -> str:
    """The self-deception baseline with the best AUROC on development."""
    return max((n for n in decisions if BY_NAME[n].family == SUSPECT), key=lambda name: decisions[name].auroc)


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


def _correlation(columns: Columns, name: str, other: str) -> float | None:
    """Spearman's correlation over all prompts; None if either column is constant."""
    from scipy.stats import spearmanr

    x, y = columns.values[name], columns.values[other]
    if name == other or len(np.unique(x)) < 2 or len(np.unique(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)


def within_groups(columns: Columns, scores: dict[str, Result], *, resamples: int, seed: int) -> dict[str, WithinGroup]:
    """AUROC of every score in its development direction, by grouping; groupings with few pairs are left out."""
    test, labels = columns.test, columns.labels[columns.test]
    groupings: dict[str, Sequence[object]] = {
        "predicted token": columns.predicted,
        "length": columns.values["length"].tolist(),
    }
    if columns.groups is not None:
        groupings["group"] = columns.groups
    directed = {name: score.decision.sign * columns.values[name][test] for name, score in scores.items()}
    results = {}
    for what, values in groupings.items():
        correct, wrong = _pairs([values[index] for index in np.flatnonzero(test).tolist()], labels, seed)
        if len(correct) < LEAST_PAIRS:
            continue
        won = np.column_stack([wins(v[correct], v[wrong]) for v in directed.values()])
        weights = stratified_weights(labels, columns.test_clusters, resamples, seed)
        samples = np.concatenate([_shares(won, correct, wrong, block) for block in weights])
        [exact] = _shares(won, correct, wrong, np.ones((1, len(labels))))
        auroc = {name: Interval.of(exact[i], samples[:, i]) for i, name in enumerate(directed)}
        results[what] = WithinGroup(len(correct), auroc)
    return results


def _pairs(groups: Sequence[object], labels: Flags, seed: int) -> tuple[Indices, Indices]:
    """Indices of the correct and of the wrong prompt of each pair."""
    members: dict[object, tuple[list[int], list[int]]] = {}
    for index, (group, label) in enumerate(zip(groups, labels.tolist(), strict=True)):
        members.setdefault(group, ([], []))[0 if label else 1].append(index)
    blocks = [np.array(np.meshgrid(right, false)).reshape(2, -1) for right, false in members.values()]
    correct, wrong = np.concatenate([np.empty((2, 0)), *blocks], axis=1).astype(np.int64)
    if len(correct) > MOST_PAIRS:
        subset = np.random.default_rng([seed, _STREAM]).permutation(len(correct))[:MOST_PAIRS]
        correct, wrong = correct[subset], wrong[subset]
    return correct, wrong


def _shares(won: Numbers, correct: Indices, wrong: Indices, weights: Numbers) -> Numbers:
    """The share of pairs won under each row of weights, (R, scores); nan if a resample has no pair."""
    shares = []
    for rows in np.array_split(weights, max(1, weights.shape[0] * len(correct) // _BLOCK)):
        pairs = rows[:, correct] * rows[:, wrong]
        total = pairs.sum(axis=1, keepdims=True)
        shares.append(np.where(total > 0, pairs @ won / np.where(total > 0, total, 1.0), np.nan))
    return np.concatenate(shares)
