"""Puts data, styles and script into one self-contained HTML file."""

import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from eics.errors import OptionError
from eics.reporting.page.data import report_data
from eics.scoring.result import Score

SCRIPTS = (
    "data.js", "dom.js", "colour.js", "table.js", "run.js", "distributions.js", "prompts.js", "circuit.js", "terms.js",
    "compare.js", "curve.js", "prompt.js", "main.js",
)  # fmt: skip
"""The page's code, in the order in which it is concatenated."""


def write_report(
    scores: Iterable[Score], path: str | Path, *, notes: Sequence[str] = (), source: str | None = None
) -> None:
    """Writes the report of results to an HTML file.

    Args:
        scores: results of `eics.score` or `eics.read_records`.
        path: the file to write, ending in .html.
        notes: remarks to show at the top of the page, such as lines that could not be read.
        source: name of the file that the results came from.
    """
    check_report_path(Path(path))
    Path(path).write_text(build_page(report_data(scores, notes=notes, source=source)), encoding="utf-8")


def check_report_path(path: Path) -> None:
    """Refuses a path that no report can be written to, before any work is done."""
    if path.suffix not in (".html", ".htm") or not path.parent.is_dir():
        raise OptionError.of("report", "an .html file in a folder that exists", str(path))


def build_page(data: dict[str, Any]) -> str:
    """The page as text."""
    code = script()
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "STYLE": _asset("report.css"),
        "SCRIPT": code,
        "SCRIPT_HASH": b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        "DATA": embed(data),
    }
    first, *rest = _asset("report.html").split("{{")
    return first + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))


def script() -> str:
    """The page's code as one script, in a function of its own so that no name is global."""
    return "(() => {\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"


def embed(data: Any) -> str:
    """JSON for a script element: without '<', nothing in it can end the element or open a comment.

    >>> embed("</script>")
    '"\\\\u003c/script>"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A damaged prompt may hold lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode("utf-8").replace("<", "\\u003c")


def _asset(name: str) -> str:
    return (files("eics.reporting.page") / "assets" / name).read_text(encoding="utf-8")
