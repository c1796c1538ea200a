"""A circuit as the page draws it: nodes and routes in pixels, computed once for all prompts."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from eics.circuits.graph import Circuit, Edge, Node
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, place_nodes
from eics.reporting.drawing.routes import Point, route_edges

_COLUMN, _ROW = 104.0, 60.0  # pixels per unit of the layout; columns grow with long names
_LETTER, _PADDING = 7.3, 16.0
_LEFT, _MARGIN = 84.0, 14.0  # room for row labels; room around everything


def draw_graph(
    edges: Iterable[Edge], attributions: Mapping[Edge, float], positions: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Nodes, edges and labelled rows in pixels; raises a `CircuitError` if the edges make no circuit."""
    circuit = Circuit(edges)
    layout = place_nodes(circuit)
    sheet = _Sheet(layout)
    index = {node: number for number, node in enumerate(circuit.nodes)}
    routes = route_edges(layout, circuit.edges)
    return {
        "width": sheet.width,
        "height": sheet.height,
        "box": [round(NODE_WIDTH * sheet.column, 1), round(NODE_HEIGHT * _ROW, 1)],
        "nodes": [_node(sheet, layout, name, positions.get(name)) for name in circuit.nodes],
        "edges": [
            [index[e.source], index[e.target], e.port, attributions.get(e), sheet.steps(routes[e])]
            for e in circuit.edges
        ],
        "rows": [[row.label, *sorted(sheet.at((0.0, y))[1] for y in (row.low, row.high))] for row in layout.rows],
    }


def _node(sheet: "_Sheet", layout: Layout, name: str, positions: Sequence[int] | None) -> list[Any]:
    return [name, *sheet.at(layout.places[name]), Node.parse(name).kind.value, list(positions) if positions else None]


class _Sheet:
    """Converts the layout's units to pixels, with y downwards."""

    def __init__(self, layout: Layout) -> None:
        longest = max(map(len, layout.places))
        self.column = max(_COLUMN, (longest * _LETTER + _PADDING) / NODE_WIDTH)
        self.width = round(_LEFT + (layout.width + 0.5) * self.column + _MARGIN)
        self._top = layout.height * _ROW + _MARGIN
        self.height = round(self._top + _MARGIN)

    def at(self, point: Point) -> Point:
        x, y = point
        left = _LEFT + (x + NODE_WIDTH / 2 + 0.25) * self.column
        return round(left, 1), round(self._top - (y + NODE_HEIGHT / 2) * _ROW, 1)

    def steps(self, points: Sequence[Point]) -> list[int]:
        """Where an edge begins, then the step to each next point, in whole pixels."""
        pixels = [tuple(map(round, self.at(point))) for point in points]
        return [*pixels[0], *(step for (x, y), (x1, y1) in pairwise(pixels) for step in (x1 - x, y1 - y))]
