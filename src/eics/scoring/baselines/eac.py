"""B1, Edge Activation Correlation: mean over edges of the Pearson correlation of a_u and a_v over coordinates."""

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.errors import CircuitError
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.baselines.base import Baseline


class EdgeActivationCorrelation(Baseline):
    """(1/|E|) sum_{u->v} corr(a_u, a_v), coordinate by coordinate; in [-1, 1].

    An edge between stalks of different lengths has no such correlation and is left out. With a constant stalk the
    correlation is 0.
    """

    name = "eac"
    higher_is_coherent = True

    def measure(self, linearized: LinearizedCircuit) -> Tensor:
        pairs = list(dict.fromkeys(Edge(edge.source, edge.target) for edge in linearized.circuit.edges))
        stalks = linearized.stalks
        alike = [edge for edge in pairs if stalks[edge.source].dim == stalks[edge.target].dim]
        if not alike:
            raise CircuitError(
                f"EAC needs an edge whose two stalks have the same length. None of the {len(pairs)} edges qualifies: "
                "use EAR."
            )
        correlations = [
            correlation(source.flat, target.flat, source.weights * target.weights)
            for source, target in ((stalks[edge.source], stalks[edge.target]) for edge in alike)
        ]
        return torch.stack(correlations).mean(dim=0)


def correlation(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """Pearson correlation of the rows of two (B, n) tensors over the coordinates that count, (B,)."""
    count = weights.sum(dim=1, keepdim=True).clamp(min=1)
    a, b = ((x - (x * weights).sum(dim=1, keepdim=True) / count) * weights for x in (a, b))
    scale = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(scale > 0, (a * b).sum(dim=1) / torch.where(scale > 0, scale, 1.0), 0.0)
