"""Does a score add to what is known without it? Nested logistic regressions.

Both are fitted on the development split and compared on the test split: one on the base alone, one on the base and the
score. A gain is how much the log-loss falls (in nats a prompt) and the AUROC rises, with paired bootstrap intervals.
Fitted baselines enter with their out-of-fold values on development, so that they do not look better than they are.
Every feature enters as its rank among the development values; max-probability also as it is, so that a score that only
bends it has nothing to add.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from eics.validation.columns import BASELINE, BY_NAME, EICS, KINDS, REFERENCE, Columns
from eics.validation.compare import LEVEL, Estimate
from eics.validation.metrics import auroc, cumulated, holm, interval, log_loss, resamples, two_sided

Numbers = NDArray[np.float64]

BASES: dict[str, tuple[str, ...]] = {
    "max-probability": (REFERENCE,),
    "max-probability, norms, token": (REFERENCE, "norm_last", "norms_fitted", "token_fitted"),
    "all suspects": (
        REFERENCE, "norm_last", "norm_all", "norms_fitted", "token_fitted", "length", "function_word", "group_fitted",
    ),
}  # fmt: skip
"""What a score may add to, weakest first. The linear probe is not among them: it is a rival, not a confound."""

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
    fitted: dict[tuple[str, str], Numbers] = {}
    for base, members in BASES.items():
        known = [member for member in members if member in columns.values]
        for name in ("", *names):
            fitted[base, name] = _predicted(columns, [*known, name] if name else known)
    ones = np.ones((1, len(labels)))
    values = {key: _quality(one, labels, ones) for key, one in fitted.items()}
    blocks: dict[tuple[str, str], list[tuple[Numbers, Numbers]]] = {key: [] for key in fitted}
    for weights in resamples(labels, drawn, count, seed):
        for key, one in fitted.items():
            blocks[key].append(_quality(one, labels, weights))
    samples = {
        key: (np.concatenate([b[0] for b in some]), np.concatenate([b[1] for b in some]))
        for key, some in blocks.items()
    }
    return [gain for base in BASES for gain in _of_base(base, names, values, samples)]


def _of_base(base: str, names: Sequence[str], values: _Qualities, samples: _Qualities) -> list[Gain]:
    def changes(name: str, metric: int, of: _Qualities) -> Numbers:
        return of[base, name][metric] - of[base, ""][metric]

    adjusted = holm({name: two_sided(changes(name, 0, samples)) for name in names})

    def estimate(name: str, metric: int) -> Estimate:
        return Estimate(float(changes(name, metric, values)[0]), *interval(changes(name, metric, samples)))

    return [Gain(name, base, estimate(name, 0), estimate(name, 1), adjusted[name]) for name in names]


def _quality(probabilities: Numbers, labels: NDArray[np.bool_], weights: Numbers) -> tuple[Numbers, Numbers]:
    """Minus the log-loss, and AUROC."""
    with np.errstate(divide="ignore", invalid="ignore"):
        area = auroc(*cumulated(probabilities, labels, weights))
    return -log_loss(probabilities, labels, weights), area


def _predicted(columns: Columns, names: Sequence[str]) -> Numbers:
    """Probabilities on the test split of a logistic regression fitted on development."""
    from sklearn.linear_model import LogisticRegression

    features = np.column_stack([feature for name in names for feature in _features(columns, name)])
    regression = LogisticRegression(C=1.0, max_iter=2000)
    regression.fit(features[columns.development], columns.labels[columns.development])
    found: Numbers = expit(regression.decision_function(features[columns.test]))
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
