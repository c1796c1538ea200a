"""Reads a document field by field; what is missing or of the wrong type is one line that names the field.

Unlike records (`reader.py`), a document is one result: with a part of it gone, what is left may mislead.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eics.errors import RecordError
from eics.reporting.page.details import finite

Interval = list[float | None]


class Fields:
    """An object of a document, whose fields are checked as they are read.

    >>> Fields({"level": "high"}, "comparison").number("level")
    Traceback (most recent call last):
    eics.errors.RecordError: The comparison must have a finite number or null in 'level'. Got 'high' instead.
    """

    def __init__(self, given: object, document: str, path: str = "") -> None:
        self._document, self._path = document, path
        if not isinstance(given, Mapping):
            raise self._refused("an object", path, given)
        self._given = given

    def text(self, name: str) -> str:
        """A text."""
        return str(self._read(name, "a text", lambda value: isinstance(value, str)))

    def text_or_none(self, name: str) -> str | None:
        """A text or null; a field that is left out counts as null."""
        value = self._given.get(name)
        return value if value is None else self.text(name)

    def one_of(self, name: str, names: Sequence[str | None]) -> Any:
        """One of these texts."""
        must = " or ".join("null" if choice is None else repr(choice) for choice in names)
        return self._read(name, must, lambda value: value is None or isinstance(value, str), lambda v: v in names)

    def flag(self, name: str) -> bool:
        """True or false."""
        return bool(self._read(name, "true or false", lambda value: isinstance(value, bool)))

    def whole(self, name: str) -> int:
        """An integer of at least 0."""
        return int(self._read(name, "an integer of at least 0", is_whole))

    def number(self, name: str) -> float | None:
        """A finite number or null; the field must be there."""
        value = self._read(name, "a finite number or null", is_number)
        return None if value is None else float(value)

    def interval(self, name: str) -> Interval | None:
        """The numbers `value`, `low` and `high` of an object; None where it is null."""
        if name in self._given and self._given[name] is None:
            return None
        inner = self.nested(name)
        return [inner.number(part) for part in ("value", "low", "high")]

    def identity(self, name: str) -> str:
        """The id of a prompt or text, as text."""
        return str(self._read(name, "a text or an integer", lambda value: isinstance(value, str) or is_whole(value)))

    def absent(self, name: str) -> bool:
        """Whether a field is null or left out."""
        return self._given.get(name) is None

    def nested(self, name: str) -> "Fields":
        """An object."""
        return Fields(self._read(name, "an object", _anything), self._document, self.at(name))

    def nested_or_none(self, name: str) -> "Fields | None":
        """An object or null."""
        return None if self._read(name, "an object or null", _anything) is None else self.nested(name)

    def objects(self, name: str) -> Iterator["Fields"]:
        """The objects of a list."""
        for index, item in enumerate(self.items(name)):
            yield Fields(item, self._document, f"{self.at(name)}[{index}]")

    def texts(self, name: str, *, nulls: bool = False) -> list[Any]:
        """A list of texts, or of texts and nulls."""
        must = "a text or null" if nulls else "a text"
        return self.items(name, must, lambda value: isinstance(value, str) or (nulls and value is None))

    def numbers(self, name: str) -> list[float | None]:
        """A list of finite numbers and nulls."""
        return self.items(name, "a finite number or null", is_number)

    def items(self, name: str, must: str = "", fits: Callable[[Any], bool] | None = None) -> list[Any]:
        """A list, each item of which `must` be what `fits` says."""
        values = self._read(name, "a list", lambda value: isinstance(value, list | tuple))
        for index, item in enumerate(values if fits else ()):
            if fits and not fits(item):
                raise self._refused(must, f"{self.at(name)}[{index}]", item)
        return list(values)

    def mapping(self, name: str, must: str, fits: Callable[[Any], bool]) -> dict[str, Any]:
        """An object with arbitrary names, each value of which `must` be what `fits` says."""
        inner = self._read(name, "an object", lambda value: isinstance(value, Mapping))
        for key, item in inner.items():
            if not fits(item):
                raise self._refused(must, f"{self.at(name)}.{key}", item)
        return {str(key): item for key, item in inner.items()}

    def refuse(self, name: str, must: str, value: object) -> RecordError:
        """The error of a field whose value has the right type and is still impossible."""
        return self._refused(must, self.at(name), value)

    def _read(
        self, name: str, must: str, fits: Callable[[Any], bool], within: Callable[[Any], bool] | None = None
    ) -> Any:
        if name not in self._given:
            raise RecordError(f"The {self._document} must have {must} in {self.at(name)!r}. The field is missing.")
        value = self._given[name]
        if not fits(value) or (within is not None and not within(value)):
            raise self._refused(must, self.at(name), value)
        return value

    def at(self, name: str) -> str:
        """Where a field is in the document."""
        return f"{self._path}.{name}" if self._path else name

    def _refused(self, must: str, path: str, value: object) -> RecordError:
        at = f" in {path!r}" if path else ""
        return RecordError(f"The {self._document} must have {must}{at}. Got {value!r:.60} instead.")


def check_format(document: Fields, name: str, version: int, command: str) -> None:
    """Refuses what is another document, or one of a version that this page cannot show."""
    document.one_of("format", [name])
    if (given := document.whole("version")) != version:
        raise document.refuse("version", f"the number {version} (update eics, or run {command} again)", given)


def is_number(value: object) -> bool:
    """Whether a value is a finite number or null, as every number of a document is."""
    return value is None or finite(value) is not None


def is_whole(value: object) -> bool:
    """Whether a value is an integer of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _anything(_: object) -> bool:
    return True
