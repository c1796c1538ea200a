"""A run of tracing: what was asked for, checked before any text runs, and what becomes of each text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eics.circuits.graph import Circuit, Kind, check_kind
from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, token_texts, token_warnings, tokenize
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.judge_positions import PositionJudge
from eics.scoring.checks import check_whole, interventions_by_prompt, keeps_positions
from eics.scoring.job import requested
from eics.scoring.options import CALIBRATED, Options
from eics.studies.tracing.result import Header, Trace, rounded
from eics.studies.tracing.words import ending_notes, length_notes
from eics.transformer.interventions import Intervention

OVERFLOWED = "the model's activations are not finite on this text"


@dataclass(frozen=True)
class Task:
    """The arguments of `trace`, checked.

    Attributes:
        prompts: the texts. options: read-out, level and memory. learned: what is usual.
        interventions: on each text, by its id.
        generate: tokens that the model goes on with. temperature: 0 takes the likeliest token.
    """

    model: Model
    circuit: Circuit
    prompts: list[Prompt]
    calibration: Calibration
    learned: Learned
    options: Options
    batch_size: int
    interventions: Mapping[str | int, tuple[Intervention, ...]]
    generate: int = 0
    temperature: float = 0.0

    @cached_property
    def judge(self) -> PositionJudge:
        """What is usual, on the model's device."""
        return PositionJudge.of(self.learned).to(self.model.device)

    @property
    def readout(self) -> tuple[str, tuple[int, ...] | None]:
        """What the read-out's stalk holds, and of which tokens."""
        return self.options.readout, self.calibration.tokens

    @cached_property
    def header(self) -> Header:
        """What all texts share."""
        sheaf, options = self.learned.sheaf, self.options
        model = requested(self.model, options, tokens=self.calibration.tokens, interventions=self._shared)
        kept: dict[str, Any] = {
            name: model[name] for name in ("dtype", "readout", "tokens", "interventions") if name in model
        }
        if self.generate:
            kept |= {"generate": self.generate, "temperature": self.temperature, "seed": options.seed}
        return Header(
            self.model.name,
            self.model.fingerprint(),
            self.circuit.label(),
            tuple(map(str, self.circuit.edges)),
            options.level,
            self.calibration.sha256,
            sheaf.layout.judged,
            tuple(sheaf.regressions.r2.tolist()),
            self.judge.alarm.threshold(options.level),
            sheaf.reasons,
            kept,
        )

    @property
    def _shared(self) -> Sequence[Intervention]:
        """The interventions, if every text has the same."""
        listed = list(self.interventions.values())
        return listed[0] if listed else ()

    def tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a text that can be traced; the error says why another cannot."""
        tokens = tokenize(self.model, prompt)
        if len(tokens) < 2 and not self.generate:
            raise PromptError("a text must have at least two tokens: the first one is apart")
        if self.generate and len(tokens) == self.model.context:
            raise PromptError(f"a text that goes on must leave room in the model's context of {len(tokens)} tokens")
        if not keeps_positions(self.circuit, len(tokens), ()):
            raise PromptError(f"a text must be long enough for every node; this has {len(tokens)} tokens")
        for intervention in self.interventions.get(prompt.id, ()):
            intervention.check_length(len(tokens))
        return tokens

    def failed(self, prompt: Prompt, reason: str) -> Trace:
        """A text that could not be traced."""
        known = prompt.metadata
        ids = tuple(known["token_ids"] or ())
        return Trace(self.header, prompt.id, known["prompt"], ids, self.texts(ids), reason=reason)

    def traced(
        self, prompt: Prompt, tokens: Sequence[int], z: NDArray[np.float64], generated: int | None = None, *notes: str
    ) -> Trace:
        """A text and its z, (nodes, tokens)."""
        table, ids = rounded(z), tuple(tokens)
        largest = np.nanmax(z) if np.isfinite(z).any() else math.nan
        known = [*(warning["text"] for warning in token_warnings(self.model, ids)), *notes]
        trace = Trace(
            self.header,
            prompt.id,
            self._text(prompt, ids, generated),
            ids,
            self.texts(ids),
            generated,
            table,
            self.judge.alarm.p_value(float(largest)) if math.isfinite(largest) else None,
            (*known, *length_notes(len(ids), self.learned.breadth.lengths)),
        )
        unusual = any(suspect.node == Kind.LOGITS for suspect in trace.suspects)
        ends = ending_notes(unusual, trace.tokens[-1], known=ids[-1] in self.learned.breadth.endings)
        return replace(trace, notes=(*trace.notes, *ends))

    def texts(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Tokens as text, or as their numbers without a tokenizer."""
        return tuple(token_texts(self.model, ids) or map(str, ids))

    def _text(self, prompt: Prompt, ids: Sequence[int], generated: int | None) -> str | None:
        """The text as it was given, with what the model wrote after it."""
        given, decode = prompt.metadata["prompt"], getattr(self.model.tokenizer, "decode", None)
        if generated is None or generated == len(ids) or decode is None or given is None:
            return given if given is not None or decode is None else str(decode(list(ids)))
        whole = str(decode(list(ids)))
        return whole if whole.startswith(given) else given + str(decode(list(ids[generated:])))


def checked_task(
    model: Model,
    circuit: Circuit,
    prompts: list[Prompt],
    calibration: Calibration,
    *,
    level: float,
    seed: int,
    memory: float | None,
    batch_size: int,
    interventions: Any,
    generate: int,
    temperature: float,
    allow_changed_weights: bool,
) -> Task:
    """The task; an error says what cannot be."""
    check_kind(circuit)
    model.check_circuit(circuit)
    if calibration.learned is None:
        raise OptionError(
            "A calibration must have a learned sheaf to trace a text. This one has none: make one with "
            "`eics calibrate --at all --terms sheaf`."
        )
    if calibration.answer is not None:
        must = "left out of a calibration that traces: the read-out is judged at the last token"
        raise OptionError.of("answer", must, calibration.answer)
    readout = calibration.options.get("readout", CALIBRATED.readout)
    options = CALIBRATED.with_(terms="sheaf", readout=readout, level=level, seed=seed, memory=memory)
    calibration.fit(options, circuit.label(), calibration.answer, calibration.tokens)
    PositionJudge.of(calibration.learned)
    judge = calibration.judge
    assert judge is not None
    judge.check(circuit, options.level)
    calibration.check_model(model, allow_changed_weights=allow_changed_weights)
    task = Task(
        model,
        circuit,
        prompts,
        calibration,
        calibration.learned,
        options,
        check_whole("batch_size", batch_size, least=1),
        interventions_by_prompt(model, circuit, prompts, interventions),
        check_whole("generate", generate, least=0),
        _temperature(temperature),
    )
    if task.generate:
        _check_fixed(task)
    elif task.temperature:
        raise OptionError.of("temperature", "given with generate, which alone draws tokens", temperature)
    return task


def _temperature(given: Any) -> float:
    if not isinstance(given, Real) or isinstance(given, bool) or not 0 <= float(given) < math.inf:
        raise OptionError.of("temperature", "a finite number >= 0", given)
    return float(given)


def _check_fixed(task: Task) -> None:
    """While a text grows, an intervention must mean the same at every step: named tokens of the prompt."""
    for interventions in task.interventions.values():
        for intervention in interventions:
            if isinstance(intervention.at, str) or any(position < 0 for position in intervention.at):
                raise OptionError.of(
                    "at", "a list of the prompt's own positions, from 0, with generate", intervention.at
                )
