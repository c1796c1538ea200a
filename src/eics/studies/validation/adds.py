"""Does a score add to what is known without it? Nested logistic regressions, fitted on development, compared on test.

    base        log-odds B from all features of the base
    without     logit p = a + b B
    with        logit p = a + b B + c score

B is out of fold on development, so that b learns how far the base can be trusted: a base that fits development too
closely would else gain from any score that only takes weight away from it. A base that does worse on test than the
share of correct development prompts, given to all, is replaced by that share: nothing is gained by mending what was
better left out. A gain is how much the log-loss falls on the
test split (in nats a prompt) and the AUROC rises, with paired bootstrap intervals. A score without anything to add has
an expected gain below 0. Every feature enters as its rank among the development values; max-probability also as it is,
so that a score that only bends it has nothing to add.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from eics.studies.validation.columns import BASELINE, BY_NAME, EICS, KINDS, REFERENCE, Columns
from eics.studies.validation.compare import LEVEL, Estimate
from eics.studies.validation.fitted import STRENGTHS, fitted, regression
from eics.studies.validation.metrics import auroc, cumulated, holm, interval, log_loss, resamples, two_sided

Numbers = NDArray[np.float64]

BASES: dict[str, tuple[str, ...]] = {
    "max-probability": (REFERENCE,),
    "max-probability, norms, token": (REFERENCE, "norm_last", "norms_fitted", "token_fitted"),
    "all suspects": (
        REFERENCE, "norm_last", "norm_all", "norms_fitted", "token_fitted", "length", "function_word", "group_fitted",
    ),
}  # fmt: skip
"""What a score may add to, weakest first. The linear probe is not among them: it is a rival, not a confound."""

_SHARE = "share of correct prompts"
_Qualities = dict[tuple[str, str], tuple[Numbers, Numbers]]
"""Minus log-loss and AUROC, by base and added score."""


@dataclass(frozen=True)
class Gain:
    """What one score adds to one base on the test split; positive is better.

    `p_value` is that of the log-loss not changing, corrected by Holm for the scores that were tried on the base.
    """

    name: str
    base: str
    log_loss: Estimate
    auroc: Estimate
    p_value: float

    @property
    def shown(self) -> bool:
        """Whether the score lowers the log-loss beyond doubt."""
        return self.log_loss.low > 0 and self.p_value < LEVEL


def gains(columns: Columns, *, clusters: Sequence[str] | None, count: int, seed: int) -> list[Gain]:
    """What every score of the circuit adds to every base."""
    names = [k.name for k in KINDS if k.family in (EICS, BASELINE) and k.name in columns.values]
    labels = columns.labels[columns.test]
    drawn = None if clusters is None else [clusters[at] for at in np.flatnonzero(columns.test).tolist()]
    predicted: dict[tuple[str, str], Numbers] = {}
    for base, members in BASES.items():
        odds = _base(columns, [member for member in members if member in columns.values], clusters, seed)
        predicted |= {(base, name): _predicted(columns, odds, name) for name in ("", *names)}
        predicted[base, _SHARE] = np.full(len(labels), columns.labels[columns.development].mean())
    ones = np.ones((1, len(labels)))
    values = {key: _quality(one, labels, ones) for key, one in predicted.items()}
    blocks: dict[tuple[str, str], list[tuple[Numbers, Numbers]]] = {key: [] for key in predicted}
    for weights in resamples(labels, drawn, count, seed):
        for key, one in predicted.items():
            blocks[key].append(_quality(one, labels, weights))
    samples = {
        key: (np.concatenate([b[0] for b in some]), np.concatenate([b[1] for b in some]))
        for key, some in blocks.items()
    }
    return [gain for base in BASES for gain in _of_base(base, names, values, samples)]


def _of_base(base: str, names: Sequence[str], values: _Qualities, samples: _Qualities) -> list[Gain]:
    without = max(("", _SHARE), key=lambda name: values[base, name][0][0])

    def changes(name: str, metric: int, of: _Qualities) -> Numbers:
        return of[base, name][metric] - of[base, without][metric]

    adjusted = holm({name: two_sided(changes(name, 0, samples)) for name in names})

    def estimate(name: str, metric: int) -> Estimate:
        return Estimate(float(changes(name, metric, values)[0]), *interval(changes(name, metric, samples)))

    return [Gain(name, base, estimate(name, 0), estimate(name, 1), adjusted[name]) for name in names]


def _quality(probabilities: Numbers, labels: NDArray[np.bool_], weights: Numbers) -> tuple[Numbers, Numbers]:
    """Minus the log-loss, and AUROC."""
    with np.errstate(divide="ignore", invalid="ignore"):
        area = auroc(*cumulated(probabilities, labels, weights))
    return -log_loss(probabilities, labels, weights), area


def _base(columns: Columns, names: Sequence[str], groups: Sequence[str] | None, seed: int) -> Numbers:
    """Log-odds of the base for every prompt, out of fold on development."""
    features = np.column_stack([feature for name in names for feature in _features(columns, name)])
    return fitted(columns, [regression(features, columns.labels, strength) for strength in STRENGTHS], groups, seed)


def _predicted(columns: Columns, base: Numbers, name: str) -> Numbers:
    """Probabilities on the test split, from the base's log-odds and perhaps a score."""
    from sklearn.linear_model import LogisticRegression

    features = np.column_stack([base, *(_features(columns, name)[:1] if name else ())])
    # Next to no ridge: it would weigh less on a coefficient that two alike features share.
    nested = LogisticRegression(C=1e4, max_iter=2000)
    nested.fit(features[columns.development], columns.labels[columns.development])
    found: Numbers = expit(nested.decision_function(features[columns.test]))
    return found


def _features(columns: Columns, name: str) -> list[Numbers]:
    values = columns.values[name]
    reference = np.sort(values[columns.development])
    rank = (np.searchsorted(reference, values, "left") + np.searchsorted(reference, values, "right")) / 2
    found = [4 * (rank / len(reference) - 0.5)]  # about unit size, so that one ridge fits all
    if name == REFERENCE:
        scale = reference.std()
        found.append((values - reference.mean()) / (scale if scale > 0 else 1.0))
    return found


def title(gain: Gain) -> str:
    """What the score is called."""
    return BY_NAME[gain.name].title
