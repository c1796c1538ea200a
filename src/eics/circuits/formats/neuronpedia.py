"""Neuronpedia's graph JSON, which circuit-tracer writes too: attribution graphs, projected onto our nodes.

Such a graph has transcoder features and MLP errors at token positions, embeddings and logits, but no attention heads.
Features and errors become `m<layer>`, embeddings `input`, logits `logits`; an edge's score is the sum of absolute
weights. The merged nodes and links are kept as attributes of our nodes and edges.

The writer puts out the original features if the graph still has them. Otherwise our nodes become features of their
layer (an MLP feature 0, head h feature h+1), labelled with their names; `eics_node` and `eics_port` let us read the
file back.
"""

import json
from collections import Counter
from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Reader, Writer
from eics.circuits.formats.shared import FEATURES, Merged, dict_at, json_safe
from eics.circuits.graph import Edge, Kind, Node
from eics.errors import CircuitError

NAME = "neuronpedia"
_FEATURE, _ERROR = "cross layer transcoder", "mlp reconstruction error"
_NODES = {"embedding": "input", "logit": "logits"}
_METADATA = {"slug": "eics", "scan": "eics", "transcoder_list": [], "prompt_tokens": [""], "prompt": ""}
_QPARAMS = {"pinnedIds": [], "supernodes": [], "linkType": "both", "clickedId": "", "sg_pos": ""}


def read(value: Any) -> CircuitGraph:
    """Reads nodes by (feature_type, layer, feature, ctx_idx), since ids are not unique in older files."""
    by_id, records = _by_id(value["nodes"])
    weights = [_weight(link, index, by_id) for index, link in enumerate(value["links"])]
    repeated = Counter((link["source"], link["target"]) for link in value["links"])
    merged, seen, guessed = Merged(), Counter[tuple[str, str]](), []
    links: dict[Edge, list[dict[str, Any]]] = {}
    for index, link in enumerate(value["links"]):
        pair = (link["source"], link["target"])
        source, sure = _source(by_id, link, second=seen[pair] > 0, both=repeated[pair] > 1)
        seen[pair] += 1
        if not sure:
            guessed.append(index)
        edge = Edge(_name(source), _name(_target(by_id[link["target"]])), link.get("eics_port"))
        if edge.source == edge.target:
            raise CircuitError(f"must have links between different layers. links[{index}] stays in {edge.source}.")
        merged.add(edge, abs(weights[index]))
        links.setdefault(edge, []).append(link)
    ours = all("eics_node" in node for node in value["nodes"])
    notes = () if ours else merged.notes(FEATURES)
    if guessed:
        first = guessed[0]
        notes += (
            f"{len(guessed)} links leave an id that an error node and a feature node of layer 0 share (the first is "
            f"links[{first}], from {value['links'][first]['source']!r}): they were read as links of the feature.",
        )
    # in a file that we wrote, each of our edges is one signed link
    scores = {edge: links[edge][0]["weight"] for edge in merged.edges} if ours else merged.scores
    return CircuitGraph(
        tuple(merged.edges),
        scores={} if ours and value.get("eics_unscored") else scores,
        node_attributes={} if ours else {name: {"nodes": nodes} for name, nodes in records.items()},
        edge_attributes={} if ours else {edge: {"links": parts} for edge, parts in links.items()},
        metadata={key: value[key] for key in ("metadata", "qParams") if isinstance(value.get(key), dict)},
        format=NAME,
        notes=notes,
    )


def _by_id(nodes: list[Any]) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    by_id: dict[str, list[dict[str, Any]]] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    seen = set()
    for index, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("node_id"), str):
            raise CircuitError(f"must have nodes with a node_id. nodes[{index}] is {str(node)[:80]!r}.")
        key = str([node.get(name) for name in ("feature_type", "layer", "feature", "ctx_idx", "eics_node")])
        if (node["node_id"], key) in seen:
            raise CircuitError(f"must give each node once. nodes[{index}] ({node['node_id']!r}) came before.")
        seen.add((node["node_id"], key))
        by_id.setdefault(node["node_id"], []).append(node)
        records.setdefault(_name(node, index), []).append(node)
    return by_id, records


def _name(node: dict[str, Any], index: int | None = None) -> str:
    """The name of our node that this one belongs to."""
    if isinstance(node.get("eics_node"), str):
        return str(node["eics_node"])
    kind, layer = node.get("feature_type"), str(node.get("layer"))
    if kind in _NODES:
        return _NODES[kind]
    if kind not in (_FEATURE, _ERROR) or not (layer.isascii() and layer.isdigit()):
        where = f"nodes[{index}]" if index is not None else repr(node.get("node_id"))
        raise CircuitError(
            f"must have features, errors, embeddings and logits as nodes. {where} is {kind!r} of {layer!r}."
        )
    return f"m{int(layer)}"


def _weight(link: Any, index: int, by_id: dict[str, Any]) -> float:
    if not isinstance(link, dict):
        raise CircuitError(f"must have objects as links. links[{index}] is {str(link)[:80]!r}.")
    for end in ("source", "target"):
        if not isinstance(link.get(end), str) or link[end] not in by_id:
            raise CircuitError(
                f"must link nodes of the file. The {end} of links[{index}], {link.get(end)!r}, is not one."
            )
    weight = link.get("weight")
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise CircuitError(f"must give each link a weight. links[{index}] has {weight!r}.")
    return float(weight)


