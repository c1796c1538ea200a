"""Figures from results alone, built without pyplot: no global state and no display, yet notebooks show them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eics.errors import OptionError
from eics.scoring.result import Score

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe-Ito: safe for colour-blind readers
_MARKERS = ("o", "s", "^", "D")
_COLUMNS = 12  # edges or nodes in the map of shares
_ROWS = 40  # prompts
_BARS = 20
_BINS = 20
_SPREAD = {"eics": "EICS", "c_sh": r"$C_{\mathrm{sh}}$", "dei": "dEI (nats)", "dei_norm": "emergence term"}


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **grid: Any) -> tuple[Any, list[Any]]:
    """An empty figure of this size in inches, and its axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **grid).flat)


def plot_score(score: Score, what: str = "circuit") -> Any:
    """A figure of one result: `circuit`, `edges` or `curve`."""
    kinds = {"circuit": circuit, "edges": edges, "curve": curve}
    if what not in kinds:
        raise OptionError.of("what", f"one of {', '.join(kinds)}", what)
    return kinds[what](score)


def circuit(score: Score, *, max_edges: int = 150) -> Any:
    """The circuit in layers: width by |attribution| if the records have it, colour by share of inconsistency."""
    from eics.circuits.graph import Circuit, Edge
    from eics.reporting.drawing import draw_circuit

    _check_scored(score)
    terms = {Edge(term.source, term.target, term.port): term for term in score.edges}
    attributions = {edge: term.attribution for edge, term in terms.items() if term.attribution is not None}
    blame = not score.is_consistent
    figure = draw_circuit(
        Circuit(sorted(terms, key=str)),
        scores=attributions or None,
        shares={edge: term.share if blame else 0.0 for edge, term in terms.items()},
        node_shares={term.node: term.share for term in score.nodes if blame} or None,
        max_edges=max_edges,
        title=_title(score),
    )
    return _shown(figure)


def edges(score: Score, *, most: int = _BARS) -> Any:
    """A bar for each of the worst edges, by share of the squared residual."""
    _check_scored(score)
    worst = score.edges[:most]
    figure, (axes,) = panels(7.0, 1.2 + 0.26 * len(worst))
    axes.barh(range(len(worst)), [100 * term.share for term in worst], color=COLOURS[0])
    axes.set_yticks(range(len(worst)), [str(term) for term in worst], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    left = len(score.edges) - len(worst)
    axes.set_xlabel("share of the squared residual, %" + (f" ({left} smaller ones not shown)" if left else ""))
    axes.set_title(_title(score), fontsize=11, parse_math=False)
    axes.grid(visible=True, axis="x", linewidth=0.5, alpha=0.5)
    return _shown(figure)


def curve(score: Score) -> Any:
    """dEI over alpha, marking the alpha that was used and the zeros of dEI; needs a result scored with `curve=True`."""
    if score.curve is None:
        raise OptionError(f"A result must have its curve. Prompt {score.id} has none: score it with curve=True.")
    figure, (axes,) = panels(7.0, 3.6)
    axes.plot(score.curve["alpha"], score.curve["dei"], color=COLOURS[0])
    axes.axhline(0.0, color="#888888", linewidth=0.8, linestyle="--")
    if score.alpha is not None:
        axes.axvline(score.alpha, color="#222222", linewidth=1.0, label=f"alpha {score.alpha:.3g}")
    for number, zero in enumerate(score.curve.get("zeros", [])):
        label = f"dEI = 0 at {zero:.3g}"
        axes.plot([zero], [0.0], _MARKERS[number % 4], color=COLOURS[1], markerfacecolor="white", label=label)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=max(1e-9, max(map(abs, score.curve["dei"]), default=1.0) / 1000))
    axes.set(xlabel="alpha", ylabel="dEI (nats)")
    axes.legend(frameon=False, fontsize=9)
    axes.set_title(_title(score), fontsize=11, parse_math=False)
    return _shown(figure)


def distributions(scores: Sequence[Score]) -> Any:
    """Histograms of the score, C_sh, dEI and the emergence term over the prompts, split by label."""
    from matplotlib.ticker import MaxNLocator

    scored = [score for score in scores if score.eics is not None]
    groups: dict[str, list[Score]] = {}
    for score in sorted(scored, key=_label):
        groups.setdefault(_label(score), []).append(score)
    figure, grid = panels(10.0, 5.0, rows=2, columns=2)
    for axes, (name, title) in zip(grid, _SPREAD.items(), strict=True):
        values = [[getattr(score, name) for score in group] for group in groups.values()] or [[]]
        flat = [value for group in values for value in group]
        bounds = (min(flat), max(flat)) if flat and min(flat) < max(flat) else None
        axes.hist(values, bins=_BINS, range=bounds, color=_colours(len(values)), label=list(groups) or None)
        axes.set_title(title, fontsize=11)
        axes.set_ylabel("prompts")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    if any(score.label is not None for score in scored):
        figure.axes[0].legend(frameon=False, fontsize=9)
    return _shown(figure)


def scores_figure(scored: Mapping[str, Sequence[Score]]) -> Any:
    """C_sh and the score of every prompt in every configuration, and what contributes to C_sh in the last one.

    Scores that were clipped to 0 are drawn hollow. Only the first 40 prompts are shown, and the title says so.
    """
    shown = {name: [s for s in scores if s.eics is not None][:_ROWS] for name, scores in scored.items()}
    last = next(reversed(shown.values()))
    total = len(next(iter(scored.values())))
    height = 1.6 + 0.32 * max(4, len(last))
    figure, (left, middle, right) = panels(13.5, height, columns=3, width_ratios=[1, 1, 1.5])
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


def save(figure: Any, path: str | Path) -> None:
    """Writes a figure in the format of the file's ending; text stays text, and equal figures give equal files."""
    from matplotlib import rc_context

    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "eics", "pdf.fonttype": 42}):
        figure.savefig(path, dpi=160, metadata=undated)


def _shown(figure: Any) -> Any:
    """Adds the PNG that notebooks show; by themselves they render only figures made with pyplot."""

    def png() -> bytes:
        from io import BytesIO

        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()

    figure._repr_png_ = png
    return figure


def _label(score: Score) -> str:
    return "no label" if score.label is None else str(score.label)


def _colours(count: int) -> list[Any]:
    """One colour per label: the palette if it is large enough, else a colour map."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    from matplotlib import colormaps

    return [colormaps["cividis"](index / (count - 1)) for index in range(count)]


def _title(score: Score) -> str:
    return f"{score.id}: EICS {score.eics:.4g}, C_sh {score.c_sh:.4g}" if score.eics is not None else str(score.id)


def _check_scored(score: Score) -> None:
    if not score.edges:
        raise OptionError(f"A result must have edges to be drawn. Prompt {score.id} has none: {score.reason}")


def _dots(axes: Any, scores: Sequence[Score], quantity: str, name: str, index: int) -> None:
    colour, marker = COLOURS[index % 4], _MARKERS[index % 4]
    for row, score in enumerate(scores):
        face = "none" if quantity == "eics" and score.status == "clipped" else colour
        label = name if row == 0 else None
        axes.plot([getattr(score, quantity)], [row], marker, color=colour, markerfacecolor=face, label=label)


def _shares(figure: Any, axes: Any, scores: Sequence[Score], name: str) -> None:
    """A heat map of shares: prompts by edges or nodes, in order of their mean share."""
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
