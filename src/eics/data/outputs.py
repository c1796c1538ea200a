"""Which files a command may write: none that exists without being told so, none that it reads, none twice.

`Outputs` checks when it is made, before any work, and touches nothing; used as a context it locks its files, one
process at a time, and looks again.
"""

import os
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eics.data.files import beside, remove_parts
from eics.data.locks import Lock, lock_file
from eics.errors import OptionError

STREAMED = ".jsonl"
"""The ending of files that are written line by line; others have a journal beside them until they are complete."""


@dataclass
class Outputs:
    """The files that a command writes and reads, each by the name of its option.

    Attributes:
        files: paths to write; None where the option is not given.
        inputs: what is read: paths, names, or lists of them. What is no path on disk does not count.
        overwrite: replace files that exist. resume: continue them; None if the command cannot.
        records: the options whose files are resumed; a file other than .jsonl then has a journal.
    """

    files: Mapping[str, Path | None]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    overwrite: bool = False
    resume: bool | None = None
    records: tuple[str, ...] = ()
    _locks: list[Lock] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        check_rerun(resume=bool(self.resume), overwrite=self.overwrite)
        check_distinct(dict(self._given()), self.inputs, dict(self._companions()), resume=bool(self.resume))
        for option, path in self._given():
            self._check_new(option, path)

    def __enter__(self) -> "Outputs":
        try:
            for option, path in self._given():
                self._locks.append(Lock(path))
                self._check_new(option, path)  # another process may have finished since
                remove_parts(Path(os.path.realpath(path)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._locks:
            self._locks.pop().release()

    def _given(self) -> Iterator[tuple[str, Path]]:
        return ((option, path) for option, path in self.files.items() if path is not None)

    def _companions(self) -> Iterator[tuple[str, Path]]:
        """Files that appear beside the outputs while they are written."""
        for option, path in self._given():
            yield f"the lock file of {option}", lock_file(path)
            if option in self.records and path.suffix != STREAMED:
                yield f"the journal of {option}", journal_of(path)

    def _check_new(self, option: str, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise OptionError(f"{option} must be a plain file. Got {str(path)!r}, which is something else.")
        present = [file for file in (path, journal_of(path)) if file.exists()]
        if option not in self.records:
            present = present if path in present else []
        if not present or self.overwrite or self.resume:
            return
        resume = "" if self.resume is None else "continue it with --resume, "
        other = option.rpartition(" ")[2]  # of "toy.json in --out"
        raise OptionError(
            f"{str(present[0])!r} already exists: {resume}replace it with --overwrite, or use another {other}."
        )


def journal_of(path: Path) -> Path:
    """The stream of rows behind a file: the file itself if it is written line by line, else one beside it.

    >>> journal_of(Path("scores.parquet")).name, journal_of(Path("scores.jsonl")).name
    ('scores.parquet.part.jsonl', 'scores.jsonl')
    """
    path = Path(os.path.realpath(path))
    return path if path.suffix == STREAMED else beside(path, suffix=f".part{STREAMED}")


def check_rerun(*, resume: bool, overwrite: bool) -> None:
    """Refuses to continue a run and replace it at once."""
    if resume and overwrite:
        raise OptionError("--resume and --overwrite exclude each other: one continues a run, the other replaces it.")


def check_distinct(
    outputs: Mapping[str, Path],
    inputs: Mapping[str, Any],
    companions: Mapping[str, Path] | None = None,
    *,
    resume: bool = False,
) -> None:
    """Refuses an output that is an input, a file of an input folder, or another output, under whatever name.

    `companions` are files that appear beside the outputs on the way. A file in an input folder may be resumed: its
    content shows whose it is.
    """
    seen: dict[str, Path] = {}
    for option, path in {**outputs, **(companions or {})}.items():
        for name, source in _sources(inputs):
            inside = option in outputs and not resume and path.exists() and source.resolve() in path.resolve().parents
            if inside or is_same(path, source):
                what = "a file of" if inside else "the same file as"
                raise OptionError(
                    f"{option} must not be {what} {name}, which is read. Got {str(path)!r}: choose another name."
                )
        for other, another in seen.items():
            if is_same(path, another):
                raise OptionError(
                    f"{option} must not be {other}. Got {str(path)!r} and {str(another)!r}: choose another name."
                )
        seen[option] = path


def _sources(inputs: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """What is read and is on disk, by option; the names of bundled and fetched things are not paths."""
    for name, given in inputs.items():
        for source in given if isinstance(given, list | tuple) else [given]:
            if isinstance(source, str | Path) and os.path.lexists(source):
                yield name, Path(source)


def is_same(path: Path, other: Path) -> bool:
    """Whether two paths are one file: through links of both kinds, and for new files by name in any case.

    >>> is_same(Path("a/../new.jsonl"), Path("./New.jsonl"))
    True
    """
    try:
        return path.samefile(other)
    except OSError:  # at least one does not exist yet
        return _key(path) == _key(other)


def _key(path: Path) -> str:
    """Some file systems ignore case, and write an accent in one way or another."""
    return unicodedata.normalize("NFC", os.path.realpath(path)).casefold()
