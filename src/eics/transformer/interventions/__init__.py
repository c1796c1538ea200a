"""Interventions: changes to what a node writes, made before any other node reads it, or to what it alone reads.

`kinds.py` defines them, `hooks.py` applies them during a forward pass, `donors.py` runs the prompts that patches take
their activations from and says which parents a node has in the circuit that is scored.
"""

from eics.transformer.interventions.kinds import (
    KINDS,
    Ablate,
    Intervention,
    Noise,
    Patch,
    PatchRead,
    Steer,
    as_interventions,
)

__all__ = ["KINDS", "Ablate", "Intervention", "Noise", "Patch", "PatchRead", "Steer", "as_interventions"]
