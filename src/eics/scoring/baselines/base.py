"""The interface of a baseline."""

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor

from eics.linearized.circuit import LinearizedCircuit


class Baseline(ABC):
    """A number for each prompt, computed from the linearized circuit that is scored."""

    name: str
    higher_is_coherent: bool

    def fit(self, reference: LinearizedCircuit) -> Self:  # noqa: ARG002 - most baselines learn nothing
        """Learns what it needs from a batch of prompts; most learn nothing."""
        return self

    @abstractmethod
    def measure(self, linearized: LinearizedCircuit) -> Tensor:
        """The baseline for each prompt, (B,)."""
