"""The verdict in sentences, each derived from the numbers by a fixed rule.

An interval that includes "no effect" gives "no evidence", never "no effect"; a claim to beat a baseline must survive
correction for all scores compared.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from eics.studies.validation.columns import BASELINE, EICS, REFERENCE, SUSPECT
from eics.studies.validation.compare import SIGNIFICANCE, Result
from eics.studies.validation.incremental import BASES

if TYPE_CHECKING:
    from eics.studies.validation.analysis import Validation

_MAIN = ("eics_paper", "eics_paper_alpha", "eics_well_posed")
_NEARLY = 0.9  # rank correlation with length above which a score is called a measure of length


def verdict(validation: "Validation") -> list[str]:
    """All sentences, the most important first."""
    return [
        *_degenerate(validation),
        *(separates(validation.results[name]) for name in _MAIN),
        *_parts(validation),
        *_against_reference(validation),
        *_against_suspects(validation),
        *_within_groups(validation),
        *_incremental(validation),
        *_confounds(validation),
        *_limits(validation),
    ]


def separates(result: Result) -> str:
    """Whether one score separates correct from wrong test prompts."""
    title = result.kind.title
    if result.distinct == 1:
        return f"{title} has the same value on every prompt and separates nothing (AUROC 0.5 by definition)."
    area = result.auroc
    if result.separates:
        return f"{title} separates correct from wrong on the test split: AUROC {area}."
    if area.low > 0.5:
        return (
            f"At most weak evidence that {title} separates correct from wrong: AUROC {area}, above 0.5 by itself, but "
            f"not after correction for the scores that were tried (p = {result.p_chance:.2f})."
        )
    if area.high < 0.5:
        return (
            f"{title} points the other way on test than on development: AUROC {area}, below 0.5 in the direction "
            "chosen on development. It cannot be used as it stands."
        )
    return f"No evidence that {title} separates correct from wrong: AUROC {area}, an interval that includes 0.5."


def _degenerate(validation: "Validation") -> Iterator[str]:
    clipped, kept = validation.counts.clipped, validation.counts.kept
    if clipped == kept:
        yield (
            f"The literal score is 0 on all {kept} prompts: dEI is negative everywhere at alpha 1 and was clipped. "
            "It ranks nothing."
        )
        if validation.results["eics_paper_alpha"].distinct == 1:
            yield "No alpha of the grid from 1e-4 to 1e4 changes that on the development split."
    elif clipped > kept / 2:
        yield f"The literal score was clipped to 0 on {clipped} of {kept} prompts, which it cannot rank."


def _of_circuit(validation: "Validation", *families: str) -> list[Result]:
    return [result for result in validation.results.values() if result.kind.family in families]


def _parts(validation: "Validation") -> Iterator[str]:
    others = [result for result in _of_circuit(validation, EICS, BASELINE) if result.name not in _MAIN]
    separating = [result for result in others if result.separates]
    if separating:
        listed = ", ".join(f"{r.kind.title} ({r.auroc})" for r in separating)
        yield f"Of their parts and the baselines on edges, these separate correct from wrong (corrected): {listed}."
    rest = [result.kind.title for result in others if result not in separating]
    if rest:
        yield f"No evidence that these separate correct from wrong: {', '.join(rest)}."


def _against_reference(validation: "Validation") -> Iterator[str]:
    yield f"Max-probability, which costs nothing, reaches AUROC {validation.results[REFERENCE].auroc}."
    different = [
        result
        for result in _of_circuit(validation, EICS, BASELINE)
        if result.p_value is not None and result.p_value < SIGNIFICANCE
    ]
    better = [result for result in different if result.difference is not None and result.difference.value > 0]
    worse = [result for result in different if result not in better]
    compared = f"corrected for {len(validation.results) - 1} comparisons"
    if better:
        yield f"Better than max-probability ({compared}): {_with_differences(better)}."
    else:
        yield f"No evidence that any score of the circuit is better than max-probability ({compared})."
    if worse:
        yield f"Worse than max-probability: {_with_differences(worse)}."


def _with_differences(results: Iterable[Result]) -> str:
    return ", ".join(f"{r.kind.title} (difference {r.difference})" for r in results)


def _against_suspects(validation: "Validation") -> Iterator[str]:
    suspect = validation.suspect
    above = [
        result.kind.title
        for result in _of_circuit(validation, EICS)
        if result.beyond_suspects is not None and result.beyond_suspects.low > 0
    ]
    start = f"The strongest self-deception baseline on development, {suspect.kind.title}, reaches AUROC {suspect.auroc}"
    if above:
        yield f"{start}; with the whole interval above it: {', '.join(above)}."
    else:
        yield f"{start}; no score of the circuit has its whole interval above it."


def _within_groups(validation: "Validation") -> Iterator[str]:
    """Do the scores that separate still do so where a confound cannot help them?"""
    separating = [result for result in _of_circuit(validation, EICS, BASELINE) if result.separates]
    for grouping, within in validation.within.items():
        areas = {result.kind.title: within.auroc[result.name] for result in separating}
        still = [f"{title} ({area})" for title, area in areas.items() if area.low > 0.5]
        lost = [f"{title} ({area})" for title, area in areas.items() if area.low <= 0.5]
        if still:
            yield f"Among prompts with the same {grouping}, these still separate (AUROC): {', '.join(still)}."
        if lost:
            yield f"Among prompts with the same {grouping}, no evidence that these still separate: {', '.join(lost)}."


def _incremental(validation: "Validation") -> Iterator[str]:
    for base in BASES:
        tried = [gain for gain in validation.gains if gain.base == base]
        shown = [f"{gain.title} (by {gain.log_loss} nats per prompt)" for gain in tried if gain.shown]
        if shown:
            yield f"Added to {base}, these lower the log-loss on the test split: {', '.join(shown)}."
        else:
            yield f"No evidence that any of the {len(tried)} scores of the circuit adds to {base}."


def _confounds(validation: "Validation") -> Iterator[str]:
    cheap = [
        f"{result.kind.title} ({result.auroc})"
        for result in _of_circuit(validation, SUSPECT)
        if result.separates and result.name != "probe_fitted"
    ]
    if cheap:
        listed = ", ".join(cheap)
        yield f"Beware: the labels follow from {listed} alone. A score that only measures those would look as good."
    for result in _of_circuit(validation, EICS):
        length = result.length_correlation
        if length is not None and abs(length) >= _NEARLY:
            yield f"{result.kind.title} is nearly a measure of prompt length (rank correlation {length:.2f})."


def _limits(validation: "Validation") -> Iterator[str]:
    counts, reference = validation.counts, validation.results[REFERENCE].auroc
    width = (reference.high - reference.low) / 2
    yield (
        f"The test split has {counts.test[0]} correct and {counts.test[1]} wrong prompts; AUROC intervals extend about "
        f"{width:.2f} to each side, and a smaller effect could not be detected here. One model, one circuit, one data "
        "set: this says nothing about others."
    )
    if counts.answers_split:
        yield (
            f"The tokenizer splits the answer of {counts.answers_split} prompts: their labels rest on its first token, "
            "which other words may share. --match text compares the whole answer."
        )
    if counts.dropped:
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.dropped.items())
        example = f" (for example: {counts.why_failed})" if counts.why_failed else ""
        yield f"{sum(counts.dropped.values())} of {counts.prompts} prompts are excluded: {reasons}{example}."
