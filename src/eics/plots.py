"""Figures from results alone. Built without pyplot: no global state, no display."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eics.result import Score

if TYPE_CHECKING:
    from eics.discovery.faithfulness import Faithfulness

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe-Ito: readable without colour vision
_MARKERS = ("o", "s", "^", "D")
_COLUMNS = 12
_ROWS = 40


def scores_figure(scored: Mapping[str, Sequence[Score]]) -> Any:
    """C_sh and the score of each prompt in each configuration, and who makes the last configuration's C_sh.

    A score that was clipped to 0 is drawn hollow. Prompts past the fortieth are left out, and the title says so.
    """
    from matplotlib.figure import Figure

    shown = {name: [s for s in scores if s.eics is not None][:_ROWS] for name, scores in scored.items()}
    last = next(reversed(shown.values()))
    total = len(next(iter(scored.values())))
    figure = Figure(figsize=(13.5, 1.6 + 0.32 * max(4, len(last))), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.5])
    for index, (name, scores) in enumerate(shown.items()):
        _dots(left, scores, "c_sh", name, index)
        _dots(middle, scores, "eics", name, index)
    names = [str(score.id) for score in last]
    for axes, title in ((left, r"$C_{\mathrm{sh}}$"), (middle, "EICS (hollow: clipped to 0)")):
        axes.set_yticks(range(len(names)), names if axes is left else [])
        axes.invert_yaxis()
        axes.set_title(title, fontsize=11)
        axes.grid(visible=True, axis="x", linewidth=0.5, alpha=0.5)
    left.legend(frameon=False, fontsize=9, loc="best")
    _shares(figure, right, last, next(reversed(shown)))
    if len(last) < total:
        figure.suptitle(f"{len(last)} of {total} prompts")
    return figure


def faithfulness_figure(found: "Faithfulness", title: str) -> Any:
    """Faithfulness over circuit size with its intervals; 1 is the full model, 0 the model with everything ablated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    points = sorted(found.points, key=lambda point: point.share)
    own = [point for point in points if point.name == "circuit"]
    curve = [point for point in points if point.name != "circuit"]
    for some, colour, label in ((curve, _COLOURS[0], "top edges"), (own, _COLOURS[1], "the file's circuit")):
        if some:
            values = [point.faithfulness.value for point in some]
            below = [point.faithfulness.value - point.faithfulness.low for point in some]
            above = [point.faithfulness.high - point.faithfulness.value for point in some]
            at = [point.share for point in some]
            axes.errorbar(at, values, yerr=[below, above], fmt="o-", color=colour, capsize=3, label=label)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.axhline(0.0, color="0.5", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("edges, as a share of all")
    axes.set_ylabel("faithfulness (95% interval over prompts)")
    areas = f"\nCPR {found.cpr}, CMD {found.cmd}" if found.cpr is not None else ""
    axes.set_title(title + areas, fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    return figure


def save(figure: Any, path: str | Path) -> None:
    """Writes a figure in the format of the file's ending; text stays text, and the same figure gives the same file."""
    from matplotlib import rc_context

    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "eics", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=160, metadata=undated)


def _dots(axes: Any, scores: Sequence[Score], quantity: str, name: str, index: int) -> None:
    colour, marker = _COLOURS[index % 4], _MARKERS[index % 4]
    for row, score in enumerate(scores):
        hollow = quantity == "eics" and score.status == "clipped"
        axes.plot(
            [getattr(score, quantity)],
            [row],
            marker,
            color=colour,
            markerfacecolor="none" if hollow else colour,
            label=name if row == 0 else None,
        )


def _shares(figure: Any, axes: Any, scores: Sequence[Score], name: str) -> None:
    """A map of shares: prompts by edges, or nodes, the largest on average first."""
    by_prompt = [{str(term): term.share for term in (score.nodes or score.edges)} for score in scores]
    terms = {term for shares in by_prompt for term in shares}
    mean = {term: sum(shares.get(term, 0.0) for shares in by_prompt) / max(1, len(by_prompt)) for term in terms}
    columns = sorted(mean, key=lambda term: (-mean[term], term))[:_COLUMNS]
    table = [[shares.get(column, 0.0) for column in columns] for shares in by_prompt]
    image = axes.imshow(table, aspect="auto", cmap="cividis", vmin=0.0)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8)
    axes.set_yticks([])
    cut = f"{len(columns)} largest of {len(terms)}" if len(terms) > len(columns) else f"all {len(terms)}"
    axes.set_title(rf"Share of $C_{{\mathrm{{sh}}}}$, {name} ({cut})", fontsize=11)
    figure.colorbar(image, ax=axes)
