"""Tables that fit the terminal: texts are shortened or folded first, then the least important columns are left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_BETWEEN = 2  # blanks between two columns
_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")
_NAME = 24  # characters that a name may claim at the cost of other columns
_ENDS = (0.5, 0.25, 0.75, 0.0, 1.0)  # where a name may be cut, the best place first


class FittedTable(Table):
    """A table whose heading and remark may be wider than itself: they are folded at the terminal's edge."""

    heading = ""
    remark = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.heading, style="table.title")
        yield from super().__rich_console__(console, options)
        if self.remark:
            yield Text(self.remark, style="table.caption")


@dataclass
class Column:
    """A column with all its cells.

    Attributes:
        rank: 0 is never left out; of the others the highest goes first.
        text: left-aligned, and may be cut in its middle down to `least` characters. Numbers are never cut.
        names: a text that is cut only as far as different cells stay different, if 24 characters are enough for that.
        folds: a text that is folded between words instead of being cut.
        style: a colour for its cells.
    """

    head: str
    cells: Sequence[str]
    rank: int = 0
    text: bool = False
    names: bool = False
    folds: bool = False
    least: int = 8
    style: str | None = None
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(cell_len(self.head), *map(cell_len, self.cells), 1)

    @property
    def narrowest(self) -> int:
        """The width below which it cannot be read."""
        words = [word for cell in self.cells for word in cell.split()] if self.folds else []
        least = self.least if self.text or self.names else self.width
        least = max(map(cell_len, words), default=1) if self.folds else least
        least = min(self.width, max(least, cell_len(self.head)))
        most = min(self.width, max(least, _NAME)) if self.names else least
        return next((width for width in range(least, most) if self._tells_apart(width) is not None), most)

    @property
    def is_text(self) -> bool:
        """Whether it is aligned to the left."""
        return self.text or self.names or self.folds

    def shown(self) -> list[str]:
        """The cells, cut to the column's width; a folded text is left to the table."""
        if self.folds:
            return list(self.cells)
        share = self._tells_apart(self.width) if self.names else None
        return [shortened(cell, self.width, 0.5 if share is None else share) for cell in self.cells]

    def _tells_apart(self, width: int) -> float | None:
        """How much of a cut name its end must be for all names to stay different; None if no cut does that."""
        names = set(self.cells)
        return next((share for share in _ENDS if _differ(shortened(name, width, share) for name in names)), None)


def fitted(title: str, columns: Sequence[Column], width: int) -> FittedTable:
    """A table of at most `width` characters; a remark below it names the columns that did not fit."""
    shown = [column for column in columns if not column.rank or any(column.cells)]
    left_out: list[str] = []
    while len(shown) > 1 and _total(shown, [column.narrowest for column in shown]) > width:
        optional = [column for column in shown if column.rank]
        if not optional:
            break
        last = max(optional, key=lambda column: column.rank)
        shown.remove(last)
        left_out.append(last.head)
    _narrow(shown, width)
    table = _rendered(shown)
    table.heading = title
    table.remark = f"Not shown in {width} columns: {', '.join(left_out)}." if left_out else ""
    return table


def shortened(text: str, width: int, end: float = 0.5) -> str:
    """A text at most `width` columns wide; if it is wider, with an ellipsis before the share `end` of what is kept.

    >>> shortened("a very long name", 9), shortened("a very long name", 9, end=0)
    ('a ve…name', 'a very l…')
    """
    if cell_len(text) <= width:
        return text
    kept = max(0, width - 1)
    last = int(kept * end)
    return set_cell_size(text, kept - last) + "…" + set_cell_size(text[::-1], last)[::-1]


def bar(fraction: float, width: int, *, blocks: bool = True) -> str:
    """A bar for a fraction from 0 to 1, of eighths of a character if the terminal has them.

    >>> bar(0.5, 4), bar(0.5, 4, blocks=False)
    ('██', '##')
    """
    eighths: int = round(width * 8 * min(1.0, max(0.0, fraction)))
    if not blocks:
        return "#" * round(eighths / 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8]


def _total(columns: Sequence[Column], widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * len(columns)


def _narrow(columns: Sequence[Column], width: int) -> None:
    """Takes from the widest text first, never below what can be read."""
    while _total(columns, [column.width for column in columns]) > width:
        flexible = [column for column in columns if column.width > column.narrowest]
        if not flexible:
            return
        max(flexible, key=lambda column: column.width).width -= 1


def _differ(names: Iterator[str]) -> bool:
    """Whether no name comes twice; stops at the first that does, because there may be many."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return False
        seen.add(name)
    return True


def _rendered(columns: Sequence[Column]) -> FittedTable:
    table = FittedTable(box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(
            column.head,
            justify="left" if column.is_text else "right",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
            width=column.width,
            style=column.style,
        )
    for row in zip(*(column.shown() for column in columns), strict=True):
        table.add_row(*map(escape, row))
    return table
