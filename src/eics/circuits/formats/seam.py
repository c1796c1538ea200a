"""The seam between files and graphs: what a module for one format offers."""

from collections.abc import Callable
from dataclasses import dataclass

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content


@dataclass(frozen=True)
class Reader:
    """Reads one format: `matches` recognises it by content, `about` names it in messages."""

    name: str
    about: str
    matches: Callable[[Content], bool]
    read: Callable[[Content], CircuitGraph]


@dataclass(frozen=True)
class Writer:
    """Writes one format: gives the text, and sentences about what the format could not hold."""

    name: str
    about: str
    suffixes: tuple[str, ...]
    write: Callable[[CircuitGraph], tuple[str, tuple[str, ...]]]
