"""Where the nodes of a circuit stand: a pure function of the graph.

Columns are one unit apart and a node is `NODE_WIDTH` by `NODE_HEIGHT` around its centre, so neighbours never touch. A
transformer's layers go upwards from `input` to `logits`; layers without nodes take no room. MLPs stand in a column of
their own at the right, half a row above the heads of their layer, which they may read. A circuit with any other node
goes upwards by depth, the longest path from a source.

>>> from eics.circuits.graph import Circuit
>>> layout = place_nodes(Circuit(["input->a3.h1", "a3.h1->m3", "m3->logits"]))
>>> layout.places["a3.h1"], layout.places["m3"]
((0.0, 1.0), (1.5, 1.6))
>>> layout.rows
(Row(label='layer 3', low=0.7, high=1.9),)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from eics.circuits.graph import Circuit, Edge, Kind, Node

NODE_WIDTH = 0.68
NODE_HEIGHT = 0.3

_ROW = 1.0  # from a row of heads to the next row
_HALF_ROW = 0.6  # from heads to the MLP of their layer, and from an MLP to the next layer
_MARGIN = 0.3  # of a layer's band, below and above its nodes
_MLP_COLUMN = 1.5  # to the right of the last head
_SWEEPS = 4
_ABREAST = 8  # nodes in a row if nothing says where they belong
_GRID = 0.5  # x is rounded to it, so that nodes line up across rows


@dataclass(frozen=True)
class Row:
    """A labelled band of the picture, from `low` to `high`."""

    label: str
    low: float
    high: float


@dataclass(frozen=True)
class Layout:
    """The centre `(x, y)` of each node, with y upwards, and the labelled rows from bottom to top."""

    places: dict[str, tuple[float, float]]
    rows: tuple[Row, ...]

    @property
    def width(self) -> float:
        """Extent of all nodes; the left edge is at `-NODE_WIDTH / 2`."""
        return max(x for x, _ in self.places.values()) + NODE_WIDTH

    @property
    def height(self) -> float:
        """Extent of all nodes; the lower edge is at `-NODE_HEIGHT / 2`."""
        return max(y for _, y in self.places.values()) + NODE_HEIGHT


def place_nodes(circuit: Circuit) -> Layout:
    """Places every node so that edges point upwards; equal circuits get equal layouts."""
    nodes = [Node.parse(name) for name in sorted(circuit.nodes)]
    if any(node.kind is Kind.OTHER for node in nodes):
        return _by_depth(circuit)
    return _by_layer(circuit.edges, nodes)


def place_names(names: Iterable[str]) -> Layout:
    """Places nodes whose edges are not known: a transformer's by layer, others in rows by name.

    >>> place_names(["m0", "a0.h1", "a0.h0"]).places
    {'a0.h0': (0.0, 0.0), 'a0.h1': (1.0, 0.0), 'm0': (2.5, 0.6)}
    """
    nodes = [Node.parse(name) for name in sorted(names)]
    if any(node.kind is Kind.OTHER for node in nodes):
        places = {node.name: (float(i % _ABREAST), _ROW * (i // _ABREAST)) for i, node in enumerate(nodes)}
        return Layout(places, ())
    return _by_layer((), nodes)


def spread(wishes: Sequence[float], step: float, low: float, high: float, grid: float | None = None) -> list[float]:
    """Points nearest to the wishes (ascending), in the same order, at least `step` apart and within two bounds.

    Least squares under `x[i+1] - x[i] >= step` is isotonic regression of `wish[i] - i * step`: neighbours that are
    too close merge into a block at the mean of their wishes. If the bounds are too narrow, the step shrinks.

    >>> spread([0.0, 0.0, 5.0], 1.0, low=-9.0, high=9.0)
    [-0.5, 0.5, 5.0]
    """
    if len(wishes) > 1:
        step = min(step, (high - low) / (len(wishes) - 1))
    blocks: list[tuple[float, int]] = []
    for index, wish in enumerate(wishes):
        mean, count = wish - index * step, 1
        while blocks and blocks[-1][0] >= mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
    last = high - (len(wishes) - 1) * step
    shifts = [min(max(mean, low), max(last, low)) for mean, count in blocks for _ in range(count)]
    if grid is not None:  # rounding keeps the shifts in order, and hence the distances
        shifts = [round(shift / grid) * grid for shift in shifts]
    return [shift + index * step for index, shift in enumerate(shifts)]


def _by_layer(edges: Iterable[Edge], nodes: Sequence[Node]) -> Layout:
    heads: dict[int, list[Node]] = {}
    mlps: dict[int, str] = {}
    ends = {node.kind: node.name for node in nodes if node.layer is None}
    for node in nodes:
        if node.kind is Kind.MLP and node.layer is not None:
            mlps[node.layer] = node.name
        elif node.layer is not None:
            heads.setdefault(node.layer, []).append(node)
    y, heights, levels, rows = 0.0, dict[str, float](), list[list[str]](), list[Row]()
    if Kind.INPUT in ends:
        heights[ends[Kind.INPUT]] = y
        levels.append([ends[Kind.INPUT]])
        y += _ROW
    for layer in sorted({*heads, *mlps}):
        first = last = y
        if layer in heads:
            levels.append([node.name for node in sorted(heads[layer], key=lambda node: node.head or 0)])
            heights |= dict.fromkeys(levels[-1], y)
            y += _HALF_ROW if layer in mlps else _ROW
        if layer in mlps:
            last = heights[mlps[layer]] = y
            y += _HALF_ROW
        rows.append(Row(f"layer {layer}", round(first - _MARGIN, 6), round(last + _MARGIN, 6)))
    if Kind.LOGITS in ends:
        heights[ends[Kind.LOGITS]] = y + (_ROW - _HALF_ROW) * bool(mlps)
        levels.append([ends[Kind.LOGITS]])
    columns = max((len(level) for level in levels), default=1)
    column = columns - 1 + _MLP_COLUMN if heads or ends else 0.0
    across = _arrange(edges, levels, dict.fromkeys(mlps.values(), column), columns)
    return _layout(across, heights, rows)


def _by_depth(circuit: Circuit) -> Layout:
    depth: dict[str, int] = {}
    for node in circuit.order:
        depth[node] = max((depth[edge.source] + 1 for edge in circuit.parents[node]), default=0)
    # Sorted by name: the topological order depends on the order in which edges happen to be given.
    levels = [sorted(n for n in depth if depth[n] == step) for step in range(max(depth.values()) + 1)]
    heights = {node: _ROW * step for node, step in depth.items()}
    rows = [Row(f"depth {step}", _ROW * step - _MARGIN, _ROW * step + _MARGIN) for step in range(len(levels))]
    return _layout(_arrange(circuit.edges, levels, {}, max(map(len, levels))), heights, rows)


def _layout(across: Mapping[str, float], heights: Mapping[str, float], rows: Iterable[Row]) -> Layout:
    left = min(across.values())
    return Layout({node: (across[node] - left, round(heights[node], 6)) for node in sorted(heights)}, tuple(rows))


def _arrange(
    edges: Iterable[Edge], levels: Sequence[list[str]], fixed: Mapping[str, float], columns: int
) -> dict[str, float]:
    """x of every node: each level is ordered by, and drawn towards, the mean x of its neighbours.

    Sweeps up and down a few times, starting from the order of the names, which also breaks ties. Keeps the sweep whose
    edges run least sideways, because sideways edges cross.
    """
    ordered_edges = sorted(edges, key=str)
    across = dict(fixed)
    for level in levels:
        start = _GRID * round((columns - len(level)) / 2 / _GRID)
        across |= {node: start + index for index, node in enumerate(level)}
    if not ordered_edges:
        return across
    neighbours: dict[str, list[str]] = {node: [] for node in across}
    for edge in ordered_edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    best, least = dict(across), _sideways(ordered_edges, across)
    for _ in range(_SWEEPS):
        for level in (*levels, *reversed(levels)):
            wish = {node: fmean(across[neighbour] for neighbour in neighbours[node]) for node in level}
            ordered = sorted(level, key=lambda node: (wish[node], level.index(node)))
            positions = spread([wish[node] for node in ordered], 1.0, 0.0, columns - 1.0, _GRID)
            across |= dict(zip(ordered, positions, strict=True))
        if (length := _sideways(ordered_edges, across)) < least - 1e-9:
            best, least = dict(across), length
    return best


def _sideways(edges: Iterable[Edge], across: Mapping[str, float]) -> float:
    """How far all edges run sideways together."""
    return sum(abs(across[source] - across[target]) for source, target, _ in edges)
