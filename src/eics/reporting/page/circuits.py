"""The circuits of the records, put together from their edges: a record may lack those that carry nothing."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from eics.circuits.graph import Edge
from eics.errors import CircuitError
from eics.reporting.page.graph import draw_graph
from eics.scoring.result import Score


@dataclass
class SeenCircuit:
    """One circuit as the records show it: its edges in the order in which they were first seen, by name."""

    name: str | None
    order: dict[Edge, int] = field(default_factory=dict)
    attributions: dict[Edge, float] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)
    disagrees: bool = False

    def see(self, score: Score) -> None:
        """Takes in the edges of a record."""
        self.positions |= score.node_positions
        new = []
        for term in score.edges:
            edge = Edge(term.source, term.target, term.port)
            if edge not in self.order:
                new.append(edge)
            if term.attribution is not None:
                self.disagrees |= self.attributions.setdefault(edge, term.attribution) != term.attribution
        self.order |= {edge: len(self.order) + place for place, edge in enumerate(sorted(new, key=str))}

    def drawn(self) -> tuple[dict[str, Any], list[str]]:
        """The circuit with its places, and what must be said of it."""
        notes = ["Records of one circuit have different attributions: the first ones are shown."] * self.disagrees
        graph: dict[str, Any] = {"width": 0, "height": 0, "box": [0, 0], "nodes": [], "edges": [], "rows": []}
        try:
            graph = draw_graph(self.order, self.attributions, self.positions) if self.order else graph
        except CircuitError as error:
            notes.append(f"A circuit cannot be drawn: {error}")
            graph["edges"] = [[e.source, e.target, e.port, self.attributions.get(e), None] for e in self.order]
        return {"name": self.name} | graph, notes


class Circuits:
    """The circuits of all records, numbered in the order in which they were first seen."""

    def __init__(self) -> None:
        self.seen: list[SeenCircuit] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, score: Score) -> int:
        """Which circuit a record is about: that of its hash, else (older records) of its very edges."""
        key = score.circuit["sha256"] if score.circuit else frozenset(map(str, score.edges))
        if key not in self._numbers:
            self._numbers[key] = len(self.seen)
            self.seen.append(SeenCircuit(score.circuit["name"] if score.circuit else None))
        return self._numbers[key]

    def see(self, score: Score) -> None:
        """Takes in the edges of a record that says which circuit it is about."""
        if not is_homeless(score):
            self.seen[self.number(score)].see(score)


def is_homeless(score: Score) -> bool:
    """Whether a record does not say which circuit it is about, as one that failed long ago."""
    return score.circuit is None and not score.edges
