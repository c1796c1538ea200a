"""Every position of a text, judged against what is usual at the positions of the calibration texts."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.errors import OptionError
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.learned import LearnedSheaf
from eics.scoring.calibration.sheaf.positions import Alarm, Positions, log_distances
from eics.scoring.calibration.sheaf.samples import Samples, sample_next, sample_stretches
from eics.transformer.forward import ForwardState
from eics.transformer.linearize import TransformerRun
from eics.transformer.stretches import Stretches


@dataclass(frozen=True)
class PositionJudge:
    """z at every position.

    Attributes:
        sheaf: what was learned.
        positions: the calibration texts, position by position.
        judged: which nodes count, (nodes,).
        alarm: how large the largest z of a calibration text is.
    """

    sheaf: LearnedSheaf
    positions: Positions
    judged: Tensor
    alarm: Alarm

    @classmethod
    def of(cls, learned: Learned) -> "PositionJudge":
        """From what was learned; refuses what was not learned at all positions."""
        if learned.sheaf.at != "all":
            raise OptionError(
                "A calibration must be of all positions to trace a text. This one is of the answer position: calibrate "
                'again with --at all (at="all").'
            )
        if learned.positions is None:
            raise OptionError(
                "A calibration must say what is usual at single positions to trace a text. This file, of an older "
                'version, does not: calibrate again with --at all (at="all").'
            )
        judged, sheaf = learned.reference.judged, learned.sheaf
        if sheaf.dtype != torch.float64:  # else what was written is no more precise than that
            sheaf = replace(sheaf, bases=sheaf.bases.single)
        return cls(sheaf, learned.positions, judged, Alarm.of(learned.positions, judged))

    def to(self, device: torch.device) -> "PositionJudge":
        """The same on another device."""
        return replace(self, sheaf=self.sheaf.to(device), judged=self.judged.to(device))

    def whole(self, run: TransformerRun) -> Tensor:
        """z of the texts of a pass, (B, nodes, T), in float64 on the host; nan where a node is not judged: the first
        token, padding, and the read-out before the last token."""
        state, layout = run.state, self.sheaf.layout
        z = torch.full((len(state.lengths), state.longest, len(layout.judged)), torch.nan, dtype=torch.float64)
        for start, kept, samples in sample_stretches(run, layout):
            part = z[:, start : start + kept.shape[1]]
            part[kept.cpu()] = self._z(samples).T.cpu()
        return z.mT

    def following(self, whole: Stretches, state: ForwardState) -> Tensor:
        """z at the next positions of a text that grows, (nodes, P), with the read-out at the last of them."""
        kept, samples = sample_next(whole, state, self.sheaf.layout)
        z = torch.full((kept.shape[1], len(self.judged)), torch.nan, dtype=torch.float64)
        z[kept[0].cpu()] = self._z(samples).T.cpu()
        return z.T

    def _z(self, samples: Samples) -> Tensor:
        """z of rows, (nodes, R)."""
        z = self.positions.z(log_distances(self.sheaf.by_row(samples)))
        return torch.where((samples.counts > 0) & self.judged.unsqueeze(1), z, torch.nan)
