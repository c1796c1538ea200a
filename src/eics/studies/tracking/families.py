"""Circuits of one size to compare: variants of a circuit with edges replaced, rewired, or drawn at random.

All have as many edges as the original, and every edge lies on a path from a source to the read-out, so that comparing
them does not compare sizes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eics.circuits.graph import PORTS, Circuit, Edge, Kind, Node
from eics.errors import CircuitError, OptionError
from eics.studies.discovery.full_graph import FullGraph

KINDS = ("discovered", "perturbed", "rewired", "random")
_SWAPS = 20  # attempted swaps per edge
_TRIES = 50  # random circuits drawn before giving up


@dataclass(frozen=True)
class Member:
    """A circuit of the family; `overlap` is the share of its edges that the discovered circuit also has."""

    name: str
    kind: str
    circuit: Circuit
    overlap: float


def family(
    circuit: Circuit, graph: FullGraph, *, perturbed: int = 8, controls: int = 3, seed: int = 0
) -> tuple[Member, ...]:
    """The circuit, `perturbed` variants with 10% to 90% of the edges replaced, `controls` rewired and random ones."""
    check_runs_by_itself(circuit)
    shares = np.linspace(0.1, 0.9, perturbed) if perturbed > 1 else [0.5] * perturbed
    made = [("discovered", "discovered", circuit)]

    def draw(kind: int, i: int) -> np.random.Generator:
        return np.random.default_rng([seed, kind, i])

    made += [
        (f"perturbed-{i}", "perturbed", perturb(circuit, graph, float(s), draw(1, i))) for i, s in enumerate(shares)
    ]
    made += [(f"rewired-{i}", "rewired", rewire(circuit, graph, draw(2, i))) for i in range(controls)]
    made += [(f"random-{i}", "random", random_like(circuit, graph, draw(3, i))) for i in range(controls)]
    own = set(circuit.edges)
    return tuple(Member(name, kind, c, len(own & set(c.edges)) / len(own)) for name, kind, c in made)


def check_runs_by_itself(circuit: Circuit) -> None:
    """Refuses a circuit that cannot be run by itself, from `input` to `logits` with whole nodes."""
    if circuit.positions or circuit.sources != ("input",) or circuit.sinks != ("logits",):
        raise CircuitError(
            "A circuit to be tracked must run from 'input' to 'logits', every edge on a path between them, with whole "
            f"nodes. Got {circuit!r}: prune it (`load_circuit` with a cut does) and remove its positions."
        )


def rewire(circuit: Circuit, graph: FullGraph, draw: np.random.Generator) -> Circuit:
    """Pairs of edges swap their targets: `u->v, s->t` become `u->t, s->v` if the model has both edges.

    Every node keeps its number of outgoing edges and of edges into each port, so that every edge still lies on a path
    from a source to a sink.
    """
    edges, current = list(circuit.edges), set(circuit.edges)
    for _ in range(_SWAPS * len(edges)):
        i, j = draw.integers(len(edges), size=2)
        first = Edge(edges[i].source, edges[j].target, edges[j].port)
        second = Edge(edges[j].source, edges[i].target, edges[i].port)
        if {first, second} & current or not (_allowed(graph, first) and _allowed(graph, second)):
            continue
        current = current - {edges[i], edges[j]} | {first, second}
        edges[i], edges[j] = first, second
    return Circuit(edges)


def perturb(circuit: Circuit, graph: FullGraph, share: float, draw: np.random.Generator) -> Circuit:
    """About this share of the edges, chosen at random, replaced by other edges between the same nodes.

    The only edge out of a source, or into a target, is replaced by another out of that source, or into that target; if
    there is none, it stays.
    """
    edges, original = list(circuit.edges), set(circuit.edges)
    leaving, entering = Counter(edge.source for edge in edges), Counter(edge.target for edge in edges)
    unused = [edge for edge in _between(circuit.order, graph, circuit) if edge not in original]
    unused = [unused[i] for i in draw.permutation(len(unused))]
    remaining = round(share * len(edges))
    for i in draw.permutation(len(edges)).tolist():
        old = edges[i]
        same_source, same_target = leaving[old.source] == 1, entering[old.target] == 1
        fitting = (
            new
            for new in unused
            if not (same_source and new.source != old.source) and not (same_target and new.target != old.target)
        )
        new = next(fitting, None)
        if remaining == 0 or new is None:
            continue
        unused.remove(new)
        edges[i] = new
        leaving.subtract([old.source])
        leaving.update([new.source])
        entering.subtract([old.target])
        entering.update([new.target])
        remaining -= 1
    return Circuit(edges)


def random_like(circuit: Circuit, graph: FullGraph, draw: np.random.Generator) -> Circuit:
    """As many heads, MLPs and edges as the circuit has, drawn from the whole model; every node is connected."""
    pools = [[n for n in graph.writers if Node.parse(n).kind is kind] for kind in (Kind.HEAD, Kind.MLP)]
    counts = [sum(Node.parse(n).kind is kind for n in circuit.order) for kind in (Kind.HEAD, Kind.MLP)]
    for _ in range(_TRIES):
        chosen = {str(n) for pool, count in zip(pools, counts, strict=True) for n in draw.permutation(pool)[:count]}
        nodes = ["input", *(name for name in graph.writers if name in chosen), "logits"]
        possible = list(_between(nodes, graph, circuit))
        edges = _spanning(nodes, possible, draw)
        missing = len(circuit.edges) - len(edges)
        unused = [edge for edge in possible if edge not in set(edges)]
        if 0 <= missing <= len(unused):
            return Circuit([*edges, *(unused[i] for i in draw.permutation(len(unused))[:missing])])
    raise OptionError(
        f"A circuit must leave room to draw others of its size. It has {len(circuit.edges)} edges between "
        f"{len(circuit.order)} nodes: no such circuit came up in {_TRIES} draws. Use a less dense one."
    )


def _spanning(nodes: Sequence[str], possible: Sequence[Edge], draw: np.random.Generator) -> list[Edge]:
    """An edge into each node, and one out of each node that has none yet."""
    edges: dict[Edge, None] = {}
    for node in nodes[1:]:
        into = [edge for edge in possible if edge.target == node]
        edges[into[int(draw.integers(len(into)))]] = None
    read = {edge.source for edge in edges}
    for node in (node for node in nodes[:-1] if node not in read):
        out = [edge for edge in possible if edge.source == node]
        edges[out[int(draw.integers(len(out)))]] = None
    return list(edges)


def _between(nodes: Sequence[str], graph: FullGraph, circuit: Circuit) -> Iterator[Edge]:
    """Every edge of the model between these nodes; into heads only through the ports that the circuit uses."""
    ports = sorted({e.port for e in circuit.edges if Node.parse(e.target).kind is Kind.HEAD}, key=str) or list(PORTS)
    for target in nodes:
        for port in ports if Node.parse(target).kind is Kind.HEAD else [None]:
            for edge in (Edge(source, target, port) for source in nodes):
                if _allowed(graph, edge):
                    yield edge


def _allowed(graph: FullGraph, edge: Edge) -> bool:
    port = "q" if edge.port is None and Node.parse(edge.target).kind is Kind.HEAD else edge.port
    column, row = graph.columns.get((edge.target, port)), graph.rows.get(edge.source)
    return column is not None and row is not None and row < graph.prefix[column]
