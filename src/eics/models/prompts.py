"""Prompts: text or token ids, from Python or from JSON lines, made into tokens that a model takes."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eics.data.bundled import bundled, bundled_file
from eics.errors import OptionError, PromptError
from eics.models.base import Model


@dataclass(frozen=True)
class Prompt:
    """One prompt with its id; either text or tokens. `answer` and `label` go into the record as they are."""

    id: str | int
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    answer: str | None = None
    label: str | int | float | bool | None = None

    @property
    def said(self) -> dict[str, Any]:
        """What the record repeats of it."""
        return {"prompt": self.text, "answer": self.answer, "label": self.label}


def as_prompts(prompts: Any, ids: Sequence[str | int] | None = None) -> list[Prompt]:
    """A list of strings, of token lists, or of objects with `prompt` or `tokens`; perhaps `id`, `answer`, `label`."""
    items = list(prompts)
    if ids is not None and len(ids) != len(items):
        raise OptionError.of("ids", f"one for each of the {len(items)} prompts", list(ids))
    names: Sequence[str | int] = range(len(items)) if ids is None else ids
    return [_as_prompt(item, name) for item, name in zip(items, names, strict=True)]


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt and not a list of them: a string, or a list of token ids."""
    return isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and len(prompts) > 0 and all(isinstance(token, int) for token in prompts)
    )


def bundled_prompts() -> list[str]:
    """Names of the labelled prompts that come with the package."""
    return bundled("prompts", ".jsonl")


def read_prompts(path: str | Path) -> list[Prompt]:
    """Prompts from JSON lines: `{"prompt": "..."}` or `{"tokens": [1, 2, 3]}`; perhaps `id`, `answer`, `label`.

    `path` is a file, or the name of labelled prompts that come with the package (`bundled_prompts`).
    """
    try:
        lines = (bundled_file("prompts", str(path), ".jsonl") or Path(path)).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(bundled_prompts())
        raise OptionError(
            f"The prompts must be a readable file of JSON lines, or one of {known}. Got {str(path)!r}: {error}."
        ) from None
    found = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found.append(_as_prompt(json.loads(line), number))
        except (json.JSONDecodeError, PromptError) as error:
            raise OptionError(f"Line {number + 1} of {str(path)!r} must be a prompt: {error}") from None
    if not found:
        raise OptionError(f"The prompts file must have at least one prompt. Got {str(path)!r}: empty.")
    names: set[str | int] = set()
    for prompt in found:
        if prompt.id in names:
            raise OptionError(f"Every prompt must have an id of its own. Got {prompt.id!r} twice in {str(path)!r}.")
        names.add(prompt.id)
    return found


def tokenize(model: Model, prompt: Prompt) -> list[int]:
    """The prompt's tokens, checked against the model; what is wrong with one prompt is a `PromptError`."""
    tokens = list(prompt.tokens) if prompt.tokens is not None else _encode(model, prompt.text or "")
    if not tokens:
        raise PromptError("a prompt must have at least one token; this one is empty")
    if model.context is not None and len(tokens) > model.context:
        raise PromptError(
            f"a prompt must have at most {model.context} tokens, the model's context; this has {len(tokens)}"
        )
    known = model.vocabulary
    wrong = [token for token in tokens if not 0 <= token < known]
    if wrong:
        raise PromptError(f"token ids must be 0 to {known - 1}; this prompt has {wrong[0]}")
    return tokens


def token_texts(model: Model, ids: Sequence[int]) -> list[str] | None:
    """Each token as text; None where there is no tokenizer, or one that only encodes."""
    decode = getattr(model.tokenizer, "decode", None)
    return None if decode is None else [str(decode([token])) for token in ids]


def _encode(model: Model, text: str) -> list[int]:
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give token ids instead of text")
    if not text:
        return []
    return list(model.tokenizer(text)["input_ids"])


def _as_prompt(item: Any, name: str | int) -> Prompt:
    if isinstance(item, Prompt):
        return item
    if isinstance(item, str):
        return Prompt(name, text=item)
    if isinstance(item, dict):
        known = item.get("id", name)
        if isinstance(item.get("prompt"), str):
            return Prompt(known, text=item["prompt"], **_beside(item))
        if "tokens" in item:
            return Prompt(known, tokens=_ids(item["tokens"]), **_beside(item))
        raise PromptError(f"a prompt must have 'prompt' (text) or 'tokens' (a list of ids); got {list(item)}")
    return Prompt(name, tokens=_ids(item))


def _beside(item: dict[str, Any]) -> dict[str, Any]:
    answer, label = item.get("answer"), item.get("label")
    if answer is not None and not isinstance(answer, str):
        raise PromptError(f"an answer must be text; got {answer!r}")
    if not isinstance(label, str | int | float | None):
        raise PromptError(f"a label must be text, a number, true or false; got {label!r}")
    return {"answer": answer, "label": label}


def _ids(tokens: Any) -> tuple[int, ...]:
    if not isinstance(tokens, Iterable) or isinstance(tokens, str):
        raise PromptError(f"tokens must be a list of ids; got {tokens!r}")
    found = tuple(tokens)
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in found):
        raise PromptError(f"tokens must be whole numbers; got {found!r}")
    return found
