"""The paper's simulation protocol: additive Gaussian noise on chosen edges, measured across seeds.

A message on a noisy edge is `W a_u + tau xi`; every node sums its messages. Maps do not change with tau, so at a fixed
alpha neither does dEI: only C_sh, and what is built on it, can respond to additive noise. If alpha is read as signal
over noise, as in the paper, `alpha = 1 / (1 + tau^2)` falls with the noise; that curve is measured too.

The per-edge maps of EAR are fitted for each seed on clean runs of the same circuit from other inputs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.errors import OptionError
from eics.linalg.probes import generator
from eics.linearized.circuit import LinearizedCircuit
from eics.linearized.explicit import LinearCircuit
from eics.scoring.baselines.eac import EdgeActivationCorrelation
from eics.scoring.baselines.ear import ridge_factors
from eics.scoring.emergence import emergence_spectra
from eics.scoring.formula import discounted
from eics.scoring.options import PAPER
from eics.scoring.sheaf import sheaf_term
from eics.studies.toy.circuit import DIM, EDGES, Draws, run

NOISY = ("n3->n5", "n5->n6")
REFERENCE_RUNS = 256
RIDGE = 1e-3


def check_noisy(edges: Sequence[str]) -> tuple[str, ...]:
    """The edges to disturb, without duplicates; each must be an edge of the toy."""
    for edge in edges:
        if edge not in EDGES:
            raise OptionError.of("noisy-edge", f"one of {', '.join(EDGES)}", edge)
    return tuple(dict.fromkeys(edges))


class Protocol:
    """The circuits of a set of seeds and their fitted EAR maps; `point` measures one noise scale."""

    def __init__(self, draws: Draws, noisy: Sequence[str] = NOISY) -> None:
        self.draws, self.noisy = draws, check_noisy(noisy)
        self.weights = draws.weights(0.0)
        seeds = len(draws.inputs[0])
        self.noise = {edge: _normal((seeds, DIM), f"noise on {edge}") for edge in self.noisy}
        a1, a2 = (_normal((seeds, REFERENCE_RUNS, DIM), f"reference {node}") for node in ("n1", "n2"))
        reference = run(self.weights, a1, a2)
        self.fits = {}
        for edge in EDGES:
            source, target = edge.split("->")
            self.fits[edge] = ridge_factors(reference[source], reference[target], RIDGE)

    def point(self, tau: float) -> dict[str, Tensor]:
        """Every quantity of the protocol at one noise scale, each (seeds,)."""
        on_edge = {edge: tau * noise for edge, noise in self.noise.items()}
        values = run(self.weights, *self.draws.inputs, on_edge)
        linearized = LinearCircuit(self.weights, values, batched=True).linearize("jacobian")
        sheaf = sheaf_term(linearized.engine())
        names = [str(edge) for edge in sheaf.names]
        noisy = [names.index(edge) for edge in self.noisy]
        consistency = discounted(1.0, sheaf.c_sh)
        emergence = self._emergence(linearized, tau)
        return {
            "c_sh": sheaf.c_sh,
            "consistency": consistency,
            "noisy_share": sheaf.share[:, noisy].sum(dim=1),
            **emergence,
            "eics": emergence["dei_norm"] * consistency,
            "eics_alpha_of_tau": emergence["dei_norm_alpha_of_tau"] * consistency,
            "eac": EdgeActivationCorrelation().measure(linearized),
            "ear": self._ear(values),
        }

    def _emergence(self, linearized: LinearizedCircuit, tau: float) -> dict[str, Tensor]:
        branches = PAPER.with_(parts="branches", factorization="cholesky")
        limit = emergence_spectra(linearized.engine(), branches.with_(mode="limit"))
        at_one, at_noise = (
            emergence_spectra(linearized.engine(), branches.with_(alpha=alpha)).at(alpha, "difference")
            for alpha in (1.0, 1.0 / (1.0 + tau**2))
        )
        return {
            "dei_exact": at_one.dei.value,
            "dei_limit": limit.at(1.0, "difference").dei.value,
            "dei_norm": at_one.term.value,
            "ei_macro_alpha_of_tau": at_noise.ei_macro.value,
            "dei_norm_alpha_of_tau": at_noise.term.value,
        }

    def _ear(self, values: dict[str, Tensor]) -> Tensor:
        norms = []
        for edge, (left, right) in self.fits.items():
            source, target = (values[node].unsqueeze(1) for node in edge.split("->"))
            norms.append((source @ right @ left - target).norm(dim=-1).squeeze(1))
        return torch.stack(norms).mean(dim=0)


def _normal(shape: tuple[int, ...], purpose: str) -> Tensor:
    """Gaussian numbers from one stream per seed, so that those of a seed do not depend on the number of seeds."""
    streams = [generator(seed, f"toy {purpose}") for seed in range(shape[0])]
    return torch.stack([torch.randn(shape[1:], generator=stream, dtype=torch.float64) for stream in streams])
