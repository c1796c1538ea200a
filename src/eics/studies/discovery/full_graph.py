"""All nodes and edges of a model, as the rows and columns of a matrix.

Rows are *writers* in the order in which the model computes them: `input`, the heads of layer 0, `m0`, the heads of
layer 1, ... Columns are *readers*: layer by layer all `<q>`, all `<k>`, all `<v>`, then the MLP; `logits` comes last. A
reader reads a prefix of the writers, so one number per column says which entries are edges.

>>> graph = FullGraph(layers=2, heads=2, parallel=False)
>>> graph.writers
('input', 'a0.h0', 'a0.h1', 'm0', 'a1.h0', 'a1.h1', 'm1')
>>> len(graph.readers), graph.edges, graph.edge(3, 7)
(15, 46, Edge(source='m0', target='a1.h0', port='q'))
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.circuits.graph import PORTS, Circuit, Edge
from eics.models.base import Model


@dataclass(frozen=True)
class FullGraph:
    """Layers of `heads` heads and one MLP each; in a `parallel` model the MLP does not read the heads of its layer."""

    layers: int
    heads: int
    parallel: bool

    @classmethod
    def of(cls, model: Model) -> "FullGraph":
        blocks = model.transformer.blocks
        return cls(len(blocks), blocks[0].attention.heads, blocks[0].parallel)

    @cached_property
    def writers(self) -> tuple[str, ...]:
        """Nodes that write to the residual stream."""
        layers = ([*(f"a{layer}.h{head}" for head in range(self.heads)), f"m{layer}"] for layer in range(self.layers))
        return ("input", *(name for layer in layers for name in layer))

    @cached_property
    def readers(self) -> tuple[tuple[str, str | None], ...]:
        """Nodes that read the residual stream, each with the port that it reads through."""
        readers: list[tuple[str, str | None]] = []
        for layer in range(self.layers):
            readers += [(f"a{layer}.h{head}", port) for port in PORTS for head in range(self.heads)]
            readers.append((f"m{layer}", None))
        return (*readers, ("logits", None))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """How many writers each reader reads."""
        counts: list[int] = []
        for layer in range(self.layers):
            before = 1 + layer * (self.heads + 1)
            counts += [before] * (3 * self.heads)
            counts.append(before if self.parallel else before + self.heads)
        return (*counts, len(self.writers))

    @property
    def edges(self) -> int:
        """The number of edges."""
        return sum(self.prefix)

    def edge(self, writer: int, reader: int) -> Edge:
        target, port = self.readers[reader]
        return Edge(self.writers[writer], target, port)

    @cached_property
    def rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.writers)}

    @cached_property
    def columns(self) -> dict[tuple[str, str | None], int]:
        return {reader: column for column, reader in enumerate(self.readers)}

    @cached_property
    def valid(self) -> Tensor:
        """Which entries are edges, (writers, readers)."""
        return torch.arange(len(self.writers)).unsqueeze(1) < torch.tensor(self.prefix)

    def mask(self, circuit: Circuit) -> Tensor:
        """The edges of a circuit, (writers, readers); an edge without a port enters a head through all three."""
        mask = torch.zeros(len(self.writers), len(self.readers), dtype=torch.bool)
        for edge in circuit.edges:
            ports = PORTS if (edge.target, "q") in self.columns and edge.port is None else (edge.port,)
            for port in ports:
                mask[self.rows[edge.source], self.columns[edge.target, port]] = True
        return mask