def _target(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """No link ends in an error node, so here a shared id means the feature."""
    return next((node for node in nodes if node.get("feature_type") != _ERROR), nodes[0])


def _source(
    by_id: dict[str, list[dict[str, Any]]], link: dict[str, Any], *, second: bool, both: bool
) -> tuple[dict[str, Any], bool]:
    """The node that a link leaves, and whether that is certain.

    In older files the error of layer 5 and feature 5 of layer 0 share an id. It cannot be the error if its layer is not
    before the target's; if both have a link to the same target, the one of the feature was written first.
    """
    nodes = by_id[link["source"]]
    feature = _target(nodes)
    errors = [node for node in nodes if node.get("feature_type") == _ERROR]
    if len(nodes) == 1 or not errors:
        return feature, len(nodes) == 1
    if both:
        return (errors[0] if second else feature), True
    target_rank = Node.parse(_name(_target(by_id[link["target"]]))).rank or 0.0
    before = (Node.parse(_name(errors[0])).rank or 0.0) < target_rank
    return feature, not before


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes the kept edges."""
    kept = graph.only_kept()
    fine = _is_fine(kept)
    nodes, links = _fine(kept) if fine else _coarse(kept)
    content: dict[str, Any] = {
        "metadata": _METADATA | dict_at(graph.metadata, "metadata"),
        "qParams": _QPARAMS | dict_at(graph.metadata, "qParams"),
        "nodes": nodes,
        "links": links,
    }
    if not fine and not graph.scores:
        content["eics_unscored"] = True
    return json.dumps(json_safe(content), indent=1, allow_nan=False) + "\n", tuple(_lost(graph, fine))


def _is_fine(graph: CircuitGraph) -> bool:
    """Whether every edge still has the links, and every node the nodes, that it was merged from."""
    links = [graph.edge_attributes.get(edge, {}).get("links") for edge in graph.edges]
    nodes = [graph.node_attributes.get(name, {}).get("nodes") for name in graph.nodes]
    return _all_have(links, "source", "target") and _all_have(nodes, "node_id", "feature_type")


def _all_have(lists: list[Any], *keys: str) -> bool:
    return all(
        isinstance(items, list) and all(isinstance(item, dict) and item.keys() >= set(keys) for item in items)
        for items in lists
    )


def _fine(graph: CircuitGraph) -> tuple[list[Any], list[Any]]:
    links = [link for edge in graph.edges for link in graph.edge_attributes[edge]["links"]]
    used = {link[end] for link in links for end in ("source", "target")}
    records = [record for values in graph.node_attributes.values() for record in values.get("nodes", [])]
    always = ("embedding", "logit")  # their own files keep these even without links
    return [r for r in records if r["node_id"] in used or r["feature_type"] in always], links


def _coarse(graph: CircuitGraph) -> tuple[list[Any], list[Any]]:
    circuit = graph.circuit()
    depth: dict[str, int] = {}
    for name in circuit.order:
        depth[name] = max((depth[edge.source] + 1 for edge in circuit.parents[name]), default=0)
    last = max(Node.parse(name).layer or depth[name] for name in circuit.order)
    nodes = {
        name: _record(name, index, depth[name], last) | _ours(graph.node_attributes.get(name))
        for index, name in enumerate(circuit.order)
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
    """Our own results about a node or an edge, under names that no other tool uses."""
    return {key: value for key, value in (attributes or {}).items() if key.startswith("eics_")}


def _record(name: str, index: int, depth: int, last: int) -> dict[str, Any]:
    node = Node.parse(name)
    layer: int | str
    kind, layer, feature = _FEATURE, node.layer or 0, (node.head or 0) + (node.kind is Kind.HEAD)
    if node.kind is Kind.INPUT:
        kind, layer = "embedding", "E"
    elif node.kind is Kind.LOGITS:
        kind, layer = "logit", last + 2  # as in their files: one more than the number of layers
    elif node.kind is Kind.OTHER:
        layer, feature = depth, index
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


def _lost(graph: CircuitGraph, fine: bool) -> list[str]:
    notes = []
    left_out = len(graph.edges) - len(graph.kept_edges)
    if left_out:
        notes.append(f"Neuronpedia's graphs hold kept edges only: {left_out} others were left out.")
    if graph.positions and not fine:
        notes.append("Neuronpedia's graphs have no place for positions of nodes: left out.")
    if not fine and 0 < len(graph.scores) < len(graph.edges):
        notes.append("Neuronpedia's links have a weight: edges without a score got 0.")
    return notes


READER = Reader(
    "Neuronpedia or circuit-tracer JSON (nodes, links)",
    ("json",),
    dict,
    lambda value: all(isinstance(value.get(key), list) for key in ("nodes", "links")),
    read,
)
WRITER = Writer(NAME, "Neuronpedia's graph JSON", (), write)
