"""Lists of (from, to): Edge-Pruning's JSON, with node names, and InterpBench's `edges.pkl`, with indexed hook names."""

import re
from collections.abc import Iterator
from typing import Any, TypeGuard

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Reader
from eics.circuits.formats.hooks import edge_between, parse_indexed
from eics.circuits.formats.shared import EMBEDDINGS, Merged
from eics.circuits.graph import Edge, Kind, Node
from eics.errors import CircuitError

_NAMES = {"tok_embeds": "input", "pos_embeds": "input", "embeds": "input", "resid_post": "logits"}
_PORT = re.compile(r"(?P<head>a\d+\.h\d+)\.(?P<port>[qkv])")


def read_edge_pruning(items: list[Any]) -> CircuitGraph:
    """Reads the pairs; token and position embeddings are both `input`."""
    merged = Merged()
    for index, *pair in _pairs(items):
        (source, source_port), (target, port) = (_node(name, index) for name in pair)
        if source == target:
            merged.add(None)  # from a head's port to its output
        elif source_port is not None:
            raise CircuitError(f"must have edges that leave whole heads. Item {index} leaves {pair[0]}.")
        else:
            merged.add(Edge(source, target, port))
    return CircuitGraph(tuple(merged.edges), format="edge-pruning", notes=merged.notes(EMBEDDINGS))


def read_interpbench(items: list[Any]) -> CircuitGraph:
    """Reads the pairs; those inside a node are contracted."""
    merged = Merged()
    for index, source, target in _pairs(items):
        written = f"{source} to {target} (item {index})"
        merged.add(edge_between(parse_indexed(source), parse_indexed(target), written))
    return CircuitGraph(tuple(merged.edges), format="interpbench", notes=merged.notes(EMBEDDINGS))


def _is_pair(value: object) -> TypeGuard[tuple[str, str]]:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(name, str) for name in value)


def _begins_with_pair(items: list[Any]) -> bool:
    return bool(items) and _is_pair(items[0])


def _pairs(items: list[Any]) -> Iterator[tuple[int, str, str]]:
    """Index, source and target of each item; refuses items that are not pairs, and repeated pairs."""
    seen: set[tuple[str, str]] = set()
    for index, item in enumerate(items):
        if not _is_pair(item):
            raise CircuitError(f"must be a list of [from, to]. Item {index} is {str(item)[:80]!r}.")
        source, target = item
        if (source, target) in seen:
            raise CircuitError(f"must give each edge once. Item {index} gives {source} to {target} again: remove it.")
        seen.add((source, target))
        yield index, source, target


def _node(name: str, index: int) -> tuple[str, str | None]:
    match = _PORT.fullmatch(name)
    node, port = (match["head"], match["port"]) if match else (_NAMES.get(name, name), None)
    if Node.parse(node).kind is Kind.OTHER:
        raise CircuitError(f"must name embeddings, heads, MLPs and resid_post. Item {index} names {name[:80]!r}.")
    return node, port


EDGE_PRUNING_READER = Reader(
    "Edge-Pruning JSON (a list of [from, to])", ("json",), list, _begins_with_pair, read_edge_pruning
)
INTERPBENCH_READER = Reader("InterpBench edges.pkl", ("pickle", "torch"), list, _begins_with_pair, read_interpbench)
