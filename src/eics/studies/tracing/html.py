"""A trace in a notebook: its tokens, the unusual ones marked, and its sentence. All text is escaped."""

from html import escape
from typing import TYPE_CHECKING

from eics.errors import printable
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.studies.tracing.result import Position, Trace

_MARK = "background:#b7377933;border-bottom:2px solid #b73779"  # from the report's palette; visible on white and black
_WRITTEN = "font-style:italic"


def trace_html(trace: "Trace") -> str:
    """One text."""
    words = "" if trace.failed else "".join(_word(position) for position in trace)
    notes = "".join(f"<div style='opacity:.75'>{_text(note)}</div>" for note in trace.notes)
    return f"<div><b>{_text(trace.id)}</b> <span>{words}</span><div>{_text(trace.sentence)}</div>{notes}</div>"


def _word(position: "Position") -> str:
    styles = [_MARK] * bool(position.suspects) + [_WRITTEN] * position.generated
    title = "" if position.largest is None else f"{position.node}: z {number(position.largest)}"
    return (
        f"<span style='white-space:pre-wrap;{';'.join(styles)}' title='{_text(title)}'>{_text(position.token)}</span>"
    )


def _text(text: object) -> str:
    return escape(printable(text))
