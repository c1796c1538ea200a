"""Files with one item per row, in whatever format: JSON lines, a JSON array, plain lines, CSV, TSV or Parquet.

The suffix decides; a file with another suffix, and standard input (`-`), are recognised by their first line. Text is
UTF-8, with or without a byte order mark, with lines that end in `\\n` or `\\r\\n`. Blank lines are skipped but counted.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from eics.data.bundled import bundled, bundled_file
from eics.data.files import nameable
from eics.data.json_text import parse_json
from eics.errors import OptionError, did_you_mean

SUFFIXES = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".json": "array",
    ".txt": "text",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_BOM = b"\xef\xbb\xbf"
_PARQUET_MAGIC = b"PAR1"
_CELL = 2**30  # characters; the csv module's own bound is 128 kB
_PATIENCE = 1024  # blank lines before the first one that shows the format


@dataclass(frozen=True)
class Row:
    """An item, its number from 0, where it stands ("Line 3"), and whether it is a row of a table.

    A line that is not JSON has an `error` instead of an item: some files can do without a line, others cannot.
    """

    item: Any
    number: int
    place: str
    of_table: bool = False
    error: str | None = None


def read_rows(path: str | Path, folder: str, what: str) -> Iterator[Row]:
    """The rows of a file, as they are read.

    Args:
        path: a file, `-` for standard input, or the name of a bundled file.
        folder: the folder of `eics.data` with the bundled ones.
        what: how an error calls the file, such as "prompts".
    """
    try:
        with _opened(path, folder) as file:
            kind = SUFFIXES.get(_suffix(path, folder))
            yield from _READERS[kind](file, path) if kind is not None else _recognised(file, path)
    except UnicodeDecodeError as error:
        raise OptionError(f"The {what} must be UTF-8 text, or Parquet. Got {str(path)!r}: {error.reason}.") from None
    except OSError as error:
        names = bundled(folder, ".jsonl")
        raise OptionError(
            f"The {what} must be a readable file, or one of {', '.join(names)}. Got {str(path)!r}: "
            f"{error.strerror or error}.{did_you_mean(path, names)}"
        ) from None


def _suffix(path: str | Path, folder: str) -> str:
    return ".jsonl" if bundled_file(folder, str(path), ".jsonl") else Path(path).suffix.lower()


@contextmanager
def _opened(path: str | Path, folder: str) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        stream = getattr(sys.stdin, "buffer", None)  # Python has no standard input at all where it was closed
        if stream is None:
            raise OptionError(
                "Standard input (-) must be open to be read. It is closed: pipe the prompts in, or use a file."
            )
        yield stream
        return
    with (bundled_file(folder, str(path), ".jsonl") or nameable(path)).open("rb") as file:
        yield file


def _recognised(file: IO[bytes], path: str | Path) -> Iterator[Row]:
    """Rows of a file whose format shows in its first line: Parquet, a JSON array, JSON lines, or plain text."""
    read: list[bytes] = []
    for line in file:
        read.append(line)
        if line.removeprefix(_BOM).strip() or len(read) > _PATIENCE:
            break
    beginning = b"".join(read).removeprefix(_BOM).strip()
    if beginning.startswith(_PARQUET_MAGIC):
        yield from _parquet_rows(io.BytesIO(b"".join(read) + file.read()), path)
    elif _begins_array(beginning):
        yield from _array_rows(chain(read, file), path)
    else:
        yield from (_json_lines if beginning[:1] in (b"{", b"[", b'"') else _text_lines)(chain(read, file), path)


def _begins_array(line: bytes) -> bool:
    """Whether a first line opens an array of prompts; a complete list of ids is a prompt by itself."""
    if not line.startswith(b"["):
        return False
    try:
        parsed = parse_json(line.decode("utf-8", "replace"))
    except json.JSONDecodeError:
        return True
    return not all(isinstance(item, int) for item in parsed)


def _lines(file: Iterable[bytes], path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, without their ends, each with its number from 0."""
    for number, raw in enumerate(file):
        line = raw.removeprefix(_BOM) if number == 0 else raw
        try:
            text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise OptionError(f"Line {number + 1} of {str(path)!r} must be UTF-8 text: {error.reason}.") from None
        if text.strip():
            yield number, text


def _json_lines(file: Iterable[bytes], path: str | Path) -> Iterator[Row]:
    for number, line in _lines(file, path):
        place = f"Line {number + 1}"
        try:
            yield Row(_parsed(line, "it must be JSON"), number, place)
        except OptionError as error:
            yield Row(None, number, place, error=str(error).removesuffix("."))


def _text_lines(file: Iterable[bytes], path: str | Path) -> Iterator[Row]:
    return (Row(line, number, f"Line {number + 1}") for number, line in _lines(file, path))


def _array_rows(file: Iterable[bytes], path: str | Path) -> Iterator[Row]:
    text = b"".join(file).removeprefix(_BOM).decode("utf-8")
    must = f"{str(path)!r} must be a JSON array with one prompt per item (one object per line goes into a .jsonl file)"
    items = _parsed(text, must)
    if not isinstance(items, list):
        raise OptionError(f"{must}. Got {type(items).__name__}.")
    return (Row(item, number, f"Item {number}") for number, item in enumerate(items))


def _parsed(text: str, must: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{must}: {error}.") from None


def _csv_rows(file: IO[bytes], path: str | Path, delimiter: str = ",") -> Iterator[Row]:
    """Rows of a table with a header; strict, since a quote that is never closed would swallow the rest of the file."""
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    limit = csv.field_size_limit(_CELL)
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) < len(header) or not all(header):
            raise OptionError(f"The first line of {str(path)!r} must name each column once. Got {', '.join(header)}.")
        number = 0
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise OptionError(
                    f"Line {reader.line_num} of {str(path)!r} must have {len(header)} cells, as its header. It has "
                    f"{len(cells)}."
                )
            item = {name: _cell(name, cell) for name, cell in zip(header, cells, strict=True)}
            yield Row(item, number, f"Line {reader.line_num}", of_table=True)
            number += 1
    except csv.Error as error:
        raise OptionError(f"Line {reader.line_num} of {str(path)!r} must be a row of a table: {error}.") from None
    finally:
        csv.field_size_limit(limit)
        text.detach()  # the caller closes the file


def _tsv_rows(file: IO[bytes], path: str | Path) -> Iterator[Row]:
    return _csv_rows(file, path, delimiter="\t")


def _cell(name: str, cell: str) -> Any:
    """A cell is text, but for lists of token ids and for labels that are truth values or numbers."""
    if not cell and name in ("id", "answer", "label"):
        return None
    if name == "tokens" or (name == "label" and cell.lower() in ("true", "false")):
        return _json_or_text(cell.lower() if name == "label" else cell)
    number = _json_or_text(cell) if name == "label" else cell
    return number if isinstance(number, int | float) and json.dumps(number) == cell else cell


def _json_or_text(cell: str) -> Any:
    try:
        return parse_json(cell)
    except json.JSONDecodeError:
        return cell


def _parquet_rows(file: IO[bytes], path: str | Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        number = 0
        for batch in pq.ParquetFile(file).iter_batches():
            for item in batch.to_pylist():
                yield Row(item, number, f"Row {number}", of_table=True)
                number += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise OptionError(f"{str(path)!r} must be a Parquet file: {' '.join(str(error).split())}.") from None


_READERS: dict[str, Callable[[IO[bytes], str | Path], Iterator[Row]]] = {
    "lines": _json_lines,
    "array": _array_rows,
    "text": _text_lines,
    "csv": _csv_rows,
    "tsv": _tsv_rows,
    "parquet": _parquet_rows,
}
