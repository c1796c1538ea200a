"""Nodes and edges by name: parsing, checks, order of computation.

>>> Node.parse("a3.h7").kind
<Kind.HEAD: 'head'>
>>> Edge.parse("m0->a1.h2<k>").port
'k'
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from eics.errors import CircuitError

PORTS = ("q", "k", "v")

_HEAD = re.compile(r"a(0|[1-9]\d*)\.h(0|[1-9]\d*)")
_MLP = re.compile(r"m(0|[1-9]\d*)")
_EDGE = re.compile(r"(?P<source>[^<>]+?)->(?P<target>[^<>]+?)(?:<(?P<port>[^<>]*)>)?")


class Kind(StrEnum):
    """What a node is in a transformer; ``OTHER`` is outside any."""

    INPUT = "input"
    HEAD = "head"
    MLP = "mlp"
    LOGITS = "logits"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's name and what it stands for.

    >>> Node.parse("a3.h7")
    Node(name='a3.h7', kind=<Kind.HEAD: 'head'>, layer=3, head=7)
    """

    name: str
    kind: Kind
    layer: int | None = None
    head: int | None = None

    @staticmethod
    @lru_cache(maxsize=1 << 16)
    def parse(name: str) -> "Node":
        """Parses a name; refuses one that could be mistaken for an edge."""
        if not isinstance(name, str) or not name or name != name.strip() or re.search(r"->|[<>]", name):
            raise CircuitError(
                f"A node name must be a non-empty string without '->', '<', '>' or outer blanks. Got {name!r}."
            )
        if name in (Kind.INPUT, Kind.LOGITS):
            return Node(name, Kind(name))
        if match := _HEAD.fullmatch(name):
            return Node(name, Kind.HEAD, int(match[1]), int(match[2]))
        if match := _MLP.fullmatch(name):
            return Node(name, Kind.MLP, int(match[1]))
        return Node(name, Kind.OTHER)

    @property
    def rank(self) -> float | None:
        """The order of computation: embeddings, then in each layer heads before the MLP, then the read-out."""
        if self.kind is Kind.OTHER:
            return None
        if self.layer is None:
            return -1.0 if self.kind is Kind.INPUT else float("inf")
        return 2.0 * self.layer + (self.kind is Kind.MLP)


class Edge(NamedTuple):
    """``source->target``, or ``source->target<port>``."""

    source: str
    target: str
    port: str | None = None

    def __str__(self) -> str:
        return f"{self.source}->{self.target}" + (f"<{self.port}>" if self.port else "")

    @classmethod
    def parse(cls, text: str) -> "Edge":
        """Parses the written form.

        >>> Edge.parse("m0->a1.h2<k>")
        Edge(source='m0', target='a1.h2', port='k')
        """
        match = _EDGE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise CircuitError(f"An edge must read 'source->target' or 'source->target<port>'. Got {text!r}.")
        return cls(match["source"], match["target"], match["port"])


EdgeLike = Edge | str | tuple[str, str] | tuple[str, str, str | None]


def as_edge(edge: EdgeLike) -> Edge:
    """An edge from any of the forms in which a circuit takes it."""
    if isinstance(edge, Edge):
        return edge
    if isinstance(edge, tuple | list) and len(edge) in (2, 3):
        if not all(isinstance(name, str) for name in edge[:2]) or not isinstance(edge[-1], str | None):
            raise CircuitError(f"An edge must be text, or the names of two nodes and perhaps a port. Got {edge!r}.")
        return Edge(*edge)
    return Edge.parse(edge)  # type: ignore[arg-type]  # anything else is refused there


def check_edges(edges: Iterable[Edge]) -> set[Edge]:
    """The edges as a set; refuses a bad edge (`check_edge`) and one that is given twice."""
    seen: set[Edge] = set()
    for edge in edges:
        check_edge(edge)
        if edge in seen:
            raise CircuitError(f"Edge {edge} must be given once. It was given twice: remove one of them.")
        seen.add(edge)
    return seen


def check_edge(edge: Edge) -> None:
    """Refuses bad names, self-loops, ports on anything but a head, and edges that run backwards."""
    source, target = Node.parse(edge.source), Node.parse(edge.target)
    if edge.source == edge.target:
        raise CircuitError(f"An edge must join two different nodes. Got the self-loop {edge}.")
    if edge.port is not None:
        if edge.port not in PORTS:
            raise CircuitError(f"A port must be one of q, k, v. Got {edge.port!r} in edge {edge}.")
        if target.kind is not Kind.HEAD:
            raise CircuitError(f"Only attention heads (a<layer>.h<head>) have ports. Got {edge}: drop '<{edge.port}>'.")
    if source.rank is not None and target.rank is not None and source.rank >= target.rank:
        raise CircuitError(
            f"An edge must run forwards: {edge.target} is not computed after {edge.source}. "
            f"Got {edge}: reverse or remove it."
        )


def topological_order(edges: Sequence[Edge]) -> tuple[str, ...]:
    """The nodes, each after its parents; refuses a cycle and names it.

    Nodes of a transformer come in the order of computation, so that heads of a layer stand together.
    """
    nodes = {Node.parse(name) for edge in edges for name in (edge.source, edge.target)}
    ranked = [(node.rank, node.head or 0, node.name) for node in nodes if node.rank is not None]
    if len(ranked) == len(nodes):
        return tuple(name for _, _, name in sorted(ranked))  # no cycle: checked edges between such nodes run forwards
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for edge in edges:
        sorter.add(edge.source)
        sorter.add(edge.target, edge.source)
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        raise CircuitError(f"A circuit must have no cycle. Got {'->'.join(error.args[1])}: remove an edge.") from None


def heads_by_layer(names: Iterable[str]) -> dict[int, list[int]]:
    """The heads among these nodes, by layer.

    >>> heads_by_layer(["input", "a0.h3", "m0", "a2.h1", "a2.h5"])
    {0: [3], 2: [1, 5]}
    """
    heads: dict[int, list[int]] = {}
    for node in map(Node.parse, names):
        if node.kind is Kind.HEAD and node.layer is not None and node.head is not None:
            heads.setdefault(node.layer, []).append(node.head)
    return heads


def shorten(items: Iterable[object], limit: int = 4) -> str:
    """The first few items of a list, for a message.

    >>> shorten("abcdef")
    'a, b, c, d, ... (6)'
    """
    texts = [str(item) for item in items]
    return ", ".join(texts[:limit]) + (f", ... ({len(texts)})" if len(texts) > limit else "")
