"""The graph of all nodes and edges that a model has, as rows and columns of a matrix.

Rows are *writers* in the order in which the model computes them: `input`, the heads of layer 0, `m0`, the heads of
layer 1, ... Columns are *readers*: layer by layer all `<q>`, all `<k>`, all `<v>`, then the MLP; last `logits`. A
reader reads a prefix of the writers, so which entries are edges is told by one number a column.

>>> graph = FullGraph(layers=2, heads=2, parallel=False)
>>> graph.writers
('input', 'a0.h0', 'a0.h1', 'm0', 'a1.h0', 'a1.h1', 'm1')
>>> len(graph.readers), graph.edges, graph.edge(3, 7)
(15, 46, Edge(source='m0', target='a1.h0', port='q'))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.circuits.graph import PORTS, Circuit, Edge
from eics.models.base import Model


@dataclass(frozen=True)
class FullGraph:
    """Layers of so many heads and an MLP each; in a parallel model the MLP does not read its layer's heads."""

    layers: int
    heads: int
    parallel: bool

    @classmethod
    def of(cls, model: Model) -> "FullGraph":
        """A model's."""
        blocks = model.transformer.blocks
        return cls(len(blocks), blocks[0].attention.heads, blocks[0].parallel)

    @cached_property
    def writers(self) -> tuple[str, ...]:
        """Nodes that write to the residual stream."""
        layers = ([*(f"a{layer}.h{head}" for head in range(self.heads)), f"m{layer}"] for layer in range(self.layers))
        return ("input", *(name for layer in layers for name in layer))

    @cached_property
    def readers(self) -> tuple[tuple[str, str | None], ...]:
        """Nodes that read it, with the port through which they do."""
        found: list[tuple[str, str | None]] = []
        for layer in range(self.layers):
            found += [(f"a{layer}.h{head}", port) for port in PORTS for head in range(self.heads)]
            found.append((f"m{layer}", None))
        return (*found, ("logits", None))

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """How many writers each reader reads."""
        found: list[int] = []
        for layer in range(self.layers):
            before = 1 + layer * (self.heads + 1)
            found += [before] * (3 * self.heads)
            found.append(before if self.parallel else before + self.heads)
        return (*found, len(self.writers))

    @property
    def edges(self) -> int:
        """How many edges there are."""
        return sum(self.prefix)

    def edge(self, writer: int, reader: int) -> Edge:
        """The edge of a row and a column."""
        target, port = self.readers[reader]
        return Edge(self.writers[writer], target, port)

    @cached_property
    def rows(self) -> dict[str, int]:
        """Writers' rows."""
        return {name: row for row, name in enumerate(self.writers)}

    @cached_property
    def columns(self) -> dict[tuple[str, str | None], int]:
        """Readers' columns."""
        return {reader: column for column, reader in enumerate(self.readers)}

    @cached_property
    def valid(self) -> Tensor:
        """Which entries are edges, (writers, readers)."""
        return torch.arange(len(self.writers)).unsqueeze(1) < torch.tensor(self.prefix)

    def mask(self, circuit: Circuit | Iterable[Edge]) -> Tensor:
        """A circuit's edges as a matrix, (writers, readers); a plain edge into a head enters through all its ports."""
        mask = torch.zeros(len(self.writers), len(self.readers), dtype=torch.bool)
        for edge in circuit.edges if isinstance(circuit, Circuit) else circuit:
            ports = PORTS if (edge.target, "q") in self.columns and edge.port is None else (edge.port,)
            for port in ports:
                mask[self.rows[edge.source], self.columns[edge.target, port]] = True
        return mask
