"""Positions of texts against those of the calibration texts: z at a token, and the alarm of a whole text.

    z_v(t)    log d_v^2 at position t, standardised over all positions of all calibration texts (of a calibration text:
              over those of the others)
    p_value   of a text: conformal in its largest z_v(t) over nodes and positions, against whole calibration texts
    threshold the z from which a node at a token is a suspect: as the largest, its p-value would be at most `level`

Positions of one text are no exchangeable draws, texts are: so the reference of an alarm is one number for each text.

Every position counts once in mean and deviation, so a long text counts more than a short one. The alternative, every
text once, would let the few positions of a short text move what is usual as much as the hundreds of a long one, which
know more about it; and only sums over positions merge when prompts are added. Either way p-values are as good as the
texts are alike, because a calibration text's own z comes from the other ones. What does not carry over is length: of
more positions the largest z is larger. A text that is longer than the calibration texts alarms too often, and is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.learned import TINY, Distances
from eics.scoring.calibration.sheaf.reference import at_least, conformal


@dataclass(frozen=True)
class Positions:
    """log d_v^2 of the calibration texts over their positions; float64, (n, nodes) each.

    Attributes:
        count: positions at which the node was judged.
        mean: of log d_v^2 over them. deviation: sum of squared deviations from it; sums of squares would cancel.
        largest: the largest one.
    """

    count: Tensor
    mean: Tensor
    deviation: Tensor
    largest: Tensor

    @classmethod
    def none(cls, judged: int) -> "Positions":
        """No text yet."""
        return cls(*(torch.zeros(0, judged, dtype=torch.float64) for _ in fields(cls)))

    @classmethod
    def of(cls, distances: Distances, counts: Tensor, prompt: Tensor, prompts: int) -> "Positions":
        """From distances of rows, (judged, R), where `counts` says which count and `prompt` whose they are, (R,)."""
        logs, kept = log_distances(distances).T, counts.T > 0  # (R, judged)
        index = prompt.unsqueeze(1).expand_as(logs)
        zeros = logs.new_zeros(prompts, logs.shape[1])

        def summed(values: Tensor) -> Tensor:
            return zeros.scatter_add(0, index, torch.where(kept, values, 0.0))

        count = summed(torch.ones_like(logs))
        mean = summed(logs) / count.clamp(min=1)
        deviation = summed((logs - mean[prompt]).square())
        lowest = torch.full_like(zeros, -torch.inf)
        largest = lowest.scatter_reduce(0, index, torch.where(kept, logs, -torch.inf), "amax")
        return cls(count, mean, deviation, torch.where(count > 0, largest, 0.0))

    @classmethod
    def cat(cls, parts: "Sequence[Positions]") -> "Positions":
        """The texts of one after those of another."""
        return cls(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def texts(self, chosen: Tensor) -> "Positions":
        """Some of the texts, in another order."""
        return Positions(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def cpu(self) -> "Positions":
        """The numbers on the host."""
        return Positions(*(getattr(self, field.name).cpu() for field in fields(self)))

    def __len__(self) -> int:
        return len(self.count)

    @cached_property
    def usual(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over all positions of all texts, (nodes,)."""
        count = self.count.sum(dim=0)
        mean = (self.count * self.mean).sum(dim=0) / count.clamp(min=1)
        squares = (self.deviation + self.count * (self.mean - mean).square()).sum(dim=0)
        return mean, _root(squares, count)

    def z(self, logs: Tensor) -> Tensor:
        """z of log d_v^2, (nodes, ...)."""
        mean, deviation = (part.to(logs.device).view(-1, *[1] * (logs.ndim - 1)) for part in self.usual)
        return (logs - mean) / at_least(deviation)

    def largest_z(self, judged: Tensor) -> Tensor:
        """The largest z of each calibration text over the nodes that count and its positions, (n,): each node's over
        the positions of the other texts."""
        own, total = self.count, self.count.sum(dim=0)
        others = total - own
        mean = (own * self.mean).sum(dim=0) / total.clamp(min=1)
        squares = (self.deviation + own * (self.mean - mean).square()).sum(dim=0)
        off = self.mean - mean
        share = own / others.clamp(min=1)
        left = (squares - self.deviation - off.square() * total * share).clamp(min=0)
        z = (self.largest - (mean - share * off)) / at_least(_root(left, others))
        return torch.where(judged & (own > 0), z, -torch.inf).amax(dim=1)


@dataclass(frozen=True)
class Alarm:
    """When a text is unusual: the largest z of the calibration texts, sorted."""

    ordered: Tensor

    @classmethod
    def of(cls, positions: Positions, judged: Tensor) -> "Alarm":
        """From the calibration texts, by the nodes that count."""
        return cls(positions.largest_z(judged.to(positions.count.device)).sort().values)

    def p_value(self, largest: float) -> float:
        """Of a text whose largest z this is."""
        here = torch.tensor([[largest]], dtype=self.ordered.dtype, device=self.ordered.device)
        return float(conformal(here, self.ordered.unsqueeze(0)))

    def threshold(self, level: float) -> float | None:
        """The least z whose p-value as the largest is at most `level`; None with too few texts.

        >>> alarm = Alarm(torch.arange(19.0, dtype=torch.float64))
        >>> alarm.threshold(0.1) > 17.0, alarm.p_value(alarm.threshold(0.1)), alarm.threshold(0.01)
        (True, 0.1, None)
        """
        n = len(self.ordered)
        beyond = sum((1.0 + count) / (1.0 + n) <= level for count in range(n + 1))  # texts that may reach it, plus one
        if not beyond:
            return None
        if beyond > n:
            return float("-inf")
        place = self.ordered[n - beyond]
        return float(place.nextafter(torch.full_like(place, torch.inf)))


def log_distances(distances: Distances) -> Tensor:
    """log d_v^2, of the shape of distances."""
    return (distances.allowed + TINY).log()


def _root(squares: Tensor, count: Tensor) -> Tensor:
    return (squares / (count - 1).clamp(min=1)).sqrt()
