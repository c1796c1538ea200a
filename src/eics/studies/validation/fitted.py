"""What is fitted on the development split: alpha, and the baselines that learn.

The fitted score of a development prompt comes from a fit without its fold, so that the direction and thresholds chosen
from these scores are honest; that of a test prompt comes from the fit on the whole development split.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logit

from eics.studies.statistics import Flags, Indices, Numbers
from eics.studies.validation.columns import Columns
from eics.studies.validation.measure import ALPHAS
from eics.studies.validation.metrics import plain_auroc

Fold = tuple[Indices, Indices]
Fit = Callable[[Indices, Indices], Numbers]
"""Given the training and the held-out prompts, log-odds of the held-out ones."""

FOLDS = 5
SMOOTHING = 2.0
"""Pseudo-prompts at the overall share with which every category starts."""

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse ridge strengths, from which a regression on many features chooses by its log-loss out of fold."""

_ITERATIONS = 2000


def folds(labels: Flags, groups: Sequence[str] | None, seed: int) -> list[Fold]:
    """Five folds, each with both labels as far as possible; groups, if given, are kept whole."""
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    if groups is None or len(set(groups)) < 2:
        return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels))
    count = min(FOLDS, len(set(groups)))
    return list(StratifiedGroupKFold(count, shuffle=True, random_state=seed).split(labels, labels, groups))


def with_fitted(columns: Columns, *, seed: int) -> Columns:
    """The columns, with the fitted ones added."""
    values, missing, labels = dict(columns.values), dict(columns.missing), columns.labels
    index, alpha = choose_alpha(columns.by_alpha[columns.development], labels[columns.development])
    values["eics_paper_alpha"] = columns.by_alpha[:, index]
    fits = {
        "norms_fitted": [regression(columns.norms, labels, strength) for strength in STRENGTHS],
        "probe_fitted": [regression(columns.final, labels, strength) for strength in STRENGTHS],
        "token_fitted": [_shares(columns.predicted, labels)],
    }
    if columns.groups is None:
        missing["group_fitted"] = "needs --matched or --group"
    else:
        fits["group_fitted"] = [_shares(columns.groups, labels)]
    values |= {name: fitted(columns, candidates, columns.clusters, seed) for name, candidates in fits.items()}
    return replace(columns, values=values, missing=missing, alpha=alpha)


def choose_alpha(by_alpha: Numbers, labels: Flags) -> tuple[int, float]:
    """The alpha whose scores separate the labels best, in either direction; among equals the one nearest to 1."""
    strength = [abs(plain_auroc(column, labels) - 0.5) for column in by_alpha.T]
    distance = [abs(np.log(alpha)) for alpha in ALPHAS]
    best = min(range(len(ALPHAS)), key=lambda index: (-round(strength[index], 12), distance[index]))
    return best, ALPHAS[best]


def fitted(columns: Columns, fits: Sequence[Fit], groups: Sequence[str] | None, seed: int) -> Numbers:
    """Log-odds out of fold on development, and from all of development on test, by the fit with the least log-loss."""
    development, test = np.flatnonzero(columns.development), np.flatnonzero(columns.test)
    own_groups = None if groups is None else [groups[index] for index in development.tolist()]
    splits = folds(columns.labels[development], own_groups, seed)
    held_out = [_held_out(fit, development, splits) for fit in fits]
    truth = np.where(columns.labels[development], 1.0, -1.0)
    best = int(np.argmin([np.logaddexp(0.0, -truth * odds).mean() for odds in held_out]))
    log_odds = np.empty(len(columns.labels))
    log_odds[development], log_odds[test] = held_out[best], fits[best](development, test)
    return log_odds


def _held_out(fit: Fit, members: Indices, splits: Sequence[Fold]) -> Numbers:
    log_odds = np.empty(len(members))
    for train, held in splits:
        log_odds[held] = fit(members[train], members[held])
    return log_odds


def _shares(categories: Sequence[int | str], labels: Flags) -> Fit:
    """Share of correct training prompts in the same category, shrunk to the overall share if they are few."""
    listed = np.asarray(categories)

    def fit(train: Indices, held: Indices) -> Numbers:
        overall = labels[train].mean()
        names, inverse = np.unique(listed[train], return_inverse=True)
        count = np.bincount(inverse, minlength=len(names))
        correct = np.bincount(inverse, weights=labels[train].astype(float), minlength=len(names))
        share = dict(zip(names.tolist(), (correct + SMOOTHING * overall) / (count + SMOOTHING), strict=True))
        shares = np.array([share.get(category, overall) for category in listed[held].tolist()])
        log_odds: Numbers = logit(np.clip(shares, 1e-3, 1 - 1e-3))
        return log_odds

    return fit


def regression(features: Numbers, labels: Flags, strength: float) -> Fit:
    """Ridge logistic regression on standardized features."""

    def fit(train: Indices, held: Indices) -> Numbers:
        from sklearn.linear_model import LogisticRegression

        if len(np.unique(labels[train])) < 2:
            return np.zeros(len(held))  # folds of whole groups can lack a label: nothing to learn
        mean, scale = features[train].mean(axis=0), features[train].std(axis=0)
        scaled = (features - mean) / np.where(scale > 0, scale, 1.0)
        model = LogisticRegression(C=strength, max_iter=_ITERATIONS).fit(scaled[train], labels[train])
        log_odds: Numbers = model.decision_function(scaled[held])
        return log_odds

    return fit
