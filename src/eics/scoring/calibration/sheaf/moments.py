"""What the fit keeps of its samples: counts, first and second moments by fold, and sums of energies.

All of it is a sum over samples, so parts of a reference set can be added in any order, on any number of machines.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.assign import FOLDS
from eics.scoring.calibration.sheaf.bases import OUTPUTS, REGRESSORS, Coordinates

SIZE = OUTPUTS + 2 * REGRESSORS
ENERGIES = ("outside", "explained_outside", "size", "deviation", "explained_deviation")


@dataclass(frozen=True)
class Moments:
    """Sums over samples, in float64 on the CPU; y and x side by side, y first.

    Attributes:
        count: (judged, FOLDS).
        first: (judged, FOLDS, SIZE).
        second: (judged, FOLDS, SIZE, SIZE).
        energies: sums of `ENERGIES`, (judged, energies).
        prompts: how many prompts.
    """

    count: Tensor
    first: Tensor
    second: Tensor
    energies: Tensor
    prompts: Tensor

    @classmethod
    def zero(cls, judged: int) -> "Moments":
        """No sample yet."""
        shapes = ((judged, FOLDS), (judged, FOLDS, SIZE), (judged, FOLDS, SIZE, SIZE), (judged, len(ENERGIES)), ())
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    @classmethod
    def of(cls, coordinates: Coordinates, fold: Tensor, prompts: int) -> "Moments":
        """Of samples whose folds are given, (R,)."""
        counts = coordinates.counts
        both = torch.cat([coordinates.outputs, coordinates.regressors], dim=2) * counts.unsqueeze(2)
        moments = cls.zero(len(counts))
        for index in fold.unique().tolist():
            rows = both[:, fold == index]
            moments.count[:, index] = counts[:, fold == index].sum(dim=1).cpu()
            moments.first[:, index] = rows.sum(dim=1).cpu()
            moments.second[:, index] = (rows.mT @ rows).cpu()
        energies = [(getattr(coordinates, name) * counts).sum(dim=1) for name in ENERGIES]
        moments.energies[:] = torch.stack(energies, dim=1).cpu()
        moments.prompts.fill_(prompts)
        return moments

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def add_(self, other: "Moments") -> None:
        """Adds in place: second moments are large."""
        for field in fields(self):
            getattr(self, field.name).add_(getattr(other, field.name))

    @property
    def total(self) -> Tensor:
        """Samples of each judged node, (judged,)."""
        return self.count.sum(dim=1)

    def mean_energy(self, name: str) -> Tensor:
        """The mean of one of `ENERGIES`, (judged,)."""
        return self.energies[:, ENERGIES.index(name)] / self.total.clamp(min=1)

    @staticmethod
    def size_of(judged: int) -> int:
        """Bytes that the moments of this many nodes take."""
        return 8 * judged * (FOLDS * (1 + SIZE + SIZE * SIZE) + len(ENERGIES))
