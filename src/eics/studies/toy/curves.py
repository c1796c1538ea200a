"""What the circuit scores at each tau, by the paper's own script and by the general code, as curves over seeds.

The numbers of the paper's appendix script are unchanged: its two "branches" are hand-picked end-to-end paths,
n1-n3-n4-n6 and n2-n3-n5-n6, and its macro map is their sum, although the true macro map of the circuit has four paths.
The general code scores the same six nodes with that true macro map and with nodes or true branches as parts.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.operators import Dense
from eics.linalg.spectrum import exact
from eics.linearized.explicit import LinearCircuit
from eics.scoring.batch import score_explicit
from eics.scoring.formula import discounted
from eics.scoring.options import PAPER, WELL_POSED, Options
from eics.scoring.sheaf import EPS
from eics.studies.toy.circuit import EDGES, Draws, run

CONFIGURATIONS: dict[str, Options] = {
    "nodes": PAPER.with_(factorization="cholesky"),
    "branches": PAPER.with_(parts="branches", factorization="cholesky"),
    "well_posed": WELL_POSED.with_(factorization="cholesky"),
}


@dataclass(frozen=True)
class Curves:
    """Quantities at each noise scale for each seed, (taus, seeds)."""

    taus: tuple[float, ...]
    values: dict[str, Tensor]

    def mean(self, name: str) -> list[float]:
        return [float(row.mean()) for row in self.values[name]]

    def stderr(self, name: str) -> list[float]:
        values = self.values[name]
        return [float(row.std() / len(row) ** 0.5) for row in values] if values.shape[1] > 1 else [0.0] * len(values)

    def to_json(self) -> dict[str, object]:
        """Means by name, standard errors under `stderr`."""
        return {
            "tau": list(self.taus),
            **{name: self.mean(name) for name in self.values},
            "stderr": {name: self.stderr(name) for name in self.values},
            "seeds": next(iter(self.values.values())).shape[1],
        }


def paper_point(draws: Draws, tau: float) -> dict[str, Tensor]:
    """C_sh, dEI_norm, EICS and the EI terms behind them at one tau, each (seeds,)."""
    weights = draws.weights(tau)
    first = weights["n4->n6"] @ weights["n3->n4"] @ weights["n1->n3"]
    second = weights["n5->n6"] @ weights["n3->n5"] @ weights["n2->n3"]
    macro, parts = _ei(first + second), _ei(first) + _ei(second)
    dei_norm = (macro - parts).clamp(min=0) / (EPS + macro)
    c_sh = _c_sh(weights, observed(draws, weights, tau))
    return {
        "c_sh": c_sh,
        "dei_norm": dei_norm,
        "eics": discounted(dei_norm, c_sh),
        "ei_macro": macro,
        "ei_parts": parts,
    }


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


def toy_circuit(draws: Draws, tau: float) -> LinearCircuit:
    """The toy at one tau as an explicit circuit, with one prompt per seed."""
    weights = draws.weights(tau)
    return LinearCircuit(weights, observed(draws, weights, tau), batched=True)


def observed(draws: Draws, weights: dict[str, Tensor], tau: float) -> dict[str, Tensor]:
    """Clean activations plus tau times noise on every node."""
    clean = run(weights, *draws.inputs)
    return {f"n{i}": clean[f"n{i}"] + tau * noise for i, noise in enumerate(draws.noise, start=1)}


def _ei(matrices: Tensor) -> Tensor:
    return exact(Dense(matrices), "cholesky").ei(1.0).value


def _c_sh(weights: dict[str, Tensor], observed: dict[str, Tensor]) -> Tensor:
    """Equation (2) written out: a brute-force twin of `eics.scoring.sheaf`."""
    numerator = denominator = torch.zeros((), dtype=torch.float64)
    for edge in EDGES:
        a_u, a_v = (observed[node] for node in edge.split("->"))
        numerator = numerator + ((weights[edge] @ a_u.unsqueeze(-1)).squeeze(-1) - a_v).square().sum(dim=-1)
        denominator = denominator + a_u.square().sum(dim=-1) + a_v.square().sum(dim=-1)
    return numerator.sqrt() / (EPS + denominator.sqrt())
