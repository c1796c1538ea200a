"""The options of a score, defined once for Python, the command line and the records.

>>> Options(mode="quick")
Traceback (most recent call last):
    ...
eics.errors.OptionError: The 'mode' option must be one of exact, lanczos, fast, limit. Got 'quick' instead.
>>> WELL_POSED.metric, PAPER.metric
('relative', 'euclidean')
>>> dict(**PAPER)["alpha"]
1.0
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from eics.errors import OptionError, did_you_mean

CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("exact", "lanczos", "fast", "limit"),
    "linearization": ("jacobian", "frozen"),
    "residual": ("edge", "joint", "propagated", "calibrated"),
    "parts": ("nodes", "branches"),
    "metric": ("euclidean", "relative"),
    "emergence": ("difference", "intensive"),
    "positions": ("all", "no_sink", "last"),
    "readout": ("final_norm", "logits", "tokens"),
    "factorization": ("auto", "svd", "cholesky"),
    "terms": ("all", "sheaf"),
}

RECORDED = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed")
"""Options that every record repeats."""


_MOST_PROBES = 10_000  # and Lanczos steps; more cost hours, and `exact` less


def _positive(name: str, constraint: str, value: Any) -> float:
    """A number as a float, whether it is Python's or numpy's."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise OptionError.of(name, constraint, value)
    return number


def _whole(name: str, value: Any, *, least: int, most: int = 2**63 - 1) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise OptionError.of(name, f"a whole number >= {least} and <= {most:,}", value)
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to score. The defaults are those of the paper; `**options` unpacks into keywords.

    Attributes:
        alpha: signal-to-noise scale of the EI proxy, > 0; or `auto`, calibrated on the given prompts.
        mode: `exact`, `lanczos` (stochastic quadrature, or top-k), `fast` (from exact spectra of heads and moments of
            other spectra) or `limit` (the small-alpha form).
        linearization: `jacobian` or `frozen`.
        residual: C_sh by `edge` (equation 2), `joint` by node, `propagated` to the sinks, or `calibrated`: by node,
            against a sheaf learned from a reference set (`eics.calibrate`).
        parts: what dEI subtracts: `nodes` (equation 3) or `branches`.
        metric: `euclidean`, or `relative`: every stalk in its own units at each position.
        emergence: `difference` (equation 3, clipped at 0) or `intensive` (nats for each channel).
        positions: `all`, `no_sink` (from the second token on) or `last`.
        readout: what the stalk of `logits` holds in a model; explicit circuits ignore it.
        seed: seed of the random probes.
        node_probes, macro_probes: probes for each part and for the macro map in `lanczos`, `fast` and `limit`. The
            macro map gets 12, 5 and 8 by default; in `fast` each of them takes two products, and two a third.
        steps: Lanczos steps for each probe.
        top_k: in `lanczos`, count only the k largest singular values instead of sampling.
        factorization: in `exact`, `svd` (every alpha at once), `cholesky` (fastest and smallest for one alpha), or
            `auto`: `cholesky` for large maps at a single alpha.
        target: for `alpha="auto"`, the median macro EI in nats for each read-out dimension. The default,
            log(2)/2, is that of a dimension whose signal equals its noise.
        memory: megabytes that one temporary block of vectors may take before the work is split into chunks. By default
            64, and on a GPU an eighth of its memory: small chunks leave it idle.
        terms: `all`, or `sheaf` alone: no EI term, so `eics` and `dei` are None.
        level: with `calibrated`, the probability that a usual prompt has any suspect.
        curve: keep dEI over a range of alpha in the result.
        laplacian: keep kernel dimension, lambda2, spectral gap and projection distance in the diagnostics.
    """

    alpha: float | str = 1.0
    mode: str = "exact"
    linearization: str = "jacobian"
    residual: str = "edge"
    parts: str = "nodes"
    metric: str = "euclidean"
    emergence: str = "difference"
    positions: str = "all"
    readout: str = "final_norm"
    seed: int = 0
    node_probes: int = 8
    macro_probes: int | None = None
    steps: int = 10
    top_k: int | None = None
    factorization: str = "auto"
    target: float = 0.5 * math.log(2.0)
    memory: float | None = None
    terms: str = "all"
    level: float = 0.05
    curve: bool = False
    laplacian: bool = False

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if not isinstance(getattr(self, name), str) or getattr(self, name) not in choices:
                raise OptionError.of(name, f"one of {', '.join(choices)}", getattr(self, name))
        if not isinstance(self.alpha, str) or self.alpha != "auto":
            self._set("alpha", _positive("alpha", "a finite number > 0, or 'auto'", self.alpha))
        for name in ("target", "memory"):
            if getattr(self, name) is not None or name != "memory":
                self._set(name, _positive(name, "a finite number > 0", getattr(self, name)))
        # In `limit` a third of the probes make the sketch, and a standard error needs at least two others.
        for name, least in {"node_probes": 4, "macro_probes": 4, "steps": 1}.items():
            if getattr(self, name) is not None or name != "macro_probes":
                self._set(name, _whole(name, getattr(self, name), least=least, most=_MOST_PROBES))
        self._set("seed", _whole("seed", self.seed, least=0))
        self._set("level", _positive("level", "a number > 0 and < 1", self.level))
        if self.level >= 1:
            raise OptionError.of("level", "a number > 0 and < 1", self.level)
        for name in ("curve", "laplacian"):
            if not isinstance(getattr(self, name), Integral) or getattr(self, name) not in (True, False):
                raise OptionError.of(name, "True or False", getattr(self, name))
            self._set(name, bool(getattr(self, name)))
        if self.top_k is not None:
            self._set("top_k", _whole("top_k", self.top_k, least=1))
            if self.mode != "lanczos":
                raise OptionError.of("top_k", f"used with mode 'lanczos', not {self.mode!r}", self.top_k)
        self._check_terms()

    def _check_terms(self) -> None:
        """What the sheaf term alone, and a learned one, can do without."""
        if self.terms == "sheaf":
            for name, given in (("curve", self.curve), ("alpha 'auto'", self.alpha == "auto")):
                if given:
                    raise OptionError.of("terms", f"'all' with {name}, which is about the EI term", self.terms)
        if self.residual != "calibrated":
            return
        if self.linearization != "frozen":
            raise OptionError.of("linearization", "'frozen' with residual 'calibrated'", self.linearization)
        if self.readout == "logits":
            raise OptionError.of("readout", "'final_norm' or 'tokens' with residual 'calibrated'", self.readout)

    @property
    def probes_of_macro(self) -> int:
        """Probes for the macro map, by default as many as the mode suggests."""
        return self.macro_probes or {"lanczos": 12, "limit": 8}.get(self.mode, 5)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def with_(self, **changes: Any) -> "Options":
        """A copy with these changes; raises an error for an unknown name."""
        unknown = sorted(set(changes) - set(self.keys()))
        if unknown:
            raise OptionError(f"Unknown option {unknown[0]!r}. The options are {', '.join(self.keys())}.")
        return replace(self, **changes)

    def keys(self) -> list[str]:
        """The names of the options; with `[]` below they make `**options` work."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


