"""The faithfulness curve as a figure."""

from typing import TYPE_CHECKING, Any

from eics.reporting.plots import COLOURS

if TYPE_CHECKING:
    from eics.studies.discovery.faithfulness import Faithfulness


def faithfulness_figure(result: "Faithfulness", title: str) -> Any:
    """Faithfulness over circuit size, with intervals; 1 is the full model, 0 the model with everything ablated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    points = sorted(result.points, key=lambda point: point.share)
    own = [point for point in points if point.name == "circuit"]
    curve = [point for point in points if point.name != "circuit"]
    for group, colour, label in ((curve, COLOURS[0], "top edges"), (own, COLOURS[1], "the file's circuit")):
        if group:
            shares, kept = [point.share for point in group], [point.faithfulness for point in group]
            errors = [[f.value - f.low for f in kept], [f.high - f.value for f in kept]]
            axes.errorbar(shares, [f.value for f in kept], yerr=errors, fmt="o-", color=colour, capsize=3, label=label)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("edges, as a share of all")
    axes.set_ylabel("faithfulness (95% interval over prompts)")
    areas = f"\nCPR {result.cpr}, CMD {result.cmd}" if result.cpr is not None else ""
    axes.set_title(title + areas, fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return figure
