"""Circuits and the parts of whole models as a page draws them: layouts in pixels, once for all prompts.

A whole model has no edges to draw. Its parts make a compact grid: a row for each layer, heads in columns of their own,
then the bias of its attention and its MLP.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, Layout, Row, place_names, place_nodes
from eics.reporting.drawing.routes import Point, route_edges

_COLUMN, _ROW = 104.0, 60.0  # pixels per unit of the layout; columns grow with long names
_SHALLOW, _STRETCH = 0.5, 1.8  # rows of a picture less high than this share of its width are higher, up to this factor
_LETTER, _PADDING = 7.3, 16.0
_LEFT, _MARGIN = 84.0, 14.0  # room for row labels; room around everything
_GRID_COLUMN, _GRID_ROW = 56.0, 74.0  # the same in a grid of parts, whose rows are half a unit apart
_ABREAST = 12  # parts in a row of a grid if nothing says where they belong
_LABEL = 9  # letters of a part's name in a grid
_BIAS = re.compile(r"a(0|[1-9]\d*)\.bias")
_OTHERS = "other parts"

Drawn = dict[str, Any]


def nothing_drawn() -> Drawn:
    """The picture of nothing."""
    return {"width": 0, "height": 0, "box": [0, 0], "nodes": [], "edges": [], "rows": []}


def draw_graph(
    edges: Iterable[Edge],
    attributions: Mapping[Edge, float],
    positions: Mapping[str, Sequence[int]],
    others: Sequence[str] = (),
) -> Drawn:
    """Nodes, edges and labelled rows in pixels; raises a `CircuitError` if the edges make no circuit.

    Parts outside the circuit, such as biases, come in rows of their own below it.
    """
    circuit = Circuit(edges)
    layout = _with_others(place_nodes(circuit), others)
    sheet = _Sheet(layout)
    index = {node: number for number, node in enumerate(circuit.nodes)}
    routes = route_edges(layout, circuit.edges)
    drawn = [
        [index[e.source], index[e.target], e.port, attributions.get(e), sheet.steps(routes[e])] for e in circuit.edges
    ]
    return sheet.drawn([*circuit.nodes, *others], positions) | {"edges": drawn}


def draw_nodes(names: Iterable[str], positions: Mapping[str, Sequence[int]]) -> Drawn:
    """The same for nodes whose edges are not known, in the order of computation."""
    layout = place_names(names)
    ranks = {name: Node.parse(name).rank for name in layout.places}
    ordered = sorted(layout.places, key=lambda name: (ranks[name] or 0.0, layout.places[name]))
    return _Sheet(layout).drawn(ordered, positions) | {"edges": []}


def draw_parts(names: Sequence[str]) -> Drawn:
    """All parts of a model as a compact grid, in the order given, with short labels: the row says the layer.

    >>> draw_parts(["input", "a0.h3", "a0.bias", "m0", "logits"])["nodes"][1][5]
    'h3'
    """
    if not names:
        return nothing_drawn() | {"grid": True}
    sheet = _Sheet(_grid(names), column=_GRID_COLUMN, row=_GRID_ROW)
    drawn = sheet.drawn(names, {})
    for node in drawn["nodes"]:
        node.append(_label(node[0]))
    return drawn | {"edges": [], "grid": True}


def bias_layer(name: str) -> int | None:
    """The layer of the output bias of an attention, `a3.bias`; None of any other name."""
    match = _BIAS.fullmatch(name)
    return int(match[1]) if match else None


def _label(name: str) -> str:
    node = Node.parse(name)
    short = {Kind.HEAD: f"h{node.head}", Kind.MLP: "mlp"}.get(node.kind)
    short = short or ("bias" if bias_layer(name) is not None else name)
    return short if len(short) <= _LABEL else f"{short[: _LABEL - 1]}…"


def _grid(names: Sequence[str]) -> Layout:
    """Layers upwards; heads by number, then bias and MLP; parts without a layer are below, but for the read-out."""
    nodes = [Node.parse(name) for name in names]
    heads = sorted({node.head for node in nodes if node.head is not None})
    biases = {node.name: layer for node in nodes if (layer := bias_layer(node.name)) is not None}
    loose = [node.name for node in nodes if node.kind is Kind.OTHER and node.name not in biases]
    last = len(heads) + bool(biases)  # the column of MLPs
    columns = {name: len(heads) for name in biases} | {node.name: last for node in nodes if node.kind is Kind.MLP}
    columns |= {node.name: heads.index(node.head) for node in nodes if node.head is not None}
    layers = {node.name: node.layer for node in nodes if node.layer is not None} | biases
    places, rows, y = _in_rows(loose, max(last + 1, _ABREAST))
    for name, level in _levels(nodes, layers):
        for part in level:
            places[part] = (float(columns.get(part, 0)), y)
        if name:
            rows.append(_row(name, y, y))
        y += 0.5
    return Layout(places, tuple(rows))


def _levels(nodes: Sequence[Node], layers: Mapping[str, int]) -> list[tuple[str | None, list[str]]]:
    """The rows of a grid from bottom to top, each with its label."""
    of_kind = {kind: [node.name for node in nodes if node.kind is kind] for kind in (Kind.INPUT, Kind.LOGITS)}
    inner = [
        (f"layer {layer}", [name for name, at in layers.items() if at == layer]) for layer in sorted({*layers.values()})
    ]
    return [(None, of_kind[Kind.INPUT])] * bool(of_kind[Kind.INPUT]) + [
        *inner,
        *[(None, of_kind[Kind.LOGITS])] * bool(of_kind[Kind.LOGITS]),
    ]


def _in_rows(names: Sequence[str], abreast: int) -> tuple[dict[str, Point], list[Row], float]:
    """Parts side by side in rows half a unit apart: places, labelled band, and the height of the next row."""
    places = {name: (float(i % abreast), 0.5 * (i // abreast)) for i, name in enumerate(names)}
    if not names:
        return {}, [], 0.0
    count = ceil(len(names) / abreast)
    return places, [_row(_OTHERS, 0.0, 0.5 * (count - 1))], 0.5 * count + 0.1


def _row(label: str, low: float, high: float) -> Row:
    return Row(label, low - 0.2, high + 0.2)


def _with_others(layout: Layout, others: Sequence[str]) -> Layout:
    """The layout with more parts in rows below it."""
    if not others:
        return layout
    places, rows, height = _in_rows(others, max(1, int(layout.width)))
    above = {name: (x, y + height + 0.3) for name, (x, y) in layout.places.items()}
    moved = (Row(row.label, row.low + height + 0.3, row.high + height + 0.3) for row in layout.rows)
    return Layout(above | places, (*rows, *moved))


class _Sheet:
    """Converts the layout's units to pixels, with y downwards."""

    def __init__(self, layout: Layout, column: float | None = None, row: float | None = None) -> None:
        self._layout = layout
        longest = max(map(len, layout.places))
        self.column = column or max(_COLUMN, (longest * _LETTER + _PADDING) / NODE_WIDTH)
        self.width = round(_LEFT + (layout.width + 0.5) * self.column + _MARGIN)
        self.row = row or _ROW * min(_STRETCH, max(1.0, _SHALLOW * self.width / (layout.height * _ROW)))
        self._top = layout.height * self.row + _MARGIN
        self.height = round(self._top + _MARGIN)

    def drawn(self, names: Iterable[str], positions: Mapping[str, Sequence[int]]) -> Drawn:
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
