"""Rows on disk as they are made, and as Parquet in the end.

While a stage runs, each row is a line of JSON that is on disk before the next batch starts: an interrupted run loses
nothing that was finished. When everything is there the rows become one Parquet file, written by row groups, so that
memory does not grow with the prompts.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eics.errors import RecordError
from eics.scoring.records import drop_half_line

Row = dict[str, Any]
_GROUP = 256


class Journal:
    """Rows of one stage, by prompt id, one line of JSON each."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.path = path
        if resume and path.exists():
            drop_half_line(path)
        else:
            path.write_text("", encoding="utf-8")

    def append(self, rows: Iterable[Row]) -> None:
        """Adds rows; they are on disk when this returns."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in rows))

    def __iter__(self) -> Iterator[Row]:
        with self.path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise RecordError(
                        f"Line {number} of {str(self.path)!r} must be a JSON object: {error}. Start without --resume."
                    ) from None

    def ids(self) -> set[str | int]:
        """Prompts that have a row."""
        return {row["id"] for row in self}


def check_settings(path: Path, settings: Row, *, resume: bool) -> None:
    """Keeps what a run was asked to do beside its rows; `resume` must be asked the same."""
    if resume and path.exists():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            raise RecordError(f"{str(path)!r} must be a JSON object. Start without --resume.") from None
        for name, value in json.loads(json.dumps(settings)).items():
            if name not in known or known[name] != value:
                raise RecordError(
                    f"--resume must continue with the same settings. {str(path)!r} has {name} = {known.get(name)!r}, "
                    f"this run {value!r}: use another --out."
                )
        return
    path.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def write_parquet(rows: Iterable[Row], path: Path) -> None:
    """Rows to Parquet, a row group at a time; the file appears under its name only when it is whole."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    half = path.with_name(path.name + ".part")
    schema = _schema(pa)
    with pq.ParquetWriter(half, schema) as writer:
        for group in _chunks(rows, _GROUP):
            writer.write_table(pa.Table.from_pylist([_cells(row, schema.names) for row in group], schema=schema))
    half.replace(path)


def read_parquet(path: Path) -> Iterator[Row]:
    """The rows that `write_parquet` wrote, a row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_GROUP):
                yield from (_row(cells) for cells in batch.to_pylist())
    except (pa.ArrowException, OSError) as error:
        raise RecordError(f"{str(path)!r} must be a Parquet file of scores: {error}. Start without --resume.") from None


def _chunks(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


_TEXTS = ("split", "dropped", "predicted_text", "generated", "failed")
_FLAGS = ("label", "label_given", "answer_split", "clipped", "function_word")
_WHOLE = ("length", "predicted")
_NUMBERS = (
    "log_probability", "entropy", "margin", "answer_probability", "answer_mass", "ensemble_variance",
    "ensemble_information", "ensemble_disagreement", "eics_paper", "c_sh_paper", "a1_paper", "a2_paper", "dei_paper",
    "eics_well_posed", "c_sh_well_posed", "a1_well_posed", "a2_well_posed", "dei_well_posed", "emergence_ratio",
    "propagated", "eac", "ear", "conformal_lac", "conformal_aps", "norm_last", "norm_all",
)  # fmt: skip
_LISTS = ("eics_paper_by_alpha", "norms", "final")
_JSON = ("id", "groups")


def _schema(pa: Any) -> Any:
    return pa.schema(
        [
            *((name, pa.string()) for name in (*_JSON, *_TEXTS)),
            *((name, pa.bool_()) for name in _FLAGS),
            *((name, pa.int64()) for name in _WHOLE),
            *((name, pa.float64()) for name in _NUMBERS),
            *((name, pa.list_(pa.float64())) for name in _LISTS),
        ]
    )


def _cells(row: Row, names: list[str]) -> Row:
    unknown = sorted(set(row) - set(names))
    assert not unknown, f"columns without a type: {unknown}"
    return {name: json.dumps(row.get(name)) if name in _JSON else row.get(name) for name in names}


def _row(cells: Row) -> Row:
    return {name: json.loads(value) if name in _JSON else value for name, value in cells.items()}
