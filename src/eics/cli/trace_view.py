"""What `eics trace` prints: the text with its unusual tokens marked, nodes by tokens as a map, and the suspects.

A colour, or a shade of the map, says how large the largest z is compared with the threshold of a suspect. Without
colours, brackets mark suspects.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from eics.cli.layout import Column, fitted
from eics.cli.terminal import blocks, console, print_list
from eics.errors import printable
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.tracing.generation import Step
    from eics.studies.tracing.result import Header, Trace
    from eics.studies.tracing.task import Task

_ROWS = 10  # nodes of a map
_LEAST = 3  # that it has even if nothing is unusual
_SUSPECTS = 8  # lines of the table
_FEW = 3  # texts that are shown one by one
_STEPS = (0.5, 0.75, 1.0)  # of the threshold, at which a shade begins
_STYLES = ("", "yellow", "dark_orange", "bold white on red")
_SHADES, _PLAIN = " ░▒█", " .:#"
_WRITTEN = "italic"


class Shown:
    """What one run prints, as it goes or in the end."""

    def __init__(self, task: "Task", texts: int) -> None:
        self.task, self.texts, self.screen = task, texts, console()
        self._between: str | None = None  # the tokens of the text that is being streamed

    @property
    def streams(self) -> bool:
        """Whether tokens are printed as they come: on a terminal, while the model writes."""
        return bool(self.task.generate) and self.screen.is_terminal

    def step(self, step: "Step") -> None:
        """The next tokens of a text that grows."""
        if not self.streams:
            return
        header, texts = self.task.header, self.task.texts(step.tokens)
        for token, column in zip(texts, step.z.T, strict=True):
            style = f"{_style(_largest(column), header)} {_WRITTEN if step.generated else ''}".strip()
            marked = _marked(token, _largest(column), header, colours=self.screen.color_system is not None)
            self.screen.print(Text((self._between or "") + marked, style), end="", soft_wrap=True)
            self._between = _between(texts) if self._between is None else self._between

    def text(self, trace: "Trace") -> None:
        """What follows a text that was streamed."""
        self._between = None
        self.screen.print()
        self._details(trace, several=self.texts > 1)

    def all(self, traces: "Sequence[Trace]") -> None:
        """Every text: a few one by one, more as a table."""
        if len(traces) > _FEW:
            self.screen.print(traces_table(traces, self.screen.width))
            alarmed = sum(bool(trace.suspects) for trace in traces)
            print_list(f"{alarmed} of {len(traces)} texts have a suspect.", *_notes(traces))
            return
        for trace in traces:
            if not trace.failed:
                self.screen.print(coloured(trace, colours=self.screen.color_system is not None))
            self._details(trace, several=len(traces) > 1)

    def _details(self, trace: "Trace", *, several: bool) -> None:
        if not trace.failed:
            self.screen.print(heat_map(trace, self.screen.width, shades=_SHADES if blocks() else _PLAIN))
        name = f"{trace.id}: " if several else ""
        if trace.suspects:
            self.screen.print(suspects_table(trace, self.screen.width))
        print_list(f"{name}{trace.sentence}", *(f"{name}{note}" for note in trace.notes))


def coloured(trace: "Trace", *, colours: bool) -> Text:
    """The text, each token coloured by its largest z; without colours, suspects in brackets."""
    text, between = Text(), _between(trace.tokens)
    for place, (token, z) in enumerate(zip(trace.tokens, trace.largest, strict=True)):
        style = _style(z, trace.header)
        written = _WRITTEN if trace.generated is not None and place >= trace.generated else ""
        marked = _marked(token, z, trace.header, colours=colours)
        text.append(f"{between if place else ''}{marked}", f"{style} {written}".strip())
    return text


def heat_map(trace: "Trace", width: int, *, shades: str = _SHADES) -> Text:
    """The most unusual nodes over the tokens, one column or less for each, and what the shades say."""
    table = np.nan_to_num(trace.table, nan=-np.inf)
    most = table.max(axis=1)
    order = [row for place, row in enumerate(np.argsort(-most, kind="stable")[:_ROWS])
             if np.isfinite(most[row]) and (place < _LEAST or _level(float(most[row]), trace.header))]  # fmt: skip
    names = [trace.header.nodes[row] for row in order]
    label = max(map(cell_len, names), default=0)
    together = math.ceil(len(trace.tokens) / max(1, width - label - 1))
    text = Text()
    for name, row in zip(names, order, strict=True):
        text.append(f"{name:<{label}} ")
        for start in range(0, len(trace.tokens), together):
            level = _level(float(table[row, start : start + together].max()), trace.header)
            text.append(shades[level], _STYLES[level].replace("on red", "").replace("white", "red"))
        text.append("\n")
    return text + Text(_legend(trace.header, shades, together), "dim")


def suspects_table(trace: "Trace", width: int) -> "Table":
    """The suspects, most unusual first."""
    shown = trace.suspects[:_SUSPECTS]
    more = len(trace.suspects) - len(shown)
    columns = [
        Column("node", [suspect.node for suspect in shown], text=True),
        Column("at", [str(suspect.position) for suspect in shown]),
        Column("token", [_quoted(suspect.token) for suspect in shown], text=True),
        Column("z", [number(suspect.z) for suspect in shown]),
    ]
    return fitted("Suspects" + (f" ({more} more are not shown)" if more else ""), columns, width)


def traces_table(traces: "Sequence[Trace]", width: int) -> "Table":
    """A row for each text."""
    odd = [trace.most_unusual for trace in traces]
    columns = [
        Column("id", [str(trace.id) for trace in traces], names=True),
        Column("p", [number(trace.p_value) for trace in traces]),
        Column("suspects", ["" if trace.failed else str(len(trace.suspects)) for trace in traces]),
        Column("largest z", ["" if one is None else number(one.z) for one in odd]),
        Column("node", ["" if one is None else one.node for one in odd], text=True),
        Column("at", ["" if one is None else str(one.position) for one in odd], rank=2),
        Column("token", ["" if one is None else _quoted(one.token) for one in odd], rank=1, text=True),
        Column("status", [trace.status for trace in traces], rank=3, text=True),
        Column("text", [" ".join((trace.text or "").split()) for trace in traces], rank=4, text=True, least=24),
    ]
    return fitted("Texts, by the largest z of any node at any token", columns, width)


def _notes(traces: "Sequence[Trace]") -> list[str]:
    noted = [trace for trace in traces if trace.notes]
    return [f"{len(noted)} of them have notes. The first, {noted[0].id}: {noted[0].notes[0]}"] if noted else []


def _legend(header: "Header", shades: str, together: int) -> str:
    if header.threshold is None:
        return "no z is enough for a suspect at this level"
    at = [f"{shade} from {number(step * header.threshold)}" for shade, step in zip(shades[1:], _STEPS, strict=True)]
    columns = "a column is a token" if together == 1 else f"a column is {together} tokens, the largest z of them"
    return f"z: {', '.join(at)} (a suspect), blank: usual; {columns}"


def _largest(column: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float | None:
    known = column[~np.isnan(column)]
    return float(known.max()) if known.size else None


def _level(z: float | None, header: "Header") -> int:
    """How many steps a z has passed."""
    if z is None or header.threshold is None:
        return 0
    return sum(z >= step * header.threshold for step in _STEPS) if header.threshold > 0 else int(z >= header.threshold)


def _style(z: float | None, header: "Header") -> str:
    return _STYLES[_level(z, header)]


def _marked(token: str, z: float | None, header: "Header", *, colours: bool) -> str:
    """A token as text, in brackets if it has a suspect that no colour can show."""
    token = printable(token)
    if colours or _level(z, header) < len(_STEPS):
        return token
    blank = token[: len(token) - len(token.lstrip(" "))]
    return f"{blank}[{token[len(blank) :]}]"


def _between(tokens: Sequence[str]) -> str:
    """What stands between two tokens: nothing if they bring their own blanks, as those of most tokenizers do."""
    return "" if any(token[:1].isspace() for token in tokens[1:]) else " "


def _quoted(token: str) -> str:
    return printable(repr(token))
