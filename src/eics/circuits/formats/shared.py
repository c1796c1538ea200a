"""Pieces that several formats share: merging edges of a finer graph, flags, optional objects, values for JSON."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from eics.circuits.graph import Edge
from eics.errors import CircuitError

EMBEDDINGS = "token and position embeddings are one node, input."
FEATURES = "features, errors and positions of one MLP are one node, and their absolute weights were added."


@dataclass
class Merged:
    """Edges of a finer graph, merged if they join the same nodes of ours.

    Scores of merged edges are added, and an edge is kept if one of its parts is. `inside` counts edges within a node.
    """

    edges: dict[Edge, bool] = field(default_factory=dict)
    scores: dict[Edge, float] = field(default_factory=dict)
    parts: int = 0
    inside: int = 0

    def add(self, edge: Edge | None, score: float | None = None, kept: bool = True) -> None:
        """Adds an edge of the finer graph; None stands for one inside a node."""
        if edge is None:
            self.inside += 1
            return
        self.parts += 1
        self.edges[edge] = self.edges.get(edge, False) or kept
        if score is not None:
            self.scores[edge] = self.scores.get(edge, 0.0) + score

    @property
    def kept(self) -> frozenset[Edge]:
        return frozenset(edge for edge, kept in self.edges.items() if kept)

    def notes(self, reason: str) -> tuple[str, ...]:
        """Sentences about merged and contracted edges, if there are any."""
        merged = self.parts - len(self.edges)
        notes = []
        if merged:
            notes.append(f"{merged} edges were merged into others: {reason}")
        if self.inside:
            notes.append(f"{self.inside} edges inside nodes were contracted: they do not join two nodes.")
        return tuple(notes)


def kept_by_flags(edges: Collection[Edge], flags: Mapping[Edge, bool]) -> frozenset[Edge] | None:
    """The edges whose `in_graph` is true, or None if the file has no flags; refuses flags on only some edges."""
    if not flags:
        return None
    missing = next((edge for edge in edges if edge not in flags), None)
    if missing is not None:
        raise CircuitError(f"must give in_graph for every edge, or for none. Edge {missing} has none.")
    return frozenset(edge for edge, flag in flags.items() if flag)


def dict_at(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key, or an empty one."""
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def json_safe(value: Any) -> Any:
    """The value with null for NaN and infinities, which Python writes but JSON does not allow."""
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: json_safe(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(part) for part in value]
    return value


def scalars(attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes that fit into a cell: text, numbers, true and false."""
    return {key: value for key, value in attributes.items() if isinstance(value, str | int | float | bool)}
