"""The findings of a tracking run as Markdown: the verdict, then the tables it is based on."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.run_folder import Row
from eics.studies.statistics import Interval
from eics.studies.tracking.analysis import OTHER, POOLED, TARGETS, OverCircuits, OverPrompts, faithfulness
from eics.studies.tracking.costs import Cost
from eics.studies.tracking.families import KINDS
from eics.studies.tracking.words import NAMES, TARGET_NAMES, sentences
from eics.studies.words import capitalized, markdown_table


def page(
    setup: Mapping[str, Any],
    rows: Sequence[Row],
    prompts: Sequence[OverPrompts],
    circuits: Sequence[OverCircuits],
    costs: Sequence[Cost],
) -> str:
    """The whole page."""
    parts = [
        "# What the scores track\n",
        "\n".join(f"- {name}: {value}" for name, value in setup.items()),
        "\n".join(f"- {line}" for line in sentences(prompts, circuits, costs)),
        "Correlations are Spearman's, positive if more coherent goes with more faithful. Parentheses: 95% intervals "
        "over resampled prompts (over circuits: prompts and circuits); the sentences above use intervals corrected for "
        "the number of scores. *Given confounds*: partial correlation given the prompts' group, entropy and "
        "max-probability; *and another's KL*: given also the KL divergence of a random circuit of the same size. "
        "*Another circuit*: the correlation with that circuit's target instead.",
        *_over_prompts(prompts),
        *_over_circuits(circuits),
        *_controls(rows, prompts),
        *_costs(costs),
    ]
    return "\n\n".join(parts) + "\n"


def _over_prompts(findings: Sequence[OverPrompts]) -> Iterator[str]:
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


def _over_circuits(findings: Sequence[OverCircuits]) -> Iterator[str]:
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


def _controls(rows: Sequence[Row], findings: Sequence[OverPrompts]) -> Iterator[str]:
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


def _costs(costs: Sequence[Cost]) -> Iterator[str]:
    if not costs:
        return
    yield "## Cost"
    yield "Forward-equivalents, including each one's own forward pass: median over tasks of medians over repeated runs."
    lines = []
    for name in dict.fromkeys(cost.name for cost in costs):
        own = [cost for cost in costs if cost.name == name]
        numbers = [[c.ratio.median for c in own], [c.seconds for c in own], [c.forward for c in own]]
        lines.append((NAMES.get(name, name), *(f"{median(values):.2f}" for values in numbers)))
    yield markdown_table(("what", "forward-equivalents", "seconds per batch", "seconds of a plain pass"), lines)


def _cell(interval: Interval, undefined: str = "none: constant") -> str:
    return format(interval, "+.2f") if interval.is_known else undefined
