"""A circuit file in memory, whatever its format: all edges it names, and everything it says about them.

>>> graph = CircuitGraph((Edge("input", "m0"), Edge("m0", "logits")), scores={Edge("input", "m0"): 0.5})
>>> graph.circuit()
Circuit(3 nodes, 2 edges, sources: input, sinks: logits)
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eics.circuits.graph import Circuit, check_positions, check_scores, subcircuit
from eics.circuits.names import Edge, Kind, Node, check_edges, topological_order
from eics.errors import CircuitError


@dataclass(frozen=True)
class ModelShape:
    """The shape of a transformer; `d_model` is None if a file does not say."""

    n_layers: int
    n_heads: int
    parallel_attn_mlp: bool = False
    d_model: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_layers", "n_heads", "d_model"):
            value = getattr(self, name)
            if name == "d_model" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise CircuitError(f"The model's {name} must be a whole number >= 1. Got {value!r}.")
        if not isinstance(self.parallel_attn_mlp, bool):
            raise CircuitError(f"The model's parallel_attn_mlp must be true or false. Got {self.parallel_attn_mlp!r}.")

    @classmethod
    def smallest(cls, nodes: Iterable[str]) -> "ModelShape | None":
        """The smallest shape with these nodes, or None if one of them is outside any transformer."""
        parsed = [Node.parse(name) for name in nodes]
        if any(node.kind is Kind.OTHER for node in parsed):
            return None
        layers = max((node.layer for node in parsed if node.layer is not None), default=0)
        heads = max((node.head for node in parsed if node.head is not None), default=0)
        return cls(layers + 1, heads + 1)

    def check_node(self, name: str) -> None:
        """Refuses a node that a model of this shape does not have."""
        node = Node.parse(name)
        if node.kind is Kind.OTHER:
            raise CircuitError(f"Nodes of a model are input, a<layer>.h<head>, m<layer>, logits. Got {name!r}.")
        for what, index, count in (("layers", node.layer, self.n_layers), ("heads", node.head, self.n_heads)):
            if index is not None and index >= count:
                raise CircuitError(f"Node {name} must lie in the model's {what} 0 to {count - 1}.")

    def is_parallel(self, edge: Edge) -> bool:
        """Whether the edge joins a head and the MLP of its layer, which do not read each other in this model."""
        layer = Node.parse(edge.source).layer
        return self.parallel_attn_mlp and layer is not None and layer == Node.parse(edge.target).layer

    def check(self, nodes: Iterable[str], edges: Iterable[Edge]) -> None:
        """Refuses nodes and edges that a model of this shape does not have."""
        for name in nodes:
            self.check_node(name)
        for edge in edges:
            if self.is_parallel(edge):
                raise CircuitError(
                    f"Edge {edge} must exist in the model: its attention and MLP run in parallel, so {edge.target} "
                    f"does not read {edge.source}. Remove the edge."
                )


@dataclass(frozen=True)
class CircuitGraph:
    """Everything that a circuit file says, checked on construction.

    Args:
        edges: all edges in the file, in its order.
        scores: attribution scores of edges, as far as there are any.
        kept: the edges that the file marks as in the circuit; None if it marks none: then all of them.
        shape: the model's shape, if the file has it.
        positions: token positions to which nodes are restricted.
        node_attributes: other values by node, safe for JSON; may include nodes without edges.
        edge_attributes: other values by edge, safe for JSON.
        metadata: values of the whole graph, safe for JSON.
        format: name of the format that it was read from.
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
        for what, edges in (("Kept edges", self.kept or ()), ("Edges with attributes", self.edge_attributes)):
            for edge in edges:
                if edge not in seen:
                    raise CircuitError(f"{what} must be edges of the file. Got {edge!s}: not one of them.")
        for owner, attributes in (*self.node_attributes.items(), *self.edge_attributes.items()):
            if not isinstance(attributes, dict):
                raise CircuitError(f"The attributes of {owner!s} must be an object. Got {str(attributes)[:40]!r}.")
        for name in self.node_attributes:
            Node.parse(name)
        if self.shape is not None:
            self.shape.check({*self.nodes, *self.node_attributes}, self.edges)

    @classmethod
    def of(cls, circuit: Circuit) -> "CircuitGraph":
        """The graph of a circuit, with its edges, scores and positions."""
        return cls(circuit.edges, scores=dict(circuit.scores), positions=dict(circuit.positions))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes with edges, in the order of the file."""
        return tuple(dict.fromkeys(name for edge in self.edges for name in edge[:2]))

    @property
    def kept_edges(self) -> tuple[Edge, ...]:
        """The edges of the circuit, in the file's order."""
        kept = self.kept
        return self.edges if kept is None else tuple(edge for edge in self.edges if edge in kept)

    @cached_property
    def sha256(self) -> str | None:
        """The hash of the circuit of the kept edges; None if nothing is kept."""
        return self.circuit().sha256 if self.kept_edges else None

    def circuit(self, name: str | None = None) -> Circuit:
        """The circuit of the kept edges, under this name."""
        if not self.kept_edges:
            raise CircuitError(
                f"A circuit must have at least one edge. None of the {len(self.edges)} edges is marked as kept: cut "
                "them by score (top_edges, share or min_score)."
            )
        return subcircuit(self.kept_edges, self.positions, self.scores, name)

    def only_kept(self) -> "CircuitGraph":
        """The graph of the kept edges and their nodes alone."""
        kept = self.circuit()
        nodes, edges = set(kept.order), set(kept.edges)
        return replace(
            self,
            edges=kept.edges,
            scores=kept.scores,
            kept=None,
            positions=kept.positions,
            node_attributes={name: values for name, values in self.node_attributes.items() if name in nodes},
            edge_attributes={edge: values for edge, values in self.edge_attributes.items() if edge in edges},
        )
