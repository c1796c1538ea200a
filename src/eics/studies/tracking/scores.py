"""The scores that are compared with ablation, all from one forward pass.

| name | what |
|---|---|
| `edge` | C_sh by edge, as in the paper's preset |
| `joint` | C_sh by node, as in the well-posed preset |
| `propagated` | C_sh of the linearized circuit run by itself: frozen, all positions, nothing from outside |
| `propagated_mean` | the same, with the reference's means from outside |
| `eics_paper`, `eics_well_posed` | the scores of the two presets, in mode `fast` |
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from eics.circuits.graph import Circuit
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.batch import compute
from eics.scoring.options import PAPER, WELL_POSED, Options
from eics.scoring.sheaf import propagated_c_sh, sheaf_term
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means

CHEAP = ("edge", "joint", "propagated", "propagated_mean")
EXPENSIVE = ("eics_paper", "eics_well_posed")
SCORES = CHEAP + EXPENSIVE
DIRECTION = {name: 1.0 if name in EXPENSIVE else -1.0 for name in SCORES}
"""1 if a higher score means more coherent, -1 if a lower one does."""

_PROBES = {"mode": "fast", "node_probes": 4, "macro_probes": 8}


class Scorer:
    """All scores of one circuit on one recorded pass, computed on demand; shared parts are computed once."""

    def __init__(self, state: ForwardState, circuit: Circuit, means: Means | None, seed: int = 0) -> None:
        self.state, self.circuit, self.means, self.seed = state, circuit, means, seed
        self._scores: dict[str, Tensor] = {}
        self._linearized: dict[str, LinearizedCircuit] = {}

    def __getitem__(self, name: str) -> Tensor:
        """One score for each prompt, (B,)."""
        if name not in self._scores:
            self._scores[name] = self._compute[name]()
        return self._scores[name]

    @property
    def _compute(self) -> dict[str, Callable[[], Tensor]]:
        return {
            "edge": partial(self._c_sh, PAPER),
            "joint": partial(self._c_sh, WELL_POSED),
            "propagated": lambda: propagated_c_sh(self._linearize("frozen").without_reference().engine()),
            "propagated_mean": lambda: propagated_c_sh(self._linearize("frozen").engine()),
            "eics_paper": partial(self._eics, PAPER),
            "eics_well_posed": partial(self._eics, WELL_POSED),
        }

    def _linearize(self, linearization: str) -> LinearizedCircuit:
        if linearization not in self._linearized:
            means = self.means if linearization == "frozen" else None
            run = TransformerRun(self.state, self.circuit, means=means)
            self._linearized[linearization] = run.linearize(linearization)
        return self._linearized[linearization]

    def _c_sh(self, options: Options) -> Tensor:
        linearized = self._linearize(options.linearization).restrict(options.positions)
        return sheaf_term(linearized.engine(), residual=options.residual, metric=options.metric).c_sh

    def _eics(self, preset: Options) -> Tensor:
        options = preset.with_(seed=self.seed, **_PROBES)
        eics = compute(self._linearize(options.linearization), options).eics
        assert eics is not None
        return eics
