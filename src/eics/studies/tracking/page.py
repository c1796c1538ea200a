"""The findings as Markdown: the paragraph, then the tables that it comes from."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.tracking.analysis import OTHER, POOLED, TARGETS, OverCircuits, OverPrompts, faithfulness
from eics.studies.tracking.costs import Cost
from eics.studies.tracking.families import KINDS
from eics.studies.tracking.measure import Row
from eics.studies.tracking.words import NAMES, WHAT, sentences


def page(
    about: dict[str, Any],
    rows: Sequence[Row],
    prompts: Sequence[OverPrompts],
    circuits: Sequence[OverCircuits],
    costs: Sequence[Cost],
) -> str:
    """The whole page."""
    parts = [
        "# What the scores track\n",
        "\n".join(f"- {name}: {value}" for name, value in about.items()),
        "\n".join(f"- {line}" for line in sentences(prompts, circuits, costs)),
        "Correlations are Spearman's, positive where more coherent goes with more faithful. Brackets are 95% intervals "
        "over resampled prompts (over circuits: prompts and circuits); the words above use intervals corrected for the "
        "number of scores. *Given confounds*: partial, given the prompts' group, entropy and max-probability; *and "
        "another's KL*: given also the KL divergence of a random circuit of the same size. *Another circuit*: the "
        "correlation with that circuit's target instead.",
        *_over_prompts(prompts),
        *_over_circuits(circuits),
        *_controls(rows, prompts),
        *_costs(costs),
    ]
    return "\n\n".join(parts) + "\n"


def _over_prompts(found: Sequence[OverPrompts]) -> Iterator[str]:
    yield "## Over prompts, circuit fixed"
    tasks = [*dict.fromkeys(f.task for f in found if f.task != POOLED), POOLED]
    for target in TARGETS:
        for task in tasks:
            here = [f for f in found if (f.task, f.target, f.circuit) == (task, target, "discovered")]
            if here:
                yield f"### {WHAT[target][0].upper()}{WHAT[target][1:]}, {task} ({here[0].prompts} prompts)"
                yield _table(
                    ("score", "ablation", "correlation", "given confounds", "and another's KL", "another circuit"),
                    [_prompt_line(f) for f in here],
                )


def _prompt_line(found: OverPrompts) -> tuple[Any, ...]:
    given = [str(one) if one.known else "-" for one in (found.given_free, found.given_other)]
    return NAMES.get(found.score, found.score), found.ablation, found.raw, *given, found.other


def _over_circuits(found: Sequence[OverCircuits]) -> Iterator[str]:
    if not found:
        return
    yield "## Over circuits of one size, prompt fixed"
    cells: dict[tuple[str, str, str, str], dict[str, str]] = {}
    for f in found:
        key = (f.task, NAMES[f.score], WHAT[f.target], f.ablation)
        cells.setdefault(key, {})[f.circuits] = str(f.raw)
    sizes = {f.circuits: f.members for f in found}
    header = [f"{label} ({sizes[label]} circuits)" for label in sizes]
    yield _table(
        ("task", "score", "target", "ablation", *header),
        ((*key, *(by.get(label, "") for label in sizes)) for key, by in cells.items()),
    )


def _controls(rows: Sequence[Row], found: Sequence[OverPrompts]) -> Iterator[str]:
    yield "## Circuits of each kind"
    lines = []
    for task in dict.fromkeys(row["task"] for row in rows):
        for kind in KINDS:
            some = [row for row in rows if row["task"] == task and row["kind"] == kind]
            if some:
                overlap = f"{np.mean([row['overlap'] for row in some]):.2f}"
                kl = [f"{median(row[f'kl_{a}'] for row in some):.2f}" for a in ABLATIONS]
                kept = [f"{np.nanmedian(faithfulness(some, a)):.2f}" for a in ABLATIONS]
                lines.append((task, kind, len({row["circuit"] for row in some}), some[0]["edges"], overlap, *kl, *kept))
    names = [f"{what}, {a}" for what in ("KL", "faithfulness") for a in ABLATIONS]
    yield "Medians over prompts."
    yield _table(("task", "kind", "circuits", "edges", "edges in common", *names), lines)
    yield "The correlations with KL divergence over prompts, pooled over tasks, where a control is scored and ablated:"
    pooled = [f for f in found if f.task == POOLED and f.target == "kl" and f.score != OTHER]
    kinds = [kind for kind in KINDS if any(f.circuit == kind for f in pooled)]
    by = {(f.score, f.ablation, f.circuit): str(f.raw) for f in pooled}
    keys = dict.fromkeys((score, ablation) for score, ablation, _ in by)
    yield _table(
        ("score", "ablation", *kinds),
        (
            (NAMES[score], ablation, *(by.get((score, ablation, kind), "-") for kind in kinds))
            for score, ablation in keys
        ),
    )


def _costs(costs: Sequence[Cost]) -> Iterator[str]:
    if not costs:
        return
    yield "## Cost"
    yield "Forward-equivalents, a pass of its own included: median over tasks of the medians of repeated runs."
    names = dict.fromkeys(cost.name for cost in costs)
    some = {name: [cost for cost in costs if cost.name == name] for name in names}
    yield _table(
        ("what", "forward-equivalents", "seconds a batch", "seconds of a plain pass"),
        (
            (
                NAMES.get(name, name),
                f"{median(c.ratio.median for c in here):.2f}",
                f"{median(c.seconds for c in here):.2f}",
                f"{median(c.forward for c in here):.2f}",
            )
            for name, here in some.items()
        ),
    )


def _table(header: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows)
