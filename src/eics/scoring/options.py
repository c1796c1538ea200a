"""What can be chosen, in one place: the Python call, the command line and the record all read it here.

>>> Options(mode="quick")
Traceback (most recent call last):
    ...
eics.errors.OptionError: The 'mode' option must be one of exact, lanczos, fast. Got 'quick' instead.
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

from eics.errors import OptionError

CHOICES: dict[str, tuple[str, ...]] = {
    "mode": ("exact", "lanczos", "fast"),
    "linearization": ("jacobian", "frozen"),
    "residual": ("edge", "joint", "propagated"),
    "parts": ("nodes", "branches"),
    "metric": ("euclidean", "relative"),
    "emergence": ("difference", "intensive"),
    "positions": ("all", "no_sink", "last"),
    "readout": ("final_norm", "logits", "tokens"),
    "factorization": ("auto", "svd", "cholesky"),
}


def _positive(name: str, must: str, value: Any) -> float:
    """The number as a float; numpy's and Python's own are both welcome."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise OptionError.of(name, must, value)
    return number


def _whole(name: str, value: Any, *, least: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise OptionError.of(name, f"a whole number >= {least}", value)
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to score. The defaults are the paper's; `**options` unpacks into keywords.

    Attributes:
        alpha: signal-to-noise scale of the EI proxy, > 0; or `auto`, calibrated on the prompts given.
        mode: `exact`, `lanczos` (stochastic quadrature, or top-k) or `fast` (small-alpha form).
        linearization: `jacobian` or `frozen`.
        residual: C_sh by `edge` (equation 2), `joint` by node, or `propagated` to the sinks.
        parts: what dEI subtracts: `nodes` (equation 3) or `branches`.
        metric: `euclidean`, or `relative`: each stalk in its own units, position by position.
        emergence: `difference` (equation 3, clipped at 0) or `intensive` (nats for each channel).
        positions: `all`, `no_sink` (from the second token on) or `last`.
        readout: what the stalk of `logits` is; a matter of models, unused by explicit circuits.
        seed: of the probes.
        node_probes, macro_probes: probes for a part and for the macro map, in `lanczos` and `fast`. For the macro map
            12 and 8, if not given: `fast` is for ranking.
        steps: Lanczos steps for each probe.
        top_k: in `lanczos`, count only the k largest singular values instead of sampling.
        factorization: in `exact`, `svd` (every alpha at once), `cholesky` (fastest and smallest for one alpha), or
            `auto`: `cholesky` for large maps where only one alpha is asked for.
        target: for `alpha="auto"`, the median macro EI in nats for each read-out dimension. The default,
            log(2)/2, is a dimension whose signal equals its noise.
        memory: megabytes that one temporary block of vectors may take before work is cut into chunks. If not given, 64,
            and on a GPU an eighth of its memory: many small pieces of work leave it idle.
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
        # A third of the probes sketch in `fast`, and a standard error needs two of the others.
        for name, least in {"node_probes": 4, "macro_probes": 4, "steps": 1, "seed": 0}.items():
            if getattr(self, name) is not None or name != "macro_probes":
                self._set(name, _whole(name, getattr(self, name), least=least))
        if self.top_k is not None:
            self._set("top_k", _whole("top_k", self.top_k, least=1))
            if self.mode != "lanczos":
                raise OptionError.of("top_k", f"used with mode 'lanczos', not {self.mode!r}", self.top_k)

    @property
    def probes_of_macro(self) -> int:
        """How many, given or not."""
        return self.macro_probes or (8 if self.mode == "fast" else 12)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def with_(self, **changes: Any) -> "Options":
        """The same options but for these; an unknown name is refused."""
        unknown = sorted(set(changes) - set(self.keys()))
        if unknown:
            known = ", ".join(self.keys())
            raise OptionError(f"Unknown option {unknown[0]!r}. The options are {known}.")
        return replace(self, **changes)

    def keys(self) -> list[str]:
        """Option names; with `[]` below this lets `**options` work."""
        return [field.name for field in fields(self)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


PAPER = Options()
"""The literal score, as the paper prints it."""

WELL_POSED = Options(
    metric="relative",
    emergence="intensive",
    positions="no_sink",
    linearization="frozen",
    residual="joint",
    parts="nodes",
    alpha=1.0,
)
"""The companion in which no choice of units matters and nothing grows with the circuit or the prompt."""

PRESETS = {"paper": PAPER, "well-posed": WELL_POSED}

CONFIGURATION = ("linearization", "residual", "parts", "metric", "emergence", "positions")
"""The options that say which score it is; the others say how and how exactly it is computed."""


def changes_of(preset: str, used: Mapping[str, Any]) -> list[str]:
    """What a configuration has otherwise than a preset; what it does not say is no change.

    >>> changes_of("paper", {"residual": "joint", "metric": "euclidean"})
    ['joint']
    """
    known = {name: value for name in CONFIGURATION if (value := used.get(name)) is not None}
    return [str(value) for name, value in known.items() if value != PRESETS[preset][name]]


def nearest_preset(used: Mapping[str, Any]) -> str:
    """The preset that a configuration has the fewest changes from."""
    return min(PRESETS, key=lambda preset: len(changes_of(preset, used)))


def resolve(preset: "Options | str", changes: dict[str, Any]) -> Options:
    """A preset, by name or itself, with changes."""
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise OptionError.of("preset", f"one of {', '.join(PRESETS)}, or an Options", preset)
        preset = PRESETS[preset]
    if not isinstance(preset, Options):
        raise OptionError.of("preset", f"one of {', '.join(PRESETS)}, or an Options", preset)
    return preset.with_(**changes)
