"""Prompts: text or token ids, from Python or from JSON lines, tokenized and checked against the model."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eics.data.bundled import bundled, bundled_file
from eics.errors import OptionError, PromptError
from eics.models.base import Model


@dataclass(frozen=True)
class Prompt:
    """One prompt with its id: either text or tokens. Records repeat its `answer` and `label` unchanged."""

    id: str | int
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    answer: str | None = None
    label: str | int | float | bool | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields that records repeat."""
        return {"prompt": self.text, "answer": self.answer, "label": self.label}


def as_prompts(prompts: Any, ids: Sequence[str | int] | None = None) -> list[Prompt]:
    """Prompts from strings, token lists, or objects with `prompt` or `tokens` and perhaps `id`, `answer`, `label`."""
    items = list(prompts)
    if ids is not None and len(ids) != len(items):
        raise OptionError.of("ids", f"one for each of the {len(items)} prompts", list(ids))
    default_ids: Sequence[str | int] = range(len(items)) if ids is None else ids
    return [_as_prompt(item, default_id) for item, default_id in zip(items, default_ids, strict=True)]


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt (a string or a list of token ids) rather than a list of prompts."""
    return isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(token, int) for token in prompts)
    )


def read_lines(path: str | Path, folder: str, what: str) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a file of JSON lines, each with its number from 1.

    Args:
        path: a file, or the name of a bundled one.
        folder: the folder of `eics.data` with the bundled ones.
        what: how an error calls the file, such as "prompts".
    """
    try:
        text = (bundled_file(folder, str(path), ".jsonl") or Path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(bundled(folder, ".jsonl"))
        raise OptionError(
            f"The {what} must be a readable file of JSON lines, or one of {names}. Got {str(path)!r}: {error}."
        ) from None
    return ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())


def read_prompts(path: str | Path) -> list[Prompt]:
    """Prompts from JSON lines: `{"prompt": "..."}` or `{"tokens": [1, 2, 3]}`; perhaps `id`, `answer`, `label`.

    `path` is a file, or the name of labelled prompts that come with the package.
    """
    prompts: list[Prompt] = []
    for number, line in read_lines(path, "prompts", "prompts"):
        try:
            prompts.append(_as_prompt(json.loads(line), number - 1))
        except (json.JSONDecodeError, PromptError) as error:
            raise OptionError(f"Line {number} of {str(path)!r} must be a prompt: {error}") from None
    if not prompts:
        raise OptionError(f"The prompts file must have at least one prompt. Got {str(path)!r}: empty.")
    ids: set[str | int] = set()
    for prompt in prompts:
        if prompt.id in ids:
            raise OptionError(f"Every prompt must have an id of its own. Got {prompt.id!r} twice in {str(path)!r}.")
        ids.add(prompt.id)
    return prompts


def tokenize(model: Model, prompt: Prompt) -> list[int]:
    """The prompt's tokens, checked against the model; a prompt that the model cannot take is a `PromptError`."""
    tokens = list(prompt.tokens) if prompt.tokens is not None else _encode(model, prompt.text or "")
    if not tokens:
        raise PromptError("a prompt must have at least one token; this one is empty")
    if model.context is not None and len(tokens) > model.context:
        raise PromptError(
            f"a prompt must have at most {model.context} tokens, the model's context; this has {len(tokens)}"
        )
    wrong = [token for token in tokens if not 0 <= token < model.vocabulary]
    if wrong:
        raise PromptError(f"token ids must be 0 to {model.vocabulary - 1}; this prompt has {wrong[0]}")
    return tokens


def token_texts(model: Model, ids: Sequence[int]) -> list[str] | None:
    """Each token as text, or None without a tokenizer that decodes."""
    decode = getattr(model.tokenizer, "decode", None)
    return None if decode is None else [str(decode([token])) for token in ids]


def _encode(model: Model, text: str) -> list[int]:
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give token ids instead of text")
    if not text:
        return []
    return list(model.tokenizer(text)["input_ids"])


def _as_prompt(item: Any, default_id: str | int) -> Prompt:
    if isinstance(item, Prompt):
        return item
    if isinstance(item, str):
        return Prompt(default_id, text=item)
    if isinstance(item, dict):
        prompt_id = item.get("id", default_id)
        if isinstance(item.get("prompt"), str):
            return Prompt(prompt_id, text=item["prompt"], **_answer_and_label(item))
        if "tokens" in item:
            return Prompt(prompt_id, tokens=_token_ids(item["tokens"]), **_answer_and_label(item))
        raise PromptError(f"a prompt must have 'prompt' (text) or 'tokens' (a list of ids); got {list(item)}")
    return Prompt(default_id, tokens=_token_ids(item))


def _answer_and_label(item: dict[str, Any]) -> dict[str, Any]:
    answer, label = item.get("answer"), item.get("label")
    if answer is not None and not isinstance(answer, str):
        raise PromptError(f"an answer must be text; got {answer!r}")
    if not isinstance(label, str | int | float | None):
        raise PromptError(f"a label must be text, a number, true or false; got {label!r}")
    return {"answer": answer, "label": label}


def _token_ids(given: Any) -> tuple[int, ...]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise PromptError(f"tokens must be a list of ids; got {given!r}")
    tokens = tuple(given)
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
        raise PromptError(f"tokens must be whole numbers; got {tokens!r}")
    return tokens
