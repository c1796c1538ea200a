"""One call of `score_prompts`: what all its batches share, and what its records say of model, circuit and prompt."""

import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from eics.circuits.graph import Circuit
from eics.linearized.circuit import LinearizedCircuit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.calibration.sheaf.judge import Judge
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
    """The arguments of `score_prompts`, checked.

    `calibrations` has the automatic alpha of each configuration; `refusals` the reason why it cannot be computed, or
    None.
    """

    model: Model
    circuit: Circuit
    configurations: tuple[Options, ...]
    answer: int | None
    tokens: tuple[int, ...] | None
    interventions: Mapping[str | int, tuple[Intervention, ...]]
    extra_diagnostics: ExtraDiagnostics | None
    means: Means | None
    refusals: tuple[str | None, ...]
    judge: Judge | None = None
    calibrations: tuple[AlphaCalibration | None, ...] = ()
    details: bool = False
    against_random: int = 0

    @property
    def graph_key(self) -> Hashable:
        """What the numbers depend on besides the pass; None unless all configurations are plain scores in `fast`."""
        plain = not (self.interventions or self.details or self.extra_diagnostics) and self.means is None
        if not plain or any(o.mode not in ("fast", "limit") or o.curve or o.laplacian for o in self.configurations):
            return None
        judge = None if self.judge is None else ByIdentity(self.judge)
        return ByIdentity(self.circuit), self.configurations, self.tokens, self.calibrations, judge

    def interventions_on(self, prompt: Prompt) -> tuple[Intervention, ...]:
        """The interventions on this prompt, in order."""
        return self.interventions.get(prompt.id, ())

    def provenance(self, prompt: Prompt) -> dict[str, Any]:
        """Where a result comes from: the fields of model, circuit and prompt."""
        model = {"model": self.model.name, "fingerprint": self.model.last_fingerprint}
        return prompt.metadata | model | {"circuit": self.circuit.label()}

    def requested(self, prompt: Prompt, options: Options) -> dict[str, Any]:
        """Everything that was asked for and decides a number, as records keep it and `--resume` compares it."""
        how = {"details": self.details, "against_random": self.against_random}
        return requested(self.model, options, self.answer, self.tokens, self.interventions_on(prompt), **how)

    def failure(
        self, prompt: Prompt, reason: str, options: Options, metadata: Mapping[str, Any] | None = None
    ) -> Score:
        """A failed result in one configuration; `metadata` if the pass has filled it in."""
        if metadata is None:
            interventions = [intervention.to_record() for intervention in self.interventions_on(prompt)]
            metadata = self.provenance(prompt) | {"interventions": interventions}
        used = {name: options[name] for name in RECORDED} | {"options": self.requested(prompt, options)}
        return failed(prompt.id, reason, **metadata, **used)

    def failures(self, prompt: Prompt, reason: str, metadata: Mapping[str, Any] | None = None) -> Scores:
        """A failed result in every configuration."""
        return Scores(self.failure(prompt, reason, options, metadata) for options in self.configurations)


def requested(
    model: Model,
    options: Options,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    interventions: Sequence[Intervention] = (),
    **further: Any,
) -> dict[str, Any]:
    """What a record's `options` holds: the options of scoring, how the model ran, and what else was asked for."""
    run: dict[str, Any] = {
        "dtype": str(model.transformer.unembed.dtype).removeprefix("torch."),
        "answer": answer,
        "tokens": None if tokens is None else list(tokens),
    }
    if interventions:
        run["interventions"] = [_identity(intervention) for intervention in interventions]
    return dict(**options) | run | {name: value for name, value in further.items() if value}


def _identity(intervention: Intervention) -> dict[str, Any]:
    """An intervention with the SHA-256 of its vectors, unless they are on a device: hashing must not wait for it."""
    tensors = {name: value for name, value in vars(intervention).items() if isinstance(value, Tensor)}
    vectors = {name: tensor for name, tensor in tensors.items() if tensor.device.type == "cpu"}
    digests = {
        name: hashlib.sha256(value.detach().double().numpy().tobytes()).hexdigest() for name, value in vectors.items()
    }
    return intervention.to_record() | digests


def fingerprint_of(model: Any) -> str | None:
    """The fingerprint of a model's weights; None from a model that has none."""
    fingerprint = getattr(model, "fingerprint", None)
    return fingerprint() if callable(fingerprint) else fingerprint
