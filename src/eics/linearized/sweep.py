"""Engines: values carried along a circuit's maps, forwards and transposed, every edge once.

`PlainEngine` is the definition of every number in a score: it applies each entry's map directly, without shortcuts. A
model with structure has an engine of its own (`transformer/fast_sweep`) that agrees with this one on every number and
is faster.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import add, cat_batches, to_rows, zeros_by_vector
from eics.linalg.memory import chunk_width
from eics.linalg.operators import LinearOperator
from eics.linearized.circuit import Entry, LinearizedCircuit, Stalk

if TYPE_CHECKING:
    from eics.linearized.paths import PathMap


@dataclass(frozen=True)
class EdgePredictions:
    """What edges predict that their targets write, (B, edges, T, n), and what those wrote, (B, edges or 1, T, n).

    Both may be given in any orthonormal basis of a space in which both lie: norms and inner products are all that is
    read.
    """

    edges: tuple[Edge, ...]
    predicted: Tensor
    observed: Tensor


class Engine(Protocol):
    """What the sheaf term and the emergence term ask of a linearized circuit."""

    linearized: LinearizedCircuit

    def edge_predictions(self, carried: MutableMapping[str, Tensor] | None = None) -> Iterator[EdgePredictions]:
        """rho_{u->v} a_u beside a_v for every edge that carries something.

        `carried`, if given, ends with `sum_u rho_{u->v} a_u`, (B, dim_v), for every node that something enters.
        """

    def carry(self, values: Mapping[str, Tensor], nodes: Sequence[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        """`sum_u rho_{u->v} values_u`, (B, dim_v, k), for each node v with parents (or of `nodes`), in topological
        order.

        `values` holds blocks (B, dim_u, k) and is read as the sweep goes on: put a node's value in before the next node
        is drawn, and the sweep is the recursion `x_v = sum_u rho_{u->v} x_u`.
        """

    def pull(
        self, cotangents: MutableMapping[str, Tensor], nodes: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The transposed sweep: each node (of `nodes`) with the whole cotangent that comes back to it, in reverse
        order.

        `cotangents` holds those of the targets, is used up on the way, and ends with those of the sources. A node that
        reaches a target only through edges that carry nothing has none and is passed over.
        """

    def macro_map(self, targets: Sequence[str] | None = None) -> "PathMap":
        """J_M: stacked sources to stacked sinks; or to other `targets`, from the sources that reach them."""

    def node_maps(self) -> Iterator[tuple[str, tuple[Entry, ...]]]:
        """Each node with parents and its entries, whose maps side by side are J_v; a node that nothing enters has
        none."""


class PlainEngine:
    """One product for each entry, however many parents share it."""

    def __init__(self, linearized: LinearizedCircuit) -> None:
        self.linearized = linearized

    def edge_predictions(self, carried: MutableMapping[str, Tensor] | None = None) -> Iterator[EdgePredictions]:
        stalks = self.linearized.stalks
        for _, entries in self.node_maps():
            for entry in entries:
                for predictions in entry_predictions(entry.operator, [entry.edges], stalks):
                    if carried is not None:
                        add_to(carried, entry.target, predictions.predicted.sum(dim=1).flatten(1))
                    yield predictions

    def carry(self, values: Mapping[str, Tensor], nodes: Sequence[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        for node in self.linearized.circuit.inner if nodes is None else nodes:
            images = [
                entry.operator.mv(add(values[edge.source] for edge in entry.edges))
                for entry in self.linearized.entries[node]
            ]
            like = next(iter(values.values()))
            yield node, add(images) if images else zeros_by_vector(like, self.linearized.stalks[node].dim)

    def pull(
        self, cotangents: MutableMapping[str, Tensor], nodes: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        for node in reversed(self.linearized.circuit.inner if nodes is None else nodes):
            if node not in cotangents:
                continue
            cotangent = cotangents.pop(node)
            yield node, cotangent
            for entry in self.linearized.entries[node]:
                back = entry.operator.rmv(cotangent)
                for edge in entry.edges:
                    add_to(cotangents, edge.source, back)

    def macro_map(self, targets: Sequence[str] | None = None) -> "PathMap":
        from eics.linearized.paths import PathMap

        return PathMap(self, targets or self.linearized.circuit.sinks)

    def node_maps(self) -> Iterator[tuple[str, tuple[Entry, ...]]]:
        for node in self.linearized.circuit.inner:
            if self.linearized.entries[node]:
                yield node, self.linearized.entries[node]


def entry_predictions(
    operator: LinearOperator, edges: Sequence[Sequence[Edge]], stalks: Mapping[str, Stalk]
) -> Iterator[EdgePredictions]:
    """What the parents of an entry predict through its map, all in one block or in as few as the memory bound allows.

    `operator` may be several entries' maps stacked (`eics.linalg.stacking`), and `edges` each entry's.
    """
    batch = operator.batch // len(edges)
    width = chunk_width(operator.batch * max(operator.rows, operator.cols), operator.dtype)
    most = max(len(own) for own in edges)
    for start in range(0, most, width):
        chunks = [own[start : start + width] for own in edges]
        parents = [_as_columns(chunk, min(width, most - start), operator, batch, stalks) for chunk in chunks]
        images = operator.mv(parents[0] if len(parents) == 1 else cat_batches(parents, batch)).chunk(len(chunks))
        for chunk, image in zip(chunks, images, strict=True):
            if chunk:
                observed = stalks[chunk[0].target].activation.unsqueeze(1)
                yield EdgePredictions(tuple(chunk), to_rows(image[:, :, : len(chunk)], observed.shape[3]), observed)


def _as_columns(
    edges: Sequence[Edge], width: int, operator: LinearOperator, batch: int, stalks: Mapping[str, Stalk]
) -> Tensor:
    """The edges' sources as columns, (B, dim, width); zero past the last."""
    sources = [stalks[edge.source].flat for edge in edges]
    if len(sources) < width:
        zero = torch.zeros(batch, operator.cols, dtype=operator.dtype, device=operator.device)
        sources += [zero] * (width - len(sources))
    return torch.stack(torch.broadcast_tensors(*sources), dim=1).mT


def add_to(totals: MutableMapping[str, Tensor], name: str, block: Tensor) -> None:
    """Adds a block to the total of that name."""
    total = totals.get(name)
    totals[name] = block if total is None else total + block
