"""The verdict in plain words, each sentence from the numbers by a fixed rule.

An interval that holds "no effect" gives "no evidence", never "no effect"; what beats a baseline must do so beyond a
correction for all scores compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from eics.studies.validation.adds import BASES, Gain
from eics.studies.validation.columns import BASELINE, EICS, REFERENCE, SUSPECT
from eics.studies.validation.compare import LEVEL, Result

if TYPE_CHECKING:
    from eics.studies.validation.analysis import Validation

_FOLLOWS = 0.9


def verdict(found: "Validation") -> list[str]:
    """All sentences, the most important first."""
    return [
        *_degenerate(found),
        *(tells(found.results[name]) for name in ("eics_paper", "eics_paper_alpha", "eics_well_posed")),
        *_others(found),
        *_against_reference(found),
        *_against_suspects(found),
        *_within(found),
        *_adds(found),
        *_confounds(found),
        *_limits(found),
    ]


def tells(result: Result) -> str:
    """Whether one score tells correct from wrong prompts of the test split."""
    title = result.kind.title
    if result.distinct == 1:
        return f"{title} has the same value on every prompt: it tells nothing apart (AUROC 0.5 by definition)."
    area = result.auroc
    if result.tells:
        return f"{title} tells correct from wrong on the test split: AUROC {area}."
    if area.low > 0.5:
        return (
            f"Weak evidence at most that {title} tells correct from wrong: AUROC {area}, above 0.5 by itself, but not "
            f"after correction for the scores that were tried (p = {result.p_chance:.2f})."
        )
    if area.high < 0.5:
        return (
            f"{title} points the other way on the test split than on development: AUROC {area}, below 0.5 in the "
            "direction that development chose. It cannot be used as it stands."
        )
    return f"No evidence that {title} tells correct from wrong: AUROC {area}, an interval that holds 0.5."


def _degenerate(found: "Validation") -> Iterator[str]:
    clipped, kept = found.counts.clipped, found.counts.kept
    if clipped == kept:
        yield (
            f"The literal score is 0 on all {kept} prompts: dEI is negative everywhere at alpha 1 and was clipped. "
            "It ranks nothing."
        )
        if found.results["eics_paper_alpha"].distinct == 1:
            yield "No alpha of the grid from 1e-4 to 1e4 changes that on the development split."
    elif clipped > kept / 2:
        yield f"The literal score was clipped to 0 on {clipped} of {kept} prompts: on those it ranks nothing."


def _others(found: "Validation") -> Iterator[str]:
    named = ("eics_paper", "eics_paper_alpha", "eics_well_posed")
    others = [r for r in found.results.values() if r.kind.family in (EICS, BASELINE) and r.name not in named]
    telling = [r for r in others if r.tells]
    if telling:
        said = ", ".join(f"{r.kind.title} ({r.auroc})" for r in telling)
        yield f"Of their parts and the baselines on edges, these tell correct from wrong (corrected): {said}."
    rest = [r.kind.title for r in others if r not in telling]
    if rest:
        yield f"No evidence that these tell correct from wrong: {', '.join(rest)}."


def _against_reference(found: "Validation") -> Iterator[str]:
    reference = found.results[REFERENCE]
    yield f"Max-probability, which costs nothing, reaches AUROC {reference.auroc}."
    own = [r for r in found.results.values() if r.kind.family in (EICS, BASELINE)]
    sure = [r for r in own if r.p_value is not None and r.p_value < LEVEL and r.difference is not None]
    better = [r for r in sure if r.difference is not None and r.difference.value > 0]
    worse = [r for r in sure if r not in better]
    compared = f"corrected for {len(found.results) - 1} comparisons"
    if better:
        yield f"Better than max-probability ({compared}): {_with_differences(better)}."
    else:
        yield f"No evidence that any score of the circuit is better than max-probability ({compared})."
    if worse:
        yield f"Worse than max-probability: {_with_differences(worse)}."


def _with_differences(results: Iterable[Result]) -> str:
    return ", ".join(f"{r.kind.title} (difference {r.difference})" for r in results)


def _against_suspects(found: "Validation") -> Iterator[str]:
    suspect = found.results[found.comparison.suspect]
    own = [r for r in found.results.values() if r.kind.family == EICS]
    beyond = [r for r in own if r.beyond_suspects is not None and r.beyond_suspects.low > 0]
    said = f"The strongest self-deception baseline on development, {suspect.kind.title}, reaches AUROC {suspect.auroc}"
    if beyond:
        yield f"{said}; above it beyond the interval: {', '.join(r.kind.title for r in beyond)}."
    else:
        yield f"{said}; no score of the circuit is above it beyond the interval."


def _within(found: "Validation") -> Iterator[str]:
    """Of the scores that tell: do they still, where a confound cannot help them?"""
    telling = [r for r in found.results.values() if r.kind.family in (EICS, BASELINE) and r.tells]
    for what, alike in found.within.items():
        gone = [f"{r.kind.title} ({alike.auroc[r.name]})" for r in telling if alike.auroc[r.name].low <= 0.5]
        kept = [f"{r.kind.title} ({alike.auroc[r.name]})" for r in telling if alike.auroc[r.name].low > 0.5]
        if kept:
            yield f"Among prompts with the same {what} these still tell (AUROC): {', '.join(kept)}."
        if gone:
            yield f"Among prompts with the same {what} there is no evidence that these still tell: {', '.join(gone)}."


def _adds(found: "Validation") -> Iterator[str]:
    for base in BASES:
        tried = [gain for gain in found.gains if gain.base == base]
        shown = [gain for gain in tried if gain.shown]
        if shown:
            yield f"Added to {base}, these lower the log-loss on the test split: {_with_losses(shown)}."
        else:
            yield f"No evidence that any of the {len(tried)} scores of the circuit adds to {base}."


def _with_losses(shown: Sequence[Gain]) -> str:
    from eics.studies.validation.adds import title

    return ", ".join(f"{title(gain)} (by {gain.log_loss} nats a prompt)" for gain in shown)


def _confounds(found: "Validation") -> Iterator[str]:
    telling = [r for r in found.results.values() if r.kind.family == SUSPECT and r.tells]
    cheap = [r for r in telling if r.name != "probe_fitted"]
    if cheap:
        said = ", ".join(f"{r.kind.title} ({r.auroc})" for r in cheap)
        yield f"Beware: the labels follow from {said} alone. A score that only meters those would look as good."
    for result in found.results.values():
        length = result.length_correlation
        if result.kind.family == EICS and length is not None and abs(length) >= _FOLLOWS:
            yield f"{result.kind.title} is nearly a meter of prompt length (rank correlation {length:.2f})."


def _limits(found: "Validation") -> Iterator[str]:
    counts, reference = found.counts, found.results[REFERENCE].auroc
    width = (reference.high - reference.low) / 2
    yield (
        f"The test split has {counts.test[0]} correct and {counts.test[1]} wrong prompts; intervals of AUROC reach "
        f"about {width:.2f} to each side, and a smaller effect would not be seen here. One model, one circuit, one "
        "data set: nothing is said about others."
    )
    if counts.answers_split:
        yield (
            f"The tokenizer splits the answer of {counts.answers_split} prompts: their labels rest on its first token, "
            "which other words may share. --match text looks at the whole answer."
        )
    if sum(counts.dropped.values()):
        said = ", ".join(f"{count} {reason}" for reason, count in counts.dropped.items())
        why = f" (such as: {counts.why_failed})" if counts.why_failed else ""
        yield f"{sum(counts.dropped.values())} of {counts.prompts} prompts do not count: {said}{why}."
