"""What a reference set of prompts says: alpha, quantiles to read a score by, and the means of writes and reads.

A calibration belongs to one model, one circuit and one configuration, and refuses every other.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eics.errors import OptionError
from eics.scoring.alpha import AlphaCalibration
from eics.scoring.options import PAPER, Options
from eics.scoring.result import Score
from eics.transformer.means import Means

QUANTITIES = ("eics", "c_sh", "dei_norm", "emergence_ratio")
"""What has quantiles."""

_COMPARED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout")
_SAMPLED = ("node_probes", "macro_probes", "steps", "top_k")  # of no account in mode 'exact'


@dataclass(frozen=True)
class Calibration:
    """A reference set, summed up.

    Attributes:
        model, circuit: as records name them; the circuit is known by its `sha256`.
        options: those that decide what the numbers are.
        alpha: the number to use. chosen: how `auto` came to it, None where it was given.
        prompts: how many were scored.
        quantiles: of each quantity at 0%, 1%, ..., 100%; none of a quantity that the configuration does not have.
        means: of writes and reads.
        answer, tokens: where the answer stands and which tokens are read out, as `score` takes them.
    """

    model: str | None
    circuit: dict[str, str]
    options: dict[str, Any]
    alpha: float
    chosen: AlphaCalibration | None
    prompts: int
    quantiles: dict[str, tuple[float, ...]]
    means: Means = field(repr=False)
    answer: int | None = None
    tokens: tuple[int, ...] | None = None

    def fit(
        self,
        options: Options,
        model: str | None,
        circuit: dict[str, str],
        answer: int | None = None,
        tokens: Sequence[int] | None = None,
    ) -> Options:
        """These options with the calibration's alpha; refuses what the calibration is not about."""
        if model != self.model:
            raise _other("model", repr(self.model), repr(model))
        if circuit["sha256"] != self.circuit["sha256"]:
            raise _other("circuit", *(f"{c['name']!r} (sha256 {c['sha256'][:8]}...)" for c in (self.circuit, circuit)))
        for name, ours in compared(options).items():
            if self.options.get(name) != ours:
                raise _other(name, repr(self.options.get(name)), repr(ours))
        for name, theirs, given in (("answer", self.answer, answer), ("tokens", self.tokens, tokens)):
            if theirs != (tuple(given) if isinstance(given, Sequence) else given):
                raise _other(name, repr(theirs), repr(given))
        if options.alpha not in ("auto", PAPER.alpha, self.alpha):
            raise _other("alpha", repr(self.alpha), repr(options.alpha))
        return options.with_(alpha=self.alpha)

    def place(self, score: Score) -> Score:
        """The result with its percentile, and those of its parts in the diagnostics; a failed one as it is."""
        if score.eics is None:
            return score
        found = {name: percentile(getattr(score, name), known) for name, known in self.quantiles.items()}
        about = {"prompts": self.prompts, "percentiles": found}
        return replace(score, percentile=found["eics"], diagnostics=score.diagnostics | {"calibration": about})


def compared(options: Options) -> dict[str, Any]:
    """The options that must be the same for two scores to be compared."""
    names = _COMPARED if options.mode == "exact" else _COMPARED + _SAMPLED
    return {name: options[name] for name in names}


def percentile(value: float, quantiles: Sequence[float]) -> float:
    """Where a value lies among a reference set, 0 to 100: the quantile function's inverse, its middle where it is flat.

    >>> percentile(5.0, [0.0, 10.0]), percentile(-1.0, [0.0, 10.0]), percentile(0.0, [0.0, 0.0, 0.0])
    (50.0, 0.0, 50.0)
    """
    low, high = bisect_left(quantiles, value), bisect_right(quantiles, value)
    steps = len(quantiles) - 1
    if low < high:  # the value is one of them, perhaps many of them
        return 100.0 * (low + high - 1) / 2 / steps
    if low in (0, len(quantiles)):
        return 100.0 * bool(low)
    below, above = quantiles[low - 1], quantiles[low]
    return 100.0 * (low - 1 + (value - below) / (above - below)) / steps


def _other(name: str, theirs: str, ours: str) -> OptionError:
    return OptionError(
        f"A calibration must be of the same {name}. The file has {theirs}, this run {ours}: calibrate again, or score "
        "as it was calibrated."
    )
