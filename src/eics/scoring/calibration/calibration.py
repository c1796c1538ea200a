"""A calibration on a reference set of prompts: what is usual there.

It has alpha, the quantiles of the score and the means of writes and reads; under `residual="calibrated"` also a learned
sheaf (`sheaf/`). It belongs to one model, one circuit and one configuration, and raises an error for any other.
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eics.errors import OptionError, printable
from eics.models.base import Model
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.calibration.sheaf.judge import Judge, Learned
from eics.scoring.calibration.sheaf.tensors import learned_tensors
from eics.scoring.numbers import number
from eics.scoring.options import PAPER, RECORDED, Options
from eics.scoring.result import Score
from eics.transformer.means import Means

QUANTITIES = ("eics", "c_sh", "dei_norm", "emergence_ratio")
"""The numbers of a result for which quantiles are kept."""

_COMPARED = tuple(name for name in RECORDED if name != "seed")
_OF_THE_SHEAF = ("linearization", "residual", "readout")  # on what a learned sheaf depends
_HASHED = 1 << 20  # numbers at a time
_SAMPLED = ("node_probes", "macro_probes", "steps", "top_k")  # without effect in mode `exact`


@dataclass(frozen=True)
class Calibration:
    """The summary of a reference set.

    Attributes:
        model, circuit: as in records; circuits are compared by their `sha256`.
        options: the options on which the numbers depend.
        alpha: the number to use. chosen: how `auto` chose it, None if it was given.
        prompts: how many prompts were scored.
        quantiles: of each quantity at 0%, 1%, ..., 100%; a quantity that the configuration lacks is missing.
        means: the means of writes and reads.
        answer, tokens: the answer position and the tokens of the read-out, as `score` takes them.
        fingerprint: of the model's weights; None in files older than version 3.
        learned: the learned sheaf and its reference, or None.
        seed, group: what split the prompts into parts.

    With `terms="sheaf"` alpha, quantiles and means are missing.
    """

    model: str | None
    circuit: dict[str, str]
    options: dict[str, Any]
    alpha: float | None
    chosen: AlphaCalibration | None
    prompts: int
    quantiles: dict[str, tuple[float, ...]]
    means: Means | None = field(repr=False)
    answer: int | None = None
    tokens: tuple[int, ...] | None = None
    fingerprint: str | None = None
    learned: Learned | None = field(default=None, repr=False)
    seed: int = 0
    group: str | None = None

    def __repr__(self) -> str:
        what = f"{self.prompts} prompts on {self.model}, {self.circuit.get('name')}"
        alpha = (
            "" if self.alpha is None else f"; alpha={number(self.alpha, trim=True)}, mode={self.options.get('mode')}"
        )
        sheaf = "" if self.learned is None else f"; sheaf of {len(self.learned.sheaf.layout.judged)} nodes"
        return printable(f"Calibration({what}{sheaf}{alpha})")

    @cached_property
    def judge(self) -> Judge | None:
        """What judges nodes against the reference, if a sheaf was learned."""
        return None if self.learned is None else Judge.of(self.learned, self.circuit["sha256"])

    def check_model(self, model: Model, *, allow_changed_weights: bool = False) -> None:
        """Refuses a model with other weights; files without a fingerprint are compared by the model's name."""
        if self.fingerprint is None:
            if model.name != self.model:
                raise _mismatch("model", repr(self.model), repr(model.name))
            return
        if self.learned is not None and self.learned.sheaf.dtype != model.transformer.unembed.dtype:
            names = [str(d).removeprefix("torch.") for d in (self.learned.sheaf.dtype, model.transformer.unembed.dtype)]
            raise _mismatch("dtype", *names)  # what rounding does to a write is part of what was learned
        if allow_changed_weights:
            return
        model.refresh()
        if model.last_fingerprint == self.fingerprint:
            return
        if model.name == self.model:
            raise OptionError(
                f"The weights of {self.model!r} must be those of its calibration. They have changed since: calibrate "
                "again, compare the two models (`eics compare`), or go on with --allow-changed-weights "
                "(allow_changed_weights=True)."
            )
        raise _mismatch("model", f"{self.model!r} ({self.fingerprint[:8]}...)", f"{model.name!r} with other weights")

    def check_alpha(self, given: Any) -> None:
        """Refuses another alpha that was asked for by name; a preset's own gives way to the calibration's."""
        if self.alpha is not None and given not in (None, "auto", self.alpha):
            raise _mismatch("alpha", repr(self.alpha), repr(given))

    def fit(
        self,
        options: Options,
        circuit: dict[str, str],
        answer: int | None = None,
        tokens: Sequence[int] | None = None,
    ) -> Options:
        """These options with the calibration's alpha; raises an error unless all the rest matches.

        A learned sheaf alone depends on fewer options, so `terms="sheaf"` asks for fewer to match.
        """
        if circuit["sha256"] != self.circuit["sha256"]:
            raise _mismatch(
                "circuit", *(f"{c['name']!r} (sha256 {c['sha256'][:8]}...)" for c in (self.circuit, circuit))
            )
        alone = options.terms == "sheaf" or self.alpha is None
        for name, ours in compared(options).items():
            if self.options.get(name) != ours and not (alone and name not in _OF_THE_SHEAF):
                raise _mismatch(name, repr(self.options.get(name)), repr(ours))
        for name, theirs, given in (("answer", self.answer, answer), ("tokens", self.tokens, tokens)):
            if theirs != (tuple(given) if isinstance(given, Sequence) else given):
                raise _mismatch(name, repr(theirs), repr(given))
        if self.alpha is None:
            return options
        if options.alpha not in ("auto", PAPER.alpha, self.alpha):
            raise _mismatch("alpha", repr(self.alpha), repr(options.alpha))
        return options if options.terms == "sheaf" else options.with_(alpha=self.alpha)

    @cached_property
    def sha256(self) -> str:
        """The identity of its content, whatever file it is in."""
        fields = {
            name: getattr(self, name) for name in ("circuit", "options", "alpha", "prompts", "quantiles", "answer")
        }
        content = hashlib.sha256(json.dumps({**fields, "tokens": self.tokens}, sort_keys=True).encode())
        tensors = {} if self.means is None else self.means.tensors
        tensors |= {} if self.learned is None else learned_tensors(self.learned)
        for name, tensor in sorted(tensors.items()):
            content.update(name.encode())
            for chunk in tensor.detach().flatten().split(_HASHED):  # what prompts were kept by can be large
                content.update(chunk.double().cpu().numpy())
        return content.hexdigest()

    def place(self, score: Score) -> Score:
        """The result with its percentiles in the reference set, and whose they are; a failed one has none."""
        score = replace(score, options=score.options | {"calibration": self.sha256})
        if score.failed or not self.quantiles:
            return score
        known = {name: value for name in self.quantiles if (value := getattr(score, name)) is not None}
        percentiles = {name: percentile(value, self.quantiles[name]) for name, value in known.items()}
        entry = {"prompts": self.prompts, "percentiles": percentiles}
        return replace(
            score, percentile=percentiles.get("eics"), diagnostics=score.diagnostics | {"calibration": entry}
        )


