"""What the fit keeps of its samples: counts, first and second moments by fold, and sums of energies.

All of it is a sum over samples, so parts of a reference set can be added in any order, on any number of machines.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.scoring.calibration.sheaf.assign import FOLDS
from eics.scoring.calibration.sheaf.bases import OUTPUTS, REGRESSORS, Coordinates

SIZE = OUTPUTS + 2 * REGRESSORS
_TOGETHER = 256  # rows

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
        moments = cls.zero(len(coordinates.counts))
        moments.add_(coordinates, fold)
        moments.prompts.fill_(prompts)
        return moments

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def add_(self, coordinates: Coordinates, fold: Tensor) -> None:
        """Adds samples in place: second moments are large, so there is never a second set of them."""
        counts = coordinates.counts
        both = torch.cat([coordinates.outputs, coordinates.regressors], dim=2) * counts.unsqueeze(2)
        for index in fold.unique().tolist():
            rows = both[:, fold == index]
            self.count[:, index] += counts[:, fold == index].sum(dim=1).cpu()
            self.first[:, index] += rows.sum(dim=1).cpu()
            self.second[:, index] += (rows.mT @ rows).cpu()
        energies = [(getattr(coordinates, name) * counts).sum(dim=1) for name in ENERGIES]
        self.energies.add_(torch.stack(energies, dim=1).cpu())

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


class MomentSums:
    """Moments while samples come in: rows wait until there are some hundreds of them.

    A batch has a row or two for each fold, and adding their products to second moments (160 x 160 numbers for each node
    and fold) would take longer than the forward pass.
    """

    def __init__(self, judged: int) -> None:
        self._moments = Moments.zero(judged)
        self._most = min(_TOGETHER, chunk_width(judged * SIZE, torch.float64))
        self._waiting: list[tuple[Coordinates, Tensor]] = []

    def add(self, coordinates: Coordinates, fold: Tensor) -> None:
        """More samples, and their folds, (R,)."""
        self._waiting.append((coordinates, fold))
        if sum(len(fold) for _, fold in self._waiting) >= self._most:
            self._flush()

    def count(self, prompts: int) -> None:
        """So many prompts more."""
        self._moments.prompts.add_(prompts)

    def moments(self) -> Moments:
        """The moments of everything so far."""
        self._flush()
        return self._moments

    def _flush(self) -> None:
        if self._waiting:
            parts, folds = zip(*self._waiting, strict=True)
            self._waiting = []
            self._moments.add_(Coordinates.cat(parts), torch.cat(folds))
