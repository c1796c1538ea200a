"""Results in notebooks: HTML tables with bars, in the notebook's own colours, and data frames. All text is escaped."""

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from eics.scoring.numbers import number, percent

if TYPE_CHECKING:
    from eics.scoring.result import EdgeTerm, NodeTerm, Score, Scores

_ROWS = 60  # prompts before "and more"
_TERMS = 8  # worst edges or nodes
_BAR = "#b73779"  # from the report's palette; visible on white and on black
_NUMBERS = (
    ("eics", "EICS"), ("c_sh", "C_sh"), ("consistency", "1/(1+C_sh)"), ("dei", "dEI (nats)"),
    ("dei_norm", "emergence term"), ("ei_macro", "macro EI"), ("emergence_ratio", "ratio r"), ("alpha", "alpha"),
    ("percentile", "percentile"),
)  # fmt: skip
_NOT_SCALAR = (
    "version", "circuit", "ei_parts", "edges", "nodes", "norms", "node_positions", "stderr", "diagnostics", "curve",
    "tokens", "token_ids", "predictions", "warnings", "details", "interventions",
)  # fmt: skip
_ABSENT = "-"  # a number that was not computed, of a prompt that was scored
_CELL = "text-align:right;padding:2px 10px;font-variant-numeric:tabular-nums"
_LEFT = "text-align:left;padding:2px 10px"


def score_html(score: "Score") -> str:
    """One result: its numbers, the reason for its status, and the worst edges or nodes."""
    title = f"EICS of {_text(score.id)}"
    if score.failed:
        return f"<div><b>{title}</b> failed: {_text(score.reason)}</div>"
    tiles = "".join(_tile(label, getattr(score, name), score.error_of(name)) for name, label in _NUMBERS)
    prompt = f"<div style='opacity:.75'>{_text(score.prompt)}</div>" if score.prompt else ""
    reason = f"<div style='border-left:3px solid #d08700;padding-left:8px;margin:6px 0'>{_text(score.reason)}</div>"
    return (
        f"<div><b>{title}</b> ({_text(score.status)}){prompt}"
        f"<div style='display:flex;flex-wrap:wrap;gap:4px 22px;margin:8px 0'>{tiles}</div>"
        f"{reason if score.reason else ''}{_predictions(score)}{_terms(score)}</div>"
    )


def scores_html(scores: "Scores") -> str:
    """One row per prompt, with bars for the score and C_sh, then the summary of the batch."""
    names = ("id", "eics", "c_sh", "dei_norm", "dei", "status")
    labelled = any(score.label is not None for score in scores)
    heads = [*names, "label"] if labelled else names
    largest = {name: max((getattr(s, name) or 0.0 for s in scores), default=0.0) for name in ("eics", "c_sh")}
    rows = "".join(_row(score, names, largest, labelled) for score in scores[:_ROWS])
    more = f"<p>... and {len(scores) - _ROWS} more.</p>" if len(scores) > _ROWS else ""
    notes = "".join(f"<p>{_text(line)}</p>" for line in scores.summary())
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in heads)}</tr>{rows}</table>{more}{notes}"


def _row(score: "Score", names: Sequence[str], largest: dict[str, float], labelled: bool) -> str:
    cells = []
    for name in names:
        value = getattr(score, name)
        bar = _bar(value / largest[name]) if largest.get(name) and value is not None else ""
        if value is None:
            shown = "" if score.failed else _ABSENT
        else:
            shown = number(value) if isinstance(value, float) else str(value)
        cells.append(f"<td style='{_CELL if isinstance(value, float) else _LEFT}'>{bar}{_text(shown)}</td>")
    if labelled:
        cells.append(f"<td style='{_LEFT}'>{_text('' if score.label is None else score.label)}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _tile(label: str, value: float | None, error: float | None) -> str:
    if value is None:
        return ""
    shown = f" <small style='opacity:.7'>± {number(error)}</small>" if error else ""
    return f"<span><small style='opacity:.7'>{label}</small><br><b>{number(value)}</b>{shown}</span>"


def _predictions(score: "Score") -> str:
    listed = (
        f"{_text(repr(entry['token']) if entry['token'] is not None else entry['id'])} {percent(entry['probability'])}"
        for entry in score.predictions
    )
    return f"<div>Next token: {', '.join(listed)}</div>" if score.predictions else ""


def _terms(score: "Score") -> str:
    if score.is_consistent:
        return "<div>Consistent to rounding: no edge is to blame.</div>"
    terms: Sequence[EdgeTerm | NodeTerm] = score.nodes or score.edges
    largest = max((abs(term.share) for term in terms), default=0.0) or 1.0
    rows = "".join(
        f"<tr><td style='{_LEFT}'>{_text(term)}</td><td style='{_LEFT}'>{_bar(term.share / largest)}</td>"
        f"<td style='{_CELL}'>{percent(term.share)}</td><td style='{_CELL}'>{number(term.residual)}</td></tr>"
        for term in terms[:_TERMS]
    )
    heads = (f"worst {'nodes' if score.nodes else 'edges'}", "", "share of C_sh", "squared residual")
    return f"<table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"


def _bar(fraction: float) -> str:
    """A bar in a track of fixed width, so that the bars of a column are aligned."""
    width = round(100 * min(1.0, max(0.0, fraction)))
    inner = f"<span style='display:block;height:9px;width:{width}%;background:{_BAR}'></span>"
    return f"<span style='display:inline-block;width:6em;margin-right:6px'>{inner}</span>"


def _text(value: Any) -> str:
    return html.escape(str(value))


def edges_frame(score: "Score") -> Any:
    """The edges of one result as a pandas data frame, most inconsistent first."""
    columns = ("source", "target", "port", "residual", "share", "cosine", "attribution")
    rows = [[str(edge), *(getattr(edge, name) for name in columns)] for edge in score.edges]
    return _pandas().DataFrame(rows, columns=["edge", *columns])


def scores_frame(scores: "Iterable[Score]") -> Any:
    """One row per result, with every field that is a single number or text."""
    rows = [
        {name: value for name, value in record.items() if name not in _NOT_SCALAR}
        | {"circuit": (record["circuit"] or {}).get("name"), "length": record["diagnostics"].get("length")}
        for record in (score.to_record() for score in scores)
    ]
    return _pandas().DataFrame(rows)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        from eics.errors import OptionError

        raise OptionError("to_pandas needs pandas, which is not installed: pip install pandas.") from None
    return pandas
