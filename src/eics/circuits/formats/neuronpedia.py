"""Writes Neuronpedia's graph JSON: the features that a graph came with, else one node for each of ours.

Their viewer knows four kinds of nodes. Our heads and MLPs go in as features of their layer (an MLP as feature 0, head h
as feature h+1) with their names as labels; `eics_node` and `eics_port` say what they are when we read the file again.
"""

import json
from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.circuit_tracer import JSON
from eics.circuits.formats.jsonsafe import json_safe
from eics.circuits.formats.seam import Writer
from eics.circuits.graph import Edge, Kind, Node

_METADATA = {"slug": "eics", "scan": "eics", "transcoder_list": [], "prompt_tokens": [""], "prompt": ""}
_QPARAMS = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes the kept edges."""
    kept = graph.only_kept()
    fine = _is_fine(kept)
    nodes, links = _fine(kept) if fine else _coarse(kept)
    content: dict[str, Any] = {
        "metadata": _METADATA | _dict(graph.metadata, "metadata"),
        "qParams": _QPARAMS | _dict(graph.metadata, "qParams"),
        "nodes": nodes,
        "links": links,
    }
    if not fine and not graph.scores:
        content["eics_unscored"] = True
    return json.dumps(json_safe(content), indent=1, allow_nan=False) + "\n", tuple(_lost(graph, fine))


def _dict(value: dict[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _is_fine(graph: CircuitGraph) -> bool:
    """Whether every edge still has the links that it was put together from, and every node its nodes."""
    links = [graph.edge_attributes.get(edge, {}).get("links") for edge in graph.edges]
    nodes = [graph.node_attributes.get(name, {}).get("nodes") for name in graph.nodes]
    return _all_have(links, "source", "target") and _all_have(nodes, "node_id", "feature_type")


def _all_have(lists: list[Any], *keys: str) -> bool:
    return all(
        isinstance(found, list) and all(isinstance(item, dict) and item.keys() >= set(keys) for item in found)
        for found in lists
    )


def _fine(graph: CircuitGraph) -> tuple[list[Any], list[Any]]:
    links = [link for edge in graph.edges for link in graph.edge_attributes[edge]["links"]]
    used = {link[end] for link in links for end in ("source", "target")}
    records = [record for said in graph.node_attributes.values() for record in said.get("nodes", [])]
    always = ("embedding", "logit")  # their own files keep these without links too
    return [r for r in records if r["node_id"] in used or r["feature_type"] in always], links


def _coarse(graph: CircuitGraph) -> tuple[list[Any], list[Any]]:
    order = graph.circuit().order
    depth = _depths(graph)
    last = max((Node.parse(name).layer or depth[name] for name in order), default=0)
    nodes = {
        name: _record(name, place, depth[name], last) | _ours(graph.node_attributes.get(name))
        for place, name in enumerate(order)
    }
    links = [
        {
            "source": nodes[edge.source]["node_id"],
            "target": nodes[edge.target]["node_id"],
            "weight": graph.scores.get(edge, 0.0),
        }
        | ({"eics_port": edge.port} if edge.port else {})
        | _ours(graph.edge_attributes.get(edge))
        for edge in graph.edges
    ]
    return list(nodes.values()), links


def _ours(attributes: dict[str, Any] | None) -> dict[str, Any]:
    """What we found out about a node or an edge, under names that no other tool has."""
    return {key: value for key, value in (attributes or {}).items() if key.startswith("eics_")}


def _record(name: str, place: int, depth: int, last: int) -> dict[str, Any]:
    node = Node.parse(name)
    layer: int | str
    kind, layer, feature = "cross layer transcoder", node.layer or 0, (node.head or 0) + (node.kind is Kind.HEAD)
    if node.kind is Kind.INPUT:
        kind, layer = "embedding", "E"
    elif node.kind is Kind.LOGITS:
        kind, layer = "logit", last + 2  # as theirs: one more than the number of layers
    elif node.kind is Kind.OTHER:
        layer, feature = depth, place
    return {
        "node_id": f"{layer}_{feature}_0",
        "feature": feature,
        "layer": str(layer),
        "ctx_idx": 0,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": node.kind is Kind.LOGITS,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{layer}_{feature}-0",
        "clerp": name,
        "influence": None,
        "activation": None,
        "eics_node": name,
    }


def _depths(graph: CircuitGraph) -> dict[str, int]:
    circuit = graph.circuit()
    depth: dict[str, int] = {}
    for name in circuit.order:
        depth[name] = max((depth[edge.source] + 1 for edge in circuit.parents[name]), default=0)
    return depth


def _lost(graph: CircuitGraph, fine: bool) -> list[str]:
    notes = []
    left: list[Edge] = [edge for edge in graph.edges if graph.kept is not None and edge not in graph.kept]
    if left:
        notes.append(f"Neuronpedia's graphs hold no edges that are not kept: {len(left)} were left out.")
    if graph.positions and not fine:
        notes.append("Positions of nodes were left out: Neuronpedia's graphs have no place for them.")
    if not fine and 0 < len(graph.scores) < len(graph.edges):
        notes.append("Neuronpedia's links have a weight: edges without a score got 0.")
    return notes


WRITER = Writer(JSON, "Neuronpedia's graph JSON", (), write)
