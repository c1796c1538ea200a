"""Figures from results alone, built without pyplot: no global state and no display, yet notebooks show them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, nan
from pathlib import Path
from typing import Any

from eics.data.files import whole_file
from eics.errors import OptionError
from eics.reporting.figure_text import clean_texts
from eics.scoring.result import EdgeTerm, NodeTerm, Score

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
    """A figure of one result: `circuit`, `edges`, `nodes` or `curve`."""
    kinds = {"circuit": circuit, "edges": edges, "nodes": nodes, "curve": curve}
    if what not in kinds:
        raise OptionError.of("what", f"one of {', '.join(kinds)}", what)
    return kinds[what](score)


def circuit(score: Score, *, max_edges: int = 150) -> Any:
    """The circuit in layers: width by |attribution| if the records have it, colour by share of inconsistency."""
    from eics.circuits.graph import Circuit, Edge
    from eics.reporting.drawing import draw_circuit

    _check_terms(score, "edges")
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
    _check_terms(score, "edges")
    return _bars(score, score.edges, most)


def nodes(score: Score, *, most: int = _BARS) -> Any:
    """The same for nodes, if the residual is taken by node."""
    _check_terms(score, "nodes")
    return _bars(score, score.nodes, most)


def _bars(score: Score, terms: Sequence[EdgeTerm | NodeTerm], most: int) -> Any:
    worst = terms[:most]
    figure, (axes,) = panels(7.0, 1.2 + 0.26 * len(worst))
    widths = [0.0 if score.is_consistent else 100 * term.share for term in worst]  # then shares are rounding errors
    axes.barh(range(len(worst)), widths, color=COLOURS[0])
    axes.set_yticks(range(len(worst)), [str(term) for term in worst], fontsize=8, parse_math=False)
    axes.invert_yaxis()
    left = len(terms) - len(worst)
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
    """Histograms of the score, C_sh, dEI and the emergence term over the prompts, split by label.

    What no prompt has gets no panel.
    """
    from matplotlib.ticker import MaxNLocator

    scored = [score for score in scores if not score.failed]
    groups: dict[str, list[Score]] = {}
    for score in sorted(scored, key=_label):
        groups.setdefault(_label(score), []).append(score)
    present = [name for name in _SPREAD if any(getattr(score, name) is not None for score in scored)] or list(_SPREAD)
    rows, columns = ceil(len(present) / 2), min(2, len(present))
    figure, grid = panels(5.0 * columns, 2.5 * rows, rows=rows, columns=columns)
    for axes in grid[len(present) :]:
        axes.set_axis_off()
    for axes, name in zip(grid, present, strict=False):
        title = _SPREAD[name]
        values = [_known(group, name) for group in groups.values()] or [[]]
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

    A prompt has the same row in all three panels, in every configuration. Scores that were clipped to 0 are drawn
    hollow. Only the first 40 prompts that were scored are shown, and the title says so.
    """
    by_prompt = {name: _by_prompt(scores) for name, scores in scored.items()}
    prompts = list(dict.fromkeys(key for scores in by_prompt.values() for key in scores))
    rows = [key for key in prompts if any(key in s and not s[key].failed for s in by_prompt.values())][:_ROWS]
    shown = {name: [_scored(scores.get(key)) for key in rows] for name, scores in by_prompt.items()}
    height = 1.6 + 0.32 * max(4, len(rows))
    figure, (left, middle, right) = panels(13.5, height, columns=3, width_ratios=[1, 1, 1.5])
    for index, (name, scores) in enumerate(shown.items()):
        _dots(left, scores, "c_sh", name, index)
        _dots(middle, scores, "eics", name, index)
    for axes, title in ((left, r"$C_{\mathrm{sh}}$"), (middle, "EICS (hollow: clipped to 0)")):
        axes.set_title(title, fontsize=11)
        axes.grid(visible=True, axis="x", linewidth=0.5, alpha=0.5)
    if rows:
        left.legend(frameon=False, fontsize=9, loc="best")
    _shares(figure, right, *next(reversed(shown.items())))
    for axes in (left, middle, right):  # the rows of the map are one high, so all panels need its limits
        axes.set_yticks(range(len(rows)), [str(id) for id, _ in rows] if axes is left else [], parse_math=False)
        axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
    if len(rows) < len(prompts):
        figure.suptitle(f"{len(rows)} of {len(prompts)} prompts")
    return figure


