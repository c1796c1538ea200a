"""circuit-tracer: Neuronpedia's graph (`.json`) and its own (`.pt`), projected onto our nodes.

Such a graph has features and errors of MLPs at token positions, embeddings and logits, and no attention heads. Features
and errors become `m<layer>`, embeddings `input`, logits `logits`; an edge's score is the sum of absolute weights. What
was merged stays as attributes: the nodes of a node, the links of an edge.
"""

from collections import Counter
from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.merge import Merged
from eics.circuits.formats.seam import Reader
from eics.circuits.graph import Edge, Node
from eics.errors import CircuitError

JSON, PT = "neuronpedia", "circuit-tracer-pt"
ERROR = "mlp reconstruction error"
_KINDS = {"embedding": "input", "logit": "logits"}
_LAYERED = ("cross layer transcoder", ERROR)
_WHY = "features, errors and positions of one MLP are one node, and their absolute weights were added."


def matches_json(content: Content) -> bool:
    """JSON with lists of nodes and links."""
    value = content.value
    found = content.what == "json" and isinstance(value, dict)
    return found and all(isinstance(value.get(key), list) for key in ("nodes", "links"))


def read_json(content: Content) -> CircuitGraph:
    """Reads nodes by (feature_type, layer, feature, ctx_idx): their ids are not unique in older files."""
    value = content.value
    by_id, records = _by_id(value["nodes"])
    weights = [_checked(link, place, by_id) for place, link in enumerate(value["links"])]
    repeated = Counter((link["source"], link["target"]) for link in value["links"])
    merged, passed, guessed = Merged(), Counter[tuple[str, str]](), []
    links: dict[Edge, list[dict[str, Any]]] = {}
    for place, link in enumerate(value["links"]):
        pair = (link["source"], link["target"])
        source, sure = _source(by_id, link, second=passed[pair] > 0, both=repeated[pair] > 1)
        passed[pair] += 1
        if not sure:
            guessed.append(place)
        edge = Edge(_name(source), _name(_target(by_id[link["target"]])), link.get("eics_port"))
        if edge.source == edge.target:
            raise CircuitError(f"must have links between different layers. links[{place}] stays in {edge.source}.")
        merged.add(edge, abs(weights[place]))
        links.setdefault(edge, []).append(link)
    ours = all("eics_node" in node for node in value["nodes"])
    notes = () if ours else merged.notes(_WHY)
    if guessed:
        notes += (
            f"{len(guessed)} links leave an id that an error node and a feature node of layer 0 share (the first is "
            f"links[{guessed[0]}], from {value['links'][guessed[0]]['source']!r}): they were read as the feature's.",
        )
    # a file that we wrote has one signed link for each of our edges
    scores = {edge: links[edge][0]["weight"] for edge in merged.edges} if ours else merged.scores
    return CircuitGraph(
        tuple(merged.edges),
        scores={} if ours and value.get("eics_unscored") else scores,
        node_attributes={} if ours else {name: {"nodes": found} for name, found in records.items()},
        edge_attributes={} if ours else {edge: {"links": found} for edge, found in links.items()},
        metadata={key: value[key] for key in ("metadata", "qParams") if isinstance(value.get(key), dict)},
        format=JSON,
        notes=notes,
    )


def matches_pt(content: Content) -> bool:
    """A torch archive with an adjacency matrix and active features."""
    value = content.value
    keys = {"adjacency_matrix", "active_features", "input_tokens"}
    return content.what == "torch" and isinstance(value, dict) and keys <= value.keys()


def read_pt(content: Content) -> CircuitGraph:
    """Reads the matrix (rows targets, columns sources): features, then errors by layer, tokens, logits."""
    import torch

    value = content.value
    matrix, groups, layers, features = _layout(value)
    names = [*(f"m{layer}" for layer in range(layers)), "input", "logits"]
    # (targets, sources), summed over both axes by node: never a second matrix of full size in double
    rows = torch.zeros(len(names), matrix.shape[1], dtype=torch.float64)
    for start in range(0, len(groups), 1024):
        chunk = slice(start, start + 1024)
        rows.index_add_(0, groups[chunk], matrix[chunk].abs().double())
    sums = torch.zeros(len(names), len(names), dtype=torch.float64).index_add_(1, groups, rows)
    scores: dict[Edge, float] = {}
    for target, source in sums.nonzero().tolist():
        if names[source] == names[target]:
            raise CircuitError(
                f"must have effects between different layers. Its matrix has some inside {names[source]}."
            )
        scores[Edge(names[source], names[target])] = float(sums[target, source])
    return CircuitGraph(
        tuple(scores),
        scores=scores,
        node_attributes=features,
        metadata={key: value[key] for key in ("input_string", "scan_name", "scan") if isinstance(value.get(key), str)},
        format=PT,
        notes=(f"A matrix of {len(groups)} nodes was read: {_WHY}",),
    )


def _by_id(nodes: list[Any]) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    by_id: dict[str, list[dict[str, Any]]] = {}
    records: dict[str, list[dict[str, Any]]] = {}
    seen = set()
    for place, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("node_id"), str):
            raise CircuitError(f"must have nodes with a node_id. nodes[{place}] is {str(node)[:80]!r}.")
        key = str([node.get(name) for name in ("feature_type", "layer", "feature", "ctx_idx", "eics_node")])
        if (node["node_id"], key) in seen:
            raise CircuitError(f"must give each node once. nodes[{place}] ({node['node_id']!r}) came before.")
        seen.add((node["node_id"], key))
        by_id.setdefault(node["node_id"], []).append(node)
        records.setdefault(_name(node, place), []).append(node)
    return by_id, records


