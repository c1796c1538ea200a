"""Prompts: text or token ids with an id, tokenized and checked against the model.

`prompt_values.py` says what Python callers may give, `prompt_files.py` reads files, `chat.py` applies chat templates.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from operator import index
from typing import Any

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompt_values import prompt_items, shown, token_ids

_LONG = 16  # characters per token of context beyond which a text is first tried on its beginning
_INT64 = 2**63


@dataclass(frozen=True)
class Prompt:
    """One prompt with its id: text, tokens, or tokens with the text they come from.

    Records repeat `text`, `answer` and `label`. Where `tokens` are given, the model runs on them and `text` is only
    shown. `foil` is a wrong answer, for comparisons that need one.
    """

    id: str | int
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    answer: str | None = None
    label: str | int | float | bool | None = None
    foil: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", checked_id(self.id))
        if self.text is not None and not isinstance(self.text, str):
            raise PromptError(f"a prompt's text must be text; got {shown(self.text)}")
        if self.tokens is not None:
            object.__setattr__(self, "tokens", token_ids(self.tokens))
        for name, given in (("an answer", self.answer), ("a foil", self.foil)):
            if given is not None and not isinstance(given, str):
                raise PromptError(f"{name} must be text; got {shown(given)}")
        label = self.label
        if not isinstance(label, str | int | float | None) or (isinstance(label, float) and not math.isfinite(label)):
            raise PromptError(f"a label must be text, a finite number, true or false; got {shown(label)}")

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields that records repeat; lone surrogates, which no file can hold, are spelt out."""
        texts = {"prompt": self.text, "answer": self.answer, "label": self.label}
        record = {name: _encodable(value) if isinstance(value, str) else value for name, value in texts.items()}
        fits = self.tokens is not None and all(-_INT64 <= token < _INT64 for token in self.tokens)
        return record | {"token_ids": list(self.tokens or ()) if fits else None}


def as_prompts(prompts: Any, ids: Sequence[str | int] | None = None) -> list[Prompt]:
    """Prompts from whatever `prompt_items` accepts; a single prompt gives a list of one.

    >>> [prompt.text for prompt in as_prompts(["a", {"prompt": "b", "label": True}])]
    ['a', 'b']
    """
    return single_or_many(prompts, ids)[0]


def single_or_many(prompts: Any, ids: Sequence[str | int] | None = None) -> tuple[list[Prompt], bool]:
    """The prompts, each with an id of its own, and whether a single one was given rather than a list."""
    items, single = prompt_items(prompts)
    default_ids = checked_ids(ids, len(items))
    listed = []
    for position, (item, default_id) in enumerate(zip(items, default_ids, strict=True)):
        try:
            listed.append(as_prompt(item, default_id))
        except PromptError as error:
            raise OptionError(f"Prompt {position} of the list cannot be read: {error}.") from None
    _check_unique([prompt.id for prompt in listed])
    return listed, single


def as_prompt(item: Any, default_id: str | int, column: str | None = None) -> Prompt:
    """One prompt from text, token ids, or an object; `column` names its field with the prompt, if not `prompt`."""
    if isinstance(item, Prompt):
        return item
    if isinstance(item, str):
        return Prompt(default_id, text=item)
    if not isinstance(item, Mapping):
        return Prompt(default_id, tokens=token_ids(item))
    given = item.get("id")
    fields: dict[str, Any] = {name: item.get(name) for name in ("answer", "label", "foil")}
    fields["id"] = default_id if given is None else given
    value = item.get(column or "prompt")
    if value is None and column is None and "tokens" in item:
        value = token_ids(item["tokens"])
    if isinstance(value, str):
        return Prompt(text=value, **fields)
    if value is None or not isinstance(value, Iterable):
        must = f"the field {column!r}" if column is not None else "'prompt' (text) or 'tokens' (a list of ids)"
        raise PromptError(f"a prompt must have {must}; got {_described(item, column or 'prompt')}")
    return Prompt(tokens=token_ids(value), **fields)


