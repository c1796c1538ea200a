"""What every circuit file becomes: all edges that it names, and what it says about them.

>>> graph = CircuitGraph((Edge("input", "m0"), Edge("m0", "logits")), scores={Edge("input", "m0"): 0.5})
>>> graph.circuit()
Circuit(3 nodes, 2 edges, sources: input, sinks: logits)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eics.circuits.graph import Circuit, Edge, Kind, Node, check_edges, check_positions, check_scores, topological_order
from eics.errors import CircuitError


@dataclass(frozen=True)
class ModelShape:
    """The shape of the transformer whose edges a file names. `d_model` is None where the file does not say."""

    n_layers: int
    n_heads: int
    parallel_attn_mlp: bool = False
    d_model: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_heads"):
            self._check_count(name, getattr(self, name))
        if self.d_model is not None:
            self._check_count("d_model", self.d_model)
        if not isinstance(self.parallel_attn_mlp, bool):
            raise CircuitError(f"The model's parallel_attn_mlp must be true or false. Got {self.parallel_attn_mlp!r}.")

    @staticmethod
    def _check_count(name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CircuitError(f"The model's {name} must be a whole number >= 1. Got {value!r}.")

    @classmethod
    def smallest(cls, nodes: Iterable[str]) -> "ModelShape | None":
        """The smallest shape that has these nodes; None where one of them belongs to no transformer."""
        parsed = [Node.parse(name) for name in nodes]
        if any(node.kind is Kind.OTHER for node in parsed):
            return None
        layers = max((node.layer for node in parsed if node.layer is not None), default=0)
        heads = max((node.head for node in parsed if node.head is not None), default=0)
        return cls(layers + 1, heads + 1)

    def check_node(self, name: str) -> None:
        """Refuses a name that no node of such a model has."""
        node = Node.parse(name)
        inside = (node.layer or 0) < self.n_layers and (node.head or 0) < self.n_heads
        if node.kind is Kind.OTHER or not inside:
            raise CircuitError(
                f"Nodes must be input, a<layer>.h<head>, m<layer> or logits of a model with {self.n_layers} layers and "
                f"{self.n_heads} heads. Got {name!r}."
            )

    def check_edge(self, edge: Edge) -> None:
        """Refuses an edge from a head into the MLP beside it, where both run in parallel."""
        source, target = Node.parse(edge.source), Node.parse(edge.target)
        if self.parallel_attn_mlp and source.layer is not None and source.layer == target.layer:
            raise CircuitError(f"Edge {edge} must exist in the model: its attention and MLP run in parallel.")


@dataclass(frozen=True)
class CircuitGraph:
    """A circuit file in memory, checked when it is made.

    Args:
        edges: all edges that the file names, in its order.
        scores: attribution by edge; an edge not named has none.
        kept: the edges that the file says are in the circuit; None where it does not say: all of them.
        shape: of the model, where the file says it.
        positions: token positions to which nodes are restricted.
        node_attributes: what else the file says of a node, safe for JSON; may name nodes without edges.
        edge_attributes: what else the file says of an edge, safe for JSON.
        metadata: what it says of the whole, safe for JSON.
        format: name of the format that it came from.
        notes: sentences about what was merged, ambiguous or dropped.
    """

    edges: tuple[Edge, ...]
    scores: dict[Edge, float] = field(default_factory=dict)
    kept: frozenset[Edge] | None = None
    shape: ModelShape | None = None
    positions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    node_attributes: dict[str, dict[str, Any]] = field(default_factory=dict)
    edge_attributes: dict[Edge, dict[str, Any]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    format: str = "memory"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.edges:
            raise CircuitError("A circuit file must name at least one edge. Got none.")
        seen = check_edges(self.edges)
        topological_order(self.edges)
        check_scores(self.scores, seen)
        check_positions(self.positions, set(self.nodes))
        for what, names in (("kept", self.kept or ()), ("attributes", self.edge_attributes)):
            for edge in names:
                if edge not in seen:
                    raise CircuitError(f"Edges with {what} must be edges of the file. Got {edge!s}: not one of them.")
        for name, said in (*self.node_attributes.items(), *self.edge_attributes.items()):
            if not isinstance(said, dict):
                raise CircuitError(f"What is said of {name!s} must be an object. Got {str(said)[:40]!r}.")
        self._check_nodes()

    def _check_nodes(self) -> None:
        for name in self.node_attributes:
            Node.parse(name)
        if self.shape is not None:
            for name in {*self.nodes, *self.node_attributes}:
                self.shape.check_node(name)
            for edge in self.edges:
                self.shape.check_edge(edge)

    @classmethod
    def of(cls, circuit: Circuit) -> "CircuitGraph":
        """The graph of a circuit: its edges, scores and positions."""
        return cls(circuit.edges, scores=dict(circuit.scores), positions=dict(circuit.positions))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that edges join, in the order in which the file names them."""
        return tuple(dict.fromkeys(name for edge in self.edges for name in edge[:2]))

    @property
    def kept_edges(self) -> tuple[Edge, ...]:
        """The edges of the circuit, in the file's order."""
        kept = self.kept
        return self.edges if kept is None else tuple(edge for edge in self.edges if edge in kept)

    def circuit(self, name: str | None = None) -> Circuit:
        """The circuit: the kept edges with their scores, and the positions of their nodes; under this name."""
        edges = self.kept_edges
        if not edges:
            raise CircuitError(
                f"A circuit must have at least one edge. None of the {len(self.edges)} edges is marked as kept: cut "
                "them by score (top_edges, share or min_score)."
            )
        nodes = {name for edge in edges for name in edge[:2]}
        return Circuit(
            edges,
            {node: kept for node, kept in self.positions.items() if node in nodes},
            name=name,
            scores={edge: self.scores[edge] for edge in edges if edge in self.scores},
        )

    def only_kept(self) -> "CircuitGraph":
        """The same without the edges that are not kept, and without what is said of nodes that then have none."""
        kept = self.circuit()
        nodes = set(kept.order)
        return replace(
            self,
            edges=kept.edges,
            scores=kept.scores,
            kept=None,
            positions=kept.positions,
            node_attributes={name: said for name, said in self.node_attributes.items() if name in nodes},
            edge_attributes=_among(self.edge_attributes, set(kept.edges)),
        )

    def with_notes(self, *notes: str) -> "CircuitGraph":
        """The same with more said about it."""
        return replace(self, notes=(*self.notes, *notes))


def _among(attributes: Mapping[Edge, dict[str, Any]], edges: set[Edge]) -> dict[Edge, dict[str, Any]]:
    return {edge: said for edge, said in attributes.items() if edge in edges}