def _name(node: dict[str, Any], place: int | None = None) -> str:
    """Our node of one of theirs."""
    if isinstance(node.get("eics_node"), str):
        return str(node["eics_node"])
    kind, layer = node.get("feature_type"), str(node.get("layer"))
    if kind in _KINDS:
        return _KINDS[kind]
    if kind not in _LAYERED or not (layer.isascii() and layer.isdigit()):
        where = f"nodes[{place}]" if place is not None else repr(node.get("node_id"))
        raise CircuitError(
            f"must have features, errors, embeddings and logits as nodes. {where} is {kind!r} of {layer!r}."
        )
    return f"m{int(layer)}"


def _checked(link: Any, place: int, by_id: dict[str, Any]) -> float:
    if not isinstance(link, dict):
        raise CircuitError(f"must have objects as links. links[{place}] is {str(link)[:80]!r}.")
    for end in ("source", "target"):
        if not isinstance(link.get(end), str) or link[end] not in by_id:
            raise CircuitError(f"must link nodes of the file. The {end} of links[{place}], {link.get(end)!r}, is none.")
    weight = link.get("weight")
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise CircuitError(f"must give each link a weight. links[{place}] has {weight!r}.")
    return float(weight)


def _target(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    """Nothing leads into an error node, so a shared id means the feature here."""
    return next((node for node in nodes if node.get("feature_type") != ERROR), nodes[0])


def _source(
    by_id: dict[str, list[dict[str, Any]]], link: dict[str, Any], *, second: bool, both: bool
) -> tuple[dict[str, Any], bool]:
    """Which node a link leaves, and whether that is sure.

    In older files the error of layer 5 and feature 5 of layer 0 have the same id. An error of a layer that is not
    before the target's cannot be meant; where both have a link to the same target, the feature's was written first.
    """
    nodes = by_id[link["source"]]
    feature = _target(nodes)
    errors = [node for node in nodes if node.get("feature_type") == ERROR]
    if len(nodes) == 1 or not errors:
        return feature, len(nodes) == 1
    if both:
        return (errors[0] if second else feature), True
    reached = Node.parse(_name(_target(by_id[link["target"]]))).rank or 0.0
    before = (Node.parse(_name(errors[0])).rank or 0.0) < reached
    return feature, not before


def _layout(value: dict[str, Any]) -> tuple[Any, Any, int, dict[str, dict[str, Any]]]:
    """The matrix, the place of each row's node among ours, the number of layers, and the features by node."""
    import torch

    matrix, active = value["adjacency_matrix"], value["active_features"]
    for name, tensor, size in (("adjacency_matrix", matrix, 2), ("active_features", active, 2)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != size:
            raise CircuitError(f"must have a matrix {name}.")
    selected = value.get("selected_features")
    chosen = active if selected is None else active[_indices(selected, len(active))]
    tokens, logits = len(value["input_tokens"]), _count(value)
    n = matrix.shape[0]
    errors = n - len(chosen) - tokens - logits
    if matrix.shape != (n, n) or chosen.shape[1] != 3 or tokens < 1 or errors < 0 or errors % tokens:
        raise CircuitError(
            f"must have a square matrix over {len(chosen)} features, errors of each layer at {tokens} positions, "
            f"{tokens} tokens and {logits} logits. Got {tuple(matrix.shape)}."
        )
    layers = errors // tokens
    layer_of = chosen[:, 0].long()
    if len(layer_of) and not 0 <= int(layer_of.min()) <= int(layer_of.max()) < layers:
        raise CircuitError(f"must have features in its {layers} layers. Got one in layer {int(layer_of.max())}.")
    groups = torch.cat(
        [
            layer_of,
            torch.arange(layers).repeat_interleave(tokens),
            torch.full((tokens,), layers),
            torch.full((logits,), layers + 1),
        ]
    )
    features: dict[str, dict[str, Any]] = {}
    for layer, position, feature in chosen.tolist():
        found = features.setdefault(f"m{int(layer)}", {"features": []})["features"]
        found.append({"ctx_idx": int(position), "feature": int(feature)})
    return matrix, groups, layers, features


def _indices(selected: Any, limit: int) -> Any:
    import torch

    if not isinstance(selected, torch.Tensor) or selected.dim() != 1 or selected.is_floating_point():
        raise CircuitError("must have indices as selected_features.")
    if len(selected) and not 0 <= int(selected.min()) <= int(selected.max()) < limit:
        raise CircuitError(f"must select features among its {limit} active ones. Got index {int(selected.max())}.")
    return selected.long()


def _count(value: dict[str, Any]) -> int:
    targets = value.get("logit_targets", value.get("logit_tokens"))
    if targets is None:
        raise CircuitError("must have logit_targets (or logit_tokens).")
    return len(targets)


JSON_READER = Reader(JSON, "Neuronpedia or circuit-tracer JSON (nodes, links)", matches_json, read_json)
PT_READER = Reader(PT, "circuit-tracer .pt", matches_pt, read_pt)
