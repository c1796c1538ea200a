"""What a person should know of a comparison of two sets: what was found, and what it rests on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eics.scoring.calibration.sheaf.breadth import NARROW, Breadth
from eics.scoring.numbers import number, percent, signed
from eics.studies.comparison.set_compared import Compared
from eics.studies.comparison.set_result import NodeShift
from eics.studies.comparison.set_statistics import ENTRY, INHERITS, least_p
from eics.studies.words import enumerate_words, plural

_NAMED = 5
_FEW = 20  # units
_UNLIKE = 0.1  # of a set
_UNEXPLAINED = 0.2  # r2

Both = tuple[Compared, Compared]


@dataclass(frozen=True)
class Terms:
    """What a comparison rests on.

    Attributes:
        level, paired: as asked for.
        shared: how many prompts are in both sets.
        fitted: how many prompts of A taught the calibration; None if one was given.
        breadth: of the reference.
    """

    level: float
    paired: bool
    shared: int
    fitted: int | None
    breadth: Breadth


def set_sentences(nodes: Sequence[NodeShift], sets: Both, terms: Terms) -> Iterator[str]:
    """What was found first, then what was compared, then what to be careful with."""
    yield from _findings(nodes, terms.level)
    yield _compared(sets, paired=terms.paired)
    if terms.fitted is not None:
        yield from _fitted(sets[0], terms.fitted, terms.breadth)
    for one in sets:
        yield from _left_out(one)
        yield from _unlike(one, terms.breadth)
    if terms.shared and not terms.paired:
        yield f"The sets have {plural(terms.shared, 'prompt')} in common, and look more alike than they are."
    yield from _few(nodes, sets, terms)
    hardly = [node for node in nodes if node.reason is None and node.r2 < _UNEXPLAINED]
    if hardly:
        yield (
            f"The circuit explains little of what {_names(hardly)} {_usually(hardly)} (r2 below {_UNEXPLAINED:g}): a "
            "change that stays within the usual range goes unseen there."
        )
    unjudged = [node for node in nodes if node.reason is not None]
    if unjudged:
        yield f"{plural(len(unjudged), 'node')} cannot be judged ({_names(unjudged)}): {unjudged[0].reason}."


def _findings(nodes: Sequence[NodeShift], level: float) -> Iterator[str]:
    entries = [node for node in nodes if node.role == ENTRY]
    less = [node for node in entries if node.shift.value > 0]
    more = [node for node in entries if node.shift.value <= 0]
    inherits = [node for node in nodes if node.role == INHERITS]
    if less:
        yield f"The difference enters at {_shifts(less)}: less usual in B than in A, given what {_it(less)} read."
    if more:
        yield f"{_shifts(more)} {_are(more)} more usual in B than in A, given what {_it(more)} read."
    if inherits:
        verb = "inherits" if len(inherits) == 1 else "inherit"
        yield f"{_names(inherits)} {verb} it: what {_it(inherits)} wrote differs as what {_it(inherits)} read predicts."
    if not entries:
        judged = sum(node.reason is None for node in nodes)
        what = "No evidence of a node at which it enters" if inherits else "No evidence of a difference at any node"
        yield f"{what} ({plural(judged, 'node')}, q below {percent(level)})."


def _compared(sets: Both, *, paired: bool) -> str:
    grouped = sets[0].given.groups is not None
    if paired:
        among = f" in {plural(sets[0].sample.units, 'group')}" if grouped else ""
        return f"{plural(len(sets[0].ids), 'pair')}{among} compared by signed ranks."
    groups = [f" in {plural(one.sample.units, 'group')}" if grouped else "" for one in sets]
    first, second = (
        f"{plural(len(one.ids), 'prompt')}{of} of {one.given.title}" for one, of in zip(sets, groups, strict=True)
    )
    return f"{first} against {second}, compared by the ranks of {'groups' if grouped else 'prompts'}."


def _fitted(a: Compared, fitted: int, breadth: Breadth) -> Iterator[str]:
    yield (
        f"No calibration was given. {plural(fitted, 'prompt')} of {a.given.title} taught one, and only the others, "
        "which taught nothing, can be compared."
    )
    if breadth.is_narrow:
        yield (
            f"As a reference, {a.given.title} is narrow: its prompts end in {number(breadth.effective_endings)} "
            f"tokens, each counted by its share; {NARROW:g} are recommended. Prompts of another form may be unusual at "
            "many nodes."
        )


def _left_out(one: Compared) -> Iterator[str]:
    """Prompts that failed, and those that took part in the calibration."""
    if one.failures:
        id, reason = next(iter(one.failures.items()))
        count = f"{len(one.failures)} of {len(one.given.prompts)} prompts of {one.given.title}"
        yield f"{count} failed, {id!r} first: {reason}."
    if one.apart:
        yield (
            f"The calibration was made from {one.given.title}: of its {len(one.given.prompts)} prompts, only those "
            "that taught nothing are compared."
        )
    elif one.known:
        yield f"{plural(one.known, 'prompt')} of {one.given.title} took part in the calibration."


def _unlike(one: Compared, breadth: Breadth) -> Iterator[str]:
    """Prompts of another kind than those of the reference, as far as their lengths show it."""
    shortest, longest = breadth.lengths
    longer = sum(length > longest for length in one.lengths)
    shorter = sum(length < shortest for length in one.lengths)
    for count, what in ((longer, "longer"), (shorter, "shorter")):
        if count > _UNLIKE * len(one.lengths):
            yield (
                f"{count} of {len(one.lengths)} prompts of {one.given.title} are {what} than any of the reference "
                f"({shortest} to {longest} tokens): nodes may be unusual for that alone."
            )


def _few(nodes: Sequence[NodeShift], sets: Both, terms: Terms) -> Iterator[str]:
    """Sets with so few units that little or nothing can be found."""
    judged = sum(node.reason is None for node in nodes)
    what = "pairs" if terms.paired else "different prompts"
    what = what if sets[0].given.groups is None else "groups"
    for one in sets[: 1 if terms.paired else 2]:
        if one.sample.units < _FEW:
            subject = "The sets have" if terms.paired else f"{one.given.subject()} has"
            yield f"{subject} {one.sample.units} {what} to compare: small differences go unseen."
    if least_p(sets[0].sample.units, sets[1].sample.units, paired=terms.paired) * judged >= terms.level:
        yield f"With so few {what}, no single node of {judged} can reach a q below {percent(terms.level)}."


def _shifts(nodes: Sequence[NodeShift]) -> str:
    return _enumerated([f"{node.node} ({signed(node.shift.value)}, q = {number(node.q)})" for node in nodes])


def _names(nodes: Sequence[NodeShift]) -> str:
    return _enumerated([node.node for node in nodes])


def _enumerated(listed: list[str]) -> str:
    more = len(listed) - _NAMED
    return enumerate_words([*listed[:_NAMED], f"{more} more"] if more > 0 else listed)


def _it(nodes: Sequence[NodeShift]) -> str:
    return "it" if len(nodes) == 1 else "they"


def _usually(nodes: Sequence[NodeShift]) -> str:
    return "writes" if len(nodes) == 1 else "write"


def _are(nodes: Sequence[NodeShift]) -> str:
    return "is" if len(nodes) == 1 else "are"
