"""Tables for the terminal, none wider than 80 columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eics.result import Score

if TYPE_CHECKING:
    from rich.table import Table

    from eics.toy.curves import Curves

_WORST = 3


def curve_table(curves: "Curves") -> "Table":
    """The paper's toy curve with standard errors."""
    table = _table("tau", "EICS", "C_sh", "dEI_norm", title="Paper's toy: mean ± standard error")
    for row, tau in enumerate(curves.taus):
        cells = [f"{curves.mean(n)[row]:.4f} ± {curves.stderr(n)[row]:.4f}" for n in ("eics", "c_sh", "dei_norm")]
        table.add_row(f"{tau:.1f}", *cells)
    return table


def score_table(scores: Sequence[Score], title: str) -> "Table":
    """One row for each prompt: the score, its components and the worst edges."""
    table = _table("id", "EICS", "C_sh", "dEI", "dEI_norm", title=title)
    table.add_column("status")
    table.add_column("worst edges (share)", overflow="fold")
    for score in scores:
        numbers = [_cell(getattr(score, name)) for name in ("eics", "c_sh", "dei", "dei_norm")]
        worst = ", ".join(f"{edge} {edge.share:.0%}" for edge in score.edges[:_WORST])
        table.add_row(str(score.id), *numbers, score.status, worst if score.status != "failed" else score.reason)
    return table


def _table(*numbers: str, title: str) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(title=title, box=SIMPLE, title_justify="left", pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
