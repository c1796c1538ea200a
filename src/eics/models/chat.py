"""Prompts as messages of a chat, in the format on which the model was trained: its tokenizer's own template."""

from collections.abc import Iterable
from dataclasses import replace

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.download.sources import SOURCES
from eics.models.prompts import Prompt, encode


def as_chat(model: Model, prompts: Iterable[Prompt], system: str | None = None) -> list[Prompt]:
    """Each prompt as what a user says, after the `system` message if there is one, up to where the model answers.

    The result has the whole text, which records show, and its tokens: the template writes the first token of a text
    itself, so the tokenizer must not add it again.
    """
    if not getattr(model.tokenizer, "chat_template", None):
        raise OptionError(
            f"A chat needs a model whose tokenizer has a chat template. {model.name!r} has none: {_advice(model.name)}."
        )
    return [_templated(model, prompt, system) for prompt in prompts]


def _advice(name: str | None) -> str:
    """What to do without a template: a model that was fetched by an earlier version lacks one that its file has."""
    source = SOURCES.get(name or "")
    if source is None or not source.chat:
        return "score plain text"
    return f"an earlier version left it out; run `eics models remove {name}`, then `eics models fetch {name}`"


def _templated(model: Model, prompt: Prompt, system: str | None) -> Prompt:
    if prompt.text is None or prompt.tokens is not None:
        raise OptionError(f"A chat needs prompts of text. Prompt {prompt.id!r} is a list of token ids.")
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": prompt.text})
    try:
        text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever the template raises: it is a program of the model's authors
        reason = " ".join(str(error).split())
        raise OptionError(f"The model's chat template must take prompt {prompt.id!r}. It says: {reason}.") from None
    try:
        return replace(prompt, text=text, tokens=tuple(encode(model, text, add_special_tokens=False)))
    except PromptError:
        return replace(prompt, text=text)  # tokenizing it again fails this prompt alone, with the reason
