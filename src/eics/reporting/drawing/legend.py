"""The legend at the right of a picture: what width, dashes and colour mean."""

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from eics.circuits.graph import PORTS, Edge
from eics.reporting.drawing.ink import DASHED, NO_SHARE, PORT_COLOURS, WHOLE, Ink

WIDTH = 2.3
"""Of the legend, in inches."""

_LINE = 0.21  # inches from one entry to the next
_SAMPLE = 0.42
_TEXT = 8.0


def draw_legend(figure: Any, axes: Any, ink: Ink, shown: Sequence[Edge], x: float, y: float) -> float:
    """Draws the legend downwards from (x, y), in inches, and returns the y at which it ends."""
    if ink.largest_score:
        y = _heading(axes, x, y, "width: |attribution|")
        for value in _round_values(ink.largest_score):
            y = _entry(axes, x, y, f"{value:g}", linewidth=ink.width(value), color=WHOLE)
        if any(ink.edge_style(edge) == DASHED for edge in shown):
            y = _entry(axes, x, y, "negative", linewidth=1.8, color=WHOLE, linestyle=DASHED)
        y -= _LINE / 2
    if ink.shares is not None:
        y = _bar(figure, axes, ink.edge_scale, x, y, "edges: share of squared residual")
        if any(edge not in ink.shares for edge in shown):
            y = _entry(axes, x, y, "left out of C_sh", linewidth=1.8, color=NO_SHARE)
    elif any(edge.port for edge in shown):
        y = _heading(axes, x, y, "colour: entry into a head")
        for port in PORTS:
            y = _entry(axes, x, y, f"{port} only", linewidth=1.8, color=PORT_COLOURS[port])
        if any(edge.port is None for edge in shown):
            y = _entry(axes, x, y, "whole node", linewidth=1.8, color=WHOLE)
    if ink.node_shares is not None:
        y = _bar(figure, axes, ink.node_scale, x, y, "nodes: share of $C_\\mathrm{sh}$")
    return y


def has_legend(ink: Ink, shown: Sequence[Edge]) -> bool:
    """Whether the picture has anything for a legend to explain."""
    numbers = bool(ink.largest_score) or ink.shares is not None or ink.node_shares is not None
    return numbers or any(edge.port for edge in shown)


def _heading(axes: Any, x: float, y: float, text: str) -> float:
    axes.text(x, y, text, fontsize=_TEXT, fontweight="bold", va="center")
    return y - _LINE


def _entry(axes: Any, x: float, y: float, text: str, **line: Any) -> float:
    axes.plot([x, x + _SAMPLE], [y, y], solid_capstyle="butt", dash_capstyle="butt", **line)
    axes.text(x + _SAMPLE + 0.1, y, text, fontsize=_TEXT, va="center")
    return y - _LINE


def _bar(figure: Any, axes: Any, scale: Any, x: float, y: float, text: str) -> float:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.text(x, y, text, fontsize=_TEXT, fontweight="bold", va="center")
    width, height = figure.get_size_inches()
    inset = figure.add_axes((x / width, (y - 0.27) / height, (WIDTH - 0.55) / width, 0.12 / height))
    bar = figure.colorbar(scale, cax=inset, orientation="horizontal", ticks=MaxNLocator(4))
    bar.outline.set_linewidth(0.5)
    bar.ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    bar.ax.tick_params(labelsize=_TEXT - 1, width=0.5, length=2)
    return y - 0.68


def _round_values(largest: float) -> list[float]:
    """Three widths to compare with: the largest rounded down to one digit, half of it, a tenth of it."""
    unit = 10.0 ** floor(log10(largest))
    top = unit * floor(largest / unit + 1e-9)
    return [float(f"{top * part:.2g}") for part in (1.0, 0.5, 0.1)]
