"""How edges and nodes look, the legend that explains it, and which edges are shown if there are too many.

Width comes from attribution, colour from share of inconsistency. The two channels never mix: attribution does not
change the colour, nor inconsistency the width. Without shares, the colour shows the port through which an edge enters.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor, log10
from typing import Any

from eics.circuits.graph import PORTS, Circuit, Edge
from eics.errors import OptionError

PORT_COLOURS = {"q": "#0072B2", "k": "#D55E00", "v": "#009E73"}  # Okabe-Ito: safe for colour-blind readers
WHOLE = "#4D4D4D"
NO_SHARE = "#BDBDBD"
DASHED = (0, (3.5, 1.2))
LEGEND_WIDTH = 2.3  # inches

_THINNEST, _WIDEST = 0.7, 5.0  # points
_PLAIN = 1.2  # without attributions
_LIGHTEST, _DARKEST = 0.17, 0.92  # part of the colour map that is used: its light end is invisible on white
_LINE = 0.21  # inches from one entry of the legend to the next
_SAMPLE = 0.42
_TEXT = 8.0


@dataclass(frozen=True)
class Ink:
    """Widths, dashes and colours of a picture's edges and nodes."""

    scores: Mapping[Edge, float] | None
    shares: Mapping[Edge, float] | None
    node_shares: Mapping[str, float] | None

    @cached_property
    def largest_score(self) -> float:
        """The largest |attribution|; 0 without attributions."""
        return max(map(abs, (self.scores or {}).values()), default=0.0)

    def width(self, score: float) -> float:
        """Width in points: linear in |attribution|, above a visible minimum."""
        return _THINNEST + (_WIDEST - _THINNEST) * abs(score) / self.largest_score

    def needs_legend(self, shown: Sequence[Edge]) -> bool:
        """Whether the picture has anything for a legend to explain."""
        numbers = bool(self.largest_score) or self.shares is not None or self.node_shares is not None
        return numbers or any(edge.port for edge in shown)

    def edge_width(self, edge: Edge) -> float:
        return self.width((self.scores or {}).get(edge, 0.0)) if self.largest_score else _PLAIN

    def edge_style(self, edge: Edge) -> Any:
        return DASHED if (self.scores or {}).get(edge, 0.0) < 0 else "solid"

    def edge_colour(self, edge: Edge) -> Any:
        """By share, grey if this edge has none; by port if there are no shares at all."""
        if self.shares is None:
            return PORT_COLOURS.get(edge.port or "", WHOLE)
        return self.edge_scale.to_rgba(self.shares[edge]) if edge in self.shares else NO_SHARE

    def node_colour(self, node: str) -> Any:
        if self.node_shares is None or node not in self.node_shares:
            return None
        return self.node_scale.to_rgba(self.node_shares[node])

    @cached_property
    def edge_scale(self) -> Any:
        return _scale(self.shares or {})

    @cached_property
    def node_scale(self) -> Any:
        return _scale(self.node_shares or {})


def _scale(shares: Mapping[Any, float]) -> Any:
    """The colours of shares from 0 to the largest."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    steps = [_LIGHTEST + (_DARKEST - _LIGHTEST) * step / 255 for step in range(256)]
    colours = ListedColormap([colormaps["magma_r"](step) for step in steps])
    return ScalarMappable(Normalize(0.0, max(shares.values(), default=0.0) or 1.0), colours)


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
    inset = figure.add_axes((x / width, (y - 0.27) / height, (LEGEND_WIDTH - 0.55) / width, 0.12 / height))
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


@dataclass(frozen=True)
class Thinned:
    """The edges to show, in the circuit's order, and a sentence about the others, or None if there are none."""

    shown: tuple[Edge, ...]
    sentence: str | None


def thin_out(
    circuit: Circuit,
    max_edges: int,
    *,
    scores: Mapping[Edge, float] | None = None,
    shares: Mapping[Edge, float] | None = None,
) -> Thinned:
    """Keeps the edges with the largest share of inconsistency, else attribution, else degree of their ends.

    >>> circuit = Circuit(["input->m0", "m0->m1", "m1->logits"])
    >>> scores = dict(zip(circuit.edges, [3.0, -6.0, 1.0]))
    >>> thin_out(circuit, 2, scores=scores).sentence
    'Showing 2 of 3 edges, which carry 90% of the attribution; the others are faint.'
    """
    if max_edges < 1:
        raise OptionError.of("max_edges", "a whole number >= 1", max_edges)
    if len(circuit.edges) <= max_edges:
        return Thinned(circuit.edges, None)
    criteria = {"inconsistency": shares, "attribution": scores}
    # Numbers that are all zero cannot rank edges.
    weights = {what: _sizes(circuit, given) for what, given in criteria.items() if given and any(given.values())}
    rank = next(iter(weights.values()), None) or _degrees(circuit)
    kept = set(sorted(circuit.edges, key=lambda edge: -rank[edge])[:max_edges])
    shown = tuple(edge for edge in circuit.edges if edge in kept)
    carried = [
        f"{_percent(sum(weight[edge] for edge in shown) / sum(weight.values()))} of the {what}"
        for what, weight in weights.items()
    ]
    why = f"which carry {' and '.join(carried)}" if carried else "those of the best-connected nodes"
    return Thinned(shown, f"Showing {len(shown)} of {len(circuit.edges)} edges, {why}; the others are faint.")


def _sizes(circuit: Circuit, given: Mapping[Edge, float]) -> dict[Edge, float]:
    return {edge: abs(given.get(edge, 0.0)) for edge in circuit.edges}


def _degrees(circuit: Circuit) -> dict[Edge, float]:
    """The smaller degree of each edge's two ends: an edge between two hubs matters more than one to a leaf."""
    degree = Counter(end for edge in circuit.edges for end in (edge.source, edge.target))
    return {edge: float(min(degree[edge.source], degree[edge.target])) for edge in circuit.edges}


def _percent(fraction: float) -> str:
    """A whole percentage; 100% only if nothing is missing."""
    return f"{min(int(100 * fraction + 0.5), 99)}%" if fraction < 1.0 else "100%"
