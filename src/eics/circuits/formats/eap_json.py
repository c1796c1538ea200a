"""EAP-IG and MIB (`.json`): {"cfg": ..., "nodes": {name: {"in_graph"}}, "edges": {name: {"score", "in_graph"}}}.

What their format has no place for rides along: attributes of edges and nodes as extra keys, positions and metadata in
an object "eics" that their reader does not look at. Heads of grouped-query models go by query head, as ours do.
"""

import json
from collections.abc import Iterator
from typing import Any

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Content
from eics.circuits.formats.seam import Reader, Writer
from eics.circuits.graph import PORTS, Edge, Kind, Node
from eics.errors import CircuitError

NAME = "eap-json"
_TOP, _MORE_CFG = "eap_top", "eap_cfg"  # metadata: what stood beside their own keys
_CFG = ("n_layers", "n_heads", "parallel_attn_mlp", "d_model")


def matches(content: Content) -> bool:
    """JSON with their three keys."""
    value = content.value
    return content.what == "json" and isinstance(value, dict) and {"cfg", "nodes", "edges"} <= value.keys()


def read(content: Content) -> CircuitGraph:
    """Reads their graph; an edge that is in the graph while its node is not is a contradiction."""
    value = content.value
    for key in ("cfg", "nodes", "edges"):
        if not isinstance(value[key], dict):
            raise CircuitError(f"must have an object of {key!r}. Got {type(value[key]).__name__}.")
    extra = value.get("eics", {})
    if not isinstance(extra, dict):
        raise CircuitError(f"must have an object of 'eics', or none. Got {type(extra).__name__}.")
    said = {Edge.parse(name): _said(name, entry, "Edge") for name, entry in value["edges"].items()}
    nodes = {name: _said(name, entry, "Node") for name, entry in value["nodes"].items()}
    graph = CircuitGraph(
        tuple(said),
        scores={} if extra.get("unscored") else {e: entry["score"] for e, entry in said.items() if "score" in entry},
        kept=_kept(said),
        shape=shape_of(value["cfg"]),
        positions=_dict(extra, "positions"),
        node_attributes=nodes,
        edge_attributes={edge: more for edge, entry in said.items() if (more := _without(entry, "score", "in_graph"))},
        metadata=_metadata(value, extra),
        format=NAME,
    )
    check_nodes(graph)
    return graph


def shape_of(cfg: dict[str, Any]) -> ModelShape:
    """The model's shape from their `cfg`."""
    if "n_layers" not in cfg or "n_heads" not in cfg:
        raise CircuitError("must have n_layers and n_heads in its 'cfg'. Add them.")
    return ModelShape(cfg["n_layers"], cfg["n_heads"], cfg.get("parallel_attn_mlp", False), cfg.get("d_model") or None)


def check_nodes(graph: CircuitGraph) -> None:
    """Refuses a kept edge of which the file says that a node is not in the graph."""
    flags = {name: said.get("in_graph") for name, said in graph.node_attributes.items()}
    for edge in graph.kept_edges if graph.kept is not None else ():
        for name in edge[:2]:
            # their tensor of nodes has no entry for the read-out, so its flag means nothing
            if flags.get(name) is False and name != Kind.LOGITS:
                raise CircuitError(
                    f"must not contradict itself. Edge {edge} is in the graph and node {name} is not: change one."
                )


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """What their reader accepts: every edge with a score, a flag and, into a head, a port."""
    smallest = ModelShape.smallest({*graph.nodes, *graph.node_attributes})
    if smallest is None:
        other = next(name for name in graph.nodes if Node.parse(name).kind is Kind.OTHER)
        raise CircuitError(f"An EAP-IG file must name nodes of a transformer. Got {other!r}: choose another format.")
    edges = dict(_written_edges(graph))
    content: dict[str, Any] = {
        "cfg": _cfg(graph, graph.shape or smallest),
        "nodes": _written_nodes(graph),
        "edges": edges,
    } | _dict(graph.metadata, _TOP)
    if extra := _extra(graph):
        content["eics"] = extra
    return json.dumps(content), tuple(_lost(graph, len(edges)))


def _said(name: str, entry: Any, what: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise CircuitError(f"must say of each node and edge an object. {what} {name} has {entry!r}.")
    if "in_graph" in entry and not isinstance(entry["in_graph"], bool):
        raise CircuitError(f"must have true or false as in_graph. {what} {name} has {entry['in_graph']!r}.")
    return entry


def _kept(said: dict[Edge, dict[str, Any]]) -> frozenset[Edge] | None:
    silent = [edge for edge, entry in said.items() if "in_graph" not in entry]
    if len(silent) == len(said):
        return None
    if silent:
        raise CircuitError(f"must say in_graph of every edge, or of none. Edge {silent[0]} has none.")
    return frozenset(edge for edge, entry in said.items() if entry["in_graph"])


def _without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def _dict(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _metadata(value: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Ours, and what else stood beside their three keys and in their `cfg`."""
    top, cfg = _without(value, "cfg", "nodes", "edges", "eics"), _without(value["cfg"], *_CFG)
    return _dict(extra, "metadata") | ({_TOP: top} if top else {}) | ({_MORE_CFG: cfg} if cfg else {})


def _cfg(graph: CircuitGraph, shape: ModelShape) -> dict[str, Any]:
    own = {**vars(shape), "d_model": shape.d_model or 0}
    return {key: own[key] for key in _CFG} | _dict(graph.metadata, _MORE_CFG)


def _written_nodes(graph: CircuitGraph) -> dict[str, dict[str, Any]]:
    inside = {name for edge in graph.kept_edges for name in edge[:2]}
    names = dict.fromkeys([*graph.node_attributes, *graph.nodes])
    return {name: {"in_graph": name in inside} | graph.node_attributes.get(name, {}) for name in names}


def _written_edges(graph: CircuitGraph) -> Iterator[tuple[str, dict[str, Any]]]:
    for edge in graph.edges:
        kept = graph.kept is None or edge in graph.kept
        entry = {"score": graph.scores.get(edge, 0.0), "in_graph": kept} | graph.edge_attributes.get(edge, {})
        for port in _ports(edge):
            yield str(edge._replace(port=port)), entry


def _ports(edge: Edge) -> tuple[str | None, ...]:
    """Their edges into a head name a port: one that names none enters by all three."""
    whole = edge.port is None and Node.parse(edge.target).kind is Kind.HEAD
    return PORTS if whole else (edge.port,)


def _extra(graph: CircuitGraph) -> dict[str, Any]:
    metadata = _without(graph.metadata, _TOP, _MORE_CFG)
    positions = {name: list(kept) for name, kept in graph.positions.items()}
    found = {"positions": positions, "metadata": metadata, "unscored": not graph.scores}
    return {key: value for key, value in found.items() if value}


def _lost(graph: CircuitGraph, written: int) -> Iterator[str]:
    if written > len(graph.edges):
        yield "EAP-IG edges into a head name a port: an edge that named none was written three times, with its score."
    if 0 < len(graph.scores) < len(graph.edges):
        yield f"EAP-IG edges have a score: {len(graph.edges) - len(graph.scores)} edges without one got 0."
    if graph.shape is None:
        yield "The model's shape is not known: the smallest that has these nodes was written, with d_model 0."


READER = Reader(NAME, "EAP-IG or MIB JSON (cfg, nodes, edges)", matches, read)
WRITER = Writer(NAME, "EAP-IG and MIB JSON", (), write)
