"""B2, Edge Alignment Residual: how badly a linear map fitted to reference prompts predicts each edge."""

from typing import Self

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.errors import EICSError, OptionError
from eics.linalg.matrices import solve
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.baselines.base import Baseline


class EdgeAlignmentResidual(Baseline):
    """(1/|E|) sum_{u->v} ||rho_hat a_u - a_v|| with rho_hat by ridge regression over reference prompts.

        rho_hat = argmin_R sum_n ||R a_u^n - a_v^n||^2 + lambda ||R||_F^2,   lambda = ridge * mean ||a_u^n||^2

    Solved on the smaller side, the coordinates of u (primal) or the reference prompts (dual); the map is the same.
    """

    name = "ear"
    higher_is_coherent = False

    def __init__(self, ridge: float = 1e-3) -> None:
        if not 0 < ridge < float("inf"):
            raise OptionError.of("ridge", "a finite number > 0", ridge)
        self.ridge = ridge
        self._fits: dict[Edge, tuple[Tensor, Tensor]] = {}

    def fit(self, reference: LinearizedCircuit) -> Self:
        """Fits every edge on the activations of a batch of prompts."""
        pairs = dict.fromkeys(Edge(edge.source, edge.target) for edge in reference.circuit.edges)
        flat = {node: stalk.flat for node, stalk in reference.stalks.items()}
        self._fits = {edge: ridge_factors(flat[edge.source], flat[edge.target], self.ridge) for edge in pairs}
        return self

    def measure(self, linearized: LinearizedCircuit) -> Tensor:
        if not self._fits:
            raise EICSError("EAR must be fitted before it measures: call fit() with a batch of reference prompts.")
        norms = []
        for edge, (left, right) in self._fits.items():
            source, target = (linearized.stalks[node].flat for node in (edge.source, edge.target))
            norms.append(((source @ right) @ left - target).norm(dim=-1))
        return torch.stack(norms).mean(dim=0)


def ridge_factors(inputs: Tensor, outputs: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """(L, R) with `rho_hat^T = R L`, for inputs (..., N, n) and outputs (..., N, m); leading axes are batches.

    Primal: `R = I`, `L = (A^T A + lambda I)^-1 A^T B`. Dual: `R = A^T`, `L = (A A^T + lambda I)^-1 B`.
    """
    count, width = inputs.shape[-2:]
    strength = (ridge * inputs.square().sum(dim=(-2, -1)) / count).clamp(min=torch.finfo(inputs.dtype).tiny)
    eye = torch.eye(min(count, width), dtype=inputs.dtype, device=inputs.device)
    penalty = eye * strength[..., None, None]
    if width <= count:
        return solve(inputs.mT @ inputs + penalty, inputs.mT @ outputs), eye
    return solve(inputs @ inputs.mT + penalty, outputs), inputs.mT
