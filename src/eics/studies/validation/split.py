"""Development and test splits: every choice is made on development, every claim is measured on test."""

from collections.abc import Sequence

import numpy as np

from eics.errors import OptionError
from eics.studies.statistics import Flags

_STRATIFIED, _GROUPED = 1, 2  # separate random streams

LEAST = 5
"""Correct and wrong prompts that each split must have, so that each of five folds has both."""


def stratified(labels: Flags, groups: Sequence[str], share: float, seed: int) -> Flags:
    """Which prompts are for development: a `share` of the correct and of the wrong ones in each group.

    Groups with as many correct as wrong prompts stay balanced on both sides: rounding remainders are carried from one
    group to the next, equally for both labels.
    """
    draw = np.random.default_rng([seed, _STRATIFIED])
    names = np.asarray(groups, dtype=object)
    development = np.zeros(len(labels), dtype=bool)
    carried = {True: 0.5, False: 0.5}
    for group in sorted(set(groups)):
        for label in (True, False):
            members = draw.permutation(np.flatnonzero((names == group) & (labels == label)))
            wanted = share * len(members) + carried[label]
            count = min(len(members), int(wanted))
            carried[label] = wanted - count
            development[members[:count]] = True
    return development


def by_group(labels: Flags, groups: Sequence[str], share: float, seed: int) -> Flags:
    """Which prompts are for development if no group may be on both sides.

    Groups are taken in random order and assigned to the side that lacks a larger part of its share.
    """
    names = sorted(set(groups))
    if len(names) < 2:
        raise OptionError(f"A split by group must have at least two groups. Got {len(names)}: {', '.join(names)}.")
    listed = np.asarray(groups, dtype=object)
    draw = np.random.default_rng([seed, _GROUPED])
    counts, development = {True: 0.0, False: 0.0}, np.zeros(len(labels), dtype=bool)
    for group in draw.permutation(np.asarray(names, dtype=object)):
        members = listed == group
        side = counts[True] / share <= counts[False] / (1 - share)
        counts[side] += float(members.sum())
        development |= members & side
    return development


def check_split(labels: Flags, development: Flags) -> None:
    """Refuses splits that lack prompts of either label."""
    sides = {"development": development, "test": ~development}
    counts = {name: (int(labels[side].sum()), int((~labels[side]).sum())) for name, side in sides.items()}
    correct, wrong = int(labels.sum()), int((~labels).sum())
    if correct == 0 or wrong == 0:
        raise OptionError(
            f"The prompts must have both labels. All {correct + wrong} that remain are "
            f"{'correct' if correct else 'wrong'}: there is nothing to separate."
        )
    for name, (right, false) in counts.items():
        if min(right, false) < LEAST:
            raise OptionError(
                f"The {name} split must have at least {LEAST} correct and {LEAST} wrong prompts. It has {right} "
                f"correct and {false} wrong (of {correct} and {wrong} in all): add prompts, or change "
                "--dev-share, --seed or the grouping."
            )
