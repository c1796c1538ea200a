"""EAP-IG and MIB: `.json` and `.pt`.

The JSON is {"cfg": ..., "nodes": {name: {"in_graph"}}, "edges": {name: {"score", "in_graph"}}}; a `.pt` file has scores
and flags as matrices, `src_nodes` by `dst_nodes`.

What their JSON cannot hold rides along: attributes of edges and nodes as extra keys, positions and metadata in an
object "eics" that their reader ignores. Heads of grouped-query models are counted by query head, as ours are.
"""

import json
from collections.abc import Iterator
from typing import Any

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Reader, Writer
from eics.circuits.formats.shared import dict_at, kept_by_flags
from eics.circuits.graph import PORTS, Edge, Kind, Node
from eics.circuits.names import shorten
from eics.errors import CircuitError

_KEYS = {"cfg", "nodes", "edges"}
_PT_KEYS = {"cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph", "nodes_in_graph"}
_TOP, _MORE_CFG = "eap_top", "eap_cfg"  # metadata keys for extra entries at the top level and in `cfg`
_CFG = ("n_layers", "n_heads", "parallel_attn_mlp", "d_model")


def read_json(value: Any) -> CircuitGraph:
    """Reads their graph; refuses an edge that is in the graph while one of its nodes is not."""
    for key in sorted(_KEYS):
        if not isinstance(value[key], dict):
            raise CircuitError(f"must have an object of {key!r}. Got {type(value[key]).__name__}.")
    extra = value.get("eics", {})
    if not isinstance(extra, dict):
        raise CircuitError(f"must have an object of 'eics', or none. Got {type(extra).__name__}.")
    entries = {Edge.parse(name): _checked(name, entry, "Edge") for name, entry in value["edges"].items()}
    nodes = {name: _checked(name, entry, "Node") for name, entry in value["nodes"].items()}
    graph = CircuitGraph(
        tuple(entries),
        scores={} if extra.get("unscored") else {e: entry["score"] for e, entry in entries.items() if "score" in entry},
        kept=kept_by_flags(entries, {e: entry["in_graph"] for e, entry in entries.items() if "in_graph" in entry}),
        shape=_shape(value["cfg"]),
        positions=dict_at(extra, "positions"),
        node_attributes=nodes,
        edge_attributes={e: more for e, entry in entries.items() if (more := _without(entry, "score", "in_graph"))},
        metadata=_metadata(value, extra),
        format="eap-json",
    )
    _check_nodes(graph)
    return graph


def _shape(cfg: dict[str, Any]) -> ModelShape:
    if "n_layers" not in cfg or "n_heads" not in cfg:
        raise CircuitError("must have n_layers and n_heads in its 'cfg'. Add them.")
    return ModelShape(cfg["n_layers"], cfg["n_heads"], cfg.get("parallel_attn_mlp", False), cfg.get("d_model") or None)


