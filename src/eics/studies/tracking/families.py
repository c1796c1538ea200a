"""Circuits of one size to compare: a circuit with some edges replaced, rewired, and drawn at random.

All have as many edges as the circuit they come from, and every edge lies on a path from a source to the read-out, so
that a comparison between them is not one of size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eics.circuits.graph import PORTS, Circuit, Edge, Kind, Node
from eics.errors import CircuitError, OptionError
from eics.studies.discovery.full_graph import FullGraph

KINDS = ("discovered", "perturbed", "rewired", "random")
_SWAPS = 20  # tries for each edge
_TRIES = 50


@dataclass(frozen=True)
class Member:
    """A circuit of the family. `overlap`: the share of its edges that the discovered one has."""

    name: str
    kind: str
    circuit: Circuit
    overlap: float


def family(
    circuit: Circuit, graph: FullGraph, *, perturbed: int = 8, controls: int = 3, seed: int = 0
) -> tuple[Member, ...]:
    """The circuit, then so many with 10% to 90% of their edges replaced, and so many rewired and random ones."""
    check_runs_by_itself(circuit)
    shares = np.linspace(0.1, 0.9, perturbed) if perturbed > 1 else [0.5] * perturbed
    made = [("discovered", "discovered", circuit)]
    for place, share in enumerate(shares):
        made.append((f"perturbed-{place}", "perturbed", perturb(circuit, graph, float(share), _draw(seed, 1, place))))
    for place in range(controls):
        made.append((f"rewired-{place}", "rewired", rewire(circuit, graph, _draw(seed, 2, place))))
    for place in range(controls):
        made.append((f"random-{place}", "random", random_like(circuit, graph, _draw(seed, 3, place))))
    own = set(circuit.edges)
    return tuple(Member(name, kind, one, len(own & set(one.edges)) / len(own)) for name, kind, one in made)


def check_runs_by_itself(circuit: Circuit) -> None:
    """Refuses a circuit that ablation could not run by itself from `input` to `logits` with whole nodes."""
    if circuit.positions or circuit.sources != ("input",) or circuit.sinks != ("logits",):
        raise CircuitError(
            "A circuit to be tracked must run from 'input' to 'logits', every edge on a path between them, with whole "
            f"nodes. Got {circuit!r}: prune it (`load_circuit` with a cut does) and remove its positions."
        )


def rewire(circuit: Circuit, graph: FullGraph, draw: np.random.Generator) -> Circuit:
    """Edges in pairs swap their targets: every node keeps how many edges leave it and enter each of its ports.

    `u->v, s->t` become `u->t, s->v` where the model has both edges. A node keeps its parents' and children's number,
    so every edge still lies on a path from a source to a sink.
    """
    edges, known = list(circuit.edges), set(circuit.edges)
    for _ in range(_SWAPS * len(edges)):
        one, two = draw.integers(len(edges), size=2)
        first = Edge(edges[one].source, edges[two].target, edges[two].port)
        second = Edge(edges[two].source, edges[one].target, edges[one].port)
        if {first, second} & known or not (_allowed(graph, first) and _allowed(graph, second)):
            continue
        known = known - {edges[one], edges[two]} | {first, second}
        edges[one], edges[two] = first, second
    return Circuit(edges)


def perturb(circuit: Circuit, graph: FullGraph, share: float, draw: np.random.Generator) -> Circuit:
    """About this share of the edges, at random, replaced by others between the same nodes.

    An edge that is the last out of its source, or the last into its target, gives way to one that is so too; where
    there is none it stays.
    """
    edges, known = list(circuit.edges), set(circuit.edges)
    leaving, entering = Counter(edge.source for edge in edges), Counter(edge.target for edge in edges)
    others = [edge for edge in _between(circuit.order, graph, circuit) if edge not in known]
    others = [others[place] for place in draw.permutation(len(others))]
    left = round(share * len(edges))
    for place in draw.permutation(len(edges)).tolist():
        old = edges[place]
        last = leaving[old.source] == 1, entering[old.target] == 1
        fits = (
            new
            for new in others
            if not (last[0] and new.source != old.source) and not (last[1] and new.target != old.target)
        )
        new = next(fits, None)
        if left == 0 or new is None:
            continue
        others.remove(new)
        edges[place] = new
        leaving.subtract([old.source])
        leaving.update([new.source])
        entering.subtract([old.target])
        entering.update([new.target])
        left -= 1
    return Circuit(edges)


def random_like(circuit: Circuit, graph: FullGraph, draw: np.random.Generator) -> Circuit:
    """As many heads, MLPs and edges as the circuit has, drawn from the whole model; every node read and entered."""
    pools = [[n for n in graph.writers if Node.parse(n).kind is kind] for kind in (Kind.HEAD, Kind.MLP)]
    counts = [sum(Node.parse(n).kind is kind for n in circuit.order) for kind in (Kind.HEAD, Kind.MLP)]
    for _ in range(_TRIES):
        chosen = {str(n) for pool, count in zip(pools, counts, strict=True) for n in draw.permutation(pool)[:count]}
        nodes = ["input", *(name for name in graph.writers if name in chosen), "logits"]
        room = list(_between(nodes, graph, circuit))
        edges = _spanning(nodes, room, draw)
        missing = len(circuit.edges) - len(edges)
        others = [edge for edge in room if edge not in set(edges)]
        if 0 <= missing <= len(others):
            return Circuit([*edges, *(others[place] for place in draw.permutation(len(others))[:missing])])
    raise OptionError(
        f"A circuit must leave room to draw others of its size. It has {len(circuit.edges)} edges between "
        f"{len(circuit.order)} nodes: no such circuit came up in {_TRIES} draws. Take one that is less dense."
    )


def _spanning(nodes: Sequence[str], room: Sequence[Edge], draw: np.random.Generator) -> list[Edge]:
    """An edge into each node, and one out of each that has none."""
    edges: dict[Edge, None] = {}
    for node in nodes[1:]:
        into = [edge for edge in room if edge.target == node]
        edges[into[int(draw.integers(len(into)))]] = None
    read = {edge.source for edge in edges}
    for node in (node for node in nodes[:-1] if node not in read):
        out = [edge for edge in room if edge.source == node]
        edges[out[int(draw.integers(len(out)))]] = None
    return list(edges)


def _between(nodes: Sequence[str], graph: FullGraph, circuit: Circuit) -> Iterator[Edge]:
    """Every edge that the model has between these nodes, into heads through the ports that the circuit uses."""
    ports = sorted({e.port for e in circuit.edges if Node.parse(e.target).kind is Kind.HEAD}, key=str) or list(PORTS)
    for target in nodes:
        for port in ports if Node.parse(target).kind is Kind.HEAD else [None]:
            for edge in (Edge(source, target, port) for source in nodes):
                if _allowed(graph, edge):
                    yield edge


def _allowed(graph: FullGraph, edge: Edge) -> bool:
    """Whether the model has the edge."""
    port = "q" if edge.port is None and Node.parse(edge.target).kind is Kind.HEAD else edge.port
    column, row = graph.columns.get((edge.target, port)), graph.rows.get(edge.source)
    return column is not None and row is not None and row < graph.prefix[column]


def _draw(seed: int, *purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, *purpose])
