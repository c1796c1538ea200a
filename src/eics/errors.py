"""Errors that a user's input can cause: one line that says what must hold, what came and what to do.

Also `printable` and `did_you_mean`, which every message that repeats foreign text or names may use, and `as_path`.
"""

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

# C0 and C1 controls, DEL; marks, embeddings, overrides and isolates of writing direction; line and paragraph
# separators; the byte order mark, annotations, lone surrogates and invisible tags.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


class EICSError(ValueError):
    """Base class of all errors below. The message is one line, whatever foreign text it repeats.

    >>> print(EICSError("a name with a\\nline feed"))
    a name with a\\u000aline feed
    """

    def __str__(self) -> str:
        return printable(super().__str__())


class CircuitError(EICSError):
    """The circuit is not a directed acyclic graph of well-named nodes, or does not fit its model or maps."""


class OptionError(EICSError):
    """An option is outside its range."""

    @classmethod
    def of(cls, name: str, must: str, value: object) -> "OptionError":
        """The standard message for an option out of range.

        >>> print(OptionError.of("alpha", "a number > 0, or 'auto'", -1))
        The 'alpha' option must be a number > 0, or 'auto'. Got -1 instead.
        """
        return cls(f"The {name!r} option must be {must}. Got {value!r} instead.")


class RecordError(EICSError):
    """A record, or a file of records, cannot be read."""


class ModelError(EICSError):
    """The model cannot be loaded or adapted, or its adapter does not describe it."""


class PromptError(EICSError):
    """This prompt cannot be scored; others in the same batch can."""


def printable(text: object, *, lines: bool = False) -> str:
    """The text with control and bidirectional characters as visible escapes, so that no file commands a terminal.

    With `lines`, line feeds and tabs stay. The escapes are those of JSON: a JSON document keeps its meaning.

    >>> printable("red \\x1b[31m, reversed \\u202e")
    'red \\\\u001b[31m, reversed \\\\u202e'
    """

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if lines and character in "\n\t":
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))

    return _UNPRINTABLE.sub(escape, str(text))


def as_path(given: object, what: str, error: type[EICSError] = OptionError) -> Path:
    """A path from Python; refuses what is none by the name of the file that it should have been.

    >>> as_path("a.jsonl", "records file").name
    'a.jsonl'
    """
    if isinstance(given, str | os.PathLike):
        return Path(given)
    raise error(f"The {what} must be given as text or a path. Got {type(given).__name__} {given!r:.60}.")


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """A sentence that suggests the names nearest to a mistyped one, with a blank before it; empty if none is near.

    >>> did_you_mean("fact", ["facts", "ioi", "people"])
    " Did you mean 'facts'?"
    """
    lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(str(name).lower()[:100], lower, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(lower[candidate]) for candidate in near)}?" if near else ""
