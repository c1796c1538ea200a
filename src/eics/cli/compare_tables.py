"""What `eics compare` prints: a row for each part of two models, or for each node on two sets of prompts."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from eics.cli.layout import Column, fitted
from eics.cli.terminal import console
from eics.scoring.numbers import number, percent, signed
from eics.studies.comparison.model_sentences import NOTHING

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.comparison.set_result import SetComparison
    from eics.studies.comparison.summary import ModelComparison, PartChange
    from eics.studies.statistics import Interval

_ROWS = 12


def parts_table(found: "ModelComparison", width: int | None = None) -> "Table":
    """The parts that made something, largest effects first; the first columns to go are the intervals."""
    makers = [change for change in found.nodes if change.made_here > NOTHING or change.restored is not None]
    shown = makers[:_ROWS]

    def cells(show: "Callable[[PartChange], str]") -> list[str]:
        return [show(change) for change in shown]

    restored = any(change.restored is not None for change in shown)
    columns = [
        Column("part", [change.node for change in shown], text=True),
        Column("made here", cells(lambda change: percent(change.made_here))),
        Column("inherited", cells(lambda change: percent(change.inherited)), rank=2),
        Column("effect", cells(lambda change: number(change.effect.value))),
        Column("95%", cells(lambda change: _range(change.effect)), rank=3),
        *([Column("restored", cells(lambda change: _value(change.restored)))] if restored else []),
        Column("95% restored", cells(lambda change: _range(change.restored)), rank=4),
    ]
    shares = "made here and inherited as shares of the write"
    title = f"{found.against} against {found.model}: {shares}, effect on {found.metric}"
    return fitted(title + _rest(len(makers)), columns, width or console().width)


def shifts_table(found: "SetComparison", width: int | None = None) -> "Table":
    """The nodes that differ, entries first."""
    judged = [node for node in found.nodes if node.reason is None]
    shown = judged[:_ROWS]
    columns = [
        Column("node", [node.node for node in shown], text=True),
        Column("role", [node.role or "" for node in shown], text=True),
        Column("shift of z", [signed(node.shift.value) for node in shown]),
        Column("95%", [_range(node.shift) for node in shown], rank=3),
        Column("q", [number(node.q) for node in shown]),
        Column("shift of write", [signed(node.write_shift.value) for node in shown], rank=2),
        Column("q of write", [number(node.write_q) for node in shown], rank=1),
    ]
    title = (
        "Nodes by how much they differ; entry: unusual for what it was given; inherits: as what it was given predicts"
    )
    return fitted(title + _rest(len(judged)), columns, width or console().width)


def _value(interval: "Interval | None") -> str:
    return "" if interval is None else number(interval.value)


def _range(interval: "Interval | None") -> str:
    return "" if interval is None else f"{number(interval.low)} to {number(interval.high)}"


def _rest(count: int) -> str:
    return f" ({count - _ROWS} more are not shown)" if count > _ROWS else ""
