"""From the scores of all edges to a circuit: the edges with the largest absolute scores, or greedily from the read-out.

`top` takes the best edges wherever they lie. `greedy` (as in EAP-IG) starts at `logits` and repeatedly takes the best
edge into a node that it has already reached, so that every edge leads to the read-out. Edges that lie on no path from
`input` are dropped.
"""

import heapq
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from eics.circuits.cuts import Dropped
from eics.circuits.formats import CircuitGraph, ModelShape, prune
from eics.circuits.graph import Circuit, Edge
from eics.errors import OptionError
from eics.models.base import Model
from eics.studies.discovery.eap import Attribution, How

SELECTIONS = ("greedy", "top")


def select(attribution: Attribution, edges: int, how: str = "greedy") -> tuple[Circuit, Dropped]:
    """A circuit of at most `edges` edges, and what was dropped because it lies on no path."""
    if how not in SELECTIONS:
        raise OptionError.of("select", f"one of {', '.join(SELECTIONS)}", how)
    if not isinstance(edges, int) or edges < 1:
        raise OptionError.of("edges", "a whole number >= 1", edges)
    chosen = _greedy(attribution, edges) if how == "greedy" else _top(attribution, edges)
    return prune(Circuit(chosen, scores={edge: attribution[edge] for edge in chosen}))


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


def _top(attribution: Attribution, count: int) -> list[Edge]:
    graph = attribution.graph
    sizes = attribution.scores.abs().masked_fill(~graph.valid, -1.0).flatten()
    order = sizes.argsort(descending=True, stable=True)[: min(count, graph.edges)].tolist()
    return [graph.edge(*divmod(index, len(graph.readers))) for index in order]


def _greedy(attribution: Attribution, count: int) -> list[Edge]:
    graph = attribution.graph
    by_node: dict[str, list[int]] = {}
    for column, (node, _) in enumerate(graph.readers):
        by_node.setdefault(node, []).append(column)
    sizes = attribution.scores.abs()
    queue: list[tuple[float, int, int]] = []

    def enter(columns: Iterable[int]) -> None:
        for column in columns:
            for row, size in enumerate(sizes[: graph.prefix[column], column].tolist()):
                heapq.heappush(queue, (-size, column, row))

    enter(by_node["logits"])
    reached: set[int] = set()
    chosen: list[Edge] = []
    while queue and len(chosen) < count:
        _, column, row = heapq.heappop(queue)
        chosen.append(graph.edge(row, column))
        if row and row not in reached:  # row 0 is `input`, which nothing enters
            enter(by_node[graph.writers[row]])
        reached.add(row)
    return chosen
