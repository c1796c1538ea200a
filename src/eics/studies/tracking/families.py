"""Circuits of one size to compare: variants of a circuit with edges replaced, rewired, or drawn at random.

All have as many edges as the original, and every edge lies on a path from a source to the read-out, so that comparing
them does not compare sizes.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from eics.circuits.graph import Circuit, Edge
from eics.circuits.random_circuits import allowed, between, random_like
from eics.errors import CircuitError
from eics.studies.discovery.full_graph import FullGraph

KINDS = ("discovered", "perturbed", "rewired", "random")
_SWAPS = 20  # attempted swaps per edge


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
        if {first, second} & current or not (allowed(graph, first) and allowed(graph, second)):
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
    unused = [edge for edge in between(circuit.order, graph, circuit) if edge not in original]
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
