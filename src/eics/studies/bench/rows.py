"""The rows of the benchmark: which circuit, scored how, and what that may cost.

Targets are forward-equivalents of the whole of `score`, its own forward pass included: what it must reach and what is
aimed at. They hold for the machine-independent part of the setting only (shape, batch, tokens), and elsewhere there are
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eics.errors import OptionError
from eics.scoring.options import PAPER, WELL_POSED, Options

MEMORY_MUST = 1024.0
"""Megabytes beyond the model and what the forward pass itself takes; GPT-2 shape, batch 8."""

FASTER_MUST = 50.0
"""Times faster than the straightforward version."""


@dataclass(frozen=True)
class Row:
    """A circuit and the configurations that are scored from one forward pass; or a method that attributes every edge of
    the model to pairs of prompts."""

    name: str
    circuit: str
    configurations: tuple[Options, ...]
    must: float | None = None
    goal: float | None = None
    method: str | None = None


@dataclass(frozen=True)
class Setting:
    """What a row is measured on. `shape` is None for a model that was loaded."""

    shape: str | None
    device: str
    dtype: str
    batch: int
    tokens: int


def _row(circuit: str, mode: str, linearization: str, must: float | None = None, goal: float | None = None) -> Row:
    options = PAPER.with_(mode=mode, linearization=linearization)
    return Row(f"{circuit}-{mode}-{linearization}", circuit, (options,), must, goal)


def _both(circuit: str, must: float | None = None, goal: float | None = None) -> Row:
    presets = tuple(preset.with_(mode="fast") for preset in (PAPER, WELL_POSED))
    return Row(f"{circuit}-fast-both", circuit, presets, must, goal)


ROWS: tuple[Row, ...] = (
    _row("medium", "fast", "frozen", 4, 1.5),
    _row("medium", "fast", "jacobian", 4, 2),
    _both("medium", 6, 2.5),
    _row("ioi", "fast", "frozen", 15, 5),
    _row("ioi", "fast", "jacobian", 15, 5),
    _row("heads", "exact", "frozen", 6, 1.5),
    _row("heads", "exact", "jacobian", 20, 5),
    _row("medium", "lanczos", "frozen"),
    _row("medium", "lanczos", "jacobian"),
    _row("medium", "exact", "frozen", 120, 15),
    _row("medium", "exact", "jacobian", 120, 15),
    Row("discovery-eap", "every edge", (), method="eap"),
    Row("discovery-eap-ig", "every edge", (), method="eap-ig"),
)
GIVEN = "given"
"""The circuit of a file."""


def given_rows() -> tuple[Row, ...]:
    """Every mode and linearization for a circuit that is not one of ours, cheapest first."""
    pairs = [(mode, way) for mode in ("fast", "lanczos", "exact") for way in ("frozen", "jacobian")]
    return (*(_row(GIVEN, mode, way) for mode, way in pairs), _both(GIVEN))


def chosen_rows(rows: Sequence[Row], names: Sequence[str] | None) -> tuple[Row, ...]:
    """Those named, in the order of the table; all if none is."""
    if names is None:
        return tuple(rows)
    known = {row.name for row in rows}
    for name in names:
        if name not in known:
            raise OptionError.of("rows", f"names from {', '.join(row.name for row in rows)}", name)
    return tuple(row for row in rows if row.name in names)


def targets(row: Row, setting: Setting) -> tuple[float | None, float | None]:
    """Must and goal of the row in this setting, in forward-equivalents; None where nothing is asked."""
    if row.must is None or row.goal is None:
        return None, None
    if setting.shape == "gpt2" and setting.dtype == "float32" and setting.tokens == 16:
        if setting.device == "cpu" and setting.batch == 8:
            return row.must, row.goal
        if setting.device == "cuda" and setting.batch == 64:
            return 2 * row.must, row.goal
    large = ("llama-8b", "cuda", "bfloat16", 128)
    if (setting.shape, setting.device, setting.dtype, setting.tokens) == large:
        single = row.circuit == "medium" and row.configurations[0].mode == "fast" and len(row.configurations) == 1
        return (3.0, 1.3) if single else (None, None)
    return None, None


def memory_target(setting: Setting) -> float | None:
    """Megabytes that scoring may take, where something is asked."""
    return MEMORY_MUST if setting.shape == "gpt2" and setting.batch == 8 else None
