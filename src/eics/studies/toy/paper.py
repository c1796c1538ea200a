"""The numbers of the paper's appendix script, unchanged: its two "branches" do not add up to J_M.

The script's parts are two hand-picked end-to-end paths, n1-n3-n4-n6 and n2-n3-n5-n6, and its macro map is their sum;
the true macro map of the circuit has four paths (`general.py`).
"""

import torch
from torch import Tensor

from eics.linalg.operators import Dense
from eics.linalg.spectrum import exact
from eics.scoring.formula import discounted
from eics.scoring.sheaf import EPS
from eics.studies.toy.circuit import EDGES, Draws, run


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
