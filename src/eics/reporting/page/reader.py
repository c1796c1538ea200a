"""Records as far as they can be read, and what could not be.

`eics.scoring.records` refuses a file with a bad line, as whoever computes with records wants. Whoever looks at a run
that was killed, or written by a later version, wants to see the rest, and to be told.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eics.errors import RecordError
from eics.scoring.records import from_row, is_parquet, parquet_rows
from eics.scoring.result import RECORD_VERSION, STATUSES, Score, Scores

NUMBERS = ("eics", "c_sh", "consistency", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile", "alpha")
_NEEDED = ("eics", "c_sh", "dei", "dei_norm", "ei_macro")
_TEXTS = (
    "model", "mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "dtype",
    "prompt", "answer", "reason",
)  # fmt: skip
_MAPS = ("ei_parts", "stderr", "norms")
_FIELDS = (
    "edges", "ei_parts", "alpha", "mode", "linearization", "residual", "parts", "metric", "emergence", "positions",
)  # fmt: skip
_NAMED = 6  # lines in a note before "..."


@dataclass(frozen=True)
class Readable:
    """What could be read, in the file's order, and sentences about what could not."""

    scores: Scores
    notes: tuple[str, ...] = ()


def read_readable(path: str | Path) -> Readable:
    """Reads every record that can be read; raises only where there is no such file."""
    path = Path(path)
    troubles = _Troubles("Line")
    try:
        parquet = is_parquet(path)
        rows = list(_parquet(path, troubles) if parquet else _lines(path, troubles))
    except OSError as error:
        raise RecordError(
            f"The records must be a file that can be read. Got {str(path)!r}: {error.strerror}."
        ) from None
    scores = [_Record(row, number, troubles).score() for number, row in rows]
    return Readable(Scores(score for score in scores if score is not None), tuple(troubles.sentences()))


