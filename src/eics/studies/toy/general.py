"""The same six nodes by the general code: the true macro map, with nodes or true branches as parts."""

import torch
from torch import Tensor

from eics.linearized.explicit import LinearCircuit
from eics.scoring.batch import score_explicit
from eics.scoring.options import PAPER, WELL_POSED, Options
from eics.studies.toy.circuit import Draws
from eics.studies.toy.paper import observed

CONFIGURATIONS: dict[str, Options] = {
    "nodes": PAPER.with_(factorization="cholesky"),
    "branches": PAPER.with_(parts="branches", factorization="cholesky"),
    "well_posed": WELL_POSED.with_(factorization="cholesky"),
}


def toy_circuit(draws: Draws, tau: float) -> LinearCircuit:
    """The toy at one tau as an explicit circuit, with one prompt per seed."""
    weights = draws.weights(tau)
    return LinearCircuit(weights, observed(draws, weights, tau), batched=True)


def general_point(draws: Draws, tau: float) -> dict[str, Tensor]:
    """The score and its components for each seed, by `configuration.quantity`."""
    circuit = toy_circuit(draws, tau)
    quantities = {}
    for name, options in CONFIGURATIONS.items():
        scores = score_explicit(circuit, options)
        for quantity in ("eics", "c_sh", "dei_norm", "dei"):
            values = [getattr(score, quantity) for score in scores]
            quantities[f"{name}.{quantity}"] = torch.tensor(values, dtype=torch.float64)
    return quantities
