"""Tables that fit the terminal: texts are shortened or folded first, then the least important columns are left out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE
from rich.cells import cell_len, set_cell_size
from rich.markup import escape
from rich.table import Table

_BETWEEN = 2  # blanks between two columns
_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")


@dataclass
class Column:
    """A column with all its cells.

    Attributes:
        rank: 0 is never left out; of the others the highest goes first.
        text: left-aligned, and may be cut in its middle down to `least` characters. Numbers are never cut.
        folds: a text that is folded between words instead of being cut.
        style: a colour for its cells.
    """

    head: str
    cells: Sequence[str]
    rank: int = 0
    text: bool = False
    folds: bool = False
    least: int = 8
    style: str | None = None
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(cell_len(self.head), *map(cell_len, self.cells), 1)

    @property
    def narrowest(self) -> int:
        """The width below which it cannot be read."""
        words = [word for cell in (self.head, *self.cells) for word in cell.split()] if self.folds else []
        least = max(map(cell_len, words), default=1) if self.folds else self.least if self.text else self.width
        return min(self.width, max(least, cell_len(self.head)))


def fitted(title: str, columns: Sequence[Column], width: int) -> Table:
    """A table of at most `width` characters; its caption names the columns that did not fit."""
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
    caption = f"Not shown in {width} columns: {', '.join(left_out)}." if left_out else None
    return _rendered(title, shown, caption)


def shortened(text: str, width: int) -> str:
    """A text at most `width` columns wide, with an ellipsis in its middle if it is wider.

    >>> shortened("a very long name", 9)
    'a ve…name'
    """
    if cell_len(text) <= width:
        return text
    kept = max(0, width - 1)
    start, end = set_cell_size(text, kept - kept // 2), set_cell_size(text[::-1], kept // 2)[::-1]
    return start + "…" + end


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


def _rendered(title: str, columns: Sequence[Column], caption: str | None) -> Table:
    table = Table(
        title=escape(title),
        caption=caption,
        box=SIMPLE,
        title_justify="left",
        caption_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        is_text = column.text or column.folds
        table.add_column(
            column.head,
            justify="left" if is_text else "right",
            no_wrap=not column.folds,
            overflow="fold" if column.folds else "ellipsis",
            width=column.width,
            style=column.style,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        pairs = zip(row, columns, strict=True)
        table.add_row(*(escape(cell if c.folds else shortened(cell, c.width)) for cell, c in pairs))
    return table
