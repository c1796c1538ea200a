"""Tables for the terminal, at most 80 columns wide."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from eics.scoring.result import Score

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.damage.summary import Summary
    from eics.studies.discovery.faithfulness import Faithfulness
    from eics.studies.toy.curves import Curves

_WORST = 3  # edges or nodes named in a row
_BARS = 8  # edges of a single prompt
_BAR = 24  # columns of the longest bar


def curve_table(curves: "Curves") -> "Table":
    """The curve of the paper's toy, with standard errors."""
    table = _table("tau", "EICS", "C_sh", "dEI_norm", title="Paper's toy: mean ± standard error")
    for row, tau in enumerate(curves.taus):
        cells = [f"{curves.mean(n)[row]:.4f} ± {curves.stderr(n)[row]:.4f}" for n in ("eics", "c_sh", "dei_norm")]
        table.add_row(f"{tau:.1f}", *cells)
    return table


def score_table(scores: Sequence[Score], title: str) -> "Table":
    """One row per prompt: the score, its components, and the edges or nodes that contribute most to C_sh."""
    by_node = any(score.nodes for score in scores)
    table = _table("id", "EICS", "C_sh", "dEI", "dEI_norm", title=title)
    table.add_column("status", no_wrap=True)
    table.add_column(f"worst {'nodes' if by_node else 'edges'} of C_sh", overflow="fold")
    for score in scores:
        numbers = [_cell(getattr(score, name)) for name in ("eics", "c_sh", "dei", "dei_norm")]
        table.add_row(escape(str(score.id)), *numbers, score.status, escape(_worst(score)))
    return table


def faithfulness_table(measured: "Faithfulness", title: str) -> "Table":
    """One row per circuit: its size and how much of the model's metric it keeps."""
    table = _table("circuit", "edges", "share of all", "faithfulness", "95% interval", title=escape(title))
    for point in measured.points:
        estimate = point.faithfulness
        interval = f"{estimate.low:.3f} to {estimate.high:.3f}"
        table.add_row(point.name, f"{point.edges:,}", f"{point.share:.2%}", f"{estimate.value:.3f}", interval)
    return table


def damage_table(summary: "Summary") -> "Table":
    """What the strongest dose of each kind does to the main measures, on the circuit and outside it."""
    from eics.studies.damage.words import REPORTED

    title = "Change from undamaged (AUROC) at the strongest dose"
    table = _table("measure", "kind", "dose", "circuit", "outside", title=title)
    for measure in summary.measures:
        for kind in summary.kinds if measure.column.split(".")[-1] in REPORTED else ():
            on, off = (summary.curve(measure.column, kind, where)[-1:] for where in ("circuit", "outside"))
            cells = [f"{point.change.value:+.3g} ({point.auroc.value:.2f})" for point in (*on, *off)]
            if on:
                table.add_row(measure.label, kind, f"{on[0].strength:g}", *cells)
    return table


def edge_bars(score: Score) -> "Table | None":
    """A bar for each of the worst edges of one prompt, or None if the prompt is consistent."""
    if score.c_sh is None or score.is_consistent or not score.edges:
        return None
    shown = score.edges[:_BARS]
    left = len(score.edges) - len(shown)
    title = "Worst edges: share of the squared residual" + (f" ({left} more are not shown)" if left else "")
    table = _table(title=title)
    table.add_column("edge", overflow="fold")
    table.add_column("", no_wrap=True)
    for name in ("share", "residual", "cosine"):
        table.add_column(name, justify="right", no_wrap=True)
    for edge in shown:
        length = round(_BAR * 8 * max(0.0, edge.share) / max(shown[0].share, 1e-300))
        bar = "█" * (length // 8) + ("", *"▏▎▍▌▋▊▉")[length % 8]
        cosine = "" if edge.cosine is None else f"{edge.cosine:.2f}"
        table.add_row(
            escape(str(edge)), f"[magenta]{bar}[/magenta]", f"{edge.share:.1%}", f"{edge.residual:.3g}", cosine
        )
    return table


def reasons(scores: Sequence[Score]) -> list[str]:
    """Each reason that a scored record gives, once, after the prompts that it holds for."""
    prompts: dict[str, list[str]] = {}
    for score in scores:
        if score.reason and score.status != "failed":
            prompts.setdefault(score.reason, []).append(str(score.id))
    return [f"{', '.join(ids)}: {reason}" for reason, ids in prompts.items()]


def _worst(score: Score) -> str:
    if score.status == "failed":
        return str(score.reason)
    if score.is_consistent:
        return "none: consistent to rounding"
    return ", ".join(f"{term}:{term.share:.0%}" for term in (score.nodes or score.edges)[:_WORST])


def _table(*numbers: str, title: str) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=title, box=SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if abs(value) < 100 else f"{value:.4g}"
