"""The benchmark's result as the cells of a table, as JSON and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eics.scoring.numbers import number
from eics.studies.bench.rows import FASTER_MUST, Setting, memory_target, targets
from eics.studies.bench.run import ForwardResult, RowResult

if TYPE_CHECKING:
    from eics.studies.bench.growth import Point

FORMAT = {"format": "eics-bench", "version": 1}
_HEADINGS = ("row", "cost", "first", "must/goal", "reached", "FLOPs", "JVP+VJP", "MB", "faster")


@dataclass(frozen=True)
class Report:
    """All measurements of one run."""

    machine: dict[str, Any]
    model: dict[str, Any]
    setting: Setting
    forward: ForwardResult
    rows: Sequence[RowResult]
    growth: "Sequence[Point] | None" = None

    def to_json(self) -> dict[str, Any]:
        forward = {
            "seconds": self.forward.seconds.to_json(),
            "seconds_all_logits": self.forward.all_logits.to_json(),
            "counts": vars(self.forward.counts),
            "memory_mb": self.forward.memory,
        }
        report = {**FORMAT, "machine": self.machine, "model": self.model, "forward": forward}
        report["rows"] = [row_json(result, self.setting) for result in self.rows]
        if self.growth is not None:
            report["growth"] = [point.to_json() for point in self.growth]
        return report


def row_json(result: RowResult, setting: Setting) -> dict[str, Any]:
    """One row with its targets, as JSON."""
    must, goal = targets(result.row, setting)
    return {
        "name": result.row.name,
        "circuit": {"name": result.row.circuit, "nodes": result.nodes, "edges": result.edges},
        "forward_equivalents": result.timing.ratio.to_json(),
        "seconds": result.timing.seconds.to_json(),
        "first_seconds": result.first_seconds,
        "unrecorded_forward_equivalents": None if result.unrecorded is None else result.unrecorded.ratio.to_json(),
        "forward_seconds": result.timing.forward.to_json(),
        "must": must,
        "goal": goal,
        "reached": reached(result, setting) or None,
        "counts": vars(result.counts),
        "flop_ratio": result.flop_ratio,
        "memory_mb": result.memory,
        "straightforward": None if result.compared is None else vars(result.compared),
    }


def reached(result: RowResult, setting: Setting) -> str:
    """`goal`, `must` or `no`, and what else falls short; empty if the row has no target."""
    must, goal = targets(result.row, setting)
    if must is None or goal is None:
        return ""
    cost = result.timing.ratio.median
    word = "goal" if cost <= goal else "must" if cost <= must else "no"
    memory = memory_target(setting)
    if memory is not None and result.memory is not None and result.memory > memory:
        word += ", MB"
    if result.compared is not None and result.compared.times_slower < FASTER_MUST:
        word += f", <{FASTER_MUST:.0f}x"
    return word


def notes(report: Report) -> list[str]:
    """What the columns of the table mean."""
    sentences = [
        "cost: forward-equivalents, median (quartiles), including the forward pass of score itself; FLOPs: as a "
        "multiple of the forward pass.",
        "MB: peak beyond the model and the forward pass. JVP+VJP: products with maps and their transposes.",
    ]
    if "first" in headings(report):
        sentences.append("first: cost of the first batch of a shape; later batches are replayed from a recording.")
    compared = [result.compared for result in report.rows if result.compared is not None]
    if compared:
        sentences.append(
            "faster: speed-up over the straightforward version: one JVP per edge, stochastic Lanczos by JVPs and VJPs "
            "(in brackets: the estimate that fast makes, computed that way); for exact, dense Jacobians by autograd."
        )
    if any(comparison.extrapolated for comparison in compared):
        sentences.append("~: extrapolated from samples of the work; the dense matrices are too large.")
    return sentences


def title(report: Report) -> str:
    """Model, batch, and the forward pass that is the unit of cost."""
    model, forward = report.model, report.forward.seconds
    return (
        f"{model['name']}, {model['dtype']}, {model['batch']} x {model['tokens']} tokens; forward pass "
        f"{number(1000 * forward.median)} ms"
    )


def cells(result: RowResult, setting: Setting) -> dict[str, str]:
    """The cells of one row, by heading."""
    must, goal = targets(result.row, setting)
    ratio, compared = result.timing.ratio, result.compared
    spread = "" if ratio.runs == 1 else f" ({number(ratio.low)}-{number(ratio.high)})"
    faster = "" if compared is None else f"{'~' if compared.extrapolated else ''}{number(compared.times_slower)}x"
    if compared is not None and compared.same_estimate_times_slower is not None:
        faster += f" ({number(compared.same_estimate_times_slower)}x)"
    return {
        "row": result.row.name,
        "cost": number(ratio.median) + spread,
        "first": "" if result.unrecorded is None else number(result.unrecorded.ratio.median),
        "must/goal": "" if must is None or goal is None else f"{must:g}/{goal:g}",
        "reached": reached(result, setting),
        "FLOPs": number(result.flop_ratio),
        "JVP+VJP": f"{_short(result.counts.jvp)}+{_short(result.counts.vjp)}",
        "MB": number(result.memory),
        "faster": faster,
    }


def headings(report: Report) -> list[str]:
    """The columns of this report."""
    recorded = any(result.unrecorded is not None for result in report.rows)
    return [name for name in _HEADINGS if recorded or name != "first"]


def lines(report: Report) -> list[list[str]]:
    """The cells of every row, by column."""
    rows = (cells(result, report.setting) for result in report.rows)
    return [[row[name] for name in headings(report)] for row in rows]


def markdown(report: Report) -> str:
    """The table for a page of the docs, with the machine it was measured on."""
    machine = report.machine
    where = machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores"
    page = [
        f"Measured on {where}, torch {machine['torch']}. {title(report)}.",
        "",
        f"| {' | '.join(headings(report))} |",
        f"|{'---|' * len(headings(report))}",
        *(f"| {' | '.join(line)} |" for line in lines(report)),
        "",
        *(f"- {note}" for note in notes(report)),
        "",
    ]
    return "\n".join(page)


def _short(value: int) -> str:
    """A count in at most four characters.

    >>> [_short(n) for n in (0, 999, 45_678, 1_234_567)]
    ['0', '999', '46k', '1.2M']
    """
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            scaled = value / size
            return f"{scaled:.1f}{letter}" if scaled < 9.95 else f"{scaled:.0f}{letter}"
    return str(value)
