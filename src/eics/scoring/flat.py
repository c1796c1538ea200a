"""Records as flat columns, for spreadsheets: numbers and texts, nested ones under dotted names.

Lists are left out, but for `token_ids`, `suspects` and those of the options: they are JSON in a cell.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

Cells = dict[str, str]
"""The cells of a record, by column."""

_NESTED = ("circuit", "ei_parts", "norms", "options", "stderr", "diagnostics")
_LEFT_OUT = ("curve", "details", "tokens")  # lists and trees, though a record may lack them
_LISTS = ("token_ids", "suspects")  # short ones that a reader of the table wants
_LONGEST_CELL = 2**30  # characters; the csv module's own bound is 128 kB
_ODD = ("=", "+", "-", "@", "\t", "\r", "\n")  # what makes a spreadsheet read a text as a formula


def to_csv(records: Iterable[Mapping[str, Any]]) -> str:
    """Records as CSV with a header; a column that a record lacks is empty there.

    >>> print(to_csv([{"id": "=1+1", "eics": 0.5, "stderr": {"dei": 0.1}, "edges": [1]}, {"id": 2, "eics": None}]))
    id,eics,stderr.dei
    '=1+1,0.5,0.1
    2,,
    <BLANKLINE>
    """
    rows = [to_cells(record) for record in records]
    text = StringIO()
    writer = csv.DictWriter(text, _header(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_cells(record: Mapping[str, Any]) -> Cells:
    """One record as cells by column."""
    return dict(_cells(record))


def read_cells(path: Path) -> Iterator[Cells]:
    """The rows of a file that `to_csv` wrote, as text."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file, restval="", strict=True)
    finally:
        csv.field_size_limit(limit)


def _cells(record: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in record.items():
        if not path and name in _LEFT_OUT:
            continue
        column = f"{path}{name}"
        if isinstance(value, Mapping):
            if path or name in _NESTED:
                yield from _cells(value, f"{column}.")
        elif not isinstance(value, list | tuple) or path == "options." or column in _LISTS:
            yield column, _cell(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_ODD) else value
    return json.dumps(value)  # 0.1 and true, as in the other formats


def _header(rows: Iterable[Mapping[str, str]]) -> list[str]:
    """Every column, those of one field side by side in the order of first appearance."""
    fields: dict[str, dict[str, None]] = {}
    for row in rows:
        for column in row:
            fields.setdefault(column.partition(".")[0], {})[column] = None
    return [column for columns in fields.values() for column in columns]