def compared(options: Options) -> dict[str, Any]:
    """The options that must agree before two scores can be compared."""
    names = _COMPARED if options.mode == "exact" else _COMPARED + _SAMPLED
    return {name: options[name] for name in names}


def percentile(value: float, quantiles: Sequence[float]) -> float:
    """The percentile of a value, 0 to 100: the inverse of the quantile function, its midpoint where that is flat.

    >>> percentile(5.0, [0.0, 10.0]), percentile(-1.0, [0.0, 10.0]), percentile(0.0, [0.0, 0.0, 0.0])
    (50.0, 0.0, 50.0)
    """
    low, high = bisect_left(quantiles, value), bisect_right(quantiles, value)
    steps = len(quantiles) - 1
    if low < high:  # the value equals one or more of the quantiles
        return 100.0 * (low + high - 1) / 2 / steps
    if low in (0, len(quantiles)):
        return 100.0 * bool(low)
    below, above = quantiles[low - 1], quantiles[low]
    return 100.0 * (low - 1 + (value - below) / (above - below)) / steps


def _mismatch(name: str, theirs: str, ours: str) -> OptionError:
    return OptionError(
        f"A calibration must be of the same {name}. The file has {theirs}, this run {ours}: calibrate again, or score "
        f"with the {name} of the calibration."
    )
