"""The page of traced texts, from the lines of `trace.jsonl` alone."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eics import __version__
from eics.data.files import write_text
from eics.reporting.page.fields import Fields, check_format, is_number
from eics.reporting.page.packing import codes, hundredths, short, shorts
from eics.reporting.page.parts import circuit_fact, short_hash, told_apart
from eics.reporting.page.runs import last_name
from eics.reporting.page.shell import build_page, check_report_path

BUDGET = 1_300_000
"""Values of z that a page keeps, at two letters each: with everything else, a page stays under 5 MB."""

_FEWEST = 4  # nodes that every text keeps
_SUSPECTS = 60  # of a text

_Text = dict[str, Any]


def write_trace_page(
    header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], path: str | Path, *, notes: Sequence[str] = ()
) -> None:
    """Writes the page of traced texts to an HTML file, which appears whole, in place of an earlier one.

    Args:
        header: the first line of what `eics trace` wrote.
        lines: the other lines, one for each text.
        path: the file to write, ending in .html.
        notes: remarks to show at the top of the page.
    """
    check_report_path(Path(path))
    write_text(path, trace_page(header, lines, notes))


def trace_page(
    header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], notes: Sequence[str] = (), *, budget: int = BUDGET
) -> str:
    """The page as text; refuses a trace that is damaged or of a later version.

    With more than `budget` values of z, a text keeps those of its most unusual nodes, and the page says so.
    """
    fields = Fields(header, "trace")
    check_format(fields, "eics-trace", 1, "eics trace")
    nodes = fields.texts("nodes")
    given = [Fields(line, "trace", f"line {number}") for number, line in enumerate(lines, start=2)]
    texts, grids = zip(*(_text(line, nodes) for line in given), strict=True) if given else ((), ())
    most = max(_FEWEST, budget // max(1, sum(grid.shape[1] for grid in grids)))
    data = _header(fields, nodes) | {
        "notes": list(notes),
        "texts": told_apart(text | _packed(grid, most) for text, grid in zip(texts, grids, strict=True)),
    }
    return build_page("trace", data)


def _header(fields: Fields, nodes: list[str]) -> dict[str, Any]:
    model, level = last_name(fields.text("model")), fields.number("level")
    fingerprint = short_hash(fields.text_or_none("fingerprint"))
    r2 = fields.numbers("r2")
    if len(r2) != len(nodes):
        raise fields.refuse("r2", f"{len(nodes)} numbers, one for each node", f"{len(r2)} numbers")
    return {
        "title": f"EICS · texts traced through {model}",
        "source": None,
        "eics": __version__,
        "nodes": nodes,
        "r2": shorts(r2, 3),
        "threshold": fields.number("threshold"),
        "level": level,
        "reasons": fields.mapping("reasons", "a text", lambda value: isinstance(value, str)),
        "facts": [
            ["model", f"{model} ({fingerprint})" if fingerprint else model],
            ["circuit", circuit_fact(fields.nested_or_none("circuit"), fields.texts("edges"))],
            ["calibration", short_hash(fields.text_or_none("calibration")) or "not known"],
        ],
    }


def _text(line: Fields, nodes: list[str]) -> tuple[_Text, np.ndarray]:
    """A text without its z, and its z by node and token."""
    status = line.one_of("status", ("ok", "failed"))
    about = {"id": line.identity("id"), "status": status, "text": line.text_or_none("text")}
    if status == "failed":
        return about | {"reason": line.text_or_none("reason") or "no reason is given"}, np.zeros((0, 0))
    tokens = line.texts("tokens")
    about["text"] = None if about["text"] == "".join(tokens) else about["text"]
    largest = _of_length(line, "largest", line.numbers("largest"), len(tokens))
    at = _of_length(line, "at", line.texts("at", nulls=True), len(tokens))
    number = {node: index for index, node in enumerate(nodes)}
    letters, far = hundredths(np.array(largest, dtype=float))
    suspects = [_suspect(entry, number, len(tokens)) for entry in line.objects("suspects")]
    p_value = line.number("p_value")
    found = {
        "tokens": tokens,
        "generated": _generated(line, len(tokens)),
        "largest": letters,
        **({"largestFar": far} if far else {}),
        "at": codes(number.get(node) for node in at),
        "p": None if p_value is None else short(p_value),
        "suspects": suspects[:_SUSPECTS],
        "suspectCount": len(suspects),
        "sentence": line.text("sentence"),
    }
    return about | found, _grid(line, len(nodes), len(tokens))


def _of_length(line: Fields, name: str, values: list[Any], length: int) -> list[Any]:
    if len(values) != length:
        raise line.refuse(name, f"{length} values, one for each token", f"{len(values)} values")
    return values


def _generated(line: Fields, length: int) -> int | None:
    """The position of the first generated token; None if none was generated."""
    if line.absent("generated"):
        return None
    first = line.whole("generated")
    if first > length:
        raise line.refuse("generated", f"a position of at most {length}", first)
    return first


def _suspect(entry: Fields, number: Mapping[str, int], length: int) -> list[Any]:
    """A suspect as number of the node, position and z."""
    node, position, z = entry.text("node"), entry.whole("position"), entry.number("z")
    if node not in number:
        raise entry.refuse("node", "one of the judged nodes", node)
    if position >= length:
        raise entry.refuse("position", f"a position below {length}", position)
    return [number[node], position, None if z is None else round(z, 2)]


def _grid(line: Fields, nodes: int, tokens: int) -> np.ndarray:
    """z by node and token, NaN where a node is not judged."""
    rows = line.items("z", "a list", lambda row: isinstance(row, list | tuple))
    if len(rows) != nodes:
        raise line.refuse("z", f"{nodes} rows, one for each node", f"{len(rows)} rows")
    for index, row in enumerate(rows):
        if len(row) != tokens:
            raise line.refuse(f"z[{index}]", f"{tokens} values, one for each token", f"{len(row)} values")
        if not set(map(type, row)) <= {float, int, type(None)} or not _all_finite(row):
            bad = next(at for at, value in enumerate(row) if not is_number(value))
            raise line.refuse(f"z[{index}][{bad}]", "a finite number or null", row[bad])
    return np.array(rows, dtype=float).reshape(nodes, tokens)


def _all_finite(row: Sequence[float | None]) -> bool:
    """Whether every value is a finite number or null; much faster than one by one."""
    try:
        numbers = np.array(row, dtype=float)
    except OverflowError:
        return False
    return bool(np.isfinite(numbers).sum() + row.count(None) == len(row))


def _packed(grid: np.ndarray, most: int) -> _Text:
    """The z of all nodes, or of the `most` nodes with the largest z, in the order of the circuit."""
    nodes, tokens = grid.shape
    if not tokens:
        return {}
    kept = list(range(nodes))
    if nodes > most:
        peaks = np.where(np.isnan(grid), -np.inf, grid).max(axis=1)
        kept = sorted(np.argsort(-peaks, kind="stable")[:most].tolist())
    letters, far = hundredths(grid[kept].ravel())
    return {"z": letters} | ({"far": far} if far else {}) | ({"rows": kept} if len(kept) < nodes else {})
