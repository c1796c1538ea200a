"""Circuits rebuilt from the edges of all their records, and laid out in pixels once for all prompts.

A single record lacks the edges left out of its C_sh. Records by node alone (`terms="sheaf"`) have no edges: their nodes
are then drawn without any.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from eics.circuits.graph import Circuit, Edge, Node
from eics.errors import CircuitError
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, place_names, place_nodes
from eics.reporting.drawing.routes import Point, route_edges
from eics.scoring.result import Score

_COLUMN, _ROW = 104.0, 60.0  # pixels per unit of the layout; columns grow with long names
_SHALLOW, _STRETCH = 0.5, 1.8  # rows of a picture less high than this share of its width are higher, up to this factor
_LETTER, _PADDING = 7.3, 16.0
_LEFT, _MARGIN = 84.0, 14.0  # room for row labels; room around everything


@dataclass
class SeenCircuit:
    """One circuit as far as the records show it; `order` numbers its edges as they were first seen."""

    name: str | None
    order: dict[Edge, int] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    attributions: dict[Edge, float] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)
    disagrees: bool = False

    def see(self, score: Score) -> None:
        self.positions |= score.node_positions
        self.nodes |= {term.node for term in score.nodes}
        new = []
        for term in score.edges:
            edge = Edge(term.source, term.target, term.port)
            if edge not in self.order:
                new.append(edge)
            if term.attribution is not None:
                self.disagrees |= self.attributions.setdefault(edge, term.attribution) != term.attribution
        self.order |= {edge: number for number, edge in enumerate(sorted(new, key=str), start=len(self.order))}

    def drawn(self) -> tuple[dict[str, Any], list[str]]:
        """The circuit as the page draws it, and notes for the reader."""
        notes = ["Records of one circuit have different attributions; the first are shown."] * self.disagrees
        graph: dict[str, Any] = {"width": 0, "height": 0, "box": [0, 0], "nodes": [], "edges": [], "rows": []}
        try:
            if self.order:
                graph = _draw_graph(self.order, self.attributions, self.positions)
            elif self.nodes:
                graph = _draw_nodes(self.nodes, self.positions)
        except CircuitError as error:
            notes.append(f"A circuit cannot be drawn: {error}")
            graph["edges"] = [[e.source, e.target, e.port, self.attributions.get(e), None] for e in self.order]
        return {"name": self.name} | graph, notes


class Circuits:
    """The circuits of all records, numbered in the order in which they were first seen."""

    def __init__(self) -> None:
        self.seen: list[SeenCircuit] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, score: Score) -> int:
        """Number of a record's circuit, identified by its hash or, in older records, by its edges or nodes."""
        key = score.circuit["sha256"] if score.circuit else frozenset(map(str, score.edges or score.nodes))
        if key not in self._numbers:
            self._numbers[key] = len(self.seen)
            self.seen.append(SeenCircuit(score.circuit["name"] if score.circuit else None))
        return self._numbers[key]

    def see(self, score: Score) -> None:
        """Adds the edges and nodes of a record to its circuit, if the record has one."""
        if has_circuit(score):
            self.seen[self.number(score)].see(score)


def has_circuit(score: Score) -> bool:
    """Whether a record says which circuit it belongs to; failed records of older versions do not."""
    return score.circuit is not None or bool(score.edges) or bool(score.nodes)


def _draw_graph(
    edges: Iterable[Edge], attributions: Mapping[Edge, float], positions: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Nodes, edges and labelled rows in pixels; raises a `CircuitError` if the edges make no circuit."""
    circuit = Circuit(edges)
    layout = place_nodes(circuit)
    sheet = _Sheet(layout)
    index = {node: number for number, node in enumerate(circuit.nodes)}
    routes = route_edges(layout, circuit.edges)
    drawn = [
        [index[e.source], index[e.target], e.port, attributions.get(e), sheet.steps(routes[e])] for e in circuit.edges
    ]
    return sheet.drawn(circuit.nodes, positions) | {"edges": drawn}


def _draw_nodes(names: Iterable[str], positions: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The same for nodes whose edges are not known, in the order of computation."""
    layout = place_names(names)
    ranks = {name: Node.parse(name).rank for name in layout.places}
    ordered = sorted(layout.places, key=lambda name: (ranks[name] or 0.0, layout.places[name]))
    return _Sheet(layout).drawn(ordered, positions) | {"edges": []}


class _Sheet:
    """Converts the layout's units to pixels, with y downwards."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        longest = max(map(len, layout.places))
        self.column = max(_COLUMN, (longest * _LETTER + _PADDING) / NODE_WIDTH)
        self.width = round(_LEFT + (layout.width + 0.5) * self.column + _MARGIN)
        self.row = _ROW * min(_STRETCH, max(1.0, _SHALLOW * self.width / (layout.height * _ROW)))
        self._top = layout.height * self.row + _MARGIN
        self.height = round(self._top + _MARGIN)

    def drawn(self, names: Iterable[str], positions: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Size, nodes in the given order and labelled rows."""
        places, rows = self._layout.places, self._layout.rows
        return {
            "width": self.width,
            "height": self.height,
            "box": [round(NODE_WIDTH * self.column, 1), round(NODE_HEIGHT * self.row, 1)],
            "nodes": [
                [name, *self.at(places[name]), Node.parse(name).kind.value, positions.get(name) or None]
                for name in names
            ],
            "rows": [[row.label, *sorted(self.at((0.0, y))[1] for y in (row.low, row.high))] for row in rows],
        }

    def at(self, point: Point) -> Point:
        x, y = point
        left = _LEFT + (x + NODE_WIDTH / 2 + 0.25) * self.column
        return round(left, 1), round(self._top - (y + NODE_HEIGHT / 2) * self.row, 1)

    def steps(self, points: Sequence[Point]) -> list[int]:
        """Where an edge begins, then the step to each next point, in whole pixels."""
        pixels = [tuple(map(round, self.at(point))) for point in points]
        return [*pixels[0], *(step for (x, y), (x1, y1) in pairwise(pixels) for step in (x1 - x, y1 - y))]
