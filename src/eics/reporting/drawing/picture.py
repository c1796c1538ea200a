"""A circuit as a matplotlib figure: one axes over the whole page, with inches as its units."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eics.circuits.graph import PORTS, Circuit, Edge, Kind, Node
from eics.errors import CircuitError
from eics.reporting.drawing.ink import LEGEND_WIDTH, PORT_COLOURS, Ink, draw_legend, thin_out
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, place_nodes
from eics.reporting.drawing.routes import PORT_AT, Point, route_edges, smooth

_COLUMN, _ROW = 0.95, 0.95  # inches per unit of the layout; columns grow with long names
_LEFT, _RIGHT, _BOTTOM, _GAP = 1.15, 0.35, 0.25, 0.3
_NAME = 8.5  # points
_LETTER = 0.62 / 72  # width of a letter in inches, per point of font size
_MIN_LEGEND = 2.9  # inches of height that the longest legend needs
_MIN_TITLE = 3.0  # inches of width that a title should have
_BAND, _FAINT, _DARK = "#F4F4F4", "#DADADA", "#222222"


def draw_circuit(
    circuit: Circuit,
    *,
    scores: Mapping[Edge, float] | None = None,
    shares: Mapping[Edge, float] | None = None,
    node_shares: Mapping[str, float] | None = None,
    max_edges: int = 150,
    title: str | None = None,
) -> Any:
    """A picture of a circuit: layers upwards, width by |attribution|, colour by share of inconsistency.

    Args:
        circuit: the circuit to draw.
        scores: attribution of each edge, dashed if negative; without it all edges are equally wide.
        shares: share of the squared residual of each edge, grey if it has none; without it the colour shows the port.
        node_shares: share of C_sh of each node, if C_sh is measured per node.
        max_edges: above this, only the most important edges are drawn in full, and the picture says so.
        title: text above the picture, its first line in larger type.
    """
    from matplotlib.figure import Figure

    _check_numbers(circuit.edges, scores, "Attributions", "edge")
    _check_numbers(circuit.edges, shares, "Shares", "edge")
    _check_numbers(circuit.nodes, node_shares, "Node shares", "node")
    thinned = thin_out(circuit, max_edges, scores=scores, shares=shares)
    ink = Ink(scores, shares, node_shares)
    layout = place_nodes(circuit)
    legend = LEGEND_WIDTH if ink.needs_legend(thinned.shown) else 0.0
    page = _Page(layout, legend, title, thinned.sentence)
    figure = Figure(figsize=(page.width, page.height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, page.width), ylim=(0, page.height))
    axes.set_axis_off()
    page.draw_rows(axes)
    _draw_edges(axes, page, ink, circuit, thinned.shown)
    _draw_nodes(axes, page, ink, circuit, thinned.shown)
    page.draw_title(axes)
    if legend:
        draw_legend(figure, axes, ink, thinned.shown, page.width - legend, page.top - 0.1)
    return figure


class _Page:
    """Where everything goes, in inches: the scaled layout, margins, title and legend."""

    def __init__(self, layout: Layout, legend: float, title: str | None, sentence: str | None) -> None:
        self.layout = layout
        longest = max(map(len, layout.places))
        self.column = max(_COLUMN, (longest * _NAME * _LETTER + 0.12) / NODE_WIDTH)
        body = layout.width * self.column + _GAP * bool(legend) + legend
        self.width = _LEFT + _RIGHT + max(body, _MIN_TITLE)
        first, *rest = (title or "").splitlines() or [""]
        texts = [(first, 12.0), *((text, 9.0) for text in (*rest, sentence or ""))]
        letters = {size: max(12, int((self.width - 0.6) / (size * _LETTER))) for size in (12.0, 9.0)}
        self.lines = [(line, size) for text, size in texts for line in textwrap.wrap(text, letters[size])]
        self.top = _BOTTOM + max(layout.height * _ROW, _MIN_LEGEND if legend else 0.0)
        self.height = self.top + 0.25 + sum(1.5 * size / 72 for _, size in self.lines)

    def at(self, point: Point) -> Point:
        """Inches of a point of the layout."""
        x, y = point
        return _LEFT + (x + NODE_WIDTH / 2) * self.column, _BOTTOM + (y + NODE_HEIGHT / 2) * _ROW

    def draw_rows(self, axes: Any) -> None:
        """A band behind every layer, with its label at the left."""
        right = self.at((self.layout.width - NODE_WIDTH / 2, 0.0))[0]
        for row in self.layout.rows:
            low, high = self.at((0.0, row.low))[1], self.at((0.0, row.high))[1]
            span = {"xmin": 0.2 / self.width, "xmax": (right + 0.2) / self.width}
            axes.axhspan(low + 0.02, high - 0.02, **span, facecolor=_BAND, edgecolor="none", zorder=0)
            axes.text(0.28, (low + high) / 2, row.label, fontsize=8, color="#666666", va="center")

    def draw_title(self, axes: Any) -> None:
        """The title, and the sentence about edges that are not shown, from the top."""
        y = self.height - 0.12
        for text, size in self.lines:
            axes.text(0.2, y, text, fontsize=size, color=_DARK, va="top", parse_math=False)
            y -= 1.5 * size / 72


def _draw_edges(axes: Any, page: _Page, ink: Ink, circuit: Circuit, shown: Sequence[Edge]) -> None:
    from matplotlib.collections import PathCollection

    routes = route_edges(page.layout, shown)
    # The important edges last, on top of the others.
    order = sorted(shown, key=lambda e: ((ink.shares or {}).get(e, -1.0), ink.edge_width(e), str(e)))
    paths = {edge: _path(page, routes[edge]) for edge in order}
    if rest := [edge for edge in circuit.edges if edge not in paths]:
        straight = route_edges(page.layout, rest)
        faint = [_path(page, (straight[edge][0], straight[edge][-1])) for edge in rest]
        axes.add_collection(
            PathCollection(faint, facecolors="none", edgecolors=_FAINT, linewidths=0.3, zorder=1), autolim=False
        )
    # Every edge has a white border, which shows at a crossing how both edges continue.
    axes.add_collection(
        PathCollection(
            [paths[edge] for edge in order for _ in range(2)],
            facecolors="none",
            edgecolors=[colour for edge in order for colour in ("white", ink.edge_colour(edge))],
            linewidths=[width for edge in order for width in (ink.edge_width(edge) + 1.4, ink.edge_width(edge))],
            linestyles=[style for edge in order for style in ("solid", ink.edge_style(edge))],
            zorder=2,
        ),
        autolim=False,
    )
    ends = [page.at(routes[edge][-1]) for edge in order]
    sizes = [3.0 + 1.2 * ink.edge_width(edge) for edge in order]
    axes.scatter(
        [x for x, _ in ends],
        [y - size / 144 for (_, y), size in zip(ends, sizes, strict=True)],
        s=[size**2 for size in sizes],
        c=[ink.edge_colour(edge) for edge in order],
        marker="^",
        linewidths=0,
        zorder=3,
    )


def _path(page: _Page, points: Sequence[Point]) -> Any:
    from matplotlib.path import Path

    pieces = smooth(points)
    vertices = [page.at(pieces[0][0]), *(page.at(point) for piece in pieces for point in piece[1:])]
    return Path(vertices, [Path.MOVETO, *[Path.CURVE4] * (3 * len(pieces))])


def _draw_nodes(axes: Any, page: _Page, ink: Ink, circuit: Circuit, shown: Sequence[Edge]) -> None:
    touched = {end for edge in shown for end in (edge.source, edge.target)}
    ports = {node: {edge.port for edge in circuit.parents[node] if edge.port} for node in circuit.nodes}
    centred: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 6}
    for node in circuit.nodes:
        colour = ink.node_colour(node)
        line = _DARK if node in touched else "#B0B0B0"
        _draw_box(axes, page, node, colour or "white", line)
        letters = line if colour is None else "white" if _luminance(colour) < 0.45 else _DARK
        x, y = page.at(page.layout.places[node])
        raised = 0.045 if ports[node] else 0.0
        axes.text(x, y + raised, node, fontsize=_NAME, color=letters, parse_math=False, **centred)
        for port in PORTS if ports[node] else ():
            plain = colour is None and ink.shares is None and node in touched
            tint = PORT_COLOURS[port] if plain else letters
            alpha = 1.0 if port in ports[node] else 0.35
            at = x + PORT_AT[port] * page.column
            axes.text(at, y - 0.085, port, fontsize=6.0, color=tint, alpha=alpha, **centred)


def _draw_box(axes: Any, page: _Page, node: str, fill: Any, line: str) -> None:
    """Heads have round corners, MLPs sharp ones, other nodes are pills: shape shows the kind, colour never does."""
    from matplotlib.patches import FancyBboxPatch

    x, y = page.at(page.layout.places[node])
    width, height = NODE_WIDTH * page.column, NODE_HEIGHT * _ROW
    corner = {Kind.HEAD: 0.06, Kind.MLP: 0.0}.get(Node.parse(node).kind, height / 2)
    style = f"round,pad=0,rounding_size={corner}" if corner else "square,pad=0"
    lower_left = (x - width / 2, y - height / 2)
    look = {"boxstyle": style, "facecolor": fill, "edgecolor": line, "linewidth": 0.9, "zorder": 5}
    axes.add_patch(FancyBboxPatch(lower_left, width, height, **look))


def _luminance(colour: Any) -> float:
    red, green, blue, *_ = colour
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def _check_numbers(keys: Iterable[Any], given: Mapping[Any, float] | None, what: str, of: str) -> None:
    allowed = set(keys)
    for key, value in (given or {}).items():
        if key not in allowed:
            raise CircuitError(f"{what} must belong to {of}s of the circuit. Got {key}, which is not one of them.")
        if not math.isfinite(value):
            raise CircuitError(f"{what} must be finite numbers. Got {value!r} for {of} {key}.")
