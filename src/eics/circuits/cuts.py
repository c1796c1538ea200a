"""Which edges make the circuit: a cut by score, then only what lies on a path from a source to a sink."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from typing import overload

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.graph import Circuit, Edge, subcircuit
from eics.circuits.provenance import metadata_after
from eics.errors import CircuitError, OptionError

_PRUNED = "pruned to paths from a source to a sink"


@dataclass(frozen=True)
class Dropped:
    """How much pruning removed."""

    edges: int
    nodes: int

    def __str__(self) -> str:
        if not self.edges:
            return "Every kept edge lies on a path from a source to a sink."
        edges, nodes = (f"{n} {what}{'s' * (n != 1)}" for n, what in ((self.edges, "edge"), (self.nodes, "node")))
        return f"{edges} and {nodes} on no path from a source to a sink were dropped."


def cut(
    graph: CircuitGraph,
    *,
    top_edges: int | None = None,
    share: float | None = None,
    min_score: float | None = None,
    signed: bool = False,
) -> CircuitGraph:
    """Keeps edges by score, regardless of which ones the file marks as kept. Takes exactly one of the three criteria.

    The metadata says what was cut and how; what it said of the circuit before the cut no longer holds
    (`provenance.py`).

    Args:
        graph: its scored edges are the candidates; an edge without a score is never kept.
        top_edges: the number of edges to keep, largest scores first; ties go to the earlier edge in the file.
        share: the same as a share of all edges in the file, rounded down, at least one edge.
        min_score: keep every edge whose score is at least this.
        signed: rank by score instead of by absolute score.
    """
    check_cut(top_edges, share, min_score)
    if not graph.scores:
        raise CircuitError("A cut needs edges with scores. The file has none: use it without a cut.")
    size = (lambda edge: graph.scores[edge]) if signed else (lambda edge: abs(graph.scores[edge]))
    scored = [edge for edge in graph.edges if edge in graph.scores]
    if min_score is not None:
        kept = [edge for edge in scored if size(edge) >= min_score]
    else:
        count = top_edges if top_edges is not None else max(1, int(len(graph.edges) * (share or 0)))
        kept = sorted(scored, key=size, reverse=True)[:count]
    if not kept:
        largest = max(map(size, scored))
        raise CircuitError(f"A cut must keep at least one edge. The largest score is {largest:g}: lower min_score.")
    return _keeping(graph, kept, cut_name(top_edges, share, min_score, signed))


def cut_name(top_edges: int | None, share: float | None, min_score: float | None, signed: bool) -> str:
    """A cut in words, for names and metadata.

    >>> cut_name(50, None, None, signed=False)
    'top 50 edges'
    """
    by = " by signed score" if signed else ""
    if top_edges is not None:
        return f"top {top_edges} edges{by}"
    if share is not None:
        return f"top {100 * share:.4g}% of all edges{by}"
    return f"{'score' if signed else '|score|'} >= {min_score:g}"


def check_cut(top_edges: int | None, share: float | None, min_score: float | None) -> None:
    """Refuses anything but exactly one criterion, within its range."""
    criteria = {"top_edges": top_edges, "share": share, "min_score": min_score}
    given = [name for name, value in criteria.items() if value is not None]
    if len(given) != 1:
        got = ", ".join(given) or "none"
        raise OptionError(f"A cut must be exactly one of top_edges, share and min_score. Got {got}.")
    if top_edges is not None and (not isinstance(top_edges, int) or isinstance(top_edges, bool) or top_edges < 1):
        raise OptionError.of("top_edges", "a whole number >= 1", top_edges)
    if share is not None and not 0 < share <= 1:
        raise OptionError.of("share", "a number above 0, at most 1", share)
    if min_score is not None and not isfinite(min_score):
        raise OptionError.of("min_score", "a finite number", min_score)


@overload
def prune(graph: CircuitGraph) -> tuple[CircuitGraph, Dropped]: ...
@overload
def prune(graph: Circuit) -> tuple[Circuit, Dropped]: ...
def prune(graph: CircuitGraph | Circuit) -> tuple[CircuitGraph | Circuit, Dropped]:
    """Keeps what lies on a path from a source to a sink, and counts what does not.

    The source is `input` and the sink is `logits` if the circuit has them; otherwise all nodes without parents, and all
    nodes without children.
    """
    circuit = graph if isinstance(graph, Circuit) else graph.circuit()
    sources = ("input",) if "input" in circuit.order else circuit.sources
    sinks = ("logits",) if "logits" in circuit.order else circuit.sinks
    nodes = circuit.ancestors(sinks) & _descendants(circuit, sources)
    edges = [edge for edge in circuit.edges if edge.source in nodes and edge.target in nodes]
    if not edges:
        raise CircuitError(
            f"A circuit must have a path from {', '.join(sources)} to {', '.join(sinks)}. None of its "
            f"{len(circuit.edges)} edges lies on one: keep more edges, or do not prune."
        )
    dropped = Dropped(len(circuit.edges) - len(edges), len(circuit.order) - len(nodes))
    if isinstance(graph, Circuit):
        name = f"{graph.name}, {_PRUNED}" if graph.name and dropped.edges else graph.name
        return subcircuit(edges, graph.positions, graph.scores, name), dropped
    return (_keeping(graph, edges, _PRUNED) if dropped.edges else graph), dropped


def _keeping(graph: CircuitGraph, kept: Iterable[Edge], step: str) -> CircuitGraph:
    """Drops the nodes' own `in_graph` flags, which no longer hold; writers derive them from the edges."""
    chosen = frozenset(kept)
    attributes = {
        node: {key: value for key, value in values.items() if key != "in_graph"}
        for node, values in graph.node_attributes.items()
    }
    metadata = graph.metadata if chosen == frozenset(graph.kept_edges) else metadata_after(graph, step)
    return replace(graph, kept=chosen, node_attributes=attributes, metadata=metadata)


def _descendants(circuit: Circuit, sources: Iterable[str]) -> set[str]:
    reached = set(sources)
    for node in circuit.order:
        if node in reached:
            reached.update(edge.target for edge in circuit.children[node])
    return reached
