"""One process at a time: a lock of the operating system, which ends with its process, however that ends."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path

from eics.data.files import beside, writable
from eics.errors import OptionError

FOLDER_LOCK = ".lock"
"""The name of the lock file inside a folder."""

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class Lock:
    """The right to write one file. The lock file beside it is removed at the end; one that a kill left is not locked.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     lock = Lock(Path(folder) / "scores.jsonl")
    ...     try:
    ...         Lock(Path(folder) / "scores.jsonl")
    ...     except OptionError as error:
    ...         print(str(error).partition("scores.jsonl")[2])
    ...     lock.release()
    ...     list(Path(folder).iterdir())
    ': it must not be written by two processes. Another one is writing it: wait for it, or use another name.
    []
    """

    def __init__(self, path: Path) -> None:
        self.file = lock_file(path)
        while True:
            with writable(path):  # the file that the user named
                descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT, 0o666)
            if not _acquire(descriptor):
                os.close(descriptor)
                raise OptionError(
                    f"{str(path)!r}: it must not be written by two processes. Another one is writing it: wait for it, "
                    "or use another name."
                )
            if self._is(descriptor):
                break
            os.close(descriptor)  # its last holder has just removed this lock file: a new one counts
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Lets the next process write; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with suppress(OSError):
            if os.name == "posix":  # while it is still held, so that nobody's new lock file is removed
                self.file.unlink()
        os.close(descriptor)
        with suppress(OSError):
            if os.name != "posix":
                self.file.unlink()

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.file.stat())
        except FileNotFoundError:
            return False


def lock_file(path: Path) -> Path:
    """The lock file of an output: beside a file, inside a folder."""
    path = Path(os.path.realpath(path))
    return path / FOLDER_LOCK if path.is_dir() else beside(path, prefix=".", suffix=".lock")


def _acquire(descriptor: int) -> bool:
    """Takes the lock at once, or tells that another process has it; without locks on this disk, everybody has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno not in _UNSUPPORTED:
            raise
    return True
