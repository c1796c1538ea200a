"""Records on disk: JSON lines, Parquet or CSV by the file's suffix; the first two are read again, by their content.

Parquet has a fixed schema: maps for `ei_parts`, `stderr`, `norms` and `node_positions`, structs for `circuit`, `edges`
and `nodes`, and JSON text for fields without a fixed shape (`diagnostics`, `options`, `interventions`, `curve`,
`predictions`, `warnings`, `details`) or type (`id`, `label`). CSV has flat columns, for spreadsheets (`flat.py`). Files
appear whole; `record_file.py` writes them one prompt at a time.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eics.data.files import nameable, to_lines, whole_file, write_bytes, write_text
from eics.data.json_text import parse_row, spelt_out
from eics.errors import RecordError, as_path
from eics.scoring.flat import to_csv
from eics.scoring.options import RECORDED
from eics.scoring.result import Score, Scores

SUFFIXES = (".jsonl", ".parquet", ".csv")
_JSON_COLUMNS = (
    "id",
    "diagnostics",
    "options",
    "curve",
    "label",
    "interventions",
    "predictions",
    "warnings",
    "details",
)
_MAP_COLUMNS = ("ei_parts", "stderr", "norms", "node_positions")
_PARQUET_MAGIC = b"PAR1"


def write_records(scores: Iterable[Score] | Score, path: str | Path) -> None:
    """Writes one result or many to `.jsonl`, `.parquet` or `.csv`; the file appears whole, in place of an earlier one.

    >>> import tempfile
    >>> from eics.scoring.result import failed
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_records([failed("a", "too long")], folder + "/scores.jsonl")
    ...     read_records(folder + "/scores.jsonl")
    Scores(1: 1 failed)
    """
    path = as_path(path, "records file", RecordError)
    check_path(path)
    scores = list(scores) if isinstance(scores, Iterable) else [scores]
    strange = [score for score in scores if not isinstance(score, Score)]
    if strange:
        raise RecordError(f"Records must be eics.Score objects. Got {type(strange[0]).__name__} {strange[0]!r:.60}.")
    if path.suffix == ".csv":
        write_text(path, to_csv(score.to_record() for score in scores), newline="")
    elif path.suffix == ".jsonl":
        write_bytes(path, to_lines(score.to_record() for score in scores))
    else:
        _write_parquet(scores, path)


def check_path(path: Path) -> None:
    """Raises an error, before any work is done, for a path that records cannot be written to."""
    if nameable(path).suffix not in SUFFIXES:
        raise RecordError(f"Records must go to a file ending in .jsonl, .parquet or .csv. Got {str(path)!r}.")
    if not path.parent.is_dir():
        raise RecordError(f"The folder for the records must exist. Got {str(path)!r}: make {str(path.parent)!r} first.")


def read_records(path: str | Path) -> Scores:
    """Reads what `write_records` wrote; the error for an unreadable line gives its number."""
    path = nameable(as_path(path, "records file", RecordError))
    if path.suffix == ".csv":
        raise RecordError(
            f"Records must be JSON lines or Parquet. Got {str(path)!r}: the flat columns of a .csv lack the edges."
        )
    try:
        parquet = is_parquet(path)
    except OSError as error:
        raise RecordError(
            f"The records must be a file that can be read. Got {str(path)!r}: {error.strerror}."
        ) from None
    return Scores(_read_parquet(path) if parquet else _read_jsonl(path))


def is_parquet(path: Path) -> bool:
    """Whether the content of a file is Parquet."""
    with path.open("rb") as file:
        return file.read(4) == _PARQUET_MAGIC


def to_line(score: Score) -> str:
    """The record as one line of JSON."""
    return json.dumps(score.to_record(), allow_nan=False, ensure_ascii=False)


def _read_jsonl(path: Path) -> Iterator[Score]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise RecordError(f"Records must be JSON lines or Parquet. {str(path)!r} is neither.") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield Score.from_record(parse_row(line))
        except json.JSONDecodeError as error:
            raise RecordError(f"Line {number} of {str(path)!r} must be a JSON object: {error}.") from None
        except RecordError as error:
            raise RecordError(f"Line {number} of {str(path)!r}: {error}") from None


def _write_parquet(scores: Iterable[Score], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_to_row(score.to_record()) for score in scores]
    try:
        table = pa.Table.from_pylist(rows, schema=_schema())
    except UnicodeEncodeError:
        table = pa.Table.from_pylist(spelt_out(rows), schema=_schema())
    with whole_file(path) as part:
        pq.write_table(table, part)


def _read_parquet(path: Path) -> Iterator[Score]:
    for number, row in enumerate(parquet_rows(path)):
        try:
            yield Score.from_record(from_row(row))
        except RecordError as error:
            raise RecordError(f"Row {number} of {str(path)!r}: {error}") from None


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file as stored."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{str(path)!r} must be a Parquet file of records: {error}.") from None
    return rows


def _to_row(record: dict[str, Any]) -> dict[str, Any]:
    texts = {name: json.dumps(record[name], allow_nan=False) for name in _JSON_COLUMNS}
    maps = {name: list(record[name].items()) for name in _MAP_COLUMNS}
    return record | texts | maps


def from_row(row: dict[str, Any]) -> dict[str, Any]:
    """The record in a row of a Parquet file; refuses columns that ours do not have."""
    try:
        texts = {name: parse_row(row[name]) for name in _JSON_COLUMNS if isinstance(row.get(name), str)}
        maps = {name: dict(row[name] or ()) for name in _MAP_COLUMNS if name in row}
    except (TypeError, ValueError) as error:
        raise RecordError(f"A record's columns must have the types that `eics score` writes: {error}.") from None
    return row | texts | maps


def _schema() -> Any:
    import pyarrow as pa

    number, text = pa.float64(), pa.string()
    edge = pa.struct(
        [(name, text) for name in ("source", "target", "port")]
        + [(name, number) for name in ("residual", "share", "cosine", "attribution")]
    )
    judged = [(name, number) for name in ("residual", "share", "z", "p", "r2")]
    node = pa.struct([("node", text), *judged, ("reason", text)])
    numbers = (
        "eics", "c_sh", "consistency", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile", "alpha",
        "c_ref", "p_value", "p_value_mean",
    )  # fmt: skip
    texts = [*(name for name in RECORDED if name != "seed"), "dtype"]
    return pa.schema(
        [
            ("version", pa.int64()),
            ("id", text),
            ("status", text),
            ("model", text),
            ("fingerprint", text),
            ("circuit", pa.struct([("name", text), ("sha256", text)])),
            *((name, number) for name in numbers),
            ("ei_parts", pa.map_(text, number)),
            ("edges", pa.list_(edge)),
            ("nodes", pa.list_(node)),
            ("suspects", pa.list_(text)),
            ("norms", pa.map_(text, number)),
            ("node_positions", pa.map_(text, pa.list_(pa.int64()))),
            *((name, text) for name in texts),
            ("seed", pa.int64()),
            ("options", text),
            ("stderr", pa.map_(text, number)),
            ("diagnostics", text),
            ("interventions", text),
            ("curve", text),
            ("forward_passes", pa.int64()),
            ("prompt", text),
            ("tokens", pa.list_(text)),
            ("token_ids", pa.list_(pa.int64())),
            ("predictions", text),
            ("warnings", text),
            ("details", text),
            ("answer", text),
            ("label", text),
            ("reason", text),
        ]
    )
