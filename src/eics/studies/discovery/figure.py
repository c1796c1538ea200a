"""Faithfulness over circuit size, as a picture."""

from typing import TYPE_CHECKING, Any

from eics.reporting.plots import COLOURS

if TYPE_CHECKING:
    from eics.studies.discovery.faithfulness import Faithfulness


def faithfulness_figure(found: "Faithfulness", title: str) -> Any:
    """Faithfulness over circuit size with its intervals; 1 is the full model, 0 the model with everything ablated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    points = sorted(found.points, key=lambda point: point.share)
    own = [point for point in points if point.name == "circuit"]
    curve = [point for point in points if point.name != "circuit"]
    for some, colour, label in ((curve, COLOURS[0], "top edges"), (own, COLOURS[1], "the file's circuit")):
        if some:
            values = [point.faithfulness.value for point in some]
            below = [point.faithfulness.value - point.faithfulness.low for point in some]
            above = [point.faithfulness.high - point.faithfulness.value for point in some]
            at = [point.share for point in some]
            axes.errorbar(at, values, yerr=[below, above], fmt="o-", color=colour, capsize=3, label=label)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("edges, as a share of all")
    axes.set_ylabel("faithfulness (95% interval over prompts)")
    areas = f"\nCPR {found.cpr}, CMD {found.cmd}" if found.cpr is not None else ""
    axes.set_title(title + areas, fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return figure
