"""Files with a page of their own: what `eics compare` and `eics trace` wrote, told from records by their content."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eics.data.files import write_text
from eics.data.json_text import parse_json
from eics.errors import RecordError
from eics.reporting.page.comparison import comparison_page
from eics.reporting.page.trace import trace_page

COMPARISON, TRACE = "eics-comparison", "eics-trace"
_FIELD = '"format"'  # stands in the beginning of both
_BEGINNING = 4096


def document_format(path: Path) -> str | None:
    """The format of a comparison or of a trace; None for any other file."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING).decode("utf-8", "replace")
    except OSError:
        return None
    if _FIELD not in beginning:
        return None
    return next((name for name in (COMPARISON, TRACE) if f'"{name}"' in beginning.replace(" ", "")), None)


def write_document_page(path: Path, out: Path) -> None:
    """Writes the page of a comparison or of a trace."""
    if document_format(path) == COMPARISON:
        write_text(out, comparison_page(_object(path, path.read_text(encoding="utf-8"), "")))
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    objects = [_object(path, line, f" in line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    write_text(out, trace_page(objects[0], objects[1:]))


def check_single(paths: Sequence[Path]) -> None:
    """Refuses a comparison or a trace among several files: each has a page of its own."""
    for path in paths:
        found = document_format(path)
        if found is not None:
            kind = "comparison" if found == COMPARISON else "trace"
            raise RecordError(f"A {kind} has a page of its own. Got {str(path)!r} among {len(paths)} files.")


def _object(path: Path, text: str, where: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise RecordError(f"{str(path)!r} must hold a JSON object{where}: it is damaged or was cut short.")
    return value