class _Troubles:
    """What is wrong and where; the same trouble of many lines becomes one sentence."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._lines: dict[str, list[int]] = {}

    def add(self, line: int, text: str) -> None:
        lines = self._lines.setdefault(text, [])
        if line not in lines[-1:]:
            lines.append(line)

    def sentences(self) -> Iterator[str]:
        for text, lines in self._lines.items():
            some = ", ".join(map(str, lines[:_NAMED]))
            more = f" and {len(lines) - _NAMED} more" if len(lines) > _NAMED else ""
            yield f"{self.what}{'s' if len(lines) > 1 else ''} {some}{more}: {text}."


def _lines(path: Path, troubles: _Troubles) -> Iterator[tuple[int, Any]]:
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            last = number == len(lines)  # every whole line ends in a line feed
            troubles.add(number, "cut off, perhaps by a killed run; left out" if last else "not JSON; left out")


def _parquet(path: Path, troubles: _Troubles) -> Iterator[tuple[int, Any]]:
    troubles.what = "Row"
    try:
        rows = parquet_rows(path)
    except RecordError as error:
        troubles.add(1, str(error).rstrip("."))
        return
    for number, row in enumerate(rows, start=1):
        try:
            yield number, from_row(row)
        except (ValueError, TypeError):
            troubles.add(number, "a column holds what it should not; left out")


class _Record:
    """One record, taken as far as it goes."""

    def __init__(self, raw: Any, line: int, troubles: _Troubles) -> None:
        self.raw, self.line, self.troubles = raw, line, troubles

    def say(self, text: str) -> None:
        self.troubles.add(self.line, text)

    def score(self) -> Score | None:
        """The result, or None where this is no record at all."""
        if not isinstance(self.raw, dict) or not {"id", "status", "eics", "edges"} & set(self.raw):
            self.say("no record; left out")
            return None
        self._check_version()
        known: dict[str, Any] = {name: self._number(name) for name in NUMBERS}
        known |= {name: self._text(name) for name in _TEXTS}
        known |= {name: self._map(name) for name in _MAPS}
        known["edges"] = self._terms("edges", ("source", "target"), ("residual", "share"), ("cosine", "attribution"))
        known["nodes"] = self._terms("nodes", ("node",), ("residual", "share"), ())
        known |= {
            "id": self._id(),
            "status": self._status(known),
            "circuit": self._circuit(),
            "diagnostics": self.raw["diagnostics"] if isinstance(self.raw.get("diagnostics"), dict) else {},
            "curve": self._curve(),
            "tokens": self._tokens(),
            "node_positions": self._positions(),
            "label": label if isinstance(label := self.raw.get("label"), str | int | float) else None,
            **{name: n if isinstance(n := self.raw.get(name), int) else None for name in ("seed", "forward_passes")},
        }
        assert set(known) <= {field.name for field in fields(Score)}
        return Score.from_record({"version": RECORD_VERSION} | known)

    def _check_version(self) -> None:
        version = self.raw.get("version")
        if version is None:
            self.say("no version; read as far as it goes")
        elif version != RECORD_VERSION:
            self.say(
                f"version {version!r} is not known here ({RECORD_VERSION} is); read as far as it goes: update eics"
            )

    def _id(self) -> str | int:
        if "id" not in self.raw:
            self.say("the field 'id' is missing; the line's number stands for it")
        found = self.raw.get("id", f"line {self.line}")
        return found if isinstance(found, str | int) else str(found)

    def _status(self, known: dict[str, Any]) -> str:
        status = self.raw.get("status")
        missing = [name for name in _NEEDED if known[name] is None]
        if status == "failed":
            return "failed"
        if missing:
            self.say(f"the number{'s' * (len(missing) > 1)} {', '.join(missing)} cannot be read")
        absent = [name for name in _FIELDS if name not in self.raw]
        if absent:
            self.say(f"the field{'s' * (len(absent) > 1)} {', '.join(map(repr, absent))} {_is(absent)} missing")
        if status in STATUSES:
            return str(status)
        self.say(f"the status {status!r} is not known" if "status" in self.raw else "the field 'status' is missing")
        if known["eics"] is None:
            return "failed"
        return "clipped" if known["eics"] == 0 and (known["dei"] or 0) < 0 else "ok"

    def _number(self, name: str) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        found = _finite(value)
        if found is None and name not in _NEEDED:
            self.say(f"{name} is not a finite number")
        return found

    def _text(self, name: str) -> str | None:
        value = self.raw.get(name)
        return value if value is None or isinstance(value, str) else str(value)

    def _map(self, name: str) -> dict[str, float]:
        value = self.raw.get(name)
        items = value.items() if isinstance(value, dict) else ()
        found = {str(key): number for key, one in items if (number := _finite(one)) is not None}
        if len(found) < len(items) or (value is not None and not isinstance(value, dict)):
            self.say(f"a part of {name} cannot be read")
        return found

    def _terms(
        self, name: str, texts: tuple[str, ...], needed: tuple[str, ...], optional: tuple[str, ...]
    ) -> list[dict[str, Any]]:
        listed = self.raw.get(name)
        found = []
        for term in listed if isinstance(listed, list) else []:
            numbers = {key: _finite(term.get(key)) for key in (*needed, *optional)} if isinstance(term, dict) else {}
            if any(numbers.get(key) is None for key in needed) or not all(isinstance(term.get(k), str) for k in texts):
                continue
            if name == "edges" and min(numbers["residual"] or 0.0, numbers["share"] or 0.0) < 0:
                continue
            port = {"port": term["port"] if isinstance(term.get("port"), str) else None} if "target" in texts else {}
            found.append({key: term[key] for key in texts} | port | numbers)
        lost = len(listed) - len(found) if isinstance(listed, list) else 0
        if lost:
            self.say(f"{lost} of {len(listed or ())} {name} lack a field or have a number that cannot be; left out")
        elif listed is not None and not isinstance(listed, list):
            self.say(f"{name} cannot be read")
        return found

    def _circuit(self) -> dict[str, str] | None:
        circuit = self.raw.get("circuit")
        if not isinstance(circuit, dict) or not {"name", "sha256"} <= set(circuit):
            return None
        return {key: str(circuit[key]) for key in ("name", "sha256")}

    def _curve(self) -> dict[str, list[float]] | None:
        curve = self.raw.get("curve")
        if not isinstance(curve, dict):
            return None
        found = {name: _all_finite(curve[name]) for name in ("alpha", "dei", "ei_macro", "zeros") if name in curve}
        alphas = found.get("alpha") or [0.0]
        if len(alphas) != len(found.get("dei", ())) or len(alphas) < 2 or min(alphas) <= 0:
            self.say("the curve cannot be read")
            return None
        return found

    def _tokens(self) -> list[str] | None:
        tokens = self.raw.get("tokens")
        return [str(token) for token in tokens] if isinstance(tokens, list) else None

    def _positions(self) -> dict[str, list[int]]:
        kept = self.raw.get("node_positions")
        items = kept.items() if isinstance(kept, dict) else ()
        return {str(node): [t for t in some if isinstance(t, int)] for node, some in items if isinstance(some, list)}


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _finite(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _all_finite(values: Any) -> list[float]:
    """The numbers, or none of them where one is not a number."""
    found = [_finite(value) for value in values] if isinstance(values, list) else []
    return [] if None in found else [value for value in found if value is not None]
