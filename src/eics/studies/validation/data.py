"""Labelled prompts from files and from Python.

    {"prompt": "The capital of France is", "answer": " Paris", "id": "fr", "relation": "capital"}
    {"tokens": [1, 2, 3], "label": true}

`answer` is text or a token id, or a list of all that count as right; the label is then whether the model gives it.
`label` (true, 1, "correct", "known" or "coherent": the model is right, or knows it) needs no answer and overrides one.
Every other field that holds text or a whole number can be used to group prompts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eics.errors import OptionError, PromptError
from eics.models.prompt_files import read_items
from eics.models.prompt_values import prompt_items
from eics.models.prompts import Prompt, as_prompt

Answer = str | int
_RIGHT = ("correct", "right", "known", "coherent")
_WRONG = ("wrong", "incorrect", "unknown", "broken")
_RESERVED = ("prompt", "tokens", "id", "answer", "label")


@dataclass(frozen=True)
class Labelled:
    """A prompt with its answers, its label, or both; `groups` holds the line's other fields, as text."""

    prompt: Prompt
    answers: tuple[Answer, ...] = ()
    label: bool | None = None
    groups: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str | int:
        return self.prompt.id


def read_labelled(data: str | Path | Iterable[Any], **chosen: Any) -> list[Labelled]:
    """Labelled prompts from a file, or from objects like its lines; refuses unlabelled prompts and repeated ids.

    `chosen` is for files: their `column`, `limit`, `shuffle` and `seed`, as `eics.read_prompts` takes them.
    """
    if isinstance(data, str | Path):
        return read_labelled_files([data], **chosen)
    prompts = list(_parse_all(data))
    if not prompts:
        raise OptionError("The data must have at least one prompt. Got none.")
    _check(prompts, "")
    return prompts


def read_labelled_files(paths: Sequence[str | Path], **chosen: Any) -> list[Labelled]:
    """Labelled prompts from several files."""
    source = f" in {', '.join(repr(str(path)) for path in paths)}"
    prompts = read_items(paths, _parse, **chosen)
    _check(prompts, source)
    return prompts


def group_values(prompts: Sequence[Labelled], key: str) -> list[str]:
    """The group of each prompt; every prompt must have one."""
    missing = [prompt.id for prompt in prompts if key not in prompt.groups]
    if missing:
        fields = ", ".join(sorted({name for prompt in prompts for name in prompt.groups})) or "none"
        raise OptionError(
            f"Every prompt must have the field {key!r} to be grouped by it. {len(missing)} of {len(prompts)} have "
            f"none, such as {missing[0]!r}. The data has these fields: {fields}."
        )
    return [prompt.groups[key] for prompt in prompts]


def _parse_all(data: Iterable[Any]) -> Iterator[Labelled]:
    for number, item in enumerate(prompt_items(data)[0]):
        try:
            yield _parse(item, number)
        except PromptError as error:
            raise OptionError(f"Item {number} of the data must be a labelled prompt: {error}.") from None


def _parse(item: Any, default_id: str | int, column: str | None = None) -> Labelled:
    if isinstance(item, Labelled):
        return item
    if not isinstance(item, Mapping):
        raise PromptError(f"it must be an object with 'prompt' or 'tokens', and 'answer' or 'label'; got {item!r}")
    bare = {name: value for name, value in item.items() if name not in ("answer", "label")}
    prompt = as_prompt(bare, default_id, column)
    groups = {
        name: str(value) for name, value in item.items() if name not in _RESERVED and isinstance(value, str | int)
    }
    return Labelled(prompt, _answers(item.get("answer")), _label(item.get("label")), groups)


def _answers(given: Any) -> tuple[Answer, ...]:
    if given is None:
        return ()
    listed = given if isinstance(given, list) else [given]
    wrong = [a for a in listed if isinstance(a, bool) or not isinstance(a, str | int) or a == ""]
    if wrong or not listed:
        raise PromptError(f"an answer must be text, a token id, or a list of those; got {given!r}")
    return tuple(listed)


def _label(given: Any) -> bool | None:
    if given is None:
        return None
    if isinstance(given, str) and given.lower() in {*_RIGHT, *_WRONG}:
        return given.lower() in _RIGHT
    if given not in (0, 1) or isinstance(given, str):
        words = f"one of {', '.join((*_RIGHT, *_WRONG))}"
        raise PromptError(f"a label must be true or 1 (right), false or 0 (wrong), or {words}; got {given!r}")
    return bool(given)


def _check(prompts: Sequence[Labelled], source: str) -> None:
    bare = [prompt.id for prompt in prompts if prompt.label is None and not prompt.answers]
    if bare:
        raise OptionError(
            f"Every prompt must have an 'answer' or a 'label'. {len(bare)} of {len(prompts)} have neither{source}, "
            f"such as {bare[0]!r}: add them or remove the lines."
        )
    [(id, count)] = Counter(prompt.id for prompt in prompts).most_common(1)
    if count > 1:
        raise OptionError(f"Every prompt must have an id of its own. Got {id!r} twice{source}.")
