"""Figures of docs/validation-calibrated.md."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TASKS = {"facts": "facts", "ioi": "ioi", "greater-than": "greater-than", "second-model": "Gemma"}
WAYS = {
    "calibrated": ("calibrated", "#1b6ca8"),
    "no-explained": ("without the explained part", "#6fa8d6"),
    "no-context": ("without the context", "#b5d3ea"),
    "joint": ("joint residual", "#d9a441"),
    "activations": ("activations", "#b0413e"),
    "layers": ("layers", "#d98880"),
}
FORMS = {
    "same": "same form",
    "sentence": "sentence before",
    "rephrased": "other template",
    "context": "long context",
    "relation": "other relation",
    "translated": "other language",
}


def draw(results: dict[str, Any], folder: Path) -> None:
    """`localisation.png`: who finds the damaged node. `reference.png`: what a reference must have."""
    mpl.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, results, "write", "what a node writes comes from another prompt")
    _bars(right, results, "read", "what an MLP reads comes from another prompt")
    left.set_ylabel("damaged node has the largest z")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=len(WAYS), frameon=False)
    figure.savefig(folder / "localisation.png", dpi=140)
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    _sizes(left, results["facts"]["sizes"])
    _forms(right, results["unlike"]["forms"])
    figure.savefig(folder / "reference.png", dpi=140)


def _bars(axes: Axes, results: dict[str, Any], kind: str, title: str) -> None:
    """How often the damaged node comes first, by task and way."""
    width = 0.8 / len(WAYS)
    for number, (way, (label, colour)) in enumerate(WAYS.items()):
        found = [results[task]["kinds"][kind][way]["first"] for task in TASKS]
        at = np.arange(len(TASKS)) + (number - (len(WAYS) - 1) / 2) * width
        values = np.array([entry["value"] for entry in found])
        ends = np.array([[entry["value"] - entry["low"], entry["high"] - entry["value"]] for entry in found]).T
        axes.bar(at, values, width, yerr=ends.clip(min=0), label=label, color=colour, error_kw={"linewidth": 0.8})
    axes.set_xticks(range(len(TASKS)), list(TASKS.values()))
    axes.set_title(title, fontsize=9)
    axes.set_ylim(0, 1)


def _sizes(axes: Axes, sizes: dict[str, Any]) -> None:
    """Localisation by the number of prompts in the reference."""
    counts = [int(size) for size in sizes]
    for kind, colour in (("write", "#1b6ca8"), ("read", "#b0413e")):
        first = np.array(
            [[draw["kinds"][kind]["calibrated"]["first"]["value"] for draw in draws] for draws in sizes.values()]
        )
        axes.plot(counts, first.mean(axis=1), color=colour, label=f"patched {kind}s")
        axes.plot(counts, first, "o", color=colour, markersize=3)
    axes.set_xscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_xlabel("prompts in the reference (facts)")
    axes.set_ylabel("damaged node has the largest z")
    axes.legend(frameon=False, loc="lower right")


def _forms(axes: Axes, forms: dict[str, Any]) -> None:
    """Alarms at 5% on clean prompts of other forms."""
    at = np.arange(len(FORMS))
    for offset, (statistic, label, colour) in zip(
        (-0.2, 0.2), (("largest", "largest z", "#1b6ca8"), ("mean", "mean", "#d9a441")), strict=True
    ):
        rates = [forms[form]["calibrated"][statistic]["0.05"]["rate"] for form in FORMS]
        axes.bar(at + offset, rates, 0.4, label=label, color=colour)
    axes.axhline(0.05, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(at, list(FORMS.values()), rotation=20, ha="right")
    axes.set_ylabel("alarms at 5% on clean prompts")
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, loc="upper left")
