"""Files that come with the package, by name: circuits, tasks, labelled prompts."""

from importlib.resources import files
from importlib.resources.abc import Traversable


def bundled(folder: str, ending: str) -> list[str]:
    """Names of the files in a folder of `eics.data`, without their ending.

    >>> bundled("prompts", ".jsonl")
    ['facts', 'facts-withheld', 'induction', 'people', 'people-withheld']
    """
    names = (entry.name for entry in (files("eics.data") / folder).iterdir())
    return sorted(name.removesuffix(ending) for name in names if name.endswith(ending))


def bundled_file(folder: str, name: str, ending: str) -> Traversable | None:
    """The bundled file with this name, or None."""
    return files("eics.data") / folder / f"{name}{ending}" if name in bundled(folder, ending) else None
