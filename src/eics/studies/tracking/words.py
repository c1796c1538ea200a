"""The verdict of a tracking run in sentences, by fixed rules, and the page with the tables it is based on.

Pooled over tasks, with intervals corrected for the number of scores compared, a score with a target under an ablation

- *ranks nothing* if it has one value on every prompt;
- *tracks* the target if the partial correlation, given group, entropy, max-probability and another circuit's KL
  divergence, lies above 0;
- *follows it no more than its confounds do* if the plain correlation lies above 0 and the partial one does not;
- *follows it, but cannot be distinguished from its confounds* if there are too few prompts for the partial one;
- *goes against it* if the plain correlation lies below 0;
- otherwise there is *no evidence* that it tracks the target.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from eics.studies.bench.measure import Timing
from eics.studies.discovery.reference import ABLATIONS
from eics.studies.run_folder import Row
from eics.studies.statistics import Interval
from eics.studies.tracking.analysis import OTHER, POOLED, TARGETS, OverCircuits, OverPrompts, faithfulness
from eics.studies.tracking.families import KINDS
from eics.studies.tracking.measure import ABLATION, LEAST, Cost
from eics.studies.tracking.scores import SCORES
from eics.studies.words import capitalized, enumerate_words, markdown_list, markdown_page, markdown_table, plural

NAMES = {
    "edge": "C_sh by edge",
    "joint": "C_sh by node",
    "propagated": "propagated C_sh",
    "propagated_mean": "propagated C_sh with means",
    "eics_paper": "EICS, paper's preset",
    "eics_well_posed": "EICS, well-posed preset",
    "max_probability": "max-probability",
    "entropy": "entropy",
}
TARGET_NAMES = {"kl": "the KL divergence", "faithfulness": "faithfulness"}

CONSTANT, TRACKS, CONFOUNDED, UNDECIDED = "constant", "tracks", "confounded", "undecided"
AGAINST, NO_EVIDENCE = "against", "no evidence"

_PHRASES = {
    TRACKS: "tracks {} beyond the confounds",
    CONFOUNDED: "follows {}, but no more than its confounds do",
    UNDECIDED: "follows {}; the prompts are too few to distinguish it from its confounds",
    AGAINST: "goes against {} (less coherent when the circuit is more faithful)",
    NO_EVIDENCE: "no evidence that it tracks {}",
    CONSTANT: "is constant where {} is defined",
}


def verdict(finding: OverPrompts) -> str:
    """By the rules above."""
    if not finding.raw.is_known:
        return CONSTANT
    if finding.given_other.side() > 0:
        return TRACKS
    follows = CONFOUNDED if finding.given_other.is_known else UNDECIDED
    return {1: follows, -1: AGAINST, 0: NO_EVIDENCE}[finding.raw.side()]


def sentences(prompts: Sequence[OverPrompts], circuits: Sequence[OverCircuits], costs: Sequence[Cost]) -> Iterator[str]:
    """The verdict, one line at a time."""
    pooled = [f for f in prompts if f.task == POOLED and f.circuit == "discovered"]
    tasks = len({f.task for f in prompts} - {POOLED})
    yield f"Over prompts, with the circuit fixed ({plural(tasks, 'task')}):"
    for score in SCORES:
        yield from _of_score(score, [f for f in pooled if f.score == score])
    yield from _undefined(pooled)
    yield from _other_circuit(pooled)
    yield from _over_circuits([f for f in circuits if f.task == POOLED and f.circuits == "perturbed"])
    yield from _costs(costs)


def _of_score(score: str, findings: Sequence[OverPrompts]) -> Iterator[str]:
    by_verdict: dict[str, list[OverPrompts]] = {}
    for finding in findings:
        by_verdict.setdefault(verdict(finding), []).append(finding)
    if set(by_verdict) == {CONSTANT}:
        yield f"{capitalized(NAMES[score])} has one value on every prompt of a task and ranks nothing."
    elif by_verdict:
        parts = [phrase.format(_targets(by_verdict[v])) for v, phrase in _PHRASES.items() if v in by_verdict]
        yield f"{capitalized(NAMES[score])}: {'; '.join(parts)}."


def _undefined(pooled: Sequence[OverPrompts]) -> Iterator[str]:
    undefined = [a for a in ABLATIONS if not any(f.target == "faithfulness" and f.ablation == a for f in pooled)]
    if undefined:
        yield (
            f"Faithfulness under {_ablations(undefined)} is not compared: ablating everything costs enough to divide "
            f"by on fewer than {LEAST} prompts of each task."
        )


def _other_circuit(pooled: Sequence[OverPrompts]) -> Iterator[str]:
    """Do the scores predict this circuit's divergence, or any circuit's?"""
    following = [f for f in pooled if f.score in SCORES and f.target == "kl" and f.raw.side() > 0]
    unspecific = [f for f in following if f.less_other.side() <= 0]
    if unspecific:
        listed = [
            f"{NAMES[f.score]} ({f.ablation}: {f.other.value:+.2f} against {f.raw.value:+.2f})" for f in unspecific
        ]
        yield (
            "No evidence that the predicted divergence is specific to this circuit: that of another circuit of the "
            f"same size is predicted about as well by {enumerate_words(listed)}."
        )


def _over_circuits(pooled: Sequence[OverCircuits]) -> Iterator[str]:
    if not pooled:
        return
    yield f"Over circuits of one size, with the prompt fixed ({pooled[0].members} circuits, edges replaced at random):"
    phrases = {1: "ranks them by", -1: "ranks them against", 0: "no evidence that it ranks them by"}
    for score in dict.fromkeys(f.score for f in pooled):
        by_side = {side: [f for f in pooled if f.score == score and f.raw.side() == side] for side in phrases}
        parts = [f"{phrases[side]} {_targets(findings)}" for side, findings in by_side.items() if findings]
        yield f"{capitalized(NAMES[score])}: {'; '.join(parts)}."


def _costs(costs: Sequence[Cost]) -> Iterator[str]:
    by_name = {name: median(t.ratio.median for t in timings) for name, timings in _timings(costs).items()}
    if ABLATION not in by_name:
        return
    scores = {name: by_name[name] for name in SCORES if name in by_name}
    listed = ", ".join(f"{NAMES[name]} {cost:.1f}" for name, cost in scores.items())
    ablation = f"ablating everything off the circuit {by_name[ABLATION]:.1f}"
    yield f"In forward-equivalents, each including its own forward pass: {ablation}; {listed}."
    dearer = [NAMES[name] for name, cost in scores.items() if cost >= by_name[ABLATION]]
    if len(dearer) == len(scores):
        yield (
            "Ablation is cheaper than every score here, and it is the definition of faithfulness: to know how faithful "
            "a circuit is on a prompt, use `eics circuit faithfulness`."
        )
    elif dearer:
        yield f"Ablation is cheaper than {enumerate_words(dearer)}."


def _timings(costs: Sequence[Cost]) -> dict[str, list[Timing]]:
    return {name: [t for other, t in costs if other == name] for name, _ in costs}


def _targets(findings: Sequence[OverPrompts] | Sequence[OverCircuits]) -> str:
    """The targets and ablations of some findings."""
    by_target = {t: [f.ablation for f in findings if f.target == t] for t in TARGET_NAMES}
    return enumerate_words([f"{TARGET_NAMES[t]} under {_ablations(a)}" for t, a in by_target.items() if a])


def _ablations(ablations: Sequence[str]) -> str:
    return "all three ablations" if set(ablations) == set(ABLATIONS) else f"{enumerate_words(ablations)} ablation"


def page(
    setup: Mapping[str, Any],
    rows: Sequence[Row],
    prompts: Sequence[OverPrompts],
    circuits: Sequence[OverCircuits],
    costs: Sequence[Cost],
) -> str:
    """The whole page."""
    parts = [
        "# What the scores track",
        markdown_list(f"{name}: {value}" for name, value in setup.items()),
        markdown_list(sentences(prompts, circuits, costs)),
        "Correlations are Spearman's, positive if more coherent goes with more faithful. Parentheses: 95% intervals "
        "over resampled prompts (over circuits: prompts and circuits); the sentences above use intervals corrected for "
        "the number of scores. *Given confounds*: partial correlation given the prompts' group, entropy and "
        "max-probability; *and another's KL*: given also the KL divergence of a random circuit of the same size. "
        "*Another circuit*: the correlation with that circuit's target instead.",
        *_over_prompts_tables(prompts),
        *_over_circuits_table(circuits),
        *_controls_tables(rows, prompts),
        *_costs_table(costs),
    ]
    return markdown_page(parts)


def _over_prompts_tables(findings: Sequence[OverPrompts]) -> Iterator[str]:
    yield "## Over prompts, circuit fixed"
    tasks = [*dict.fromkeys(f.task for f in findings if f.task != POOLED), POOLED]
    header = ("score", "ablation", "correlation", "given confounds", "and another's KL", "another circuit")
    for target in TARGETS:
        for task in tasks:
            shown = [f for f in findings if (f.task, f.target, f.circuit) == (task, target, "discovered")]
            if shown:
                yield f"### {capitalized(TARGET_NAMES[target])}, {task} ({shown[0].prompts} prompts)"
                yield markdown_table(header, [_prompt_line(f) for f in shown])


def _prompt_line(finding: OverPrompts) -> tuple[str, ...]:
    partials = (_cell(interval, undefined="-") for interval in (finding.given_free, finding.given_other))
    name = NAMES.get(finding.score, finding.score)
    return name, finding.ablation, _cell(finding.raw), *partials, _cell(finding.other)


def _over_circuits_table(findings: Sequence[OverCircuits]) -> Iterator[str]:
    if not findings:
        return
    yield "## Over circuits of one size, prompt fixed"
    cells: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for f in findings:
        key = (f.task, NAMES[f.score], TARGET_NAMES[f.target], f.ablation)
        cells.setdefault(key, {})[f.circuits] = _cell(f.raw)
    sizes = {f.circuits: f.members for f in findings}
    header = [f"{label} ({count} circuits)" for label, count in sizes.items()]
    yield markdown_table(
        ("task", "score", "target", "ablation", *header),
        [(*key, *(by_label.get(label, "") for label in sizes)) for key, by_label in cells.items()],
    )


def _controls_tables(rows: Sequence[Row], findings: Sequence[OverPrompts]) -> Iterator[str]:
    yield "## Circuits of each kind"
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for kind in KINDS:
            own = [row for row in rows if row["task"] == task and row["kind"] == kind]
            if own:
                overlap = f"{np.mean([row['overlap'] for row in own]):.2f}"
                kl = [f"{median(row[f'kl_{a}'] for row in own):.2f}" for a in ABLATIONS]
                kept = [f"{np.nanmedian(faithfulness(own, a)):.2f}" for a in ABLATIONS]
                lines.append((task, kind, len({row["circuit"] for row in own}), own[0]["edges"], overlap, *kl, *kept))
    names = [f"{what}, {a}" for what in ("KL", "faithfulness") for a in ABLATIONS]
    yield "Medians over prompts."
    yield markdown_table(("task", "kind", "circuits", "edges", "edges in common", *names), lines)
    yield "Correlations with the KL divergence over prompts, pooled over tasks, when a control is scored and ablated:"
    pooled = [f for f in findings if f.task == POOLED and f.target == "kl" and f.score != OTHER]
    kinds = [kind for kind in KINDS if any(f.circuit == kind for f in pooled)]
    cells = {(f.score, f.ablation, f.circuit): _cell(f.raw) for f in pooled}
    keys = dict.fromkeys((score, ablation) for score, ablation, _ in cells)
    yield markdown_table(
        ("score", "ablation", *kinds),
        [(NAMES[s], ablation, *(cells.get((s, ablation, kind), "-") for kind in kinds)) for s, ablation in keys],
    )


def _costs_table(costs: Sequence[Cost]) -> Iterator[str]:
    if not costs:
        return
    yield "## Cost"
    yield "Forward-equivalents, including each one's own forward pass: median over tasks of medians over repeated runs."
    lines = []
    for name, timings in _timings(costs).items():
        spreads = [[getattr(t, quantity).median for t in timings] for quantity in ("ratio", "seconds", "forward")]
        lines.append((NAMES.get(name, name), *(f"{median(values):.2f}" for values in spreads)))
    yield markdown_table(("what", "forward-equivalents", "seconds per batch", "seconds of a plain pass"), lines)


def _cell(interval: Interval, undefined: str = "none: constant") -> str:
    return format(interval, "+.2f") if interval.is_known else undefined
