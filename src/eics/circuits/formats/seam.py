"""The interface between files and graphs: what the module of a format offers."""

from collections.abc import Callable
from dataclasses import dataclass

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content


@dataclass(frozen=True)
class Reader:
    """Reads one format: `matches` recognises its content, `about` names the format in messages."""

    name: str
    about: str
    matches: Callable[[Content], bool]
    read: Callable[[Content], CircuitGraph]


@dataclass(frozen=True)
class Writer:
    """Writes one format: `write` returns the text, and sentences about what the format cannot hold."""

    name: str
    about: str
    suffixes: tuple[str, ...]
    write: Callable[[CircuitGraph], tuple[str, tuple[str, ...]]]
