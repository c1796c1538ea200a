"""AUROC among prompts that are alike in something that labels may follow from.

    share of the pairs (correct i, wrong j) with the same predicted token (group, length) in which s_i > s_j, ties half

A score that is a function of that thing alone, however well it knows it, has exactly 0.5 here: each such pair is a tie.
A regression on shares of correct prompts can only take out what development is large enough to estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eics.studies.validation.columns import Columns
from eics.studies.validation.compare import Decision, Estimate
from eics.studies.validation.metrics import interval, resamples

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

LEAST_PAIRS = 20
"""Fewer pairs say nothing."""

MOST_PAIRS = 20_000
"""Of more pairs so many are drawn: the intervals' cost grows with them."""

_STREAM = 5


@dataclass(frozen=True)
class Within:
    """One thing in which prompts are alike: how many pairs there are, and each score's AUROC over them."""

    pairs: int
    auroc: dict[str, Estimate]


def within(
    columns: Columns, decisions: dict[str, Decision], *, clusters: Sequence[str] | None, count: int, seed: int
) -> dict[str, Within]:
    """By what prompts are alike in, for every score in development's direction; without those that have few pairs."""
    test = columns.test
    labels = columns.labels[test]
    places = np.flatnonzero(test).tolist()
    alike: dict[str, Sequence[object]] = {
        "predicted token": columns.predicted,
        "length": columns.values["length"].tolist(),
    }
    if columns.groups is not None:
        alike["group"] = columns.groups
    directed = {name: decision.sign * columns.values[name][test] for name, decision in decisions.items()}
    found = {}
    for what, values in alike.items():
        correct, wrong = _pairs([values[at] for at in places], labels, seed)
        if len(correct) >= LEAST_PAIRS:
            drawn = None if clusters is None else [clusters[at] for at in places]
            weights = resamples(labels, drawn, count, seed)
            blocks = [_shares(directed, correct, wrong, block) for block in weights]
            [exact] = _shares(directed, correct, wrong, np.ones((1, len(labels))))
            samples = np.concatenate(blocks)
            found[what] = Within(
                len(correct),
                {n: Estimate(float(exact[at]), *interval(samples[:, at])) for at, n in enumerate(directed)},
            )
    return found


def _pairs(values: Sequence[object], labels: NDArray[np.bool_], seed: int) -> tuple[Places, Places]:
    """Places of the correct and of the wrong prompt of each pair."""
    members: dict[object, tuple[list[int], list[int]]] = {}
    for at, (value, label) in enumerate(zip(values, labels.tolist(), strict=True)):
        members.setdefault(value, ([], []))[0 if label else 1].append(at)
    blocks = [np.array(np.meshgrid(right, false)).reshape(2, -1) for right, false in members.values()]
    correct, wrong = np.concatenate([np.empty((2, 0)), *blocks], axis=1).astype(np.int64)
    if len(correct) > MOST_PAIRS:
        some = np.random.default_rng([seed, _STREAM]).permutation(len(correct))[:MOST_PAIRS]
        correct, wrong = correct[some], wrong[some]
    return correct, wrong


def _shares(directed: dict[str, Numbers], correct: Places, wrong: Places, weights: Numbers) -> Numbers:
    """The share of right pairs under each row of weights, (R, scores); nan where no pair was drawn."""
    right = np.column_stack([(np.sign(v[correct] - v[wrong]) + 1) / 2 for v in directed.values()])
    shares = []
    for row in np.array_split(weights, max(1, weights.shape[0] * len(correct) // 2_000_000)):
        pairs = row[:, correct] * row[:, wrong]
        total = pairs.sum(axis=1, keepdims=True)
        shares.append(np.where(total > 0, pairs @ right / np.where(total > 0, total, 1.0), np.nan))
    return np.concatenate(shares)
