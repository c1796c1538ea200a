"""Reads damaged or unfamiliar records as far as possible, and notes what could not be read.

`eics.scoring.records` refuses a file with a bad line, which is right for computing with records. A report of a run that
was killed, or written by a later version, should rather show the rest and say what is missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eics.data.files import nameable
from eics.data.json_text import parse_row
from eics.errors import RecordError
from eics.reporting.page.details import PARTS, all_finite, clean, finite
from eics.reporting.page.runs import Origin
from eics.scoring.options import CONFIGURATION, RECORDED
from eics.scoring.records import from_row, is_parquet, parquet_rows
from eics.scoring.result import READABLE_VERSIONS, RECORD_VERSION, STATUSES, Score, Scores

_NUMBERS = ("eics", "c_sh", "consistency", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile", "alpha",
            "c_ref", "p_value", "p_value_mean")  # fmt: skip
_NEEDED = ("eics", "c_sh", "dei", "dei_norm", "ei_macro")
_OF_EI = ("eics", "dei", "dei_norm", "ei_macro")  # all null in a record that was made without the EI term
_WHOLE = ("seed", "forward_passes")
_TEXTS = ("model", "fingerprint", *(name for name in RECORDED if name != "seed"), "dtype", "prompt", "answer", "reason")
_MAPS = ("ei_parts", "stderr", "norms")
_EXPECTED = ("edges", "ei_parts", "alpha", "mode", *CONFIGURATION)
_LISTED = 6  # line numbers in a note before "and more"


@dataclass(frozen=True)
class Readable:
    """The records that could be read, in the file's order, and notes on what could not."""

    scores: Scores
    notes: tuple[str, ...] = ()
    origins: tuple[Origin, ...] = ()


def read_readable(*paths: str | Path) -> Readable:
    """Reads every record that it can; raises a `RecordError` only if a file itself cannot be read."""
    files = [_read_file(Path(path)) for path in paths]
    if len(files) == 1:
        return files[0]
    names = _told_apart([Path(path) for path in paths])
    return Readable(
        Scores(score for file in files for score in file.scores),
        tuple(f"{name}: {note}" for name, file in zip(names, files, strict=True) for note in file.notes),
        tuple(Origin(n, origin.version) for n, file in zip(names, files, strict=True) for origin in file.origins),
    )


def _told_apart(paths: list[Path]) -> list[str]:
    """Names of files, with a number where several have the same name: folders are nobody's business."""
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else f"{name} {number}" for number, name in enumerate(names, start=1)]


def _read_file(path: Path) -> Readable:
    if path.suffix == ".csv" and path.is_file():
        raise RecordError(
            f"Records must be JSON lines or Parquet. Got {str(path)!r}: the flat columns of a .csv lack the edges."
        )
    try:
        parquet = is_parquet(nameable(path))
        problems = _Problems("Row" if parquet else "Line")
        rows = list(_parquet(path, problems) if parquet else _lines(path, problems))
    except OSError as error:
        raise RecordError(
            f"The records must be a file that can be read. Got {str(path)!r}: {error.strerror}."
        ) from None
    read = [(_Record(row, number, problems).score(), row) for number, row in rows]
    kept = [(score, Origin(version=_version(row))) for score, row in read if score is not None]
    scores, origins = Scores(score for score, _ in kept), tuple(origin for _, origin in kept)
    return Readable(scores, tuple(problems.sentences()), origins)


def _version(row: dict[str, Any]) -> str | int | None:
    version = row.get("version")
    return version if isinstance(version, str | int | None) else str(version)


