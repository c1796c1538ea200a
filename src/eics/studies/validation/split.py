"""Which prompts are excluded and why, and which of the others form the development split.

Every choice is made on development, every claim is measured on test.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from eics.errors import OptionError
from eics.studies.run_folder import Row
from eics.studies.statistics import Flags

_STRATIFIED, _GROUPED, _MATCHED = 1, 2, 3  # separate random streams
FAILED, FUNCTION_WORD, UNMATCHED = "could not be run", "function word", "left over by matching"

LEAST = 5
"""Correct and wrong prompts that each split must have, so that each of five folds has both."""

Choice = tuple[str | None, str | None]
"""A prompt's split, or the reason why it is excluded; the other is None."""


def choose(
    rows: Sequence[Row], *, drop_function_words: bool, matched: str | None, group: str | None, share: float, seed: int
) -> dict[str | int, Choice]:
    """Splits or excludes each prompt, based on the row of its answer."""
    excluded: dict[str | int, str] = {}
    for row in rows:
        if row.get("failed"):
            excluded[row["id"]] = FAILED
        elif drop_function_words and row["function_word"]:
            excluded[row["id"]] = FUNCTION_WORD
    kept = [row for row in rows if row["id"] not in excluded]
    _check_labels(kept, excluded)
    if matched is not None:
        surplus = _unmatched(kept, matched, seed)
        excluded |= dict.fromkeys(surplus, UNMATCHED)
        kept = [row for row in kept if row["id"] not in surplus]
    splits = _splits(kept, matched, group, share, seed)
    return {row["id"]: (splits.get(row["id"]), excluded.get(row["id"])) for row in rows}


def _splits(
    kept: Sequence[Row], matched: str | None, group: str | None, share: float, seed: int
) -> dict[str | int, str]:
    labels = np.array([bool(row["label"]) for row in kept])
    if group is not None:
        development = by_group(labels, [row["groups"][group] for row in kept], share, seed)
    else:
        strata = ["" if matched is None else row["groups"][matched] for row in kept]
        development = stratified(labels, strata, share, seed)
    check_split(labels, development)
    return {
        row["id"]: "development" if inside else "test" for row, inside in zip(kept, development.tolist(), strict=True)
    }


def _unmatched(kept: Sequence[Row], field: str, seed: int) -> set[str | int]:
    """A random surplus, without which every group has as many correct as wrong prompts."""
    draw = np.random.default_rng([seed, _MATCHED])
    members: dict[str, dict[bool, list[str | int]]] = {}
    for row in kept:
        members.setdefault(row["groups"][field], {True: [], False: []})[bool(row["label"])].append(row["id"])
    surplus: set[str | int] = set()
    for group in sorted(members):
        least = min(map(len, members[group].values()))
        for ids in members[group].values():
            surplus |= {ids[index] for index in draw.permutation(len(ids))[least:]}
    if len(surplus) == len(kept):
        raise OptionError(
            f"Matching by {field!r} must leave some prompts. None of the {len(members)} groups has both correct and "
            "wrong ones: match by another field, or not at all."
        )
    return surplus


def _check_labels(kept: Sequence[Row], excluded: dict[str | int, str]) -> None:
    labels = {bool(row["label"]) for row in kept}
    if len(labels) == 2:
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(excluded.values()).items())
    what = "correct" if True in labels else "wrong"
    raise OptionError(
        f"The prompts must have both labels. {f'All {len(kept)} that remain are {what}' if kept else 'None remain'}"
        f"{f' (excluded: {counts})' if counts else ''}: there is nothing to separate."
    )


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
    for name, (right, false) in counts.items():
        if min(right, false) < LEAST:
            raise OptionError(
                f"The {name} split must have at least {LEAST} correct and {LEAST} wrong prompts. It has {right} "
                f"correct and {false} wrong (of {correct} and {wrong} in all): add prompts, or change "
                "--dev-share, --seed or the grouping."
            )
