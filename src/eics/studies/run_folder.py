"""Run folders: the settings of a run, its rows appended as they are made, and whole files that appear at once.

A run that is killed loses only the row it was computing. `--resume` continues it if the settings are the same: the last
line is mended if it was cut short, and rows that exist are not computed again.

| study | settings | rows |
|---|---|---|
| `damage` | `settings.json` | `damage.jsonl`, `undamaged.jsonl` |
| `track` | `settings.json` | `rows.jsonl` |
| `validate` | `settings.json` | `answers.jsonl`, `measured.jsonl`, in the end `scores.parquet` |
| `score` | in every record | the file of records itself |
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

from eics.errors import OptionError, RecordError

Row = dict[str, Any]

SETTINGS = "settings.json"

_short = Repr()
_short.maxstring = 60


class RowFile:
    """A file of JSON lines that a run appends to; started afresh unless it is resumed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     RowFile(Path(folder) / "rows.jsonl").append([{"id": 1}])
    ...     list(RowFile(Path(folder) / "rows.jsonl", resume=True))
    [{'id': 1}]
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        if resume and path.exists():
            _mend_last_line(path)
        else:
            path.write_text("", encoding="utf-8")

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows; they are in the file when this returns."""
        with self.path.open("ab") as file:
            file.write(_to_lines(rows))

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts these rows in place of all others."""
        with whole_file(self.path) as part:
            part.write_bytes(_to_lines(rows))

    def __iter__(self) -> Iterator[Row]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError:
                    row = None
                if not isinstance(row, dict):
                    raise RecordError(
                        f"Line {number} of {str(self.path)!r} must be a JSON object: remove the line, and --resume "
                        "computes its row again."
                    )
                yield row


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path
    resumed: bool

    @classmethod
    def open(
        cls, path: Path, settings: Mapping[str, Any], rows: Sequence[str], *, resume: bool, overwrite: bool = False
    ) -> "RunFolder":
        """Starts a run, or resumes one with the same settings. `rows` names the files by which a run is recognized.

        Without `resume`, a folder that holds a run is refused, unless the study may `overwrite` it.
        """
        if path.exists() and not path.is_dir():
            raise OptionError.of("out", "a folder", str(path))
        holds_run = any((path / name).exists() for name in (SETTINGS, *rows))
        if holds_run and not (resume or overwrite):
            raise OptionError(f"{str(path)!r} already holds a run: continue it with --resume, or use another --out.")
        folder = cls(path, resumed=resume and holds_run)
        if folder.resumed:
            check_same(_read_settings(path / SETTINGS), settings, str(path / SETTINGS))
        else:
            path.mkdir(parents=True, exist_ok=True)
            folder.write(SETTINGS, json.dumps(settings, indent=1) + "\n")
        return folder

    def rows(self, name: str) -> RowFile:
        """A file of rows: those of the run that is resumed, otherwise empty."""
        return RowFile(self.path / name, resume=self.resumed)

    def write(self, name: str, text: str) -> None:
        """Writes a whole text file."""
        with whole_file(self.path / name) as path:
            path.write_text(text, encoding="utf-8")

    def write_parquet(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows that fit into memory; a column that some rows lack is null there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = dict.fromkeys(column for row in rows for column in row)
        with whole_file(self.path / name) as path:
            pq.write_table(pa.Table.from_pylist([{**columns, **row} for row in rows]), path)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside the given one to write to, renamed once it is complete: nobody sees half a file."""
    part = path.with_name(f".part-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], source: str, what: str = "settings") -> None:
    """Refuses to resume a run whose settings differ. A circuit is its edges and positions, whatever its name."""
    for name, value in json.loads(json.dumps(ours)).items():
        recorded = theirs.get(name)
        if name == "circuit" and isinstance(recorded, dict) and recorded.get("sha256") == value["sha256"]:
            continue
        if recorded != value:
            raise RecordError(
                f"--resume must continue with the same {what}. {source!r} has {name} = {_short.repr(recorded)}, this "
                f"run {_short.repr(value)}: use another --out."
            )


def _to_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    lines = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    return lines.encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8; JSON writes it as this escape


def _read_settings(file: Path) -> Row:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        raise RecordError(f"{str(file)!r} must hold the settings of the run to resume: use another --out.")
    return settings


def _mend_last_line(path: Path) -> None:
    """Ends a line that lacks only its newline; drops one that was cut short."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    try:
        json.loads(content[end:])
        mended = content + b"\n"
    except ValueError:
        mended = content[:end]
    with whole_file(path) as part:
        part.write_bytes(mended)
