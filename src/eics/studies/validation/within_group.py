"""AUROC within groups of similar prompts, which removes whatever the grouping itself says about the labels.

    share of pairs (correct i, wrong j) in one group with s_i > s_j, ties counting half

Groups are prompts with the same predicted token, the same length, or the same value of the chosen field. A score that
is a function of the grouping alone has exactly 0.5 here, however well it separates overall: each such pair is a tie. A
regression on the groups' shares of correct prompts only removes what the development split is large enough to estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eics.studies.statistics import Flags, Indices, Interval, Numbers, stratified_weights, wins
from eics.studies.validation.columns import Columns
from eics.studies.validation.compare import Decision

LEAST_PAIRS = 20
"""Pairs below which a grouping is not reported."""

MOST_PAIRS = 20_000
"""Pairs above which a random subset is used: the cost of intervals grows with their number."""

_STREAM = 5
_BLOCK = 2_000_000  # pair weights in memory at once


@dataclass(frozen=True)
class WithinGroup:
    """One grouping: its number of pairs, and each score's AUROC over them."""

    pairs: int
    auroc: dict[str, Interval]


def within_groups(
    columns: Columns, decisions: dict[str, Decision], *, resamples: int, seed: int
) -> dict[str, WithinGroup]:
    """AUROC of every score in its development direction, by grouping; groupings with few pairs are left out."""
    test, labels = columns.test, columns.labels[columns.test]
    groupings: dict[str, Sequence[object]] = {
        "predicted token": columns.predicted,
        "length": columns.values["length"].tolist(),
    }
    if columns.groups is not None:
        groupings["group"] = columns.groups
    directed = {name: decision.sign * columns.values[name][test] for name, decision in decisions.items()}
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
