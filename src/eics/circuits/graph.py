"""Circuits as pure graphs: nodes, edges with ports, order. Knows no model and no tensor.

Names follow the convention that circuit discovery tools share: ``input``, ``a3.h7`` (attention head 7 of
layer 3), ``m3`` (MLP of layer 3), ``logits``; any other name is a node of an explicit circuit that belongs
to no transformer. An edge is written ``u->v``, or ``u->a3.h7<q>`` to enter a head through one port only.

>>> circuit = Circuit.from_edges(["input->a0.h1", "a0.h1->a1.h0<q>", "input->a1.h0<v>", "a1.h0->logits"])
>>> circuit
Circuit(4 nodes, 4 edges, sources: input, sinks: logits)
>>> circuit.order
('input', 'a0.h1', 'a1.h0', 'logits')
>>> [str(edge) for edge in circuit.parents["a1.h0"]]
['a0.h1->a1.h0<q>', 'input->a1.h0<v>']
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from math import isfinite
from numbers import Integral, Real
from typing import NamedTuple

from eics.errors import CircuitError

PORTS = ("q", "k", "v")

_HEAD = re.compile(r"a(0|[1-9]\d*)\.h(0|[1-9]\d*)")
_MLP = re.compile(r"m(0|[1-9]\d*)")
_EDGE = re.compile(r"(?P<source>[^<>]+?)->(?P<target>[^<>]+?)(?:<(?P<port>[^<>]*)>)?")
_SHOWN = 6  # names in a message before "..."


class Kind(StrEnum):
    """What a node is in a transformer; ``OTHER`` belongs to none."""

    INPUT = "input"
    HEAD = "head"
    MLP = "mlp"
    LOGITS = "logits"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's name and what the name says.

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
        """Reads a name; refuses one that could be confused with an edge."""
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
        """When a transformer computes the node: embeddings, then by layer heads before MLP, then the read-out."""
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
        """Reads the written form.

        >>> Edge.parse("m0->a1.h2<k>")
        Edge(source='m0', target='a1.h2', port='k')
        """
        match = _EDGE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise CircuitError(f"An edge must read 'source->target' or 'source->target<port>'. Got {text!r}.")
        return cls(match["source"], match["target"], match["port"])


EdgeLike = Edge | str | tuple[str, str] | tuple[str, str, str | None]


class Circuit:
    """A directed acyclic graph of named nodes, checked when it is made. Immutable.

    Args:
        edges: the edges, as ``Edge``, ``(source, target[, port])`` or ``"source->target<port>"``.
        positions: token positions to which a node's stalk is restricted; a node not named keeps them all.
        name: what records call it, such as its file; two circuits that differ in it alone are equal.
        scores: attribution by edge, where a discovery tool gave one. For cuts and pictures; not part of equality.
    """

    def __init__(
        self,
        edges: Iterable[EdgeLike],
        positions: Mapping[str, Sequence[int]] | None = None,
        *,
        name: str | None = None,
        scores: Mapping[Edge, float] | None = None,
    ) -> None:
        self.name = name
        self.edges: tuple[Edge, ...] = tuple(_as_edge(edge) for edge in edges)
        if not self.edges:
            raise CircuitError("A circuit must have at least one edge. Got none: check the file or the cut.")
        seen = check_edges(self.edges)
        self.order: tuple[str, ...] = topological_order(self.edges)
        self.positions: dict[str, tuple[int, ...]] = check_positions(positions or {}, set(self.order))
        self.scores: dict[Edge, float] = check_scores(scores or {}, seen)

    @classmethod
    def from_edges(
        cls,
        edges: Iterable[EdgeLike],
        positions: Mapping[str, Sequence[int]] | None = None,
        *,
        name: str | None = None,
        scores: Mapping[Edge, float] | None = None,
    ) -> "Circuit":
        """Builds a circuit; the same as calling the class."""
        return cls(edges, positions, name=name, scores=scores)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names in topological order."""
        return self.order

    @cached_property
    def parents(self) -> dict[str, tuple[Edge, ...]]:
        """The edges into each node, in the order in which they were given."""
        return self._group(by_target=True)

    @cached_property
    def children(self) -> dict[str, tuple[Edge, ...]]:
        """The edges out of each node, in the order in which they were given."""
        return self._group(by_target=False)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Nodes without parents, in topological order."""
        return tuple(node for node in self.order if not self.parents[node])

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        """Nodes without children, in topological order."""
        return tuple(node for node in self.order if not self.children[node])

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """Nodes with parents (the ones that have a `J_v`), in topological order."""
        return tuple(node for node in self.order if self.parents[node])

    @cached_property
    def sha256(self) -> str:
        """Of the edges and positions, whatever their order: the same for equal circuits, on every machine.

        >>> Circuit(["input->m0", "m0->m1"]).sha256 == Circuit(["m0->m1", "input->m0"]).sha256
        True
        """
        kept = {node: sorted(positions) for node, positions in self.positions.items()}
        content = {"edges": sorted(map(str, self.edges)), "positions": kept}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def label(self, name: str | None = None) -> dict[str, str]:
        """How a record names the circuit: what it is called (its size where it has no name), and what it is."""
        size = f"{len(self.order)} nodes, {len(self.edges)} edges"
        return {"name": name or self.name or size, "sha256": self.sha256}

    def ancestors(self, targets: Iterable[str]) -> frozenset[str]:
        """The targets and every node from which a path leads to one of them."""
        reached: set[str] = set()
        frontier = list(targets)
        while frontier:
            node = frontier.pop()
            if node not in reached:
                reached.add(node)
                frontier.extend(edge.source for edge in self.parents[node])
        return frozenset(reached)

    def _group(self, by_target: bool) -> dict[str, tuple[Edge, ...]]:
        grouped: dict[str, list[Edge]] = {node: [] for node in self.order}
        for edge in self.edges:
            grouped[edge.target if by_target else edge.source].append(edge)
        return {node: tuple(edges) for node, edges in grouped.items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Circuit):
            return NotImplemented
        return set(self.edges) == set(other.edges) and self.positions == other.positions

    def __hash__(self) -> int:
        return hash(frozenset(self.edges))

    def __repr__(self) -> str:
        return (
            f"Circuit({len(self.order)} nodes, {len(self.edges)} edges, "
            f"sources: {_some(self.sources)}, sinks: {_some(self.sinks)})"
        )


def check_positions(positions: Mapping[str, Sequence[int]], known: Set[str]) -> dict[str, tuple[int, ...]]:
    """The positions of nodes as tuples of integers; refuses what is not a node, and 'logits'."""
    checked: dict[str, tuple[int, ...]] = {}
    for node, kept in positions.items():
        if node not in known:
            raise CircuitError(f"Positions must be given for nodes of the circuit. Got {node!r}: not a node.")
        if Node.parse(node).kind is Kind.LOGITS:
            raise CircuitError("The read-out has one position, the answer's; 'logits' cannot be restricted to others.")
        whole = tuple(kept) if isinstance(kept, Iterable) and not isinstance(kept, str) else ()
        if not whole or not all(isinstance(t, Integral) and t >= 0 for t in whole) or len(set(whole)) != len(whole):
            raise CircuitError(
                f"The positions of node {node!r} must be distinct integers >= 0, at least one. Got {kept!r}."
            )
        checked[node] = tuple(int(t) for t in whole)
    return checked


def check_scores(scores: Mapping[Edge, float], known: Set[Edge]) -> dict[Edge, float]:
    """The scores of edges as finite floats; refuses what is not an edge."""
    checked: dict[Edge, float] = {}
    for edge, score in scores.items():
        if edge not in known:
            raise CircuitError(f"Scores must be given for edges of the circuit. Got {edge!s}: not an edge.")
        if isinstance(score, bool) or not isinstance(score, Real) or not isfinite(score):
            raise CircuitError(f"The score of edge {edge!s} must be a finite number. Got {score!r}.")
        checked[edge] = float(score)
    return checked


def _as_edge(edge: EdgeLike) -> Edge:
    if isinstance(edge, Edge):
        return edge
    if isinstance(edge, tuple | list) and len(edge) in (2, 3):
        return Edge(*edge)
    return Edge.parse(edge)  # type: ignore[arg-type]  # anything else is refused there


def check_edges(edges: Iterable[Edge]) -> set[Edge]:
    """Refuses what `check_edge` does, and an edge that comes twice; gives them as a set."""
    seen: set[Edge] = set()
    for edge in edges:
        check_edge(edge)
        if edge in seen:
            raise CircuitError(f"Edge {edge} must be given once. It came twice: remove one of them.")
        seen.add(edge)
    return seen


def check_edge(edge: Edge) -> None:
    """Refuses a bad name, a self-loop, a port where there is none, and an edge that runs backwards."""
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
    """The nodes, every one after its parents; refuses a cycle and names it.

    A transformer's nodes come as it computes them, so that heads of a layer stand together.
    """
    nodes = {Node.parse(name) for edge in edges for name in (edge.source, edge.target)}
    ranked = [(node.rank, node.head or 0, node.name) for node in nodes if node.rank is not None]
    if len(ranked) == len(nodes):
        return tuple(name for _, _, name in sorted(ranked))  # checked edges between ranked nodes run forwards: no cycle
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for edge in edges:
        sorter.add(edge.source)
        sorter.add(edge.target, edge.source)
    try:
        return tuple(sorter.static_order())
    except CycleError as error:
        raise CircuitError(f"A circuit must have no cycle. Got {'->'.join(error.args[1])}: remove an edge.") from None


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", ... ({len(names)})" if len(names) > _SHOWN else "")
