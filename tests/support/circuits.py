"""Random explicit circuits for property tests: ports, several sources and sinks, positions, batches."""

import numpy as np
from hypothesis import strategies as st

from eics.circuits.graph import Kind, Node
from eics.linearized.explicit import LinearCircuit

NAMES = ("input", "a0.h0", "a0.h1", "m0", "a1.h0", "a1.h1", "m1", "a2.h0", "logits")


def random_edges(rng: np.random.Generator, density: float, ports: bool = True) -> list[str]:
    """Edges of a random circuit over `NAMES`, one of them at least not held under `frozen`."""
    edges = []
    for j, target in enumerate(NAMES):
        for source in NAMES[:j]:
            if Node.parse(source).rank >= Node.parse(target).rank or rng.random() > density:
                continue
            chosen = [None]
            if ports and Node.parse(target).kind is Kind.HEAD:
                chosen = [[None], ["q"], ["k", "v"], [None, "v"], ["q", "k", "v"]][rng.integers(5)]
            edges += [f"{source}->{target}" + (f"<{port}>" if port else "") for port in chosen]
    return edges if any(not edge.endswith(("<q>", "<k>")) for edge in edges) else [*edges, "input->logits"]


def build(
    seed: int,
    *,
    density: float = 0.4,
    ports: bool = True,
    positions: int | None = 3,
    batch: int | None = None,
    constants: bool = False,
    scale: float = 1.0,
    edges: list[str] | None = None,
) -> LinearCircuit:
    """A random circuit: nodes of width 1 to 4, a read-out without positions, maps of norm about `scale`."""
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, density, ports) if edges is None else edges
    pairs = [(e.split("->")[0], e.split("->")[1].split("<")[0]) for e in edges]
    nodes = sorted({n for pair in pairs for n in pair})
    width = {node: int(rng.integers(1, 5)) for node in nodes}
    lead = () if batch is None else (batch,)

    def stalk(node: str) -> tuple[int, ...]:
        return (width[node],) if positions is None or node == "logits" else (positions, width[node])

    size = {node: int(np.prod(stalk(node))) for node in nodes}
    maps = {
        edge: scale * rng.normal(size=(*lead, size[v], size[u])) / np.sqrt(size[u])
        for edge, (u, v) in zip(edges, pairs, strict=True)
    }
    activations = {node: rng.normal(size=(*lead, *stalk(node))) for node in nodes}
    bias = {n: rng.normal(size=(*lead, *stalk(n))) for n in nodes if n != "input"} if constants else None
    return LinearCircuit(maps, activations, constants=bias, batched=batch is not None)


@st.composite
def circuits(draw: st.DrawFn, **fixed: object) -> LinearCircuit:
    """Random circuits of all kinds; keywords fix arguments of `build` that would otherwise be drawn."""
    drawn = {
        "density": draw(st.sampled_from([0.15, 0.4, 0.8])),
        "positions": draw(st.sampled_from([None, 1, 3])),
        "batch": draw(st.sampled_from([None, 1, 2])),
        "constants": draw(st.booleans()),
        "scale": draw(st.sampled_from([0.3, 1.0, 3.0])),
    }
    return build(draw(st.integers(0, 10_000)), **(drawn | fixed))


def rescale(circuit: LinearCircuit, node: str, factor: float) -> LinearCircuit:
    """The same circuit with one node in other units: its stalk and the maps into and out of it are rescaled."""
    maps = {
        e: m * (factor if e.target == node else 1.0) / (factor if e.source == node else 1.0)
        for e, m in circuit.maps.items()
    }
    change = {n: factor if n == node else 1.0 for n in circuit.circuit.order}
    return LinearCircuit(
        maps,
        {n: circuit.as_given(n, a) * change[n] for n, a in circuit.activations.items()},
        constants={n: circuit.as_given(n, b) * change[n] for n, b in circuit.constants.items()},
        batched=circuit.batched,
    )
