"""Does a score add to what is known without it? Nested logistic regressions, fitted on development, compared on test.

    base        log-odds B from all features of the base
    without     logit p = a + b B
    with        logit p = a + b B + c score

On development, B is out of fold, so that b learns how far the base can be trusted: an overfitted base would otherwise
gain from any score that merely takes weight away from it. A base that does worse on test than the constant prediction
of the development share of correct prompts is replaced by that constant: repairing a harmful base is no gain. The gain
is the fall of the log-loss (in nats per prompt) and the rise of the AUROC on the test split, with paired bootstrap
intervals; a score with nothing to add has an expected gain below 0. Every feature enters as its rank among the
development values; max-probability also enters as it is, so that a monotone transform of it has nothing to add.
"""

from dataclasses import dataclass
from itertools import chain

import numpy as np
from scipy.special import expit

from eics.studies.statistics import Flags, Interval, Numbers, holm, stratified_weights, two_sided
from eics.studies.validation.columns import BASELINE, BY_NAME, EICS, KINDS, REFERENCE, Columns
from eics.studies.validation.compare import SIGNIFICANCE
from eics.studies.validation.fitted import STRENGTHS, fitted, regression
from eics.studies.validation.metrics import auroc, cumulative, log_loss

BASES: dict[str, tuple[str, ...]] = {
    "max-probability": (REFERENCE,),
    "max-probability, norms, token": (REFERENCE, "norm_last", "norms_fitted", "token_fitted"),
    "all suspects": (
        REFERENCE, "norm_last", "norm_all", "norms_fitted", "token_fitted", "length", "function_word", "group_fitted",
    ),
}  # fmt: skip
"""What a score may add to, weakest first. The linear probe is not among them: it is a rival, not a confound."""


@dataclass(frozen=True)
class Gain:
    """What one score adds to one base on the test split; positive is better.

    `p_value` tests whether the log-loss changes at all, Holm-corrected for the scores that were tried on the base.
    """

    name: str
    base: str
    log_loss: Interval
    auroc: Interval
    p_value: float

    @property
    def title(self) -> str:
        return BY_NAME[self.name].title

    @property
    def shown(self) -> bool:
        """Whether there is evidence that the score lowers the log-loss."""
        return self.log_loss.low > 0 and self.p_value < SIGNIFICANCE


def gains(columns: Columns, *, resamples: int, seed: int) -> list[Gain]:
    """What every score of the circuit adds to every base."""
    names = [k.name for k in KINDS if k.family in (EICS, BASELINE) and k.name in columns.values]
    labels = columns.labels[columns.test]
    constant = np.full(len(labels), columns.labels[columns.development].mean())
    ones, results = np.ones((1, len(labels))), []
    for base, members in BASES.items():
        features = np.column_stack([f for m in members if m in columns.values for f in _features(columns, m)])
        fits = [regression(features, columns.labels, strength) for strength in STRENGTHS]
        odds = fitted(columns, fits, columns.clusters, seed)  # out of fold on development
        bases = [_predict(columns, odds, ""), constant]
        without = max(bases, key=lambda p: _quality(p, labels, ones)[0, 0])
        predictions = np.stack([without, *(_predict(columns, odds, name) for name in names)])
        blocks = chain([ones], stratified_weights(labels, columns.test_clusters, resamples, seed))
        qualities = [np.stack([_quality(p, labels, weights) for p in predictions]) for weights in blocks]
        first, *rest = np.concatenate(qualities, axis=-1)  # each (2, 1 + resamples): the value, then its resamples
        changes = {name: quality - first for name, quality in zip(names, rest, strict=True)}
        p_values = holm({name: two_sided(change[0, 1:]) for name, change in changes.items()})
        for name, change in changes.items():
            loss, area = (Interval.of(values[0], values[1:]) for values in change)
            results.append(Gain(name, base, loss, area, p_values[name]))
    return results


def _quality(probabilities: Numbers, labels: Flags, weights: Numbers) -> Numbers:
    """Minus log-loss, and AUROC, under each row of weights, (2, R)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        area = auroc(*cumulative(probabilities, labels, weights))
    return np.stack([-log_loss(probabilities, labels, weights), area])


def _predict(columns: Columns, base: Numbers, name: str) -> Numbers:
    """Probabilities on the test split, from the base's log-odds and a score, if one is named."""
    from sklearn.linear_model import LogisticRegression

    features = np.column_stack([base, *(_features(columns, name)[:1] if name else ())])
    # Almost no ridge penalty: a stronger one would favour a coefficient shared by two similar features.
    nested = LogisticRegression(C=1e4, max_iter=2000)
    nested.fit(features[columns.development], columns.labels[columns.development])
    probabilities: Numbers = expit(nested.decision_function(features[columns.test]))
    return probabilities


def _features(columns: Columns, name: str) -> list[Numbers]:
    values = columns.values[name]
    reference = np.sort(values[columns.development])
    rank = (np.searchsorted(reference, values, "left") + np.searchsorted(reference, values, "right")) / 2
    features = [4 * (rank / len(reference) - 0.5)]  # about unit variance, so that one ridge strength suits all
    if name == REFERENCE:
        scale = reference.std()
        features.append((values - reference.mean()) / (scale if scale > 0 else 1.0))
    return features
