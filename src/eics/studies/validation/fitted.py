"""What is fitted on the development split: alpha, and the baselines that learn.

A fitted score of a development prompt comes from a fit without its fold, so that the direction and the thresholds
which are chosen from it are honest; a test prompt's comes from the fit on all of the development split.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from eics.studies.validation.columns import Columns
from eics.studies.validation.measure import ALPHAS
from eics.studies.validation.metrics import plain

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]
Fit = Callable[[NDArray[np.int64], NDArray[np.int64]], Numbers]

FOLDS = 5
SMOOTHING = 2.0
"""Prompts' worth of the overall share that a category starts with."""

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse ridge strengths from which a regression on many features chooses, by its log-loss out of fold."""

_ITERATIONS = 2000


def folds(labels: Flags, groups: Sequence[str] | None, seed: int) -> list[Fold]:
    """Five folds, both labels in each as far as possible; groups are not torn where they are given."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if groups is None or len(set(groups)) < 2:
        return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels))
    count = min(FOLDS, len(set(groups)))
    return list(StratifiedGroupKFold(count, shuffle=True, random_state=seed).split(labels, labels, groups))


def with_fitted(columns: Columns, *, torn: bool, seed: int) -> Columns:
    """The columns with those that are fitted; `torn`: groups may be on both sides of the split, and of folds."""
    values = dict(columns.values)
    missing = dict(columns.missing)
    at, alpha = choose_alpha(columns.by_alpha[columns.development], columns.labels[columns.development])
    values["eics_paper_alpha"] = columns.by_alpha[:, at]
    fits = {
        "norms_fitted": [regression(columns.norms, columns.labels, strength) for strength in STRENGTHS],
        "probe_fitted": [regression(columns.final, columns.labels, strength) for strength in STRENGTHS],
        "token_fitted": [_shares(columns.predicted, columns.labels)],
    }
    if columns.groups is None:
        missing["group_fitted"] = "needs --matched or --group"
    else:
        fits["group_fitted"] = [_shares(columns.groups, columns.labels)]
    values |= {name: fitted(columns, some, None if torn else columns.groups, seed) for name, some in fits.items()}
    return replace(columns, values=values, missing=missing, alpha=alpha)


def choose_alpha(by_alpha: Numbers, labels: Flags) -> tuple[int, float]:
    """The alpha whose scores tell the labels apart best, in either direction; of equals the one nearest to 1."""
    strength = [abs(plain(column, labels) - 0.5) for column in by_alpha.T]
    nearness = [abs(np.log(alpha)) for alpha in ALPHAS]
    best = min(range(len(ALPHAS)), key=lambda at: (-round(strength[at], 12), nearness[at]))
    return best, ALPHAS[best]


def fitted(columns: Columns, fits: Sequence[Fit], groups: Sequence[str] | None, seed: int) -> Numbers:
    """Out of fold on development, by a fit on all of development on test; of several fits the one that loses least."""
    development, test = np.flatnonzero(columns.development), np.flatnonzero(columns.test)
    some = None if groups is None else [groups[at] for at in development.tolist()]
    cuts = folds(columns.labels[development], some, seed)
    held_out = [_held_out(fit, development, cuts) for fit in fits]
    truth = np.where(columns.labels[development], 1.0, -1.0)
    best = int(np.argmin([np.logaddexp(0.0, -truth * odds).mean() for odds in held_out]))
    found = np.empty(len(columns.labels))
    found[development], found[test] = held_out[best], fits[best](development, test)
    return found


def _held_out(fit: Fit, members: NDArray[np.int64], cuts: Sequence[Fold]) -> Numbers:
    found = np.empty(len(members))
    for train, held in cuts:
        found[held] = fit(members[train], members[held])
    return found


def _shares(categories: Sequence[int | str], labels: Flags) -> Fit:
    """Log-odds of the share correct among the training prompts of the same category, drawn to the overall share where
    they are few."""
    listed = np.asarray(categories)

    def fit(train: NDArray[np.int64], held: NDArray[np.int64]) -> Numbers:
        overall = labels[train].mean()
        names, inverse = np.unique(listed[train], return_inverse=True)
        count = np.bincount(inverse, minlength=len(names))
        correct = np.bincount(inverse, weights=labels[train].astype(float), minlength=len(names))
        share = dict(zip(names.tolist(), (correct + SMOOTHING * overall) / (count + SMOOTHING), strict=True))
        known = np.array([share.get(category, overall) for category in listed[held].tolist()])
        found: Numbers = logit(np.clip(known, 1e-3, 1 - 1e-3))
        return found

    return fit


def regression(features: Numbers, labels: Flags, strength: float) -> Fit:
    """Log-odds of a ridge logistic regression on standardized features."""

    def fit(train: NDArray[np.int64], held: NDArray[np.int64]) -> Numbers:
        from sklearn.linear_model import LogisticRegression

        if len(np.unique(labels[train])) < 2:
            return np.zeros(len(held))  # a fold of groups can lack a label: then nothing was learnt
        mean, scale = features[train].mean(axis=0), features[train].std(axis=0)
        scaled = (features - mean) / np.where(scale > 0, scale, 1.0)
        regression = LogisticRegression(C=strength, max_iter=_ITERATIONS).fit(scaled[train], labels[train])
        found: Numbers = regression.decision_function(scaled[held])
        return found

    return fit
