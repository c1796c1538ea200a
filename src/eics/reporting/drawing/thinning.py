"""Which edges a picture shows if there are too many, and the sentence that says so."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from eics.circuits.graph import Circuit, Edge
from eics.errors import OptionError


@dataclass(frozen=True)
class Thinned:
    """The edges to show, in the circuit's order, and a sentence about the others, or None if there are none."""

    shown: tuple[Edge, ...]
    sentence: str | None


def thin_out(
    circuit: Circuit,
    max_edges: int,
    *,
    scores: Mapping[Edge, float] | None = None,
    shares: Mapping[Edge, float] | None = None,
) -> Thinned:
    """Keeps the edges with the largest share of inconsistency, else attribution, else degree of their ends.

    >>> circuit = Circuit(["input->m0", "m0->m1", "m1->logits"])
    >>> scores = dict(zip(circuit.edges, [3.0, -6.0, 1.0]))
    >>> thin_out(circuit, 2, scores=scores).sentence
    'Showing 2 of 3 edges, which carry 90% of the attribution; the others are faint.'
    """
    if max_edges < 1:
        raise OptionError.of("max_edges", "a whole number >= 1", max_edges)
    if len(circuit.edges) <= max_edges:
        return Thinned(circuit.edges, None)
    criteria = {"inconsistency": shares, "attribution": scores}
    # Numbers that are all zero cannot rank edges.
    weights = {what: _sizes(circuit, given) for what, given in criteria.items() if given and any(given.values())}
    rank = next(iter(weights.values()), None) or _degrees(circuit)
    kept = set(sorted(circuit.edges, key=lambda edge: -rank[edge])[:max_edges])
    shown = tuple(edge for edge in circuit.edges if edge in kept)
    carried = [
        f"{_percent(sum(weight[edge] for edge in shown) / sum(weight.values()))} of the {what}"
        for what, weight in weights.items()
    ]
    why = f"which carry {' and '.join(carried)}" if carried else "those of the best-connected nodes"
    return Thinned(shown, f"Showing {len(shown)} of {len(circuit.edges)} edges, {why}; the others are faint.")


def _sizes(circuit: Circuit, given: Mapping[Edge, float]) -> dict[Edge, float]:
    return {edge: abs(given.get(edge, 0.0)) for edge in circuit.edges}


def _degrees(circuit: Circuit) -> dict[Edge, float]:
    """The smaller degree of each edge's two ends: an edge between two hubs matters more than one to a leaf."""
    degree = Counter(end for edge in circuit.edges for end in (edge.source, edge.target))
    return {edge: float(min(degree[edge.source], degree[edge.target])) for edge in circuit.edges}


def _percent(fraction: float) -> str:
    """A whole percentage; 100% only if nothing is missing."""
    return f"{min(int(100 * fraction + 0.5), 99)}%" if fraction < 1.0 else "100%"
