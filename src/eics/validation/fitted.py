"""What is fitted on the development split: alpha, and the baselines that learn.

A fitted score of a development prompt comes from a fit without its fold, so that the direction and the thresholds
which are chosen from it are honest; a test prompt's comes from the fit on all of the development split.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from eics.validation.columns import Columns
from eics.validation.measure import ALPHAS
from eics.validation.metrics import plain

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Fold = tuple[NDArray[np.int64], NDArray[np.int64]]
Fit = Callable[[NDArray[np.int64], NDArray[np.int64]], Numbers]

FOLDS = 5
SMOOTHING = 2.0
"""Prompts' worth of the overall share that a category starts with."""

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse ridge strengths from which a regression on many features chooses, by folds of its own prompts."""

_INNER = 3
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
    values["norms_fitted"] = _fitted(columns, _regression(columns.norms, columns.labels, seed), torn, seed)
    values["probe_fitted"] = _fitted(columns, _regression(columns.final, columns.labels, seed), torn, seed)
    values["token_fitted"] = _fitted(columns, _shares(columns.predicted, columns.labels), torn, seed)
    if columns.groups is not None:
        values["group_fitted"] = _fitted(columns, _shares(columns.groups, columns.labels), torn, seed)
    else:
        missing["group_fitted"] = "needs --matched or --group"
    return replace(columns, values=values, missing=missing, alpha=alpha)


def choose_alpha(by_alpha: Numbers, labels: Flags) -> tuple[int, float]:
    """The alpha whose scores tell the labels apart best, in either direction; of equals the one nearest to 1."""
    strength = [abs(plain(column, labels) - 0.5) for column in by_alpha.T]
    nearness = [abs(np.log(alpha)) for alpha in ALPHAS]
    best = min(range(len(ALPHAS)), key=lambda at: (-round(strength[at], 12), nearness[at]))
    return best, ALPHAS[best]


def _fitted(columns: Columns, fit: Fit, torn: bool, seed: int) -> Numbers:
    development, test = np.flatnonzero(columns.development), np.flatnonzero(columns.test)
    groups = None if torn or columns.groups is None else [columns.groups[at] for at in development]
    found = np.full(len(columns.labels), np.nan)
    for train, held in folds(columns.labels[development], groups, seed):
        found[development[held]] = fit(development[train], development[held])
    found[test] = fit(development, test)
    return found


def _shares(categories: Sequence[int | str], labels: Flags) -> Fit:
    """Share correct among the training prompts of the same category, drawn to the overall share where they are few."""
    listed = np.asarray(categories)

    def fit(train: NDArray[np.int64], held: NDArray[np.int64]) -> Numbers:
        overall = labels[train].mean()
        names, inverse = np.unique(listed[train], return_inverse=True)
        count = np.bincount(inverse, minlength=len(names))
        correct = np.bincount(inverse, weights=labels[train].astype(float), minlength=len(names))
        share = dict(zip(names.tolist(), (correct + SMOOTHING * overall) / (count + SMOOTHING), strict=True))
        return np.array([share.get(category, overall) for category in listed[held].tolist()])

    return fit


def _regression(features: Numbers, labels: Flags, seed: int) -> Fit:
    """Log-odds of a ridge logistic regression on standardized features; the ridge chosen on the training prompts."""

    def fit(train: NDArray[np.int64], held: NDArray[np.int64]) -> Numbers:
        from sklearn.linear_model import LogisticRegression

        mean, scale = features[train].mean(axis=0), features[train].std(axis=0)
        scaled = (features - mean) / np.where(scale > 0, scale, 1.0)
        if len(np.unique(labels[train])) < 2:
            return np.zeros(len(held))  # a fold of groups can lack a label: then nothing was learnt
        chosen = LogisticRegression(C=_strength(scaled[train], labels[train], seed), max_iter=_ITERATIONS)
        found: Numbers = chosen.fit(scaled[train], labels[train]).decision_function(scaled[held])
        return found

    return fit


def _strength(features: Numbers, labels: Flags, seed: int) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    if min(int(labels.sum()), int((~labels).sum())) < _INNER:
        return STRENGTHS[0]
    cuts = StratifiedKFold(_INNER, shuffle=True, random_state=seed)
    regressions = [LogisticRegression(C=strength, max_iter=_ITERATIONS) for strength in STRENGTHS]
    losses = [cross_val_score(one, features, labels, cv=cuts, scoring="neg_log_loss").mean() for one in regressions]
    return STRENGTHS[int(np.argmax(losses))]