def checked_id(given: Any) -> str | int:
    """An id: text or a whole number, so that records name prompts without ambiguity."""
    if isinstance(given, Integral) and not isinstance(given, bool):
        return index(given)
    if not isinstance(given, str):
        raise PromptError(f"an id must be text or a whole number; got {shown(given)}")
    if _encodable(given) != given:
        raise PromptError(f"an id must be text without lone surrogates; got {given!r}")
    return given


def checked_ids(ids: Any, count: int) -> Sequence[str | int]:
    """One id for each of `count` prompts, none twice; numbers from 0 if none are given."""
    if ids is None:
        return range(count)
    names = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping) else None
    if names is None or len(names) != count:
        raise OptionError.of("ids", f"a list with one for each of the {count} prompts", ids if names is None else names)
    try:
        checked = [checked_id(name) for name in names]
    except PromptError as error:
        raise OptionError(f"The 'ids' option must name the prompts: {error}.") from None
    _check_unique(checked)
    return checked


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


def tokens_or_none(model: Model, prompt: Prompt) -> list[int] | None:
    """The tokens on which the model would run, to compare with those of an earlier run; None if it cannot run."""
    if prompt.tokens is not None:
        return list(prompt.tokens)
    try:
        return tokenize(model, prompt)
    except PromptError:
        return None


def encode(model: Model, text: str, **options: Any) -> list[int]:
    """The token ids of a text; a text that the tokenizer cannot take is a `PromptError`."""
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give token ids instead of text")
    if not text:
        return []
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"a prompt must be valid Unicode; this has the lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}"
        ) from None
    if hasattr(model.tokenizer, "model_max_length"):
        options |= {"verbose": False}  # transformers would warn of long texts, which `tokenize` refuses by itself
    try:
        return list(token_ids(model.tokenizer(text, **options)["input_ids"]))
    except PromptError:
        raise
    except Exception as error:
        raise PromptError(f"the model's tokenizer cannot take this text: {' '.join(str(error).split())}") from None


def token_texts(model: Model, ids: Sequence[int]) -> list[str] | None:
    """Each token as text, or None without a tokenizer that decodes."""
    decode = getattr(model.tokenizer, "decode", None)
    return None if decode is None else [str(decode([token])) for token in ids]


def token_warnings(model: Model, ids: Sequence[int]) -> list[dict[str, str]]:
    """A warning if the tokenizer did not know some of the text: the model then ran on something else.

    A tokenizer whose unknown token is also its first or last one (GPT-2's) knows every byte: nothing is unknown to it.
    """
    tokenizer = model.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is None or unknown in (getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos")):
        return []
    positions = [position for position, token in enumerate(ids) if token == unknown]
    if not positions:
        return []
    listed = ", ".join(map(str, positions[:5])) + (", ..." if len(positions) > 5 else "")
    where = f"at position{'s' if len(positions) > 1 else ''} {listed}"
    return [
        {
            "code": "unknown-tokens",
            "text": f"{len(positions)} of {len(ids)} tokens are unknown to the tokenizer ({where}): the model ran on "
            f"{getattr(tokenizer, 'unk_token', 'its unknown token')} there, not on the text.",
        }
    ]


def _encode(model: Model, text: str) -> list[int]:
    """Tokens of a text; one that is far too long is refused by its beginning, since tokenizing it may take minutes."""
    context = model.context
    if context is not None and len(text) > _LONG * context:
        beginning = encode(model, text[: _LONG * context])
        if len(beginning) > 2 * context:
            raise PromptError(
                f"a prompt must have at most {context} tokens, the model's context; this has more than {len(beginning)}"
            )
    return encode(model, text)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _described(item: Mapping[str, Any], column: str) -> str:
    return f"{shown(item[column])} there" if item.get(column) is not None else f"the fields {list(item)}"


def _check_unique(ids: Sequence[str | int]) -> None:
    seen: set[str | int] = set()
    for id in ids:
        if id in seen:
            raise OptionError(f"Every prompt must have an id of its own. Got {id!r} twice.")
        seen.add(id)
