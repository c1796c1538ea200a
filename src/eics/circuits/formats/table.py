"""Edge lists as CSV: a header with `source` and `target` (or `edge`), and perhaps `port`, `score`, `in_graph`.

    source,target,port,score,in_graph
    input,a0.h1,q,0.25,true

Separated by comma, semicolon or tab. Other columns become attributes of the edges.
"""

import csv
import io
import json
from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Reader, Writer
from eics.circuits.formats.shared import kept_by_flags, scalars
from eics.circuits.graph import Edge
from eics.errors import CircuitError

NAME = "csv"
_ALIASES = {"from": "source", "src": "source", "to": "target", "dst": "target", "weight": "score", "kept": "in_graph"}
_OWN = ("edge", "source", "target", "port", "score", "in_graph")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def matches(text: str) -> bool:
    """Whether the first line names the columns of an edge list."""
    header = set(_header(text))
    return {"source", "target"} <= header or "edge" in header


def read(value: Any) -> CircuitGraph:
    """Reads line by line; errors name the line."""
    names = _header(value)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise CircuitError(f"must name each column once. {twice!r} came twice.")
    edges: list[Edge] = []
    scores: dict[Edge, float] = {}
    flags: dict[Edge, bool] = {}
    attributes: dict[Edge, dict[str, Any]] = {}
    try:
        reader = csv.reader(io.StringIO(value, newline=""), delimiter=_delimiter(value), strict=True)
        next(reader)
        for cells in reader:
            if cells:
                edge, row = _row(names, cells, reader.line_num)
                edges.append(edge)
                if text := row.get("score"):
                    try:
                        scores[edge] = float(text)
                    except ValueError:
                        raise _wrong("numbers as scores", text, reader.line_num) from None
                if text := row.get("in_graph"):
                    if text.lower() not in _FLAGS:
                        raise _wrong("true or false as in_graph", text, reader.line_num)
                    flags[edge] = _FLAGS[text.lower()]
                if more := {name: _cell(text) for name, text in row.items() if name not in _OWN and text}:
                    attributes[edge] = more
    except csv.Error as error:
        raise CircuitError(f"must be CSV: {error}.") from None
    kept = kept_by_flags(edges, flags)
    return CircuitGraph(tuple(edges), scores=scores, kept=kept, edge_attributes=attributes, format=NAME)


def write(graph: CircuitGraph) -> tuple[str, tuple[str, ...]]:
    """Writes every edge, with a column for each attribute that fits into a cell."""
    attributes = {edge: scalars(graph.edge_attributes.get(edge, {})) for edge in graph.edges}
    more = [name for name in dict.fromkeys(name for row in attributes.values() for name in row) if name not in _OWN]
    names = ["source", "target", "port"] + ["score"] * bool(graph.scores) + ["in_graph"] * (graph.kept is not None)
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, *more])
    for edge in graph.edges:
        cells = [*edge[:2], edge.port or ""]
        if graph.scores:
            cells.append(repr(graph.scores[edge]) if edge in graph.scores else "")
        if graph.kept is not None:
            cells.append("true" if edge in graph.kept else "false")
        row = attributes[edge]
        writer.writerow([*cells, *(_text(row[name]) if name in row else "" for name in more)])
    return out.getvalue(), _lost(graph)


def _lost(graph: CircuitGraph) -> tuple[str, ...]:
    parts = {
        "positions": graph.positions,
        "the model's shape": graph.shape,
        "attributes of nodes": graph.node_attributes,
        "metadata": graph.metadata,
        "lists among attributes": any(scalars(values) != values for values in graph.edge_attributes.values()),
    }
    missing = [name for name, present in parts.items() if present]
    return (f"A CSV edge list has no place for {', '.join(missing)}: left out.",) if missing else ()


def _first_line(text: str) -> str:
    return text.lstrip("\n\r")[:10_000].split("\n", 1)[0].rstrip("\r")


def _delimiter(text: str) -> str:
    line = _first_line(text)
    return max(",;\t", key=line.count)


def _header(text: str) -> list[str]:
    try:
        cells = next(csv.reader([_first_line(text)], delimiter=_delimiter(text)), [])
    except csv.Error:  # such as a carriage return in the middle
        return []
    lower = [cell.strip().lower() for cell in cells]
    return [
        _ALIASES.get(short, short if short in _OWN else cell.strip()) for short, cell in zip(lower, cells, strict=True)
    ]


def _row(names: list[str], cells: list[str], line: int) -> tuple[Edge, dict[str, str]]:
    if len(cells) != len(names):
        raise CircuitError(f"must have {len(names)} cells in each line. Line {line} has {len(cells)}.")
    row = dict(zip(names, (cell.strip() for cell in cells), strict=True))
    if "source" in row:
        return Edge(row["source"], row["target"], row.get("port") or None), row
    try:
        return Edge.parse(row["edge"]), row
    except CircuitError as error:
        raise CircuitError(f"has a bad edge in line {line}. {error}") from None


def _wrong(expected: str, text: str, line: int) -> CircuitError:
    return CircuitError(f"must have {expected}. Line {line} has {text[:40]!r}.")


def _cell(text: str) -> Any:
    """A number, a truth value or quoted text, as in JSON; otherwise the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, str | int | float | bool) else text


def _text(value: Any) -> str:
    if isinstance(value, str) and value == value.strip() and value and _cell(value) is value:
        return value
    return json.dumps(value)


READER = Reader("CSV with columns source and target", ("text",), str, matches, read)
WRITER = Writer(NAME, "CSV edge list", (".csv",), write)
