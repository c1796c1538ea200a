"""One call of `score_prompts`: what all its batches share, and what its records say of model, circuit and prompt."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eics.circuits.graph import Circuit
from eics.linearized.circuit import LinearizedCircuit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.cuda_graphs import ByIdentity
from eics.scoring.options import RECORDED, Options
from eics.scoring.result import Score, Scores, failed
from eics.transformer.forward import ForwardState
from eics.transformer.interventions import Intervention
from eics.transformer.means import Means

ExtraDiagnostics = Callable[[ForwardState, Sequence[Prompt], LinearizedCircuit, Options], Sequence[dict[str, Any]]]
"""From a pass (with the logits at the answer positions) and its linearized circuit, more entries for the diagnostics of
each prompt."""


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt that can be scored: its row in the batch and its tokens."""

    row: int
    prompt: Prompt
    tokens: list[int]


@dataclass(frozen=True)
class Job:
    """The arguments of `score_prompts`, checked; `calibrations` has the automatic alpha of each configuration."""

    model: Model
    circuit: Circuit
    configurations: tuple[Options, ...]
    answer: int | None
    tokens: tuple[int, ...] | None
    interventions: Mapping[str | int, tuple[Intervention, ...]]
    extra_diagnostics: ExtraDiagnostics | None
    means: Means | None
    calibrations: tuple[AlphaCalibration | None, ...] = ()

    @property
    def graph_key(self) -> Hashable:
        """What the numbers depend on besides the pass; None unless all configurations are plain scores in `fast`."""
        plain = not self.interventions and self.extra_diagnostics is None and self.means is None
        if not plain or any(o.mode not in ("fast", "limit") or o.curve or o.laplacian for o in self.configurations):
            return None
        return ByIdentity(self.circuit), self.configurations, self.tokens, self.calibrations

    def interventions_on(self, prompt: Prompt) -> tuple[Intervention, ...]:
        """The interventions on this prompt, in order."""
        return self.interventions.get(prompt.id, ())

    def provenance(self, prompt: Prompt) -> dict[str, Any]:
        """Where a result comes from: the fields of model, circuit and prompt."""
        return prompt.metadata | {"model": self.model.name, "circuit": self.circuit.label()}

    def failure(
        self, prompt: Prompt, reason: str, options: Options, metadata: Mapping[str, Any] | None = None
    ) -> Score:
        """A failed result in one configuration; `metadata` if the pass has filled it in."""
        if metadata is None:
            interventions = [intervention.to_record() for intervention in self.interventions_on(prompt)]
            metadata = self.provenance(prompt) | {"interventions": interventions}
        return failed(prompt.id, reason, **metadata, **{name: options[name] for name in RECORDED})

    def failures(self, prompt: Prompt, reason: str) -> Scores:
        """A failed result in every configuration."""
        return Scores(self.failure(prompt, reason, options) for options in self.configurations)
