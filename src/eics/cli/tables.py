"""Tables for the terminal, none wider than 80 columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from eics.scoring.result import Score

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.damage.summary import Summary
    from eics.studies.discovery.faithfulness import Faithfulness
    from eics.studies.toy.curves import Curves

_WORST = 3
_BARS = 8  # edges of a single prompt
_BAR = 24  # columns of the longest


def curve_table(curves: "Curves") -> "Table":
    """The paper's toy curve with standard errors."""
    table = _table("tau", "EICS", "C_sh", "dEI_norm", title="Paper's toy: mean ± standard error")
    for row, tau in enumerate(curves.taus):
        cells = [f"{curves.mean(n)[row]:.4f} ± {curves.stderr(n)[row]:.4f}" for n in ("eics", "c_sh", "dei_norm")]
        table.add_row(f"{tau:.1f}", *cells)
    return table


def score_table(scores: Sequence[Score], title: str) -> "Table":
    """One row for each prompt: the score, its components, and what makes its C_sh: edges, or nodes."""
    by_node = any(score.nodes for score in scores)
    table = _table("id", "EICS", "C_sh", "dEI", "dEI_norm", title=title)
    table.add_column("status", no_wrap=True)
    table.add_column(f"worst {'nodes' if by_node else 'edges'} of C_sh", overflow="fold")
    for score in scores:
        numbers = [_cell(getattr(score, name)) for name in ("eics", "c_sh", "dei", "dei_norm")]
        table.add_row(escape(str(score.id)), *numbers, score.status, escape(_worst(score)))
    return table


def faithfulness_table(found: "Faithfulness", title: str) -> "Table":
    """One row for each circuit: its size and how much of the model's metric it keeps."""
    table = _table("circuit", "edges", "share of all", "faithfulness", "95% interval", title=escape(title))
    for point in found.points:
        kept = point.faithfulness
        interval = f"{kept.low:.3f} to {kept.high:.3f}"
        table.add_row(point.name, f"{point.edges:,}", f"{point.share:.2%}", f"{kept.value:.3f}", interval)
    return table


def damage_table(found: "Summary") -> "Table":
    """The strongest dose of each kind: what it does to the main measures, on the circuit and outside it."""
    from eics.studies.damage.words import SAID

    title = "Change from undamaged (AUROC) at the strongest dose"
    table = _table("measure", "kind", "dose", "circuit", "outside", title=title)
    for measure in found.measures:
        for kind in found.kinds if measure.column.split(".")[-1] in SAID else ():
            on, off = (found.curve(measure.column, kind, place)[-1:] for place in ("circuit", "outside"))
            cells = [f"{p.change.value:+.3g} ({p.auroc.value:.2f})" for some in (on, off) for p in some]
            if on:
                table.add_row(measure.label, kind, f"{on[0].strength:g}", *cells)
    return table


def edge_bars(score: Score) -> "Table | None":
    """A bar for each of the worst edges of one prompt; None where there is no inconsistency to share."""
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
    """Why scores are as they are, each reason once, with the prompts that it holds for."""
    kinds: dict[str, list[str]] = {}
    for score in scores:
        if score.reason and score.status != "failed":
            kinds.setdefault(score.reason, []).append(str(score.id))
    return [f"{', '.join(ids)}: {reason}" for reason, ids in kinds.items()]


def _worst(score: Score) -> str:
    if score.status == "failed":
        return str(score.reason)
    if score.is_consistent:
        return "none: consistent to rounding"
    if score.nodes:
        return ", ".join(f"{term.node}:{term.share:.0%}" for term in score.nodes[:_WORST])
    return ", ".join(f"{edge}:{edge.share:.0%}" for edge in score.edges[:_WORST])


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
