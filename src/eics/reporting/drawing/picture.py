"""A circuit as a matplotlib figure. One axes over the whole page, in inches, so that nothing needs to be guessed."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eics.circuits.graph import PORTS, Circuit, Edge, Kind, Node
from eics.errors import CircuitError
from eics.reporting.drawing.ink import PORT_COLOURS, Ink
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, place_nodes
from eics.reporting.drawing.legend import WIDTH as KEY_WIDTH
from eics.reporting.drawing.legend import draw_key, has_key
from eics.reporting.drawing.routes import PORT_AT, Point, route_edges, smooth
from eics.reporting.drawing.thinning import thin_out

_COLUMN, _ROW = 0.95, 0.95  # inches for each unit of the layout; columns grow with long names
_LEFT, _RIGHT, _BOTTOM, _GAP = 1.15, 0.35, 0.25, 0.3
_NAME = 8.5  # points
_LETTER = 0.62 / 72  # inches for a letter, for each point of its size
_MIN_KEY = 2.9  # inches of height that the longest key needs
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
        circuit: what is drawn.
        scores: attribution of each edge; without it all edges are equally wide. Dashed where negative.
        shares: each edge's share of the squared residual; without it the colour tells the port. An edge of which
            only `shares` says nothing is grey.
        node_shares: each node's share of C_sh, where it goes by node.
        max_edges: with more, only the most important are drawn in full, and the picture says so.
        title: its first line is set larger.
    """
    from matplotlib.figure import Figure

    _check_numbers(circuit.edges, scores, "Attributions", "edge")
    _check_numbers(circuit.edges, shares, "Shares", "edge")
    _check_numbers(circuit.nodes, node_shares, "Node shares", "node")
    thinned = thin_out(circuit, max_edges, scores=scores, shares=shares)
    ink = Ink(scores, shares, node_shares)
    layout = place_nodes(circuit)
    key = KEY_WIDTH if has_key(ink, thinned.shown) else 0.0
    page = _Page(layout, key, title, thinned.sentence)
    figure = Figure(figsize=(page.width, page.height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(0, page.width), ylim=(0, page.height))
    axes.set_axis_off()
    page.draw_rows(axes)
    _draw_edges(axes, page, ink, circuit, thinned.shown)
    _draw_nodes(axes, page, ink, circuit, thinned.shown)
    page.draw_title(axes)
    if key:
        draw_key(figure, axes, ink, thinned.shown, page.width - key, page.top - 0.1)
    return figure


class _Page:
    """Inches of everything: the layout's units scaled, margins, title, key."""

    def __init__(self, layout: Layout, key: float, title: str | None, sentence: str | None) -> None:
        self.layout = layout
        longest = max(map(len, layout.places))
        self.column = max(_COLUMN, (longest * _NAME * _LETTER + 0.12) / NODE_WIDTH)
        body = layout.width * self.column + _GAP * bool(key) + key
        self.width = _LEFT + _RIGHT + max(body, _MIN_TITLE)
        self.lines = [*_title_lines(title, self.width - 0.6), *_wrapped(sentence, 9.0, self.width - 0.6)]
        self.top = _BOTTOM + max(layout.height * _ROW, _MIN_KEY if key else 0.0)
        self.height = self.top + 0.25 + sum(1.5 * size / 72 for _, size in self.lines)

    def at(self, place: Point) -> Point:
        """A place of the layout on the page."""
        x, y = place
        return _LEFT + (x + NODE_WIDTH / 2) * self.column, _BOTTOM + (y + NODE_HEIGHT / 2) * _ROW

    def draw_rows(self, axes: Any) -> None:
        """A band behind every layer, with its name at the left."""
        right = self.at((self.layout.width - NODE_WIDTH / 2, 0.0))[0]
        for row in self.layout.rows:
            low, high = self.at((0.0, row.low))[1], self.at((0.0, row.high))[1]
            axes.axhspan(
                low + 0.02,
                high - 0.02,
                xmin=0.2 / self.width,
                xmax=(right + 0.2) / self.width,
                facecolor=_BAND,
                edgecolor="none",
                zorder=0,
            )
            axes.text(0.28, (low + high) / 2, row.label, fontsize=8, color="#666666", va="center")

    def draw_title(self, axes: Any) -> None:
        """The title and what is said of edges not shown, from the top."""
        y = self.height - 0.12
        for text, size in self.lines:
            axes.text(0.2, y, text, fontsize=size, color=_DARK, va="top", parse_math=False)
            y -= 1.5 * size / 72


def _draw_edges(axes: Any, page: _Page, ink: Ink, circuit: Circuit, shown: Sequence[Edge]) -> None:
    from matplotlib.collections import PathCollection

    routes = route_edges(page.layout, shown)
    # The important ones last, on top of the others.
    order = sorted(shown, key=lambda e: ((ink.shares or {}).get(e, -1.0), ink.edge_width(e), str(e)))
    paths = {edge: _path(page, routes[edge]) for edge in order}
    if rest := [edge for edge in circuit.edges if edge not in paths]:
        straight = route_edges(page.layout, rest)
        faint = [_path(page, (straight[edge][0], straight[edge][-1])) for edge in rest]
        axes.add_collection(
            PathCollection(faint, facecolors="none", edgecolors=_FAINT, linewidths=0.3, zorder=1), autolim=False
        )
    # Every edge has a white border, so that one sees at a crossing which of the two runs on where.
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
    for node in circuit.nodes:
        colour = ink.node_colour(node)
        line = _DARK if node in touched else "#B0B0B0"
        _draw_box(axes, page, node, colour or "white", line)
        letters = line if colour is None else "white" if _luminance(colour) < 0.45 else _DARK
        x, y = page.at(page.layout.places[node])
        raised = 0.045 if ports[node] else 0.0
        axes.text(
            x, y + raised, node, fontsize=_NAME, color=letters, ha="center", va="center", zorder=6, parse_math=False
        )
        for port in PORTS if ports[node] else ():
            used, plain = port in ports[node], ink.shares is None
            tint = letters if colour is not None else PORT_COLOURS[port] if plain and node in touched else line
            at = x + PORT_AT[port] * page.column
            axes.text(
                at,
                y - 0.085,
                port,
                fontsize=6.0,
                color=tint,
                alpha=1.0 if used else 0.35,
                ha="center",
                va="center",
                zorder=6,
            )


def _draw_box(axes: Any, page: _Page, node: str, fill: Any, line: str) -> None:
    """Heads have round corners, MLPs sharp ones, the rest is round: kinds are told by shape, never by colour."""
    from matplotlib.patches import FancyBboxPatch

    x, y = page.at(page.layout.places[node])
    width, height = NODE_WIDTH * page.column, NODE_HEIGHT * _ROW
    corner = {Kind.HEAD: 0.06, Kind.MLP: 0.0}.get(Node.parse(node).kind, height / 2)
    style = f"round,pad=0,rounding_size={corner}" if corner else "square,pad=0"
    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle=style,
            facecolor=fill,
            edgecolor=line,
            linewidth=0.9,
            zorder=5,
        )
    )


def _title_lines(title: str | None, width: float) -> list[tuple[str, float]]:
    first, *others = (title or "").splitlines() or [""]
    return [*_wrapped(first, 12.0, width), *(line for other in others for line in _wrapped(other, 9.0, width))]


def _wrapped(text: str | None, size: float, width: float) -> list[tuple[str, float]]:
    return [(line, size) for line in textwrap.wrap(text or "", max(12, int(width / (size * _LETTER))))]


def _luminance(colour: Any) -> float:
    red, green, blue, *_ = colour
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def _check_numbers(known: Iterable[Any], given: Mapping[Any, float] | None, what: str, of: str) -> None:
    names = set(known)
    for name, value in (given or {}).items():
        if name not in names:
            raise CircuitError(f"{what} must be given for the circuit's {of}s. Got {name}: not one of them.")
        if not math.isfinite(value):
            raise CircuitError(f"{what} must be finite numbers. Got {value!r} for {of} {name}.")
