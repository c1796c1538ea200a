"""Development and test: what is chosen is chosen on one, what is claimed is measured on the other."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eics.errors import OptionError

Flags = NDArray[np.bool_]

_STRATIFIED, _GROUPED = 1, 2  # random streams of their own

LEAST = 5
"""Correct and wrong prompts that each split must have: five folds, each with both."""


def stratified(labels: Flags, groups: Sequence[str], share: float, seed: int) -> Flags:
    """Which prompts are for development: `share` of the correct and of the wrong ones, in each group alike.

    Groups that are matched (as many correct as wrong) stay so on both sides: what rounding leaves over in one group is
    carried to the next, for both labels in the same way.
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
    """Which prompts are for development where no group may be on both sides.

    Groups in random order, each to the side that lacks more of its prompts.
    """
    names = sorted(set(groups))
    if len(names) < 2:
        raise OptionError(f"A split by group must have at least two groups. Got {len(names)}: {', '.join(names)}.")
    listed = np.asarray(groups, dtype=object)
    draw = np.random.default_rng([seed, _GROUPED])
    taken, development = {True: 0.0, False: 0.0}, np.zeros(len(labels), dtype=bool)
    for group in draw.permutation(np.asarray(names, dtype=object)):
        members = listed == group
        side = taken[True] / share <= taken[False] / (1 - share)
        taken[side] += float(members.sum())
        development |= members & side
    return development


def check_split(labels: Flags, development: Flags) -> None:
    """Both splits must have enough of both labels."""
    sides = {"development": development, "test": ~development}
    counts = {name: (int(labels[side].sum()), int((~labels[side]).sum())) for name, side in sides.items()}
    correct, wrong = int(labels.sum()), int((~labels).sum())
    if correct == 0 or wrong == 0:
        raise OptionError(
            f"The prompts must have both labels. All {correct + wrong} that are left are "
            f"{'correct' if correct else 'wrong'}: there is nothing to tell apart."
        )
    for name, (right, false) in counts.items():
        if min(right, false) < LEAST:
            raise OptionError(
                f"The {name} split must have at least {LEAST} correct and {LEAST} wrong prompts. It has {right} "
                f"correct and {false} wrong (of {correct} and {wrong} in all): bring more prompts, or change "
                "--dev-share, --seed or the grouping."
            )
