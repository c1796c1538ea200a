"""What was learned from a reference set, at work: the nodes of a pass, judged against what is usual."""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.scoring.calibration.sheaf.bases import Coordinates
from eics.scoring.calibration.sheaf.breadth import Breadth
from eics.scoring.calibration.sheaf.learned import LearnedSheaf
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.positions import Positions
from eics.scoring.calibration.sheaf.reference import Judgement, Reference
from eics.scoring.calibration.sheaf.samples import check_second_token, sample
from eics.scoring.sheaf import SheafTerm
from eics.transformer.linearize import TransformerRun


@dataclass(frozen=True)
class Kept:
    """What a fit has to keep so that prompts can be added: its moments, and the coordinates of the calibration part,
    with the number of the prompt that each row belongs to, (R,)."""

    moments: Moments
    coordinates: Coordinates
    prompt: Tensor


@dataclass(frozen=True)
class Learned:
    """What was learned from a reference set.

    Attributes:
        sheaf: the restriction maps and inner products.
        reference: the calibration part.
        ids: of the calibration prompts, in the reference's order.
        fitted: how many prompts fitted.
        breadth: how long its prompts are, and what they end in.
        positions: the calibration part position by position, if all positions are judged; None in older files.
        kept: what the fit kept, if asked for.
    """

    sheaf: LearnedSheaf
    reference: Reference
    ids: tuple[str | int, ...]
    fitted: int
    breadth: Breadth
    positions: Positions | None = None
    kept: Kept | None = None

    @property
    def prompts(self) -> int:
        """How many prompts it was learned from, those that calibrate included."""
        return self.fitted + len(self.ids)


@dataclass(frozen=True)
class Judged:
    """The judgement of a batch, with the names and the r2 of its nodes."""

    judgement: Judgement
    names: tuple[str, ...]
    r2: tuple[float, ...]
    reasons: dict[str, str]
    lengths: tuple[int, int]
    prompts: int

    @property
    def sheaf(self) -> SheafTerm:
        """C_ref in place of C_sh, and D_v^2 in place of squared residuals."""
        whole = self.judgement.counted
        total = whole.sum(dim=1, keepdim=True)
        share = torch.where(total > 0, whole / torch.where(total > 0, total, 1.0), 0.0)
        return SheafTerm(self.judgement.c_ref, self.names, whole, share, None)

    @property
    def tensors(self) -> dict[str, Tensor | None]:
        """What records hold besides, prompts first."""
        judgement = self.judgement
        return {
            "z": judgement.z,
            "p": judgement.p,
            "suspect": judgement.suspect,
            "p_value": judgement.p_value,
            "p_value_mean": judgement.p_value_mean,
            "p_value_input": judgement.p_value_input,
        }


class Judge:
    """Judges the nodes of passes; keeps what was learned on the device of the last one."""

    def __init__(self, sheaf: LearnedSheaf, reference: Reference, circuit: str, lengths: tuple[int, int]) -> None:
        """`circuit` is the SHA-256 of the circuit it was learned on, `lengths` the shortest and longest prompt."""
        self.sheaf, self.reference, self.circuit, self.lengths = sheaf, reference, circuit, lengths
        self.r2 = tuple(sheaf.regressions.r2.tolist())
        self.reasons = sheaf.reasons

    @classmethod
    def of(cls, learned: Learned, circuit: str) -> "Judge":
        """From what was learned on the circuit of this SHA-256."""
        return cls(learned.sheaf, learned.reference, circuit, learned.breadth.lengths)

    def check(self, circuit: Circuit, level: float) -> None:
        """Refuses another circuit, and a level that the reference is too small for."""
        if circuit.sha256 != self.circuit:
            raise OptionError("A calibration must be of the circuit that is scored: calibrate again on this one.")
        if len(self.reference) < 1 / level - 1:
            least, count = self.reference.least_level, len(self.reference)
            raise OptionError.of("level", f"at least {least:g} with {count} calibration prompts", level)

    def check_length(self, length: int, answer: int | None) -> None:
        """Refuses a prompt that has nothing to judge."""
        check_second_token(self.sheaf.at, length, answer, self.sheaf.first)

    def judge(self, run: TransformerRun, level: float) -> Judged:
        """The nodes of a pass."""
        device = run.state.model.device
        if self.sheaf.bases.unit.device != device:
            self.sheaf, self.reference = self.sheaf.to(device), self.reference.to(device)
        samples = sample(run, self.sheaf.layout, self.sheaf.at, self.sheaf.first)
        distances = self.sheaf.by_prompt(samples, len(run.state.lengths))
        judgement = self.reference.judge(distances, level)
        return Judged(judgement, self.sheaf.layout.judged, self.r2, self.reasons, self.lengths, len(self.reference))
