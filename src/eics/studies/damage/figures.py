"""Figures of a damage run: dose-response and AUROC over strength, one row per measure and one column per kind."""

from collections.abc import Callable
from typing import Any

from eics.studies.damage.plan import CIRCUIT, OUTSIDE
from eics.studies.damage.summary import Point, Summary
from eics.studies.statistics import Interval

_STYLES = {CIRCUIT: ("#D55E00", "o", "on the circuit"), OUTSIDE: ("#0072B2", "s", "equal damage outside")}
_SHOWN = ("eics", "c_sh", "propagated", "max_probability", "activation_norm")


def dose_figure(summary: Summary) -> Any:
    """Mean change from the undamaged run over strength, with 95% intervals over prompts."""
    return _grid(summary, lambda point: point.change, 0.0, "Change from the undamaged run")


def auroc_figure(summary: Summary) -> Any:
    """AUROC of damaged against undamaged runs over strength."""
    return _grid(summary, lambda point: point.auroc, 0.5, "AUROC of damaged against undamaged")


def _grid(summary: Summary, pick: Callable[[Point], Interval], level: float, title: str) -> Any:
    from matplotlib.figure import Figure

    rows = [m for m in summary.measures if m.column.split(".")[-1] in _SHOWN]
    height, width = max(1, len(rows)), max(1, len(summary.kinds))
    inches = 2.6 * width + 1.6, 1.6 * height + 1.4
    figure = Figure(figsize=inches)  # margins by hand: a layout solver takes seconds for this many axes
    margins = {"left": 1.2 / inches[0], "right": 1 - 0.2 / inches[0], "top": 1 - 0.7 / inches[1]}
    spaces = margins | {"bottom": 0.8 / inches[1], "hspace": 0.3, "wspace": 0.08}
    grid = figure.subplots(height, width, squeeze=False, sharey="row", gridspec_kw=spaces)
    for row, measure in enumerate(rows):
        for column, kind in enumerate(summary.kinds):
            axes = grid[row][column]
            axes.axhline(level, color="0.6", linewidth=0.8)
            for place, style in _STYLES.items():
                _draw_curve(axes, summary.curve(measure.column, kind, place), pick, *style)
            _label_strengths(axes, summary.settings["strengths"], is_last=row == height - 1)
            if row == 0:
                axes.set_title(kind, fontsize=10)
        low, high = grid[row][0].get_ylim()
        if high - low < 1e-9:  # nothing moved: do not magnify rounding errors
            grid[row][0].set_ylim(level - 1, level + 1)
        grid[row][0].set_ylabel(measure.label.replace(", ", ",\n"), fontsize=8)
    name = summary.settings["circuit"]["name"]
    figure.suptitle(f"{title}: {name}, {summary.prompts} prompts", fontsize=11, parse_math=False)
    drawn = [axes.get_legend_handles_labels() for axes in grid.flat]
    handles = {label: handle for pair in drawn for handle, label in zip(*pair, strict=True)}  # a panel may lack a curve
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _label_strengths(axes: Any, strengths: list[float], *, is_last: bool) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xticks(strengths, [f"{strength:g}" if is_last else "" for strength in strengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=7)
    if is_last:
        axes.set_xlabel("strength", fontsize=8)


def _draw_curve(
    axes: Any, points: list[Point], pick: Callable[[Point], Interval], colour: str, marker: str, label: str
) -> None:
    if not points:
        return
    strengths, intervals = [point.strength for point in points], [pick(point) for point in points]
    axes.plot(strengths, [i.value for i in intervals], color=colour, marker=marker, markersize=3, label=label)
    axes.fill_between(
        strengths, [i.low for i in intervals], [i.high for i in intervals], color=colour, alpha=0.2, linewidth=0
    )
