"""The parts of a model that a document speaks of: their kinds, and the picture that shows all of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.errors import CircuitError
from eics.reporting.page.fields import Fields
from eics.reporting.page.runs import last_name
from eics.reporting.page.sheet import bias_layer, draw_graph, draw_parts

_EDGES = 3000  # that a picture has; more would be a grey mass of several megabytes
_FINGERPRINT = 12  # letters of a hash that are shown


def kind_of(name: str) -> str:
    """What a part is: input, head, mlp, bias, logits or other.

    >>> [kind_of(name) for name in ("a3.h7", "a3.bias", "m3")]
    ['head', 'bias', 'mlp']
    """
    return "bias" if bias_layer(name) is not None else str(Node.parse(name).kind)


def named_nodes(document: Fields) -> dict[str, Fields]:
    """The nodes of a document by name, in its order; refuses names that are none or come twice."""
    named: dict[str, Fields] = {}
    for entry in document.objects("nodes"):
        name = entry.text("node")
        check_name(entry, "node", name)
        if name in named:
            raise entry.refuse("node", "a name that no other node has", name)
        named[name] = entry
    return named


def check_name(entry: Fields, field: str, name: str) -> None:
    """Refuses what cannot be the name of a node."""
    try:
        Node.parse(name)
    except CircuitError:
        raise entry.refuse(field, "the name of a node", name) from None


def picture(document: Fields, names: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The circuit with all these parts, or a grid of the parts if there is no circuit; and notes for the reader."""
    texts, notes = document.texts("edges"), []
    if len(texts) > _EDGES:
        notes.append(f"The circuit has {len(texts)} edges, too many to draw: the picture shows its parts alone.")
    elif texts:
        try:
            edges = Circuit.from_edges(texts).edges
            inside = {name for edge in edges for name in (edge.source, edge.target)}
            others = [name for name in names if name not in inside]
            return draw_graph(edges, {}, {}, others), []
        except CircuitError as error:
            notes.append(f"The circuit cannot be drawn, only its parts: {error}")
    return draw_parts(names), notes


def in_order(names: Sequence[str]) -> list[str]:
    """Names in the order of computation; a bias comes after the heads of its layer, other names come last."""

    def rank(name: str) -> tuple[float, float, str]:
        node, layer = Node.parse(name), bias_layer(name)
        if layer is not None:
            return 2.0 * layer + 0.5, 0.0, name
        return (float("inf"), 1.0, name) if node.kind is Kind.OTHER else (node.rank or 0.0, node.head or 0, name)

    return sorted(names, key=rank)


def circuit_fact(circuit: Fields | None, edges: Sequence[Edge | str]) -> str:
    """The circuit of a document in words."""
    if circuit is None:
        return "none: the whole model"
    return f"{last_name(circuit.text('name'))} ({len(edges)} edges)" if edges else last_name(circuit.text("name"))


def told_apart(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Prompts or texts, with a number in ids that come again in a set: a link must lead to one of them.

    >>> [entry["id"] for entry in told_apart([{"id": "a"}, {"id": "b"}, {"id": "a"}])]
    ['a', 'b', 'a (2)']
    """
    seen: dict[tuple[str | None, str], int] = {}
    apart = []
    for entry in entries:
        key = (entry.get("set"), entry["id"])
        seen[key] = seen.get(key, 0) + 1
        apart.append(entry if seen[key] == 1 else entry | {"id": f"{entry['id']} ({seen[key]})"})
    return apart


def short_hash(value: str | None) -> str | None:
    """The first letters of a hash."""
    return value and value[:_FINGERPRINT]
