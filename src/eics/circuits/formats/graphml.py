"""GraphML, as Gephi, yEd and networkx read and write it. Node ids are node names; port, score and in_graph are data."""

import json
import re
from typing import Any
from xml.etree import ElementTree

from eics.circuits.file_graph import CircuitGraph, ModelShape
from eics.circuits.formats.content import Content
from eics.circuits.formats.jsonsafe import json_safe, scalars
from eics.circuits.formats.seam import Reader, Writer
from eics.circuits.formats.table import lost
from eics.circuits.graph import Edge
from eics.errors import CircuitError

NAME = "graphml"
_SPACE = "http://graphml.graphdrawing.org/xmlns"
_CONTROL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}
_READ: dict[str, Any] = {"boolean": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()]}
_READ |= {"int": int, "long": int, "float": float, "double": float, "string": str}


def matches(content: Content) -> bool:
    """XML that says graphml early on."""
    return content.what == "xml" and "<graphml" in content.value[:4096]


def read(content: Content) -> CircuitGraph:
    """Reads a directed graph. A file with a document type or entities is refused unread: they can grow without end."""
    if re.search(r"<!\s*(DOCTYPE|ENTITY)", content.value, re.IGNORECASE):
        raise CircuitError("must be GraphML without a document type or entities. Remove them.")
    try:
        root = ElementTree.fromstring(content.value)
    except (ElementTree.ParseError, ValueError) as error:
        raise CircuitError(f"must be XML: {error}.") from None
    graphs = [child for child in root if _tag(child) == "graph"]
    if len(graphs) != 1:
        raise CircuitError(f"must hold one graph. Got {len(graphs)}.")
    if graphs[0].get("edgedefault") == "undirected" or any(e.get("directed") == "false" for e in graphs[0]):
        raise CircuitError("must hold a directed graph. Its edges have no direction.")
    keys = {key.get("id", ""): (key.get("attr.name", ""), key.get("attr.type", "string")) for key in _all(root, "key")}
    return _graph(graphs[0], keys)


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes nodes and edges, with what is said of them where it fits an attribute."""
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
        _say(body, keys, "graph", {"eics": text})
    names = dict.fromkeys([*graph.nodes, *graph.node_attributes])
    for name in names:
        node = ElementTree.SubElement(body, "node", id=_clean(name))
        _say(node, keys, "node", scalars(graph.node_attributes.get(name, {})))
    for place, edge in enumerate(graph.edges):
        ends = {"id": f"e{place}", "source": _clean(edge.source), "target": _clean(edge.target)}
        _say(ElementTree.SubElement(body, "edge", ends), keys, "edge", _said(graph, edge))
    for (what, name, kind), key in keys.items():
        said = {"id": key, "for": what, "attr.name": name, "attr.type": kind}
        ElementTree.SubElement(root, "key", said)
    root.append(body)
    ElementTree.indent(root, " ")
    notes = lost(graph, "GraphML", shape=False)
    if any(scalars(said) != said for said in graph.node_attributes.values()):
        notes += ("GraphML has no place for lists among attributes of nodes: left out.",)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n", notes


def _said(graph: CircuitGraph, edge: Edge) -> dict[str, Any]:
    said: dict[str, Any] = {"port": edge.port} if edge.port else {}
    if edge in graph.scores:
        said["score"] = float(graph.scores[edge])
    if graph.kept is not None:
        said["in_graph"] = edge in graph.kept
    return said | scalars(graph.edge_attributes.get(edge, {}))


def _say(element: ElementTree.Element, keys: dict[tuple[str, str, str], str], what: str, said: dict[str, Any]) -> None:
    for name, value in said.items():
        key = keys.setdefault((what, _clean(name), _TYPES[type(value)]), f"d{len(keys)}")
        text = (
            str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
        )
        ElementTree.SubElement(element, "data", key=key).text = _clean(text)


def _graph(element: ElementTree.Element, keys: dict[str, tuple[str, str]]) -> CircuitGraph:
    nodes = {}
    for node in _all(element, "node"):
        name = node.get("id", "")
        if name in nodes:
            raise CircuitError(f"must give each node once. {name!r} came twice.")
        nodes[name] = _data(node, keys, f"node {name!r}")
    edges = [_edge(edge, keys, nodes, place) for place, edge in enumerate(_all(element, "edge"))]
    flags = {edge: said.pop("in_graph") for edge, said in edges if "in_graph" in said}
    if flags and len(flags) < len({edge for edge, _ in edges}):
        raise CircuitError("must say in_graph of every edge, or of none.")
    scores = {edge: said.pop("score") for edge, said in edges if "score" in said}
    more = _more(_data(element, keys, "the graph").get("eics"))
    return CircuitGraph(
        tuple(edge for edge, _ in edges),
        scores=scores,
        kept=frozenset(edge for edge, flag in flags.items() if flag) if flags else None,
        shape=more["shape"],
        positions=more["positions"],
        node_attributes={name: said for name, said in nodes.items() if said},
        edge_attributes={edge: said for edge, said in edges if said},
        metadata=more["metadata"],
        format=NAME,
    )


def _edge(
    element: ElementTree.Element, keys: dict[str, tuple[str, str]], nodes: dict[str, Any], place: int
) -> tuple[Edge, dict[str, Any]]:
    ends = [element.get(end, "") for end in ("source", "target")]
    for name in ends:
        if name not in nodes:
            raise CircuitError(f"must have edges between its nodes. Edge {place} names {name[:80]!r}.")
    said = _data(element, keys, f"edge {place}")
    if "score" not in said and isinstance(said.get("weight"), float):
        said["score"] = said.pop("weight")  # as networkx and Gephi call it
    if not isinstance(said.get("in_graph", True), bool):
        raise CircuitError(f"must have booleans as in_graph. Edge {place} has {said['in_graph']!r}.")
    return Edge(ends[0], ends[1], said.pop("port", None) or None), said


def _data(element: ElementTree.Element, keys: dict[str, tuple[str, str]], where: str) -> dict[str, Any]:
    said = {}
    for data in element:
        if _tag(data) == "data":
            name, kind = keys.get(data.get("key", ""), (data.get("key", ""), "string"))
            try:
                said[name] = _READ[kind](data.text or "")
            except (KeyError, ValueError):
                raise CircuitError(
                    f"must have a {kind} as {name} of {where}. Got {(data.text or '')[:40]!r}."
                ) from None
    return said


def _more(text: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": None, "positions": {}, "metadata": {}}
    try:
        found |= json.loads(text) if text else {}
        found["shape"] = ModelShape(**found["shape"]) if found["shape"] else None
    except (TypeError, ValueError, RecursionError) as error:
        raise CircuitError(f"must have JSON as its graph's eics data: {error}.") from None
    if not isinstance(found["positions"], dict) or not isinstance(found["metadata"], dict):
        raise CircuitError("must have objects of positions and metadata in its graph's eics data.")
    return found


def _clean(text: str) -> str:
    if match := _CONTROL.search(text):
        raise CircuitError(f"GraphML must hold characters that XML knows. Got {match[0]!r} in {text[:40]!r}.")
    return text


def _all(element: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return [child for child in element if _tag(child) == tag]


def _tag(element: ElementTree.Element) -> str:
    return str(element.tag).rsplit("}", 1)[-1]


READER = Reader(NAME, "GraphML", matches, read)
WRITER = Writer(NAME, "GraphML", (".graphml", ".xml"), write)
