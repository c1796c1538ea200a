"""Curves over seeds: means and standard errors."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Curves:
    """Quantities over a noise scale, for each seed: (taus, seeds) each."""

    taus: tuple[float, ...]
    values: dict[str, Tensor]

    def mean(self, name: str) -> list[float]:
        """Means over seeds."""
        return [float(row.mean()) for row in self.values[name]]

    def stderr(self, name: str) -> list[float]:
        """Standard errors of the means."""
        values = self.values[name]
        return [float(row.std() / len(row) ** 0.5) for row in values] if values.shape[1] > 1 else [0.0] * len(values)

    def to_json(self) -> dict[str, object]:
        """Means under their names, standard errors beside them."""
        found: dict[str, object] = {"tau": list(self.taus)}
        found |= {name: self.mean(name) for name in self.values}
        found["stderr"] = {name: self.stderr(name) for name in self.values}
        found["seeds"] = next(iter(self.values.values())).shape[1]
        return found


def stack_curves(taus: tuple[float, ...], points: list[dict[str, Tensor]]) -> Curves:
    """Curves from one dict of (seeds,) tensors for each tau."""
    return Curves(taus, {name: torch.stack([point[name] for point in points]) for name in points[0]})
