"""Curves averaged over seeds, with standard errors."""

from dataclasses import dataclass

import torch
from torch import Tensor


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


def stack_curves(taus: tuple[float, ...], points: list[dict[str, Tensor]]) -> Curves:
    """Curves from one dictionary of (seeds,) tensors per tau."""
    return Curves(taus, {name: torch.stack([point[name] for point in points]) for name in points[0]})
