"""What the score must be compared with: the paper's baselines on edges (B1, B2) and ablations (A1, A2).

A baseline is fitted on reference activations (most need no fit) and gives a number for each prompt. A new one is a file
with a subclass of `Baseline`, listed in `BASELINES`; the shared conformance test covers it.
"""

from eics.scoring.baselines.ablations import Consistency, Emergent
from eics.scoring.baselines.base import Baseline
from eics.scoring.baselines.eac import EdgeActivationCorrelation
from eics.scoring.baselines.ear import EdgeAlignmentResidual

BASELINES: dict[str, type[Baseline]] = {
    "eac": EdgeActivationCorrelation,
    "ear": EdgeAlignmentResidual,
    "a1": Consistency,
    "a2": Emergent,
}

__all__ = [
    "BASELINES",
    "Baseline",
    "Consistency",
    "EdgeActivationCorrelation",
    "EdgeAlignmentResidual",
    "Emergent",
]
