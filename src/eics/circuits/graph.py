"""Circuits as pure graphs: nodes, edges with ports, topological order. No model, no tensors.

Names follow the convention that circuit discovery tools share: ``input``, ``a3.h7`` (attention head 7 of layer 3),
``m3`` (the MLP of layer 3), ``logits``; any other name is a node of an explicit circuit, outside any transformer. An
edge is written ``u->v``, or ``u->a3.h7<q>`` if it enters a head through one port only.

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
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cached_property
from math import isfinite
from numbers import Integral, Real
from typing import Any

from eics.circuits.names import PORTS, Edge, EdgeLike, Kind, Node, as_edge, check_edges, shorten, topological_order
from eics.errors import CircuitError, printable

HELD_PORTS = ("q", "k")
"""The ports of a head whose edges carry nothing while its attention pattern is held."""

__all__ = [
    "HELD_PORTS",
    "PORTS",
    "Circuit",
    "Edge",
    "EdgeLike",
    "Kind",
    "Node",
    "check_positions",
    "check_scores",
    "subcircuit",
]


class Circuit:
    """A directed acyclic graph of named nodes, checked on construction. Immutable.

    Args:
        edges: the edges, as ``Edge``, ``(source, target[, port])`` or ``"source->target<port>"``.
        positions: token positions to which a node's stalk is restricted; all positions for nodes not listed.
        name: what records call the circuit, such as its file; not part of equality.
        scores: attribution scores of edges, if a discovery tool gave any; for cuts and pictures, not part of equality.
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
        if isinstance(edges, str) or not isinstance(edges, Iterable):
            raise CircuitError(f"A circuit must be made from a list of edges. Got {edges!r}.")
        self.edges: tuple[Edge, ...] = tuple(as_edge(edge) for edge in edges)
        if not self.edges:
            raise CircuitError("A circuit must have at least one edge. Got none: check the file or the cut.")
        seen = check_edges(self.edges)
        self.order: tuple[str, ...] = topological_order(self.edges)
        self.positions: dict[str, tuple[int, ...]] = check_positions(positions or {}, set(self.order))
        self.scores: dict[Edge, float] = check_scores(scores or {}, seen)

    @classmethod
    def from_edges(
        cls, edges: Iterable[EdgeLike], positions: Mapping[str, Sequence[int]] | None = None, **options: Any
    ) -> "Circuit":
        """The same as calling the class."""
        return cls(edges, positions, **options)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Node names in topological order."""
        return self.order

    @cached_property
    def parents(self) -> dict[str, tuple[Edge, ...]]:
        """The edges into each node, in the given order."""
        return self._group(by_target=True)

    @cached_property
    def children(self) -> dict[str, tuple[Edge, ...]]:
        """The edges out of each node, in the given order."""
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
        """Nodes with parents (those with a `J_v`), in topological order."""
        return tuple(node for node in self.order if self.parents[node])

    @cached_property
    def sha256(self) -> str:
        """Hash of edges and positions in any order: the same for equal circuits, on every machine.

        >>> Circuit(["input->m0", "m0->m1"]).sha256 == Circuit(["m0->m1", "input->m0"]).sha256
        True
        """
        positions = {node: sorted(kept) for node, kept in self.positions.items()}
        content = {"edges": sorted(map(str, self.edges)), "positions": positions}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def label(self, name: str | None = None) -> dict[str, str]:
        """The circuit in a record: its name (its size if it has none) and its hash."""
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

    def carrying(self, linearization: str) -> "Circuit":
        """The circuit of the edges that carry something under this linearization.

        Under `frozen` attention patterns are held, so `<q>` and `<k>` edges carry nothing, and the circuit is the given
        one without them: a node that loses its last parent is a source, and a node without any edge is gone.

        >>> circuit = Circuit(["input->m0", "m0->a1.h0<q>", "a1.h0->logits", "input->logits"])
        >>> circuit.carrying("frozen")
        Circuit(4 nodes, 3 edges, sources: input, a1.h0, sinks: m0, logits)
        """
        return self._with_held_patterns if linearization == "frozen" else self

    @cached_property
    def _with_held_patterns(self) -> "Circuit":
        kept = [edge for edge in self.edges if edge.port not in HELD_PORTS]
        if not kept:
            count = f"All {len(self.edges)} edges enter" if len(self.edges) > 1 else "The only edge enters"
            raise CircuitError(
                f"At least one edge must carry something under linearization 'frozen'. {count} through <q> or <k>, "
                "which it holds constant: use 'jacobian'."
            )
        return self if len(kept) == len(self.edges) else subcircuit(kept, self.positions, self.scores, self.name)

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
            f"Circuit({len(self.order)} nodes, {len(self.edges)} edge{'s' if len(self.edges) > 1 else ''}, "
            f"sources: {printable(shorten(self.sources, 6))}, sinks: {printable(shorten(self.sinks, 6))})"
        )


def check_kind(circuit: object) -> None:
    """Refuses what is no circuit, such as the name of one."""
    if not isinstance(circuit, Circuit):
        raise CircuitError(
            f"The circuit must be an eics.Circuit. Got {type(circuit).__name__} {circuit!r:.60}: use eics.load_circuit "
            "for a file or a bundled circuit, eics.Circuit for a list of edges."
        )


def subcircuit(
    edges: Sequence[Edge],
    positions: Mapping[str, Sequence[int]],
    scores: Mapping[Edge, float],
    name: str | None = None,
) -> Circuit:
    """The circuit of these edges, with those of the positions and scores that belong to it."""
    nodes = {node for edge in edges for node in edge[:2]}
    return Circuit(
        edges,
        {node: kept for node, kept in positions.items() if node in nodes},
        name=name,
        scores={edge: scores[edge] for edge in edges if edge in scores},
    )


def check_positions(positions: Mapping[str, Sequence[int]], nodes: Set[str]) -> dict[str, tuple[int, ...]]:
    """The positions as tuples of integers; refuses names that are not among the nodes, and 'logits'."""
    checked: dict[str, tuple[int, ...]] = {}
    for node, given in positions.items():
        if node not in nodes:
            raise CircuitError(f"Positions must be given for nodes of the circuit. Got {node!r}: not a node.")
        if Node.parse(node).kind is Kind.LOGITS:
            raise CircuitError("The read-out has one position, the answer's; 'logits' cannot be restricted to others.")
        kept = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
        if not kept or not all(isinstance(t, Integral) and t >= 0 for t in kept) or len(set(kept)) != len(kept):
            raise CircuitError(
                f"The positions of node {node!r} must be distinct integers >= 0, at least one. Got {given!r}."
            )
        checked[node] = tuple(int(t) for t in kept)
    return checked


def check_scores(scores: Mapping[Edge, float], edges: Set[Edge]) -> dict[Edge, float]:
    """The scores as floats; refuses scores that are not finite or not of these edges."""
    checked: dict[Edge, float] = {}
    for edge, score in scores.items():
        if edge not in edges:
            raise CircuitError(f"Scores must be given for edges of the circuit. Got {edge!s}: not an edge.")
        if isinstance(score, bool) or not isinstance(score, Real) or not isfinite(score):
            raise CircuitError(f"The score of edge {edge!s} must be a finite number. Got {score!r}.")
        checked[edge] = float(score)
    return checked
