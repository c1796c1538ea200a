"""Which prompts are excluded and why, and which of the others form the development split."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from eics.errors import OptionError
from eics.studies.run_folder import Row
from eics.studies.validation.split import by_group, check_split, stratified

_STREAM = 3
FAILED, FUNCTION_WORD, UNMATCHED = "could not be run", "function word", "left over by matching"

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
    draw = np.random.default_rng([seed, _STREAM])
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
