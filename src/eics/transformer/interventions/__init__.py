"""Interventions: changes to what a node writes, made before any other node reads it, while a prompt is scored.

`kinds.py` defines the four of them, `hooks.py` applies them during a forward pass, `donors.py` runs the prompts that
patches take their activations from.
"""

from eics.transformer.interventions.kinds import KINDS, Ablate, Intervention, Noise, Patch, Steer, as_interventions

__all__ = ["KINDS", "Ablate", "Intervention", "Noise", "Patch", "Steer", "as_interventions"]
