"""GraphML, as Gephi, yEd and networkx read and write it. Node ids are node names; port, score and in_graph are data."""

import json
import re
from typing import Any
from xml.etree import ElementTree

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Reader, Writer
from eics.circuits.formats.shared import json_safe, kept_by_flags, scalars
from eics.circuits.graph import Edge
from eics.errors import CircuitError

NAME = "graphml"
_SPACE = "http://graphml.graphdrawing.org/xmlns"
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}
_READ: dict[str, Any] = {"boolean": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()]}
_READ |= {"int": int, "long": int, "float": float, "double": float, "string": str}


def read(value: Any) -> CircuitGraph:
    """Reads a directed graph; refuses a document type or entities before parsing, since they can grow without bound."""
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", value, re.IGNORECASE):
        raise CircuitError("must be GraphML without a document type or entities. Remove them.")
    try:
        root = ElementTree.fromstring(value)
    except (ElementTree.ParseError, ValueError) as error:
        raise CircuitError(f"must be XML: {error}.") from None
    graphs = root.findall("{*}graph")
    if len(graphs) != 1:
        raise CircuitError(f"must hold one graph. Got {len(graphs)}.")
    if graphs[0].get("edgedefault") == "undirected" or any(e.get("directed") == "false" for e in graphs[0]):
        raise CircuitError("must hold a directed graph. Its edges have no direction.")
    keys = {
        key.get("id", ""): (key.get("attr.name", ""), key.get("attr.type", "string")) for key in root.iterfind("{*}key")
    }
    return _graph(graphs[0], keys)


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes nodes and edges, with those of their attributes that GraphML can hold."""
    root = ElementTree.Element("graphml", xmlns=_SPACE)
    keys: dict[tuple[str, str, str], str] = {}
    body = ElementTree.Element("graph", edgedefault="directed")
    more = {
        "shape": vars(graph.shape) if graph.shape else None,
        "metadata": graph.metadata,
        "positions": graph.positions,
    }
    if any(more.values()):
        text = json.dumps(json_safe({key: value for key, value in more.items() if value}), allow_nan=False)
        _add_data(body, keys, "graph", {"eics": text})
    for name in dict.fromkeys([*graph.nodes, *graph.node_attributes]):
        node = ElementTree.SubElement(body, "node", id=_clean(name))
        _add_data(node, keys, "node", scalars(graph.node_attributes.get(name, {})))
    for index, edge in enumerate(graph.edges):
        ends = {"id": f"e{index}", "source": _clean(edge.source), "target": _clean(edge.target)}
        _add_data(ElementTree.SubElement(body, "edge", ends), keys, "edge", _edge_data(graph, edge))
    for (owner, name, kind), key in keys.items():
        ElementTree.SubElement(root, "key", {"id": key, "for": owner, "attr.name": name, "attr.type": kind})
    root.append(body)
    ElementTree.indent(root, " ")
    attributes = (*graph.edge_attributes.values(), *graph.node_attributes.values())
    lists = any(scalars(values) != values for values in attributes)
    notes = ("GraphML has no place for lists among attributes: left out.",) if lists else ()
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n", notes


def _edge_data(graph: CircuitGraph, edge: Edge) -> dict[str, Any]:
    values: dict[str, Any] = {"port": edge.port} if edge.port else {}
    if edge in graph.scores:
        values["score"] = float(graph.scores[edge])
    if graph.kept is not None:
        values["in_graph"] = edge in graph.kept
    return values | scalars(graph.edge_attributes.get(edge, {}))


def _add_data(
    element: ElementTree.Element, keys: dict[tuple[str, str, str], str], owner: str, values: dict[str, Any]
) -> None:
    for name, value in values.items():
        key = keys.setdefault((owner, _clean(name), _TYPES[type(value)]), f"d{len(keys)}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        ElementTree.SubElement(element, "data", key=key).text = _clean(text)


def _graph(element: ElementTree.Element, keys: dict[str, tuple[str, str]]) -> CircuitGraph:
    nodes = {}
    for node in element.iterfind("{*}node"):
        name = node.get("id", "")
        if name in nodes:
            raise CircuitError(f"must give each node once. {name!r} came twice.")
        nodes[name] = _data(node, keys, f"node {name!r}")
    edges = [_edge(edge, keys, nodes, index) for index, edge in enumerate(element.iterfind("{*}edge"))]
    flags = {edge: values.pop("in_graph") for edge, values in edges if "in_graph" in values}
    scores = {edge: values.pop("score") for edge, values in edges if "score" in values}
    more = _more(_data(element, keys, "the graph").get("eics"))
    return CircuitGraph(
        tuple(edge for edge, _ in edges),
        scores=scores,
        kept=kept_by_flags([edge for edge, _ in edges], flags),
        shape=more["shape"],
        positions=more["positions"],
        node_attributes={name: values for name, values in nodes.items() if values},
        edge_attributes={edge: values for edge, values in edges if values},
        metadata=more["metadata"],
        format=NAME,
    )


def _edge(
    element: ElementTree.Element, keys: dict[str, tuple[str, str]], nodes: dict[str, Any], index: int
) -> tuple[Edge, dict[str, Any]]:
    ends = [element.get(end, "") for end in ("source", "target")]
    for name in ends:
        if name not in nodes:
            raise CircuitError(f"must have edges between its nodes. Edge {index} names {name[:80]!r}.")
    values = _data(element, keys, f"edge {index}")
    if "score" not in values and isinstance(values.get("weight"), float):
        values["score"] = values.pop("weight")  # the name that networkx and Gephi use
    if not isinstance(values.get("in_graph", True), bool):
        raise CircuitError(f"must have booleans as in_graph. Edge {index} has {values['in_graph']!r}.")
    return Edge(ends[0], ends[1], values.pop("port", None) or None), values


def _data(element: ElementTree.Element, keys: dict[str, tuple[str, str]], where: str) -> dict[str, Any]:
    values = {}
    for data in element.iterfind("{*}data"):
        name, kind = keys.get(data.get("key", ""), (data.get("key", ""), "string"))
        try:
            values[name] = _READ[kind](data.text or "")
        except (KeyError, ValueError):
            raise CircuitError(f"must have a {kind} as {name} of {where}. Got {(data.text or '')[:40]!r}.") from None
    return values


def _more(text: str | None) -> dict[str, Any]:
    more: dict[str, Any] = {"shape": None, "positions": {}, "metadata": {}}
    try:
        more |= json.loads(text) if text else {}
        more["shape"] = ModelShape(**more["shape"]) if more["shape"] else None
    except (TypeError, ValueError, RecursionError) as error:
        raise CircuitError(f"must have JSON as its graph's eics data: {error}.") from None
    if not isinstance(more["positions"], dict) or not isinstance(more["metadata"], dict):
        raise CircuitError("must have objects of positions and metadata in its graph's eics data.")
    return more


def _clean(text: str) -> str:
    if match := _CONTROL.search(text):
        raise CircuitError(f"GraphML must hold characters that XML allows. Got {match[0]!r} in {text[:40]!r}.")
    return text


READER = Reader("GraphML", ("xml",), str, lambda text: "<graphml" in text[:4096], read)
WRITER = Writer(NAME, "GraphML", (".graphml", ".xml"), write)
