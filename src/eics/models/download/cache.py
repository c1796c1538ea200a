"""The cache of fetched models: one folder, `$EICS_CACHE` or `eics` in the user's cache directory.

`models/NAME` holds a model, whole; `locks/NAME.lock` keeps two processes that fetch or remove it apart. The operating
system drops a lock when its process ends, however it ends.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from eics.errors import ModelError, did_you_mean
from eics.models.download.sources import SOURCES, bundled_model, bundled_models

PARTIAL = "fetching-"
_REMOVED = "removing-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def cache_folder() -> Path:
    """`$EICS_CACHE`, else `eics` in the user's cache directory."""
    own = os.environ.get("EICS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "eics"


def models_folder() -> Path:
    """The folder of the fetched models, made if need be."""
    folder = cache_folder() / "models"
    with _cache_errors():
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetched(name: str) -> Path | None:
    """The folder of a fetched model, or None."""
    folder = cache_folder() / "models" / name
    with _cache_errors():
        return folder if (folder / "config.json").is_file() else None


def model_folder(name: str) -> Path:
    """The folder of a bundled or fetched model."""
    bundled = bundled_model(name)
    folder = bundled if bundled is not None else fetched(name) if _NAME.fullmatch(name) else None
    if folder is None:
        if name in SOURCES:
            raise ModelError(f"The model {name!r} must be fetched first: run `eics models fetch {name}`.")
        names = [*SOURCES, *bundled_models()]
        hint = did_you_mean(name, names)
        raise ModelError(f"The model must be one of {', '.join(names)}. Got {name!r}.{hint}")
    return folder


def remove(name: str, say: Callable[[str], None] = lambda _: None) -> int:
    """Removes a fetched model and returns how many bytes that freed; refuses anything but a model in the cache."""
    if bundled_model(name) is not None:
        raise ModelError(f"A model to remove must have been fetched. {name!r} comes with the package.")
    folder = cache_folder() / "models" / name
    if not _NAME.fullmatch(name) or folder.is_symlink() or fetched(name) is None:
        present = [model for model in SOURCES if fetched(model) is not None]
        in_cache = f"The cache has {', '.join(present)}" if present else "The cache has none"
        raise ModelError(
            f"A model to remove must be in the cache, {str(cache_folder())!r}. {in_cache}. "
            f"Got {name!r}.{did_you_mean(name, present)}"
        )
    with locked(name, say), _cache_errors():
        size = sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        # Renamed first: whatever interrupts the removal, half a model is never taken for a whole one.
        trash = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_REMOVED))
        folder.rename(trash / name)
        shutil.rmtree(trash)
    return size


@contextmanager
def locked(name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Waits until no other process fetches or removes this model, and keeps others away until it is done."""
    with _cache_errors():
        folder = cache_folder() / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("ab")
    with file:
        try:
            import fcntl
        except ImportError:  # Windows: the rename at the end of a fetch still keeps models whole
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that is busy with {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _cache_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"The cache {str(cache_folder())!r} must be a folder that can be read and written: {error.strerror} "
            f"({error.filename}). Set EICS_CACHE to another folder."
        ) from error
