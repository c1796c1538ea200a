"""From an attribution to a circuit file: the selected edges, their scores, and a record of how they were found."""

from dataclasses import asdict
from typing import Any

from eics.circuits.cuts import Dropped
from eics.circuits.formats import CircuitGraph, ModelShape
from eics.models.base import Model
from eics.studies.discovery.eap import Attribution, How
from eics.studies.discovery.select import select


def found_graph(
    model: Model, task: str, attribution: Attribution, how: How, edges: int, selection: str, *, all_edges: bool = False
) -> tuple[CircuitGraph, Dropped]:
    """The selected circuit as a graph; with `all_edges`, every edge of the model, with those of the circuit flagged."""
    circuit, dropped = select(attribution, edges, selection)
    graph, width = attribution.graph, model.transformer.width
    scores = dict(attribution.edges()) if all_edges else circuit.scores
    metadata: dict[str, Any] = {
        "model": model.name,
        "task": task,
        "pairs": attribution.pairs,
        **asdict(how),
        "selection": selection,
        "edges_asked_for": edges,
        "metric_clean": attribution.clean,
        "metric_ablated": attribution.ablated,
    }
    shape = ModelShape(graph.layers, graph.heads, graph.parallel, width)
    kept = frozenset(circuit.edges) if all_edges else None
    return CircuitGraph(tuple(scores), scores, kept, shape, metadata=metadata), dropped
