"""Edges of a finer graph, put together where they join the same nodes of ours."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from eics.circuits.graph import Edge
from eics.errors import CircuitError


@dataclass
class Merged:
    """Scores of merged edges are added; an edge is kept where one of its parts is."""

    edges: dict[Edge, bool] = field(default_factory=dict)
    scores: dict[Edge, float] = field(default_factory=dict)
    parts: int = 0

    def add(self, edge: Edge, score: float | None = None, kept: bool = True) -> None:
        """Adds one edge of the finer graph."""
        self.parts += 1
        self.edges[edge] = self.edges.get(edge, False) or kept
        if score is not None:
            self.scores[edge] = self.scores.get(edge, 0.0) + score

    @property
    def kept(self) -> frozenset[Edge]:
        """The edges of which a part is kept."""
        return frozenset(edge for edge, kept in self.edges.items() if kept)

    def notes(self, why: str) -> tuple[str, ...]:
        """Says how many edges were merged, where any were."""
        merged = self.parts - len(self.edges)
        return (f"{merged} edges were merged into others: {why}",) if merged else ()


def is_pair(value: object) -> TypeGuard[tuple[str, str]]:
    """Two names."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(name, str) for name in value)


def pairs_of(items: Iterable[object]) -> Iterator[tuple[int, str, str]]:
    """Place, from and to of each item of a list of pairs; refuses anything else, and a pair that comes twice."""
    seen: set[tuple[str, str]] = set()
    for place, item in enumerate(items):
        if not is_pair(item):
            raise CircuitError(f"must be a list of [from, to]. Item {place} is {str(item)[:80]!r}.")
        source, target = item
        if (source, target) in seen:
            raise CircuitError(f"must give each edge once. Item {place} gives {source} to {target} again: remove it.")
        seen.add((source, target))
        yield place, source, target


def some(items: Iterable[object], shown: int = 4) -> str:
    """The first few of many, for a message."""
    found = [str(item) for item in items]
    return ", ".join(found[:shown]) + (f", ... ({len(found)})" if len(found) > shown else "")
