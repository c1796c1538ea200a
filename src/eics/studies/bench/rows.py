"""The rows of the benchmark: which circuit, how it is scored, and what that may cost.

Targets are in forward-equivalents of all of `score`, its own forward pass included: an upper limit (`must`) and a
`goal`. They are defined for a few settings (shape, device, dtype, batch, tokens) only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from eics.errors import OptionError
from eics.scoring.options import CALIBRATED, PAPER, WELL_POSED, Options

MEMORY_MUST = 1024.0
"""Megabytes beyond the model and the forward pass itself; GPT-2 shape, batch 8."""

FASTER_MUST = 50.0
"""Speed-up over the straightforward version."""


COMPARE = "compare"


@dataclass(frozen=True)
class Row:
    """A circuit and the configurations to score from one forward pass; or a method that attributes all edges, or that
    compares the model with another one (`COMPARE`).

    `batches` is how many batches the work takes together; its cost is for one.
    """

    name: str
    circuit: str
    configurations: tuple[Options, ...]
    must: float | None = None
    goal: float | None = None
    method: str | None = None
    batches: int = 1

    @property
    def judges(self) -> bool:
        """Whether nodes are judged against a learned sheaf, and nothing else is computed."""
        return any(options.residual == "calibrated" and options.terms == "sheaf" for options in self.configurations)


@dataclass(frozen=True)
class Setting:
    """What a row is measured on. `shape` is None for a loaded model."""

    shape: str | None
    device: str
    dtype: str
    batch: int
    tokens: int


def _row(circuit: str, mode: str, linearization: str, must: float | None = None, goal: float | None = None) -> Row:
    options = PAPER.with_(mode=mode, linearization=linearization)
    return Row(f"{circuit}-{mode}-{linearization}", circuit, (options,), must, goal)


def _both(circuit: str, must: float | None = None, goal: float | None = None, mode: str = "fast") -> Row:
    presets = tuple(preset.with_(mode=mode) for preset in (PAPER, WELL_POSED))
    return Row(f"{circuit}-{mode}-both", circuit, presets, must, goal)


ROWS: tuple[Row, ...] = (
    _row("medium", "fast", "frozen", 4, 1.5),
    _row("medium", "fast", "jacobian", 4, 2),
    _both("medium", 6, 2.5),
    _row("ioi", "fast", "frozen", 15, 5),
    _row("ioi", "fast", "jacobian", 15, 5),
    _row("medium", "limit", "frozen", 4, 1.5),
    _row("medium", "limit", "jacobian", 4, 2),
    _both("medium", 6, 2.5, mode="limit"),
    _row("ioi", "limit", "frozen", 15, 5),
    _row("ioi", "limit", "jacobian", 15, 5),
    Row("medium-calibrated-sheaf", "medium", (CALIBRATED.with_(terms="sheaf"),), 1.3, 1.1),
    _row("heads", "exact", "frozen", 6, 1.5),
    _row("heads", "exact", "jacobian", 20, 5),
    _row("medium", "lanczos", "frozen"),
    _row("medium", "lanczos", "jacobian"),
    _row("medium", "exact", "frozen", 120, 15),
    _row("medium", "exact", "jacobian", 120, 15),
    Row("medium-compare", "medium", (), 4, 3, method=COMPARE, batches=8),
    Row("discovery-eap", "every edge", (), method="eap"),
    Row("discovery-eap-ig", "every edge", (), method="eap-ig"),
)
GIVEN = "given"
"""Stands for a circuit that is given, from a file."""


def given_rows() -> tuple[Row, ...]:
    """Every mode and linearization for a given circuit, cheapest first."""
    pairs = product(("limit", "fast", "lanczos", "exact"), ("frozen", "jacobian"))
    return (*(_row(GIVEN, mode, linearization) for mode, linearization in pairs), _both(GIVEN))


def chosen_rows(rows: Sequence[Row], names: Sequence[str] | None) -> tuple[Row, ...]:
    """The named rows, in the order of the table; all of them by default."""
    if names is None:
        return tuple(rows)
    available = [row.name for row in rows]
    for name in names:
        if name not in available:
            raise OptionError.of("rows", f"names from {', '.join(available)}", name)
    return tuple(row for row in rows if row.name in names)


def targets(row: Row, setting: Setting) -> tuple[float | None, float | None]:
    """`must` and `goal` of the row in this setting, in forward-equivalents, or None."""
    if row.must is None or row.goal is None:
        return None, None
    if setting.shape == "gpt2" and setting.dtype == "float32" and setting.tokens == 16:
        if setting.device == "cpu" and setting.batch == 8:
            return row.must, row.goal
        if setting.device == "cuda" and setting.batch == 64:
            return (1 if row.judges or row.method == COMPARE else 2) * row.must, row.goal
    large = ("llama-8b", "cuda", "bfloat16", 128)
    if (setting.shape, setting.device, setting.dtype, setting.tokens) == large:
        if row.judges:
            return 1.2, 1.05
        single = len(row.configurations) == 1 and row.configurations[0].mode in ("fast", "limit")
        return (3.0, 1.3) if single and row.circuit == "medium" else (None, None)
    return None, None


def memory_target(setting: Setting) -> float | None:
    """Megabytes that scoring may take in this setting, or None."""
    return MEMORY_MUST if setting.shape == "gpt2" and setting.batch == 8 else None
