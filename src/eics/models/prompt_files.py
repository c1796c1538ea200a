"""Prompts from files: which column holds them, which ids they get, and which of them are taken."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from eics.errors import OptionError, PromptError, as_path
from eics.models.prompts import Prompt, as_prompt
from eics.models.row_files import read_rows

STDIN = "-"


class HasId(Protocol):
    """Whatever has an id: prompts, with or without labels."""

    @property
    def id(self) -> str | int: ...


Item = TypeVar("Item", bound=HasId)


def read_prompts(
    path: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
) -> list[Prompt]:
    """Prompts from files of any format that `eics.models.row_files` reads, or bundled ones by name.

    Args:
        path: a file, `-` for standard input, the name of bundled prompts, or several of those.
        column: the column or field that holds the prompts; `prompt`, or the only column, by default.
        limit: take this many prompts; the first ones, unless they are shuffled.
        shuffle: take them in random order, by `seed`. Prompts keep their ids.

    An item is text, a list of token ids, or an object with `prompt` or `tokens` and perhaps `id`, `answer` and `label`.
    Without an `id`, a prompt of a single file is called by its line from 0, and a prompt of several files by the file's
    name and the line, as in `a.jsonl:3`.
    """
    return read_items(path, as_prompt, column=column, limit=limit, shuffle=shuffle, seed=seed)


@dataclass(frozen=True)
class Grouped:
    """A prompt with what it belongs to: its subject, its template, ..."""

    prompt: Prompt
    group: str

    @property
    def id(self) -> str | int:
        """The prompt's."""
        return self.prompt.id


def read_grouped(path: str | Path | Sequence[str | Path], group: str, **how: Any) -> list[Grouped]:
    """Prompts as `read_prompts` reads them, each with the value of its field `group`."""

    def parse(item: Any, default_id: str | int, column: str | None) -> Grouped:
        if not isinstance(item, dict) or item.get(group) is None:
            fields = ", ".join(map(str, item)) if isinstance(item, dict) else "no fields"
            raise PromptError(f"a prompt must have the field {group!r}, its group; this has {fields}")
        return Grouped(as_prompt(item, default_id, column), str(item[group]))

    return read_items(path, parse, **how)


def read_items(
    path: str | Path | Sequence[str | Path],
    parse: Callable[[Any, str | int, str | None], Item],
    *,
    column: str | None = None,
    limit: int | None = None,
    shuffle: bool = False,
    seed: int = 0,
) -> list[Item]:
    """The same for any kind of item with an `id`, which `parse` makes from a row, a default id and a column."""
    paths = list(path) if isinstance(path, Iterable) and not isinstance(path, str) else [path]
    paths = [as_path(each, "prompts file") if not isinstance(each, str) else each for each in paths]
    if not paths:
        raise OptionError("There must be at least one file of prompts. Got none.")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise OptionError.of("limit", "a whole number >= 1", limit)
    items = _items(paths, parse, column)
    taken = list(items if shuffle else islice(items, limit))
    if not taken:
        raise OptionError(f"The prompts file must have at least one prompt. Got {_quoted(paths)}: empty.")
    _check_ids(taken)
    if shuffle:
        random.Random(f"order of the prompts {seed}").shuffle(taken)
    return [item for item, _ in taken[:limit]]


def named_ids(paths: Sequence[str | Path]) -> list[str]:
    """What ids begin with when there are several files: their names, or their whole paths if two names are equal."""
    names = ["stdin" if str(path) == STDIN else Path(path).name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _items(
    paths: Sequence[str | Path], parse: Callable[[Any, str | int, str | None], Item], column: str | None
) -> Iterator[tuple[Item, str]]:
    """Each item with the place to name in an error."""
    if [str(path) for path in paths].count(STDIN) > 1:
        raise OptionError("Standard input (-) can be read once only. Got it twice.")
    for path, name in zip(paths, named_ids(paths), strict=True):
        chosen = column
        for row in read_rows(path, "prompts", "prompts"):
            if row.number == 0 and row.of_table:
                chosen = _table_column(list(row.item), column, path)
            where = f"{row.place} of {str(path)!r}"
            if column is not None and row.error is None and not isinstance(row.item, dict):
                raise OptionError(f"A column needs a table or objects with fields. {where} has none: drop the column.")
            try:
                if row.error is not None:
                    raise PromptError(row.error)
                yield parse(row.item, row.number if len(paths) == 1 else f"{name}:{row.number}", chosen), where
            except PromptError as error:
                raise OptionError(f"{where} must be a prompt: {error}.") from None


def _table_column(columns: list[str], column: str | None, path: str | Path) -> str | None:
    """The column with the prompts; None for the usual ones."""
    if column is None and ("prompt" in columns or "tokens" in columns):
        return None
    if column is None and len(columns) == 1:
        _refuse_other_separators(columns[0], path)
        return columns[0]
    if column not in columns:
        must = "have a column 'prompt', unless 'column' names another" if column is None else f"have {column!r}"
        raise OptionError(f"The table must {must}. {str(path)!r} has these columns: {', '.join(columns)}.")
    return column


def _refuse_other_separators(column: str, path: str | Path) -> None:
    """Refuses a table that was split at the wrong character: whole rows, cells and all, would be taken for prompts."""
    if any(separator in column for separator in ";\t|,"):
        raise OptionError(
            f"The cells of a table must be separated by commas (.csv) or tabs (.tsv). The only column of {str(path)!r} "
            f"is called {column!r}: save it with such cells, or name that column if it is one."
        )


def _check_ids(taken: Sequence[tuple[HasId, str]]) -> None:
    places: dict[str | int, str] = {}
    for item, where in taken:
        if item.id in places:
            raise OptionError(
                f"Every prompt must have an id of its own. Got {item.id!r} twice: on {_lower(places[item.id])} and on "
                f"{_lower(where)}."
            )
        places[item.id] = where


def _lower(place: str) -> str:
    return place[:1].lower() + place[1:]


def _quoted(paths: Sequence[Any]) -> str:
    return ", ".join(repr(str(path)) for path in paths)
