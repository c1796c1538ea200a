"""The shell of every page: one HTML file with its style, its data and its script, and a policy that forbids all else.

A page is a body, style sheets and scripts of `assets`, concatenated in the order given here. What several pages need
is a file of its own: `make lint` lints each page's script whole, and refuses what a page has and does not use.
"""

import hashlib
import html
import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from eics.errors import OptionError

_FIRST = ("embedded.js", "dom.js", "colour.js", "theme.js", "hash.js", "help.js", "notes.js", "tip.js", "table.js")
_STUDY = (*_FIRST, "legend.js", "study.js", "filters.js", "sheet.js")
_GRAPH = ("zoom.js", "graph.js", "nodegraph.js", "export.js")


@dataclass(frozen=True)
class Shell:
    """The assets that a page consists of."""

    body: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]


PAGES: Mapping[str, Shell] = {
    "report": Shell("report.html", ("report.css",), (
        *_FIRST, "letters.js", "percent.js", "magma.js", "away.js", "above.js", "labels.js", "legend.js", "data.js",
        "run.js", "distributions.js", "prompts.js", "usual.js", "zoom.js", "graph.js", "circuit.js", "terms.js",
        "expected.js", "compare.js", "curve.js", "token.js", "matrix.js", "details.js", "export.js", "prompt.js",
        "versus.js", "address.js", "keys.js", "main.js",
    )),
    "models": Shell("study.html", ("report.css", "study.css"), (
        *_STUDY, *_GRAPH, "tick.js", "percent.js", "magma.js", "token.js", "interval.js", "effects.js", "models.js",
    )),
    "sets": Shell("study.html", ("report.css", "study.css"), (
        *_STUDY, *_GRAPH, "letters.js", "zs.js", "away.js", "labels.js", "interval.js", "strip.js", "sets.js",
    )),
    "trace": Shell("study.html", ("report.css", "study.css"), (
        *_STUDY, "letters.js", "zs.js", "away.js", "above.js", "token.js", "texts.js", "heat.js", "line.js",
        "trace.js",
    )),
}  # fmt: skip
"""Every page by name."""


def build_page(name: str, data: Mapping[str, Any]) -> str:
    """A page as text; its title is that of the data."""
    code = script(name)
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "STYLE": "".join(map(_asset, PAGES[name].styles)),
        "BODY": _asset(PAGES[name].body),
        "SCRIPT": code,
        "SCRIPT_HASH": b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        "DATA": embed(data),
    }
    first, *rest = _asset("shell.html").split("{{")
    return first + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))


def script(name: str) -> str:
    """The code of a page as one script, in a function of its own so that no name is global."""
    return '(() => {\n"use strict";\n' + "\n".join(map(_asset, PAGES[name].scripts)) + "})();\n"


def embed(data: Any) -> str:
    """JSON for a script element: without '<', nothing in it can end the element or open a comment.

    >>> embed("</script>")
    '"\\\\u003c/script>"'
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # A damaged prompt may hold lone surrogates, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace").decode("utf-8").replace("<", "\\u003c")


def check_report_path(path: Path) -> None:
    """Refuses a path that no report can be written to, before any work is done."""
    if path.suffix not in (".html", ".htm") or not path.parent.is_dir():
        raise OptionError.of("report", "an .html file in a folder that exists", str(path))


def _asset(name: str) -> str:
    return (files("eics.reporting.page") / "assets" / name).read_text(encoding="utf-8")
