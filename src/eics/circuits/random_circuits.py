"""Random circuits of a given one's size, drawn from all nodes and edges of a model: what it is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from eics.circuits.graph import PORTS, Circuit, Edge, Kind, Node
from eics.errors import OptionError

_TRIES = 50  # random circuits drawn before giving up


class Shape(Protocol):
    """Layers of `heads` heads and one MLP each; in a `parallel` model the MLP does not read the heads of its layer."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def parallel(self) -> bool: ...


@dataclass(frozen=True)
class Layers:
    """A model's shape."""

    layers: int
    heads: int
    parallel: bool


def random_like(circuit: Circuit, shape: Shape, draw: np.random.Generator) -> Circuit:
    """As many heads, MLPs and edges as the circuit has, drawn from the whole model; every node is connected.

    >>> circuit = Circuit(["input->a0.h1", "a0.h1->m1", "m1->logits", "input->logits"])
    >>> random_like(circuit, Layers(layers=3, heads=4, parallel=False), np.random.default_rng(0))
    Circuit(4 nodes, 4 edges, sources: input, sinks: logits)
    """
    heads = [f"a{layer}.h{head}" for layer in range(shape.layers) for head in range(shape.heads)]
    pools = [heads, [f"m{layer}" for layer in range(shape.layers)]]
    counts = [sum(Node.parse(n).kind is kind for n in circuit.order) for kind in (Kind.HEAD, Kind.MLP)]
    for _ in range(_TRIES):
        chosen = {str(n) for pool, count in zip(pools, counts, strict=True) for n in draw.permutation(pool)[:count]}
        writers = sorted(chosen, key=lambda name: (Node.parse(name).rank, Node.parse(name).head or 0))
        nodes = ["input", *writers, "logits"]
        possible = list(between(nodes, shape, circuit))
        edges = _spanning(nodes, possible, draw)
        missing = len(circuit.edges) - len(edges)
        unused = [edge for edge in possible if edge not in set(edges)]
        if 0 <= missing <= len(unused):
            return Circuit([*edges, *(unused[i] for i in draw.permutation(len(unused))[:missing])])
    raise OptionError(
        f"A circuit must leave room to draw others of its size. It has {len(circuit.edges)} edges between "
        f"{len(circuit.order)} nodes: no such circuit came up in {_TRIES} draws. Use a less dense one."
    )


def between(nodes: Sequence[str], shape: Shape, circuit: Circuit) -> Iterator[Edge]:
    """Every edge of the model between these nodes; into heads only through the ports that the circuit uses."""
    ports = sorted({e.port for e in circuit.edges if Node.parse(e.target).kind is Kind.HEAD}, key=str) or list(PORTS)
    for target in nodes:
        for port in ports if Node.parse(target).kind is Kind.HEAD else [None]:
            for edge in (Edge(source, target, port) for source in nodes):
                if allowed(shape, edge):
                    yield edge


def allowed(shape: Shape, edge: Edge) -> bool:
    """Whether the model has this edge."""
    source, target = Node.parse(edge.source), Node.parse(edge.target)
    inside = all(
        (node.layer or 0) < shape.layers and (node.head or 0) < shape.heads and node.rank is not None
        for node in (source, target)
    )
    if not inside or source.kind is Kind.LOGITS or (edge.port is not None and target.kind is not Kind.HEAD):
        return False
    if shape.parallel and source.kind is Kind.HEAD and target.kind is Kind.MLP and source.layer == target.layer:
        return False
    assert source.rank is not None
    assert target.rank is not None
    return source.rank < target.rank


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
