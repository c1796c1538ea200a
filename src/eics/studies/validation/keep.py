"""Which prompts count, and why the others do not; which of them are for development."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from eics.errors import OptionError
from eics.studies.validation.split import by_group, check_split, stratified
from eics.studies.validation.store import Row

_STREAM = 3
FAILED, FUNCTION_WORD, UNMATCHED = "could not be run", "function word", "left over by matching"


def choose(
    rows: Sequence[Row], *, drop_function_words: bool, matched: str | None, group: str | None, share: float, seed: int
) -> dict[str | int, tuple[str | None, str | None]]:
    """For each prompt, from its answer's row: its split, or why it is dropped."""
    dropped: dict[str | int, str] = {}
    for row in rows:
        if row.get("failed"):
            dropped[row["id"]] = FAILED
        elif drop_function_words and row["function_word"]:
            dropped[row["id"]] = FUNCTION_WORD
    left = [row for row in rows if row["id"] not in dropped]
    _check_labels(left, dropped)
    if matched is not None:
        extra = _unmatched(left, matched, seed)
        dropped |= dict.fromkeys(extra, UNMATCHED)
        left = [row for row in left if row["id"] not in extra]
    splits = _splits(left, matched, group, share, seed)
    return {row["id"]: (splits.get(row["id"]), dropped.get(row["id"])) for row in rows}


def _splits(
    left: Sequence[Row], matched: str | None, group: str | None, share: float, seed: int
) -> dict[str | int, str]:
    labels = np.array([bool(row["label"]) for row in left])
    if group is not None:
        development = by_group(labels, [row["groups"][group] for row in left], share, seed)
    else:
        strata = ["" if matched is None else row["groups"][matched] for row in left]
        development = stratified(labels, strata, share, seed)
    check_split(labels, development)
    return {
        row["id"]: "development" if inside else "test" for row, inside in zip(left, development.tolist(), strict=True)
    }


def _unmatched(left: Sequence[Row], key: str, seed: int) -> set[str | int]:
    """What must go for every group to have as many correct as wrong prompts, drawn at random."""
    draw = np.random.default_rng([seed, _STREAM])
    members: dict[str, dict[bool, list[str | int]]] = {}
    for row in left:
        members.setdefault(row["groups"][key], {True: [], False: []})[bool(row["label"])].append(row["id"])
    extra: set[str | int] = set()
    for group in sorted(members):
        least = min(map(len, members[group].values()))
        for ids in members[group].values():
            extra |= {ids[at] for at in draw.permutation(len(ids))[least:]}
    if len(extra) == len(left):
        raise OptionError(
            f"Matching by {key!r} must leave some prompts. None of the {len(members)} groups has both correct and "
            "wrong ones: match by another field, or not at all."
        )
    return extra


def _check_labels(left: Sequence[Row], dropped: dict[str | int, str]) -> None:
    labels = {bool(row["label"]) for row in left}
    if len(labels) == 2:
        return
    counts = ", ".join(f"{count} {reason}" for reason, count in Counter(dropped.values()).items())
    what = "correct" if True in labels else "wrong"
    raise OptionError(
        f"The prompts must have both labels. {f'All {len(left)} that are left are {what}' if left else 'None are left'}"
        f"{f' (dropped: {counts})' if counts else ''}: there is nothing to tell apart."
    )
