"""A file's content, recognised by what it is, not by its name: JSON, XML, text, a torch archive or a pickle.

`Reader` and `Writer` are what the module of a format offers.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.safe_pickle import is_torch, load_pickle, load_torch
from eics.errors import CircuitError

MAX_TEXT = 512 << 20
MAX_BINARY = 2 << 30

What = Literal["json", "xml", "text", "torch", "pickle"]


@dataclass(frozen=True)
class Content:
    """A parsed file: `value` is the JSON value, the text (also of XML), or the unpickled objects."""

    what: What
    value: Any


@dataclass(frozen=True)
class Reader:
    """Reads one format; `about` names it in messages.

    The format is recognised by what the file is (`whats`), by the type of its value, and by what `matches` sees in it.
    """

    about: str
    whats: tuple[What, ...]
    type: type
    matches: Callable[[Any], bool]
    read: Callable[[Any], CircuitGraph]

    def recognises(self, content: Content) -> bool:
        """Whether the content is in this format."""
        return content.what in self.whats and isinstance(content.value, self.type) and self.matches(content.value)


@dataclass(frozen=True)
class Writer:
    """Writes one format: `write` returns the text, and sentences about what the format cannot hold."""

    name: str
    about: str
    suffixes: tuple[str, ...]
    write: Callable[[CircuitGraph], tuple[str, tuple[str, ...]]]


def read_content(path: Path) -> Content:
    """Reads and parses a file; refuses one that is too large (before reading it) or cannot be parsed."""
    if not path.is_file():  # a device or a pipe may never end
        raise CircuitError(f"must be a readable file. {'Not a plain file' if path.exists() else 'No such file'}.")
    with path.open("rb") as file:
        head = file.read(16)
        binary = head[:2] == b"PK" or head[:1] == b"\x80"
        limit, size = MAX_BINARY if binary else MAX_TEXT, path.stat().st_size
        if size > limit:
            raise CircuitError(f"must be at most {limit >> 20} MB. It has {size >> 20} MB: is it really a circuit?")
        data = head + file.read(limit)
    return parse(data)


def parse(data: bytes) -> Content:
    """Parses bytes by what they look like."""
    if is_torch(data):
        return Content("torch", load_torch(data))
    if data[:1] == b"\x80":
        return Content("pickle", load_pickle(data))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CircuitError(
            f"must be UTF-8 text, a torch archive or a pickle. Byte {error.start} fits none of them."
        ) from None
    start = text.lstrip()[:1]
    if start and start in "{[":
        return Content("json", _json(text))
    return Content("xml" if start == "<" else "text", text)


def _json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise CircuitError(f"must be JSON: {error}.") from None
    except RecursionError:
        raise CircuitError("must be JSON that is not nested this deeply.") from None
    except ValueError as error:  # a number with thousands of digits
        raise CircuitError(f"must be JSON with numbers of sensible length: {error}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise CircuitError(f"must give each key of a JSON object once. {twice[:60]!r} came twice: remove one of them.")
    return unique
