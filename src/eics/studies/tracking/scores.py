"""The scores that are held against ablation, each from one forward pass that may be shared.

| name | what |
|---|---|
| `edge` | C_sh by edge, as the paper's preset has it |
| `joint` | C_sh by node, as the well-posed preset has it |
| `propagated` | C_sh of the linearized circuit run by itself: frozen, all positions, nothing from outside |
| `propagated_mean` | the same with the reference's means from outside |
| `eics_paper`, `eics_well_posed` | the scores of the two presets, in mode `fast` |
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from eics.circuits.graph import Circuit
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.emergence import emergence_spectra
from eics.scoring.formula import discounted
from eics.scoring.options import PAPER, WELL_POSED, Options
from eics.scoring.sheaf import propagated_c_sh, sheaf_term
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means

CHEAP = ("edge", "joint", "propagated", "propagated_mean")
DEAR = ("eics_paper", "eics_well_posed")
SCORES = CHEAP + DEAR
COHERENT = {name: 1.0 if name in DEAR else -1.0 for name in SCORES}
"""1 where a higher score says coherent, -1 where a lower one does."""

_PROBES = {"mode": "fast", "node_probes": 4, "macro_probes": 8}  # the least that the paper's fast mode is given


class Scorer:
    """All scores of one circuit on one recorded pass; what several of them need is computed once."""

    def __init__(self, state: ForwardState, circuit: Circuit, means: Means | None, seed: int = 0) -> None:
        self.state, self.circuit, self.means, self.seed = state, circuit, means, seed
        self._known: dict[str, Tensor] = {}
        self._linearized: dict[str, LinearizedCircuit] = {}

    def __getitem__(self, name: str) -> Tensor:
        """One score for each prompt, (B,)."""
        if name not in self._known:
            self._known[name] = self._compute[name]()
        return self._known[name]

    @property
    def _compute(self) -> dict[str, Callable[[], Tensor]]:
        return {
            "edge": partial(self._c_sh, PAPER),
            "joint": partial(self._c_sh, WELL_POSED),
            "propagated": lambda: propagated_c_sh(self._at("frozen").without_reference()),
            "propagated_mean": lambda: propagated_c_sh(self._at("frozen")),
            "eics_paper": partial(self._eics, PAPER, "edge"),
            "eics_well_posed": partial(self._eics, WELL_POSED, "joint"),
        }

    def _at(self, linearization: str) -> LinearizedCircuit:
        if linearization not in self._linearized:
            means = self.means if linearization == "frozen" else None
            run = TransformerRun(self.state, self.circuit, means=means)
            self._linearized[linearization] = run.linearize(linearization)
        return self._linearized[linearization]

    def _c_sh(self, options: Options) -> Tensor:
        linearized = self._at(options.linearization).restrict(options.positions)
        return sheaf_term(linearized, residual=options.residual, metric=options.metric).c_sh

    def _eics(self, preset: Options, c_sh: str) -> Tensor:
        options = preset.with_(seed=self.seed, **_PROBES)
        spectra = emergence_spectra(self._at(options.linearization).restrict(options.positions), options)
        return discounted(spectra.at(float(options.alpha), options.emergence).term.value, self[c_sh])