def _check_nodes(graph: CircuitGraph) -> None:
    """Refuses a kept edge with a node that is marked as not in the graph."""
    flags = {name: attributes.get("in_graph") for name, attributes in graph.node_attributes.items()}
    for edge in graph.kept_edges if graph.kept is not None else ():
        for name in edge[:2]:
            # their tensor of nodes has no entry for the read-out, so its flag is meaningless
            if flags.get(name) is False and name != Kind.LOGITS:
                raise CircuitError(
                    f"must not contradict itself. Edge {edge} is in the graph and node {name} is not: change one."
                )


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes what their reader expects: each edge has a score, a flag and, into a head, a port."""
    smallest = ModelShape.smallest({*graph.nodes, *graph.node_attributes})
    if smallest is None:
        other = next(n for n in (*graph.nodes, *graph.node_attributes) if Node.parse(n).kind is Kind.OTHER)
        raise CircuitError(f"An EAP-IG file must name nodes of a transformer. Got {other!r}: choose another format.")
    edges = dict(_edges(graph))
    content: dict[str, Any] = {
        "cfg": _cfg(graph, graph.shape or smallest),
        "nodes": _nodes(graph),
        "edges": edges,
    } | dict_at(graph.metadata, _TOP)
    if extra := _extra(graph):
        content["eics"] = extra
    return json.dumps(content), tuple(_lost(graph, len(edges)))


def _checked(name: str, entry: Any, what: str) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise CircuitError(f"must have an object for each node and edge. {what} {name} has {entry!r}.")
    if "in_graph" in entry and not isinstance(entry["in_graph"], bool):
        raise CircuitError(f"must have true or false as in_graph. {what} {name} has {entry['in_graph']!r}.")
    return entry


def _without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def _metadata(value: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """Our own metadata, and the extra entries at the top level and in `cfg`."""
    top, cfg = _without(value, *_KEYS, "eics"), _without(value["cfg"], *_CFG)
    return dict_at(extra, "metadata") | ({_TOP: top} if top else {}) | ({_MORE_CFG: cfg} if cfg else {})


def _cfg(graph: CircuitGraph, shape: ModelShape) -> dict[str, Any]:
    own = {**vars(shape), "d_model": shape.d_model or 0}
    return {key: own[key] for key in _CFG} | dict_at(graph.metadata, _MORE_CFG)


def _nodes(graph: CircuitGraph) -> dict[str, dict[str, Any]]:
    inside = {name for edge in graph.kept_edges for name in edge[:2]}
    names = dict.fromkeys([*graph.node_attributes, *graph.nodes])
    return {name: {"in_graph": name in inside} | graph.node_attributes.get(name, {}) for name in names}


def _edges(graph: CircuitGraph) -> Iterator[tuple[str, dict[str, Any]]]:
    for edge in graph.edges:
        kept = graph.kept is None or edge in graph.kept
        entry = {"score": graph.scores.get(edge, 0.0), "in_graph": kept} | graph.edge_attributes.get(edge, {})
        for port in _ports(edge):
            yield str(edge._replace(port=port)), entry


def _ports(edge: Edge) -> tuple[str | None, ...]:
    """Their edges into a head name a port; an edge of ours without one enters by all three."""
    whole = edge.port is None and Node.parse(edge.target).kind is Kind.HEAD
    return PORTS if whole else (edge.port,)


def _extra(graph: CircuitGraph) -> dict[str, Any]:
    metadata = _without(graph.metadata, _TOP, _MORE_CFG)
    positions = {name: list(kept) for name, kept in graph.positions.items()}
    extra = {"positions": positions, "metadata": metadata, "unscored": not graph.scores}
    return {key: value for key, value in extra.items() if value}


def _lost(graph: CircuitGraph, written: int) -> Iterator[str]:
    if written > len(graph.edges):
        yield "EAP-IG edges into a head name a port: an edge without one was written three times, each with its score."
    if 0 < len(graph.scores) < len(graph.edges):
        yield f"EAP-IG edges have a score: {len(graph.edges) - len(graph.scores)} edges without one got 0."
    if graph.shape is None:
        yield "The model's shape is unknown: the smallest with these nodes was written, with d_model 0."


def read_pt(value: Any) -> CircuitGraph:
    """Reads the edges that exist in the model; the matrices also have cells for pairs that are not edges."""
    if missing := _PT_KEYS - value.keys():
        raise CircuitError(f"must be a complete EAP-IG file. It lacks {shorten(sorted(missing))}.")
    sources, targets = _names(value, "src_nodes"), _names(value, "dst_nodes")
    shape = _shape(value["cfg"] if isinstance(value["cfg"], dict) else {})
    size = (len(sources), len(targets))
    scores, flags = (_rows(value, key, size) for key in ("edges_scores", "edges_in_graph"))
    columns = [Edge.parse(f"input->{target}") for target in targets]
    edges: dict[Edge, tuple[float, bool]] = {}
    for source, score_row, flag_row in zip(sources, scores, flags, strict=True):
        for column, score, flag in zip(columns, score_row, flag_row, strict=True):
            edge = column._replace(source=source)
            if _exists(edge, shape):
                edges[edge] = (score, bool(flag))
            elif flag:
                raise CircuitError(f"must keep only edges that the model has. Its edges_in_graph keeps {edge}.")
    graph = CircuitGraph(
        tuple(edges),
        scores={edge: score for edge, (score, _) in edges.items()},
        kept=frozenset(edge for edge, (_, flag) in edges.items() if flag),
        shape=shape,
        node_attributes=_node_attributes(value, sources),
        format="eap-pt",
    )
    _check_nodes(graph)
    return graph


def _names(value: dict[str, Any], key: str) -> list[str]:
    names = list(value[key]) if isinstance(value[key], list | tuple | dict) else []
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise CircuitError(f"must have a list of distinct names as {key}.")
    return names


def _rows(value: dict[str, Any], key: str, size: tuple[int, ...]) -> Any:
    import torch

    tensor = value[key]
    if not isinstance(tensor, torch.Tensor) or tuple(tensor.shape[: len(size)]) != size:
        shape = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise CircuitError(f"must have a tensor {key} of shape {size}. Got {shape}.")
    return tensor.tolist()


def _exists(edge: Edge, shape: ModelShape) -> bool:
    source, target = Node.parse(edge.source), Node.parse(edge.target)
    if source.rank is None or target.rank is None:
        shape.check_node(edge.source if source.rank is None else edge.target)  # raises the error that explains it
        return False
    return source.rank < target.rank and not shape.is_parallel(edge)


def _node_attributes(value: dict[str, Any], sources: list[str]) -> dict[str, dict[str, Any]]:
    """Named as in their JSON: in_graph, score, neurons, neurons_scores."""
    named = {
        "nodes_in_graph": "in_graph",
        "nodes_scores": "score",
        "neurons_in_graph": "neurons",
        "neurons_scores": "neurons_scores",
    }
    attributes: dict[str, dict[str, Any]] = {name: {} for name in sources}
    for key, name in named.items():
        if value.get(key) is not None:
            for source, row in zip(sources, _rows(value, key, (len(sources),)), strict=True):
                attributes[source][name] = bool(row) if name == "in_graph" else row
    return attributes


JSON_READER = Reader("EAP-IG or MIB JSON (cfg, nodes, edges)", ("json",), dict, lambda v: v.keys() >= _KEYS, read_json)
PT_READER = Reader("EAP-IG .pt", ("torch",), dict, lambda v: v.keys() >= {"src_nodes", "edges_scores"}, read_pt)
WRITER = Writer("eap-json", "EAP-IG and MIB JSON", (), write)
