"""Our own JSON format, described by `eics-circuit.schema.json` beside this file.

{"format": "eics-circuit", "version": 1, "edges": ["input->a0.h1", "a0.h1->logits"], "positions": {"a0.h1": [3]}}

Version 1 has edges and positions. Version 2 may also have scores, edges that are not kept ("left_out"; a reader of
version 1 would take them for kept), the model's shape, and attributes and metadata of other formats.
"""

import json
from typing import Any

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Reader, Writer
from eics.circuits.formats.shared import json_safe
from eics.circuits.graph import Edge
from eics.circuits.names import EdgeLike, as_edge
from eics.errors import CircuitError

FORMAT = "eics-circuit"
VERSIONS = (1, 2)
_KEYS = ("format", "version", "edges", "positions")
_MORE = ("scores", "left_out", "shape", "nodes", "edge_attributes", "metadata")


def read(value: Any) -> CircuitGraph:
    """Reads either version; unknown keys become metadata."""
    version = value.get("version")
    if isinstance(version, bool) or version not in VERSIONS:
        raise CircuitError(f"must have format {FORMAT!r}, version 1 or 2. Got version {version!r}.")
    edges = value.get("edges")
    if not isinstance(edges, list):
        raise CircuitError(f"must have a list of 'edges'. Got {type(edges).__name__}.")
    keys = _KEYS if version == 1 else _KEYS + _MORE
    metadata = {key: extra for key, extra in value.items() if key not in keys}
    more = value if version == 2 else {}
    parsed = tuple(_edge(edge, index) for index, edge in enumerate(edges))
    return CircuitGraph(
        parsed,
        scores=_by_edge(more, "scores"),
        kept=_kept(more, parsed),
        shape=_shape(more.get("shape")),
        positions=_object(value, "positions"),
        node_attributes=_object(more, "nodes"),
        edge_attributes=_by_edge(more, "edge_attributes"),
        metadata=metadata | _object(more, "metadata"),
        format=FORMAT,
    )


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes version 1 if it holds everything, else version 2."""
    more: dict[str, Any] = {
        "scores": {str(edge): score for edge, score in graph.scores.items()},
        "shape": {key: size for key, size in vars(graph.shape).items() if size is not None} if graph.shape else {},
        "nodes": graph.node_attributes,
        "edge_attributes": {str(edge): attributes for edge, attributes in graph.edge_attributes.items()},
        "metadata": graph.metadata,
    }
    more = {key: json_safe(part) for key, part in more.items() if part}
    if graph.kept is not None:
        more["left_out"] = [str(edge) for edge in graph.edges if edge not in graph.kept]
    content: dict[str, Any] = {"format": FORMAT, "version": 2 if more else 1, "edges": [str(e) for e in graph.edges]}
    if graph.positions:
        content["positions"] = {node: list(kept) for node, kept in graph.positions.items()}
    return json.dumps(content | more, indent=1, allow_nan=False) + "\n", ()


def _edge(edge: EdgeLike, index: int) -> Edge:
    """An edge given as text, or as a list of source, target and perhaps a port."""
    try:
        return as_edge(edge)
    except CircuitError as error:
        raise CircuitError(f"has a bad edge at edges[{index}]. {error}") from None


def _object(value: dict[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    if inner is not None and not isinstance(inner, dict):
        raise CircuitError(f"must have an object of {key!r}. Got {type(inner).__name__}.")
    return inner or {}


def _by_edge(value: dict[str, Any], key: str) -> dict[Edge, Any]:
    return {Edge.parse(name): entry for name, entry in _object(value, key).items()}


def _kept(value: dict[str, Any], edges: tuple[Edge, ...]) -> frozenset[Edge] | None:
    left_out = value.get("left_out")
    if left_out is None:
        return None
    if not isinstance(left_out, list):
        raise CircuitError(f"must have a list of edges 'left_out'. Got {type(left_out).__name__}.")
    without = {_edge(edge, index) for index, edge in enumerate(left_out)}
    if unknown := without - set(edges):
        raise CircuitError(f"must leave out only edges that it names. Got {min(map(str, unknown))}.")
    return frozenset(edges) - without


def _shape(sizes: Any) -> ModelShape | None:
    if sizes is None:
        return None
    if not isinstance(sizes, dict) or not {"n_layers", "n_heads"} <= sizes.keys() <= set(ModelShape.__annotations__):
        raise CircuitError(f"must have a 'shape' with n_layers and n_heads. Got {sizes!r}.")
    return ModelShape(**sizes)


READER = Reader("JSON with format 'eics-circuit'", ("json",), dict, lambda value: value.get("format") == FORMAT, read)
WRITER = Writer(FORMAT, "our own JSON", (".json",), write)
