"""The findings as a figure: propagated error against KL divergence, prompt by prompt; correlations as bars."""

from collections.abc import Sequence
from typing import Any

from eics.studies.discovery.reference import ABLATIONS
from eics.studies.run_folder import Row
from eics.studies.tracking.analysis import OTHER, POOLED, TARGETS, OverPrompts
from eics.studies.tracking.scores import SCORES
from eics.studies.tracking.words import NAMES, TARGET_NAMES

_COLOURS = {"corrupted": "#0072B2", "mean": "#D55E00", "zero": "#009E73"}  # Okabe-Ito
_SHOWN = "propagated_mean"


def tracking_figure(rows: Sequence[Row], findings: Sequence[OverPrompts]) -> Any:
    """A scatter plot for each task above the pooled correlations with both targets."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(max(9.0, 3.6 * len(tasks)), 9.0), layout="constrained")
    subfigures: Any = figure.subfigures(2, 1, height_ratios=[1.0, 1.5])
    above, below = subfigures
    for axes, task in zip(above.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        shown = [row for row in rows if row["task"] == task and row["kind"] == "discovered"]
        for ablation in ABLATIONS:
            axes.plot(
                [row[_SHOWN] for row in shown],
                [row[f"kl_{ablation}"] for row in shown],
                "o",
                markersize=3.5,
                color=_COLOURS[ablation],
                label=f"{ablation} ablation",
            )
        axes.set_title(f"{task}, {len(shown)} prompts", fontsize=10, parse_math=False)
        axes.set_xlabel(NAMES[_SHOWN], fontsize=9, parse_math=False)
        axes.set_ylabel("KL(model || circuit), nats", fontsize=9)
    above.axes[0].legend(frameon=False, fontsize=8)
    pooled = [f for f in findings if (f.task, f.circuit) == (POOLED, "discovered")]
    ranked = (*SCORES, "max_probability", "entropy", OTHER)
    names = [name for name in ranked if any(f.score == name for f in pooled)]  # both panels have the same rows
    for axes, target in zip(below.subplots(1, 2, sharey=True), TARGETS, strict=True):
        _bars(axes, names, [f for f in pooled if f.target == target], target)
    handles, labels = next((axes.get_legend_handles_labels() for axes in below.axes if axes.lines), ([], []))
    below.legend(handles, labels, frameon=False, fontsize=8, loc="outside lower center", ncols=len(labels) or 1)
    return figure


def _bars(axes: Any, names: Sequence[str], findings: Sequence[OverPrompts], target: str) -> None:
    axes.set_title(f"With {TARGET_NAMES[target]}: mean over tasks, 95% intervals", fontsize=10)
    if not findings:
        axes.set_xlabel("defined on too few prompts", fontsize=9)
        return
    for shift, ablation in enumerate(ABLATIONS):
        by_score = {f.score: f for f in findings if f.ablation == ablation and f.raw.is_known}
        for row, name in enumerate(names):
            if name in by_score:
                raw, given, y = by_score[name].raw, by_score[name].given_other, row + 0.25 * (shift - 1)
                axes.barh(y, raw.value, height=0.22, color=_COLOURS[ablation], alpha=0.75)
                axes.plot([raw.low, raw.high], [y, y], color="0.2", linewidth=1.0)
                if given.is_known:
                    axes.plot([given.value], [y], "D", markersize=4, markerfacecolor="white", color="0.1")
    axes.plot(
        [], [], "D", markersize=4, markerfacecolor="white", color="0.1", label="given the confounds", linestyle=""
    )
    for ablation, colour in _COLOURS.items():
        axes.barh(0, 0, color=colour, alpha=0.75, label=f"{ablation} ablation")
    axes.set_yticks(range(len(names)), [NAMES.get(name, name) for name in names], fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.axvline(0.0, color="0.4", linewidth=0.8)
    axes.set_xlim(-1.0, 1.0)
    axes.set_xlabel("rank correlation; > 0: more coherent, more faithful", fontsize=9)
