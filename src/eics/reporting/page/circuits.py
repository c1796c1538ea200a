"""Circuits rebuilt from the edges of all their records, and laid out once for all prompts (`sheet.py`).

A single record lacks the edges left out of its C_sh. Records by node alone (`terms="sheaf"`) have no edges: their nodes
are then drawn without any.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from eics.circuits.graph import Edge
from eics.errors import CircuitError
from eics.reporting.page.sheet import draw_graph, draw_nodes, nothing_drawn
from eics.scoring.result import Score


@dataclass
class SeenCircuit:
    """One circuit as far as the records show it; `order` numbers its edges as they were first seen."""

    name: str | None
    order: dict[Edge, int] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    attributions: dict[Edge, float] = field(default_factory=dict)
    positions: dict[str, list[int]] = field(default_factory=dict)
    disagrees: bool = False

    def see(self, score: Score) -> None:
        self.positions |= score.node_positions
        self.nodes |= {term.node for term in score.nodes}
        new = []
        for term in score.edges:
            edge = Edge(term.source, term.target, term.port)
            if edge not in self.order:
                new.append(edge)
            if term.attribution is not None:
                self.disagrees |= self.attributions.setdefault(edge, term.attribution) != term.attribution
        self.order |= {edge: number for number, edge in enumerate(sorted(new, key=str), start=len(self.order))}

    def drawn(self) -> tuple[dict[str, Any], list[str]]:
        """The circuit as the page draws it, and notes for the reader."""
        notes = ["Records of one circuit have different attributions; the first are shown."] * self.disagrees
        graph = nothing_drawn()
        try:
            if self.order:
                graph = draw_graph(self.order, self.attributions, self.positions)
            elif self.nodes:
                graph = draw_nodes(self.nodes, self.positions)
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
        """Number of a record's circuit, identified by its hash or, in older records, by its edges or nodes."""
        key = score.circuit["sha256"] if score.circuit else frozenset(map(str, score.edges or score.nodes))
        if key not in self._numbers:
            self._numbers[key] = len(self.seen)
            self.seen.append(SeenCircuit(score.circuit["name"] if score.circuit else None))
        return self._numbers[key]

    def see(self, score: Score) -> None:
        """Adds the edges and nodes of a record to its circuit, if the record has one."""
        if has_circuit(score):
            self.seen[self.number(score)].see(score)


def has_circuit(score: Score) -> bool:
    """Whether a record says which circuit it belongs to; failed records of older versions do not."""
    return score.circuit is not None or bool(score.edges) or bool(score.nodes)
