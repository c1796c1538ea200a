"""The coboundary of the circuit's sheaf as an operator, and the norms of its edge maps.

(delta s)_{u->v} = rho_{u->v} s_u - s_v            (equation 1)
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.linalg.blocks import cat_blocks
from eics.linalg.operators import LinearOperator
from eics.linalg.probes import generator, signs
from eics.linearized.circuit import LinearizedCircuit

DENSE_LIMIT = 2048
"""The largest side of a map, in coordinates, that is factorized rather than multiplied with."""


class Coboundary(LinearOperator):
    """delta, from node assignments to disagreements on the edges that carry something.

    Columns are the stalks in topological order, rows the edges as in `linearized.edges`, each scaled by the square root
    of its weight.
    """

    def __init__(self, linearized: LinearizedCircuit, weights: Tensor | None = None) -> None:
        self.linearized, self.weights = linearized, weights
        self.batch, self.dtype = linearized.batch, linearized.dtype
        self.device = linearized.stalks[linearized.circuit.order[0]].activation.device
        self._dims = [linearized.stalks[node].dim for node in linearized.circuit.order]
        self.cols = sum(self._dims)
        self._edge_dims = [linearized.stalks[edge.target].dim for edge in linearized.edges]
        self.rows = sum(self._edge_dims)

    def mv(self, x: Tensor) -> Tensor:
        """rho_{u->v} s_u - s_v on each edge; the parents of an entry go through its map in one block."""
        values = dict(zip(self.linearized.circuit.order, (x * self.keep).split(self._dims, dim=1), strict=True))
        rows: list[Tensor] = []
        for node in self.linearized.circuit.inner:
            for entry in self.linearized.entries[node]:
                parents = torch.cat([values[edge.source] for edge in entry.edges], dim=2)
                images = entry.operator.mv(parents).split(x.shape[2], dim=2)
                rows.extend(image - values[node] for image in images)
        return cat_blocks(rows) * self._scales

    def rmv(self, y: Tensor) -> Tensor:
        """rho^T y_e to the source of each edge, -y_e to its target."""
        parts = iter((y * self._scales).split(self._edge_dims, dim=1))
        total = {
            node: y.new_zeros(y.shape[0], dim, y.shape[2])
            for node, dim in zip(self.linearized.circuit.order, self._dims, strict=True)
        }
        for node in self.linearized.circuit.inner:
            for entry in self.linearized.entries[node]:
                cotangents = [next(parts) for _ in entry.edges]
                backs = entry.operator.rmv(torch.cat(cotangents, dim=2)).split(y.shape[2], dim=2)
                for edge, cotangent, back in zip(entry.edges, cotangents, backs, strict=True):
                    total[edge.source] = total[edge.source] + back
                    total[node] = total[node] - cotangent
        return cat_blocks(list(total.values())) * self.keep

    def double(self) -> "Coboundary":
        return Coboundary(self.linearized.double(), None if self.weights is None else self.weights.double())

    def prompt(self, index: int) -> "Coboundary":
        weights = None if self.weights is None else self.weights[index % self.weights.shape[0]].unsqueeze(0)
        return Coboundary(self.linearized.prompt(index), weights)

    @cached_property
    def keep(self) -> Tensor:
        """1 on coordinates that count, (B or 1, cols, 1)."""
        stalks = (self.linearized.stalks[node] for node in self.linearized.circuit.order)
        return cat_blocks([stalk.weights.unsqueeze(2) for stalk in stalks])

    @cached_property
    def _scales(self) -> Tensor:
        """Square roots of the edge weights by row, (B or 1, rows, 1)."""
        if self.weights is None:
            return torch.ones(1, 1, 1, dtype=self.dtype, device=self.device)
        repeats = torch.tensor(self._edge_dims, device=self.device)
        return self.weights.sqrt().repeat_interleave(repeats, dim=1).unsqueeze(2)


def operator_norm_weights(linearized: LinearizedCircuit) -> Tensor:
    """1/||rho_e||^2 for each carrying edge, (B, edges); 1 for a zero map, which no weight normalizes."""
    norms: dict[tuple[int, ...], Tensor] = {}  # edges of an entry have the same norm unless their masks differ
    weights = []
    for node in linearized.circuit.inner:
        for entry in linearized.entries[node]:
            for edge in entry.edges:
                key = (id(entry), id(linearized.stalks[edge.source].mask))
                if key not in norms:
                    norms[key] = operator_norm(linearized.edge_map(edge)).square().expand(linearized.batch)
                squared = norms[key]
                weights.append(torch.where(squared > 0, 1.0 / torch.where(squared > 0, squared, 1.0), 1.0))
    return torch.stack(weights, dim=1)


def operator_norm(operator: LinearOperator) -> Tensor:
    """||J||, the largest singular value, for each prompt: (batch,)."""
    if min(operator.rows, operator.cols) <= DENSE_LIMIT:
        largest: Tensor = torch.linalg.svdvals(operator.dense()).amax(dim=1)
        return largest
    from scipy.sparse.linalg import svds

    start = start_vectors(min(operator.rows, operator.cols), "operator norm")[:, 0]
    norms = [
        svds(scipy_operator(operator.prompt(b)), k=1, v0=start, return_singular_vectors=False)[0]
        for b in range(operator.batch)
    ]
    return torch.tensor(np.array(norms), dtype=operator.dtype, device=operator.device)


def scipy_operator(operator: LinearOperator) -> Any:
    """A scipy operator for a batch of one: float64 outside, the operator's own dtype inside."""
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

    def through(product: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        def apply(x: Any) -> Any:
            block = torch.as_tensor(np.ascontiguousarray(x).reshape(1, -1, 1), dtype=operator.dtype)
            return product(block.to(operator.device)).flatten().double().cpu().numpy()

        return apply

    shape = (operator.rows, operator.cols)
    return ScipyOperator(shape=shape, matvec=through(operator.mv), rmatvec=through(operator.rmv), dtype=np.float64)


def start_vectors(size: int, purpose: str) -> Any:
    """Two start vectors as columns, the same in every run."""
    return signs(size, 2, generator(0, purpose), torch.empty(0, dtype=torch.float64))[0].numpy()