def _by_prompt(scores: Sequence[Score]) -> dict[tuple[str | int, int], Score]:
    """Results by prompt: by id and, should an id come more than once, by how often it came before."""
    seen: Counter[str | int] = Counter()
    by_prompt = {}
    for score in scores:
        by_prompt[score.id, seen[score.id]] = score
        seen[score.id] += 1
    return by_prompt


def _scored(score: Score | None) -> Score | None:
    return None if score is None or score.failed else score


def _known(scores: Sequence[Score], name: str) -> list[float]:
    return [value for score in scores if (value := getattr(score, name)) is not None]


def save(figure: Any, path: str | Path) -> None:
    """Writes a whole figure in the format of the file's ending; text stays text, and equal figures give equal files."""
    from matplotlib import rc_context

    clean_texts(figure)
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "eics", "pdf.fonttype": 42}), whole_file(path) as part:
        figure.savefig(part, dpi=160, metadata=undated)


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
    numbers = (("EICS", score.eics), ("C_sh", score.c_sh))
    known = ", ".join(f"{name} {value:.4g}" for name, value in numbers if value is not None)
    return f"{score.id}: {known}" if known else str(score.id)


def _check_terms(score: Score, kind: str) -> None:
    if not getattr(score, kind):
        others = next((name for name in ("edges", "nodes") if getattr(score, name)), None)
        why = score.reason or (f"it has {others} only, which plot({others!r}) shows" if others else "it names no terms")
        raise OptionError(f"A result must have {kind} to be drawn. Prompt {score.id} has none: {why}")


def _dots(axes: Any, scores: Sequence[Score | None], quantity: str, name: str, index: int) -> None:
    """A dot in the row of each prompt that was scored."""
    colour, marker = COLOURS[index % 4], _MARKERS[index % 4]
    label: str | None = name
    for row, score in enumerate(scores):
        if score is None or getattr(score, quantity) is None:
            continue
        face = "none" if quantity == "eics" and score.status == "clipped" else colour
        axes.plot([getattr(score, quantity)], [row], marker, color=colour, markerfacecolor=face, label=label)
        label = None


def _shares(figure: Any, axes: Any, name: str, scores: Sequence[Score | None]) -> None:
    """A heat map of shares: prompts by edges or nodes, in order of their mean share; a prompt without any is blank."""
    by_prompt = [_terms(score) for score in scores]
    terms = {term for shares in by_prompt for term in shares}
    mean = {term: sum(shares.get(term, 0.0) for shares in by_prompt) / max(1, len(by_prompt)) for term in terms}
    columns = sorted(mean, key=lambda term: (-mean[term], term))[:_COLUMNS]
    table = [[shares.get(column, 0.0 if shares else nan) for column in columns] for shares in by_prompt]
    lowest = min((shares.get(column, 0.0) for shares in by_prompt for column in columns), default=0.0)
    image = axes.imshow(table or [[nan]], aspect="auto", cmap="cividis", vmin=min(0.0, lowest))  # some are negative
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", fontsize=8, parse_math=False)
    cut = f"{len(columns)} largest of {len(terms)}" if len(terms) > len(columns) else f"all {len(terms)}"
    axes.set_title(rf"Share of $C_{{\mathrm{{sh}}}}$, {name} ({cut})", fontsize=11)
    figure.colorbar(image, ax=axes)


def _terms(score: Score | None) -> dict[str, float]:
    """Shares by node or edge; none for a prompt that failed, or that is consistent to rounding."""
    if score is None or score.is_consistent:
        return {}
    return {str(term): term.share for term in (score.nodes or score.edges)}
