"""EAP-IG (`.pt`): scores and flags as matrices, `src_nodes` by `dst_nodes`."""

from typing import Any

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Content
from eics.circuits.formats.eap_json import check_nodes, shape_of
from eics.circuits.formats.seam import Reader
from eics.circuits.graph import Edge, Node
from eics.circuits.names import shorten
from eics.errors import CircuitError

NAME = "eap-pt"
_KEYS = {"cfg", "src_nodes", "dst_nodes", "edges_scores", "edges_in_graph", "nodes_in_graph"}


def matches(content: Content) -> bool:
    """A torch archive with `src_nodes` and `edges_scores`."""
    value = content.value
    return content.what == "torch" and isinstance(value, dict) and {"src_nodes", "edges_scores"} <= value.keys()


def read(content: Content) -> CircuitGraph:
    """Reads the edges that exist in the model; the matrices also have cells for pairs that are not edges."""
    value = content.value
    if missing := _KEYS - value.keys():
        raise CircuitError(f"must be a complete EAP-IG file. It lacks {shorten(sorted(missing))}.")
    sources, targets = _names(value, "src_nodes"), _names(value, "dst_nodes")
    shape = shape_of(value["cfg"] if isinstance(value["cfg"], dict) else {})
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
        format=NAME,
    )
    check_nodes(graph)
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
    beside = shape.parallel_attn_mlp and source.layer is not None and source.layer == target.layer
    return source.rank < target.rank and not beside


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


READER = Reader(NAME, "EAP-IG .pt", matches, read)
