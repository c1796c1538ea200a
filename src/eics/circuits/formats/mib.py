"""MIB submissions: a folder for each task and model, with one file of scores or several binary circuits."""

from pathlib import Path

from eics.circuits.names import shorten
from eics.errors import CircuitError

_SUFFIXES = (".json", ".pt")


def circuit_in(folder: Path) -> Path:
    """The only circuit file in a folder; if there are several, an error lists them."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    if len(files) == 1:
        return files[0]
    if not files:
        raise CircuitError("must be a folder with a circuit file (.json or .pt). It has none.")
    names = shorten((path.relative_to(folder).as_posix() for path in files), limit=12)
    raise CircuitError(f"holds several circuits: {names}. Name one of these files.")