class _Problems:
    """What is wrong in which lines; a problem that many lines have becomes one sentence."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._lines: dict[str, list[int]] = {}

    def add(self, line: int, text: str) -> None:
        lines = self._lines.setdefault(text, [])
        if line not in lines[-1:]:
            lines.append(line)

    def sentences(self) -> Iterator[str]:
        for text, lines in self._lines.items():
            numbers = ", ".join(map(str, lines[:_LISTED]))
            more = f" and {len(lines) - _LISTED} more" if len(lines) > _LISTED else ""
            yield f"{self._unit}{'s' * (len(lines) > 1)} {numbers}{more}: {text}."


def _lines(path: Path, problems: _Problems) -> Iterator[tuple[int, Any]]:
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, parse_row(line.decode("utf-8"))
        except ValueError:
            cut_off = number == len(lines)  # a complete line ends with a line feed
            problems.add(number, "cut off, perhaps by a killed run; left out" if cut_off else "not JSON; left out")


def _parquet(path: Path, problems: _Problems) -> Iterator[tuple[int, Any]]:
    try:
        rows = parquet_rows(path)
    except RecordError as error:
        problems.add(1, str(error).rstrip("."))
        return
    for number, row in enumerate(rows, start=1):
        try:
            yield number, from_row(row)
        except (ValueError, TypeError):
            problems.add(number, "a column has a value of the wrong type; left out")


class _Record:
    """One record, read field by field."""

    def __init__(self, raw: Any, line: int, problems: _Problems) -> None:
        self.raw, self.line, self.problems = raw, line, problems

    def note(self, text: str) -> None:
        self.problems.add(self.line, text)

    def score(self) -> Score | None:
        """The result, or None if this is not a record at all."""
        if not isinstance(self.raw, dict) or not {"id", "status", "eics", "edges"} & set(self.raw):
            self.note("not a record; left out")
            return None
        self._check_version()
        record: dict[str, Any] = {name: self._number(name) for name in _NUMBERS}
        record |= {name: self._text(name) for name in _TEXTS}
        record |= {name: self._map(name) for name in _MAPS}
        record |= {name: number if isinstance(number := self.raw.get(name), int) else None for name in _WHOLE}
        record["edges"] = self._terms("edges", ("source", "target"), ("residual", "share"), ("cosine", "attribution"))
        record["nodes"] = self._terms("nodes", ("node",), ("residual", "share"), ("z", "p", "r2"))
        record |= {
            "id": self._id(),
            "status": self._status(record),
            "circuit": self._circuit(),
            "diagnostics": self.raw["diagnostics"] if isinstance(self.raw.get("diagnostics"), dict) else {},
            "suspects": self._suspects(),
            "options": self.raw["options"] if isinstance(self.raw.get("options"), dict) else {},
            "curve": self._curve(),
            "tokens": self._tokens(),
            "node_positions": self._positions(),
            "predictions": self._objects("predictions"),
            "warnings": self._objects("warnings"),
            "interventions": self._objects("interventions"),
            "details": self._details(),
            "label": label if isinstance(label := self.raw.get("label"), str | int | float) else None,
        }
        assert set(record) <= {field.name for field in fields(Score)}
        for name in [name for name, value in record.items() if Score.field_problem(name, value)]:
            self.note(f"{name} cannot be read")
            record[name] = f"line {self.line}" if name == "id" else None
        version = 1 if self.raw.get("version") == 1 else RECORD_VERSION
        return Score.from_record({"version": version} | record)

    def _check_version(self) -> None:
        version = self.raw.get("version")
        if version is None:
            self.note("no version; read as far as possible")
        elif version not in READABLE_VERSIONS:
            self.note(f"version {version!r}, not {RECORD_VERSION}; read as far as possible: update eics")

    def _id(self) -> str | int:
        if "id" not in self.raw:
            self.note("the field 'id' is missing; the line number is used instead")
        name = self.raw.get("id", f"line {self.line}")
        return name if isinstance(name, str | int) else str(name)

    def _status(self, record: dict[str, Any]) -> str:
        status = self.raw.get("status")
        if status == "failed":
            return "failed"
        left_out = _OF_EI if all(name in self.raw and self.raw[name] is None for name in _OF_EI) else ()
        if unreadable := [name for name in _NEEDED if record[name] is None and name not in left_out]:
            self.note(f"the number{'s' * (len(unreadable) > 1)} {', '.join(unreadable)} cannot be read")
        if absent := [repr(name) for name in _EXPECTED if name not in self.raw]:
            noun, verb = ("fields", "are") if len(absent) > 1 else ("field", "is")
            self.note(f"the {noun} {', '.join(absent)} {verb} missing")
        if status in STATUSES:
            return str(status)
        self.note(f"unknown status {status!r}" if "status" in self.raw else "the field 'status' is missing")
        if record["eics"] is None and not (left_out and record["c_sh"] is not None):
            return "failed"
        return "clipped" if record["eics"] == 0 and (record["dei"] or 0) < 0 else "ok"

    def _number(self, name: str) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        number = finite(value)
        if number is None and name not in _NEEDED:
            self.note(f"{name} is not a finite number")
        return number

    def _text(self, name: str) -> str | None:
        value = self.raw.get(name)
        return value if value is None or isinstance(value, str) else str(value)

    def _map(self, name: str) -> dict[str, float]:
        value = self.raw.get(name)
        items = value.items() if isinstance(value, dict) else ()
        numbers = {str(key): number for key, item in items if (number := finite(item)) is not None}
        if len(numbers) < len(items) or (value is not None and not isinstance(value, dict)):
            self.note(f"a part of {name} cannot be read")
        return numbers

    def _terms(
        self, name: str, texts: tuple[str, ...], needed: tuple[str, ...], optional: tuple[str, ...]
    ) -> list[dict[str, Any]]:
        listed = self.raw.get(name)
        if not isinstance(listed, list):
            if listed is not None:
                self.note(f"{name} cannot be read")
            return []
        terms = []
        for term in listed:
            numbers = {key: finite(term.get(key)) for key in (*needed, *optional)} if isinstance(term, dict) else {}
            if any(numbers.get(key) is None for key in needed) or not all(isinstance(term.get(k), str) for k in texts):
                continue
            if name == "edges" and min(numbers["residual"] or 0.0, numbers["share"] or 0.0) < 0:
                continue
            port = {"port": term["port"] if isinstance(term.get("port"), str) else None} if "target" in texts else {}
            why = {"reason": term["reason"]} if name == "nodes" and isinstance(term.get("reason"), str) else {}
            terms.append({key: term[key] for key in texts} | port | numbers | why)
        if lost := len(listed) - len(terms):
            self.note(f"{lost} of {len(listed)} {name} lack a field or have an impossible number; left out")
        return terms

    def _circuit(self) -> dict[str, str] | None:
        circuit = self.raw.get("circuit")
        if not isinstance(circuit, dict) or not {"name", "sha256"} <= set(circuit):
            return None
        return {key: str(circuit[key]) for key in ("name", "sha256")}

    def _curve(self) -> dict[str, list[float]] | None:
        curve = self.raw.get("curve")
        if not isinstance(curve, dict):
            return None
        columns = {name: all_finite(curve[name]) for name in ("alpha", "dei", "ei_macro", "zeros") if name in curve}
        alphas = columns.get("alpha") or [0.0]
        if len(alphas) != len(columns.get("dei", ())) or len(alphas) < 2 or min(alphas) <= 0:
            self.note("the curve cannot be read")
            return None
        return columns

    def _suspects(self) -> list[str] | None:
        listed = self.raw.get("suspects")
        if listed is None or (isinstance(listed, list) and all(isinstance(node, str) for node in listed)):
            return listed
        self.note("suspects cannot be read")
        return None

    def _tokens(self) -> list[str] | None:
        tokens = self.raw.get("tokens")
        return [str(token) for token in tokens] if isinstance(tokens, list) else None

    def _objects(self, name: str) -> list[dict[str, Any]]:
        listed = self.raw.get(name)
        objects = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
        if listed is not None and (not isinstance(listed, list) or len(objects) < len(listed)):
            self.note(f"a part of {name} cannot be read")
        return objects

    def _details(self) -> dict[str, Any] | None:
        raw = self.raw.get("details")
        details = clean(raw)
        if raw is not None and _count(details) < _count(raw):
            self.note("a part of details cannot be read")
        return details

    def _positions(self) -> dict[str, list[int]]:
        positions = self.raw.get("node_positions")
        items = positions.items() if isinstance(positions, dict) else ()
        return {str(node): [t for t in kept if isinstance(t, int)] for node, kept in items if isinstance(kept, list)}


def _count(details: Any) -> int:
    """How many nodes the parts of `details` have, or 1 if it has another shape."""
    parts = [details.get(name, {}) for name in PARTS] if isinstance(details, dict) else [None]
    return sum(len(part) if isinstance(part, dict) else 1 for part in parts)
