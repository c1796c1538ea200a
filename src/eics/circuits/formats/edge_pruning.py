"""Edge-Pruning (`.json`): a list of [from, to]."""

import re

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.seam import Reader
from eics.circuits.formats.shared import EMBEDDINGS, Merged, is_pair, pairs_of
from eics.circuits.graph import Edge, Kind, Node
from eics.errors import CircuitError

NAME = "edge-pruning"
_NAMES = {"tok_embeds": "input", "pos_embeds": "input", "embeds": "input", "resid_post": "logits"}
_PORT = re.compile(r"(?P<head>a\d+\.h\d+)\.(?P<port>[qkv])")


def matches(content: Content) -> bool:
    """A JSON list of pairs of names."""
    value = content.value
    return content.what == "json" and isinstance(value, list) and bool(value) and is_pair(value[0])


def read(content: Content) -> CircuitGraph:
    """Reads the pairs; token and position embeddings are both `input`."""
    merged = Merged()
    for index, *pair in pairs_of(content.value):
        (source, source_port), (target, port) = (_node(name, index) for name in pair)
        if source == target:
            merged.add(None)  # from a head's port to its output
        elif source_port is not None:
            raise CircuitError(f"must have edges that leave whole heads. Item {index} leaves {pair[0]}.")
        else:
            merged.add(Edge(source, target, port))
    return CircuitGraph(tuple(merged.edges), format=NAME, notes=merged.notes(EMBEDDINGS))


def _node(name: str, index: int) -> tuple[str, str | None]:
    match = _PORT.fullmatch(name)
    node, port = (match["head"], match["port"]) if match else (_NAMES.get(name, name), None)
    if Node.parse(node).kind is Kind.OTHER:
        raise CircuitError(f"must name embeddings, heads, MLPs and resid_post. Item {index} names {name[:80]!r}.")
    return node, port


READER = Reader(NAME, "Edge-Pruning JSON (a list of [from, to])", matches, read)
