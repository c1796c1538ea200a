"""What can be done to a node's write between its writing and its reading, while a prompt is scored."""

from eics.transformer.interventions.kinds import KINDS, Ablate, Intervention, Noise, Patch, Steer, as_interventions

__all__ = ["KINDS", "Ablate", "Intervention", "Noise", "Patch", "Steer", "as_interventions"]
