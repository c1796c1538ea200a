"""Edge-Pruning (`.json`): a list of [from, to]."""

import re

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.merge import Merged, is_pair, pairs_of
from eics.circuits.formats.seam import Reader
from eics.circuits.graph import Edge, Kind, Node
from eics.errors import CircuitError

NAME = "edge-pruning"
_NAMES = {"tok_embeds": "input", "pos_embeds": "input", "embeds": "input", "resid_post": "logits"}
_PORT = re.compile(r"(?P<head>a\d+\.h\d+)\.(?P<port>[qkv])")


def matches(content: Content) -> bool:
    """JSON: a list of pairs of names."""
    value = content.value
    return content.what == "json" and isinstance(value, list) and bool(value) and is_pair(value[0])


def read(content: Content) -> CircuitGraph:
    """Reads the pairs; token and position embeddings are both `input`."""
    merged, inner = Merged(), 0
    for place, *pair in pairs_of(content.value):
        (source, out), (target, port) = (_node(name, place) for name in pair)
        if source == target:
            inner += 1  # from a head's port to its output: no edge between nodes
        elif out is not None:
            raise CircuitError(f"must have edges that leave whole heads. Item {place} leaves {pair[0]}.")
        else:
            merged.add(Edge(source, target, port))
    notes = merged.notes("token and position embeddings are one node, input.")
    if inner:
        notes += (f"{inner} edges inside heads were left out: they join no two nodes.",)
    return CircuitGraph(tuple(merged.edges), format=NAME, notes=notes)


def _node(name: str, place: int) -> tuple[str, str | None]:
    match = _PORT.fullmatch(name)
    node, port = (match["head"], match["port"]) if match else (_NAMES.get(name, name), None)
    if Node.parse(node).kind is Kind.OTHER:
        raise CircuitError(f"must name embeddings, heads, MLPs and resid_post. Item {place} names {name[:80]!r}.")
    return node, port


READER = Reader(NAME, "Edge-Pruning JSON (a list of [from, to])", matches, read)