PAPER = Options()
"""The literal score, as printed in the paper."""

WELL_POSED = Options(
    metric="relative",
    emergence="intensive",
    positions="no_sink",
    linearization="frozen",
    residual="joint",
    parts="nodes",
    alpha=1.0,
)
"""The companion score, independent of units and of the size of circuit and prompt."""

CALIBRATED = WELL_POSED.with_(mode="fast", residual="calibrated")
"""The companion score against a sheaf learned from a reference set; needs a calibration."""

PRESETS = {"paper": PAPER, "well-posed": WELL_POSED, "calibrated": CALIBRATED}

BOTH = ("paper", "well-posed")
"""The presets that need no calibration: what `both` stands for."""

CONFIGURATION = ("linearization", "residual", "parts", "metric", "emergence", "positions")
"""The options that define the score; the others say how it is computed and how precisely."""


def changes_of(preset: str, used: Mapping[str, Any]) -> list[str]:
    """Options that differ from the preset; an option that `used` lacks does not count.

    >>> changes_of("paper", {"residual": "joint", "metric": "euclidean"})
    ['joint']
    """
    defaults = PRESETS[preset]
    return [str(used[name]) for name in CONFIGURATION if used.get(name) not in (None, defaults[name])]


def nearest_preset(used: Mapping[str, Any]) -> str:
    """The preset from which a configuration differs least."""
    return min(PRESETS, key=lambda preset: len(changes_of(preset, used)))


def resolve(preset: "Options | str", changes: dict[str, Any]) -> Options:
    """A preset, given by name or as `Options`, with changes."""
    chosen = PRESETS.get(preset) if isinstance(preset, str) else preset
    if not isinstance(chosen, Options):
        must = f"one of {', '.join(PRESETS)}, or an Options"
        raise OptionError(f"{OptionError.of('preset', must, preset)}{did_you_mean(preset, PRESETS)}")
    return chosen.with_(**changes)
