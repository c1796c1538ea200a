"""What a comparison of two models found, in words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eics.scoring.numbers import number, percent
from eics.studies.statistics import Interval
from eics.studies.words import enumerate_words, plural

if TYPE_CHECKING:
    from eics.studies.comparison.summary import ModelComparison, PartChange, PromptChange

NOTHING = 1e-6
"""Relative size below which a part is said to have made nothing: rounding of float32 weights in other memory."""

UNATTRIBUTED = 1e-3
"""Residue from which it is said: more than rounding, even of weights in half precision, would leave."""

_MOST = 1.5  # times the whole: what first-order effects may add up to before it is said
_NAMED = 4
_MEANS = {"kl": "KL divergence", "log_prob": "log-probability of the answer", "logit_diff": "logit difference"}


def sentences(found: "ModelComparison") -> Iterator[str]:
    """Sentences for the terminal, the page and the file."""
    scored = [prompt for prompt in found.prompts if prompt.status == "ok"]
    if not scored:
        yield "No prompt could be run in both models."
        return
    touched = [prompt for prompt in scored if prompt.touched]
    if not touched:
        yield f"Nothing changed on any of {plural(len(scored), 'prompt')}: the logits differ by no more than rounding."
        yield from _residue(found)
        return
    answers = sum(prompt.before != prompt.after for prompt in scored)
    yield (
        f"{len(touched)} of {plural(len(scored), 'prompt')} are touched; the likeliest next token changed on "
        f"{answers}. The {_MEANS[found.metric]} {_moved(found.metric)} {_shown(found.total)} on average."
    )
    makers = [change for change in found.nodes if change.made_here > NOTHING]
    yield _who_made_it(makers, len(found.nodes))
    yield from _too_large(found, scored)
    yield from _true_effects(found)
    yield from _residue(found)


def _moved(metric: str) -> str:
    return "is" if metric == "kl" else "moved by"


def _who_made_it(makers: "list[PartChange]", count: int) -> str:
    if not makers:
        return "None of the parts compared made any of it: they inherited it from parts that were not."
    listed = [f"{change.node} ({_shown(change.effect)})" for change in makers[:_NAMED]]
    more = len(makers) - len(listed)
    others = f"; the other {count - len(makers)} made nothing of their own" if count > len(makers) else ""
    named = f"{', '.join(listed)} and {more} more" if more else enumerate_words(listed)
    effects = "effect" if len(makers) == 1 else "largest effects"
    return f"It was made in {len(makers)} of {count} parts{others}. By {effects}, estimated: {named}."


def _too_large(found: "ModelComparison", scored: "list[PromptChange]") -> Iterator[str]:
    """Gradients at B say little of a change so large that they do not even add up to it."""
    if found.circuit is not None or not found.total.value:
        return
    added = sum(prompt.added or 0.0 for prompt in scored) / len(scored)
    if not _MOST >= added / found.total.value >= 1 / _MOST:
        yield (
            f"By their gradients all parts add up to {number(added)}, not {number(found.total.value)}: the change is "
            "too large for these estimates. --restore measures effects truly."
        )


def _true_effects(found: "ModelComparison") -> Iterator[str]:
    whole = found.total.value
    restored = [(change.node, change.restored) for change in found.nodes if change.restored is not None]
    if not restored or not whole:
        return
    name, effect = max(restored, key=lambda one: one[1].value / whole)
    if effect.value / whole > 0:
        yield f"Restoring {name} alone takes back {_shown(effect)}, {percent(effect.value / whole)} of the whole."
    else:
        yield f"Restoring a part alone takes nothing back, for none of the {len(restored)} measured: they act together."


def _residue(found: "ModelComparison") -> Iterator[str]:
    if not found.residue > UNATTRIBUTED:
        return
    worst = max(found.nodes, key=lambda change: change.residue)
    yield (
        f"{percent(found.residue)} is neither made nor inherited: in one of the models, what {worst.node} wrote is not "
        "its own function of what it read (a hook that changes writes?)."
    )


def _shown(interval: Interval) -> str:
    return f"{number(interval.value)}, {number(interval.low)} to {number(interval.high)}"
