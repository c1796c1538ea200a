"""How files are written: whole or not at all, or line by line, so that a kill costs at most the line being written.

`whole_file` writes beside the file, waits until the disk has it, and renames. `RowFile` appends JSON lines and mends a
last line that was cut short. Who may write where is in `outputs.py`, and that only one process does in `locks.py`.
"""

import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from eics.data.json_text import parse_json
from eics.errors import OptionError, RecordError

Row = dict[str, Any]

_LONGEST = 255  # bytes in a file's name, on every common file system
_PART = ".part-"
_UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A path beside the given one to write to, renamed once it is complete and on disk: nobody sees half a file.

    A link is followed, so that it goes on pointing to the file; an existing file keeps its permissions.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with whole_file(Path(folder) / "page.md") as part:
    ...         _ = part.write_text("whole")
    ...     [file.name for file in Path(folder).iterdir()]
    ['page.md']
    """
    named, path = path, Path(os.path.realpath(nameable(path)))
    part = beside(path, prefix=f"{_PART}{secrets.token_hex(4)}-")
    try:
        with writable(named):
            yield part
            if path.exists():
                shutil.copymode(path, part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
            part.replace(path)
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # a folder that cannot be written has no part either
            part.unlink(missing_ok=True)


@contextmanager
def writable(path: str | Path) -> Iterator[None]:
    """Around the writing of a file or folder: where it cannot be, in one line; a full disk passes as it is."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise OptionError(
            f"The output {str(path)!r} must be in a folder that exists and can be written: {error.strerror}. Choose "
            "another one, or change its permissions."
        ) from error


def nameable(path: str | Path) -> Path:
    """The path, refused if no file can have it as its name: Python's own errors for that are of several kinds."""
    try:
        name = os.fsencode(path)
        if b"\0" not in name and all(len(part) <= _LONGEST for part in name.split(os.fsencode(os.sep))):
            return Path(path)
    except UnicodeEncodeError:
        pass
    must = f"text that the system can encode, without null characters, and at most {_LONGEST} bytes long"
    raise OptionError(f"A file's name must be {must}. Got {str(path)[:80]!r}.")


def write_text(path: str | Path, text: str, *, newline: str | None = None) -> None:
    """Writes a whole text file as UTF-8; a lone surrogate, which UTF-8 lacks, becomes an escape."""
    with (
        whole_file(path) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline=newline) as file,
    ):
        file.write(text)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Writes a whole file of bytes."""
    with whole_file(path) as part:
        part.write_bytes(content)


def beside(path: Path, *, prefix: str = "", suffix: str = "") -> Path:
    """A path in the same folder, named after the file; a hash stands in for a name that would be too long."""
    name = f"{prefix}{path.name}{suffix}"
    if len(os.fsencode(name)) > _LONGEST:
        name = f"{prefix}{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}{path.suffix}{suffix}"
    return path.with_name(name)


def remove_parts(path: Path) -> None:
    """Removes what killed writers of this file left beside it; only for the process that holds its lock."""
    tail = beside(path, prefix=f"{_PART}{'0' * 8}-").name[len(_PART) + 8 :]
    for entry in path.parent.iterdir():
        if entry.name.startswith(_PART) and entry.name[len(_PART) + 8 :] == tail:
            entry.unlink(missing_ok=True)


class RowFile:
    """A file of JSON lines that a run appends to; started afresh unless it is resumed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     RowFile(Path(folder) / "rows.jsonl").append([{"id": 1}])
    ...     list(RowFile(Path(folder) / "rows.jsonl", resume=True))
    [{'id': 1}]
    """

    def __init__(self, path: Path, *, resume: bool = False, needed: Sequence[str] = ()) -> None:
        self.path, self.needed = path, tuple(needed)
        if resume and path.exists():
            _mend_last_line(path)
        else:
            path.write_text("", encoding="utf-8")

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds rows; they are in the file when this returns, and none of them is if it fails."""
        lines = to_lines(rows)
        size = self.path.stat().st_size
        try:
            with self.path.open("ab") as file:
                file.write(lines)
        except OSError:  # such as a full disk, which takes as much as fits
            with suppress(OSError):
                os.truncate(self.path, size)
            raise

    def replace(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Puts these rows in place of all others."""
        write_bytes(self.path, to_lines(rows))

    def sync(self) -> None:
        """Waits until the disk has every row."""
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())
        _sync_folder(self.path.parent)

    def __iter__(self) -> Iterator[Row]:
        return read_rows(self.path, needed=self.needed)


def read_rows(path: Path, *, torn: bool = False, needed: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file of JSON lines, each with the `needed` fields.

    With `torn`, a last line that was cut short is passed over.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = parse_json(line.decode("utf-8"))
            except ValueError:
                row = None
            if isinstance(row, dict) and all(name in row for name in needed):
                yield row
            elif not (torn and not line.endswith(b"\n")):
                fields = f" with {', '.join(map(repr, needed))}" if needed else ""
                raise RecordError(
                    f"Line {number} of {str(path)!r} must be a JSON object{fields}: remove the line, and --resume "
                    "computes its row again."
                )


def count_rows(path: Path) -> int:
    """How many complete lines, or rows of a Parquet file, a file has; 0 if it does not exist."""
    try:
        if path.suffix == ".parquet":
            from pyarrow.parquet import read_metadata

            return int(read_metadata(path).num_rows) if path.exists() else 0
        with path.open("rb") as file:
            return sum(line.endswith(b"\n") and bool(line.strip()) for line in file)
    except OSError:
        return 0


def to_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as JSON lines."""
    lines = "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
    return lines.encode("utf-8", "backslashreplace")  # a lone surrogate has no UTF-8; JSON writes it as this escape


def _mend_last_line(path: Path) -> None:
    """Ends a line that lacks only its newline; drops one that was cut short."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end == len(content):
        return
    try:
        parse_json(content[end:].decode("utf-8"))
        mended = content + b"\n"
    except ValueError:
        mended = content[:end]
    write_bytes(path, mended)


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut; systems that cannot open a folder do so by themselves."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
