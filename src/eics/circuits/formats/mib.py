"""MIB submission: a folder for each task and model, with one file of scores or several binary circuits."""

from pathlib import Path

from eics.circuits.formats.merge import some
from eics.errors import CircuitError

NAME = "mib"
_SUFFIXES = (".json", ".pt")


def circuit_in(folder: Path) -> Path:
    """The one circuit file in a folder; where there are several, says which, so that one can be named."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        raise CircuitError("must be a folder with a circuit file (.json or .pt). It has none.")
    names = some((path.relative_to(folder).as_posix() for path in found), shown=12)
    raise CircuitError(f"holds several circuits: {names}. Name one of these files.")
