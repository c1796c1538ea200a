"""How edges run between placed nodes: upwards, never behind a node, side by side in a shared gap.

An edge leaves the upper side of its source and enters the lower side of its target; the ports of a head are q, k, v
from left to right. An edge passes each row through the gap between two nodes that is nearest to the straight line;
edges that share a gap take parallel lanes.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from eics.circuits.graph import PORTS, Edge
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, spread

Point = tuple[float, float]
Cubic = tuple[Point, Point, Point, Point]

PORT_AT = {port: (index - 1) * 0.32 * NODE_WIDTH for index, port in enumerate(PORTS)}
"""Offset of a port from the middle of a head's lower side."""

_CLEAR = 0.05  # between an edge and the nodes that it passes
_LANE = 0.05  # between two edges in a gap
_SPAN = 0.7  # part of a node's width over which edges may leave or enter
_PORT_SPAN = 0.16  # the same for the edges of one port
_ASIDE = 0.25  # room left and right of all nodes


def route_edges(layout: Layout, edges: Iterable[Edge]) -> dict[Edge, tuple[Point, ...]]:
    """The points through which each edge runs, from bottom to top; `smooth` turns them into a curve.

    >>> from eics.circuits.graph import Circuit
    >>> from eics.reporting.drawing.layout import place_nodes
    >>> circuit = Circuit(["input->a0.h0<v>", "a0.h0->logits"])
    >>> route_edges(place_nodes(circuit), circuit.edges)[circuit.edges[0]]
    ((0.0, 0.15), (0.2176, 0.85))
    """
    edges = sorted(edges, key=str)
    starts = _slots(layout, edges, out=True)
    ends = _slots(layout, edges, out=False)
    passes: dict[tuple[float, int], list[tuple[float, Edge]]] = {}
    rows = _rows(layout)
    for edge in edges:
        for y, gap, x in _passing(rows, starts[edge], ends[edge]):
            passes.setdefault((y, gap), []).append((x, edge))
    points: dict[Edge, list[Point]] = {edge: [starts[edge]] for edge in edges}
    for (y, gap), through in sorted(passes.items()):
        low, high = _bounds(rows[y], gap, layout)
        through.sort(key=lambda crossing: (crossing[0], ends[crossing[1]][0], str(crossing[1])))
        for x, (_, edge) in zip(spread([x for x, _ in through], _LANE, low, high), through, strict=True):
            points[edge].append((x, y))
    return {edge: _upright(rows, [*points[edge], ends[edge]]) for edge in edges}


def smooth(points: Sequence[Point]) -> list[Cubic]:
    """Cubic Bezier pieces through the points, vertical at both ends, without overshoot between two points.

    x is a monotone cubic interpolant of y: its slope at a point is the harmonic mean of the slopes on both sides.
    """
    secants = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairwise(points)]
    inner = [0.0 if a * b <= 0 else 2 * a * b / (a + b) for a, b in pairwise(secants)]
    slopes = [0.0, *inner, 0.0]
    pieces = []
    for ((x0, y0), (x1, y1)), (s0, s1) in zip(pairwise(points), pairwise(slopes), strict=True):
        third = (y1 - y0) / 3
        pieces.append(((x0, y0), (x0 + s0 * third, y0 + third), (x1 - s1 * third, y1 - third), (x1, y1)))
    return pieces


def _slots(layout: Layout, edges: Sequence[Edge], *, out: bool) -> dict[Edge, Point]:
    """Where each edge leaves its source (`out`) or enters its target: side by side, in the order of the far ends."""
    groups: dict[tuple[str, str | None], list[Edge]] = {}
    for edge in edges:
        groups.setdefault((edge.source, None) if out else (edge.target, edge.port), []).append(edge)
    ported = {edge.target for edge in edges if edge.port}
    slots: dict[Edge, Point] = {}
    for (node, port), group in groups.items():
        x, y = layout.places[node]
        group.sort(key=_far_end(layout, out))
        span = NODE_WIDTH * (_PORT_SPAN if not out and node in ported else _SPAN)
        # An edge into a whole head that also has ports enters between q and k, apart from all three.
        middle = x + (0.0 if out or node not in ported else PORT_AT[port] if port else PORT_AT["q"] / 2)
        side = y + (NODE_HEIGHT / 2 if out else -NODE_HEIGHT / 2)
        wide = min(span, 2 * _LANE * (len(group) - 1))
        across = spread([middle] * len(group), 2 * _LANE, middle - wide / 2, middle + wide / 2)
        slots |= {edge: (round(at, 6), round(side, 6)) for at, edge in zip(across, group, strict=True)}
    return slots


def _far_end(layout: Layout, out: bool) -> Callable[[Edge], tuple[float, float, str]]:
    """A key that sorts edges from left to right by the slope towards their far end, so that they do not cross."""

    def key(edge: Edge) -> tuple[float, float, str]:
        near, far = (edge.source, edge.target) if out else (edge.target, edge.source)
        (x, y), (far_x, far_y) = layout.places[near], layout.places[far]
        at = far_x + (PORT_AT.get(edge.port or "", 0.0) if out else 0.0)
        return ((at - x) / abs(far_y - y), at, str(edge))

    return key


def _rows(layout: Layout) -> dict[float, list[float]]:
    """x of the nodes in each row, from left to right, by the row's y."""
    rows: dict[float, list[float]] = {}
    for x, y in sorted(layout.places.values()):
        rows.setdefault(y, []).append(x)
    return dict(sorted(rows.items()))


def _passing(rows: dict[float, list[float]], start: Point, end: Point) -> list[tuple[float, int, float]]:
    """For each row between the ends: its y, the gap to take (0 is left of all nodes), and x in that gap."""
    crossings = []
    (x, y), (x1, y1) = start, end
    for height, nodes in rows.items():
        if not start[1] < height < end[1]:
            continue
        straight = x + (x1 - x) * (height - y) / (y1 - y)
        nearest = min(nodes, key=lambda node: abs(node - straight))
        gap = bisect_left(nodes, straight)
        keep = NODE_WIDTH / 2 + _CLEAR
        if abs(nearest - straight) < keep:
            straight = nearest + (keep if straight > nearest or (straight == nearest and x1 > x) else -keep)
            gap = bisect_left(nodes, straight)
        crossings.append((height, gap, straight))
        x, y = straight, height
    return crossings


def _upright(rows: dict[float, list[float]], points: Sequence[Point]) -> tuple[Point, ...]:
    """Doubles a point, below and above a row, if a slanted edge would cut the corner of a node there."""
    slants = [abs((b[0] - a[0]) / (b[1] - a[1])) for a, b in pairwise(points)]
    route = [points[0]]
    for (x, y), slant in zip(points[1:-1], map(max, pairwise(slants)), strict=True):
        room = min(abs(node - x) for node in rows[y]) - NODE_WIDTH / 2
        half = NODE_HEIGHT / 2
        # Near a point, a monotone cubic slants at most one and a half times as much as its pieces do on average.
        clear = room > 1.5 * slant * half
        route += [(x, y)] if clear else [(x, round(y - half, 6)), (x, round(y + half, 6))]
    return (*route, points[-1])


def _bounds(nodes: list[float], gap: int, layout: Layout) -> tuple[float, float]:
    """How far left and right an edge may run in a gap of a row; the outer gaps end at a margin around the layout."""
    keep = NODE_WIDTH / 2 + _CLEAR
    low = nodes[gap - 1] + keep if gap > 0 else -keep - _ASIDE
    high = nodes[gap] - keep if gap < len(nodes) else layout.width - NODE_WIDTH + keep + _ASIDE
    return low, high
