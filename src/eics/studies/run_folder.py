"""Run folders: the settings of a run, its rows appended as they are made, and whole files that appear at once.

A run that is killed loses only the row it was computing. `--resume` continues it if the settings are the same: the last
line is mended if it was cut short, and rows that exist are not computed again. A run holds the lock of its folder until
it ends.

| study | settings | rows |
|---|---|---|
| `compare` | `settings.json` | `rows.jsonl`, of two models also `restored.jsonl` |
| `damage` | `settings.json` | `damage.jsonl`, `undamaged.jsonl` |
| `track` | `settings.json` | `rows.jsonl` |
| `validate` | `settings.json` | `answers.jsonl`, `measured.jsonl`, in the end `scores.parquet` |
| `trace` | the first line of its file | the lines after it (`tracing/trace_file.py`) |
| `score` | in every record | the file of records itself, or its journal (`scoring/record_file.py`) |
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eics.data.files import Row, RowFile, whole_file, writable, write_text
from eics.data.json_text import parse_json
from eics.data.locks import Lock
from eics.data.outputs import check_rerun
from eics.data.resume import check_same
from eics.errors import OptionError, RecordError
from eics.scoring.result import RECORD_VERSION

__all__ = ["SETTINGS", "Row", "RowFile", "RunFolder", "check_folder", "check_same", "digest", "whole_file"]

SETTINGS = "settings.json"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; a context that holds its lock."""

    path: Path
    resumed: bool
    _lock: Lock | None = field(default=None, repr=False, compare=False)

    @classmethod
    def open(
        cls, path: Path, settings: Mapping[str, Any], files: Sequence[str], *, resume: bool, overwrite: bool = False
    ) -> "RunFolder":
        """Starts a run, or resumes one with the same settings. `files` names what a run writes besides its settings.

        A folder that holds a run is refused unless it is resumed or overwritten; then the earlier run's files go.
        """
        check_folder(path, files, resume=resume, overwrite=overwrite)
        with writable(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = Lock(path)
        try:
            holds_run = check_folder(path, files, resume=resume, overwrite=overwrite)
            folder = cls(path, resume and holds_run, lock)
            settings = {"version": RECORD_VERSION, **settings}
            if folder.resumed:
                check_same(_read_settings(path / SETTINGS), settings, str(path / SETTINGS))
            else:
                for name in files:
                    (path / name).unlink(missing_ok=True)
                folder.write(SETTINGS, json.dumps(settings, indent=1) + "\n")
        except BaseException:
            lock.release()
            raise
        return folder

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.release()

    def rows(self, name: str, *needed: str) -> RowFile:
        """A file of rows, which have the `needed` fields: those of the run that is resumed, otherwise empty."""
        return RowFile(self.path / name, resume=self.resumed, needed=needed)

    def write(self, name: str, text: str) -> None:
        """Writes a whole text file."""
        write_text(self.path / name, text)

    def write_parquet(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows that fit into memory; a column that some rows lack is null there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = dict.fromkeys(column for row in rows for column in row)
        with whole_file(self.path / name) as path:
            pq.write_table(pa.Table.from_pylist([{**columns, **row} for row in rows]), path)


def check_folder(path: Path, files: Sequence[str], *, resume: bool, overwrite: bool = False) -> bool:
    """Whether a folder holds a run; refuses one that does, unless it is resumed or overwritten. Touches nothing."""
    check_rerun(resume=resume, overwrite=overwrite)
    if path.exists() and not path.is_dir():
        raise OptionError.of("out", "a folder", str(path))
    holds_run = any((path / name).exists() for name in (SETTINGS, *files))
    if holds_run and not (resume or overwrite):
        raise OptionError(
            f"{str(path)!r} already holds a run: continue it with --resume, replace it with --overwrite, or use "
            "another --out."
        )
    return holds_run


def digest(content: Any) -> str:
    """The SHA-256 of JSON content, to tell in the settings whether prompts are the same."""
    return hashlib.sha256(json.dumps(content).encode("utf-8", "surrogatepass")).hexdigest()


def _read_settings(file: Path) -> Row:
    try:
        settings = parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        settings = None
    if not isinstance(settings, dict):
        raise RecordError(f"{str(file)!r} must hold the settings of the run to resume: use another --out.")
    return settings
