"""When does the model's answer match? By the first token of an answer, or by the text that the model generates."""

from collections.abc import Iterator

from eics.errors import PromptError
from eics.models.base import Model
from eics.models.prompts import token_texts, tokenize
from eics.studies.validation.data import Labelled


def accepted_tokens(model: Model, item: Labelled) -> tuple[frozenset[int], bool]:
    """Tokens that begin an answer directly after this prompt, and whether the tokenizer splits an answer.

    After a letter or a digit the answer needs a space, which most tokenizers put into the token: " Paris" and "Paris"
    are different tokens, and a model would say only one of them. So an answer is tokenized as part of the whole text,
    and by itself with a leading space; without the space only if the prompt ends in a space, a quote or the like. A
    first token that is only a space identifies no answer and is left out.
    """
    accepted: set[int] = set()
    is_split = False
    for answer in item.answers:
        tokenized = [[answer]] if isinstance(answer, int) else list(_tokenizations(model, item, answer))
        firsts = {ids[0] for ids in tokenized if 0 <= ids[0] < model.vocabulary and not _is_blank(model, ids[0])}
        if not firsts:
            raise PromptError(
                f"the answer {answer!r} must begin with a token of the model that is not only a space: use --match text"
            )
        accepted |= firsts
        is_split |= min(len(ids) for ids in tokenized) > 1
    return frozenset(accepted), is_split


def begins_with(text: str, answer: str) -> bool:
    """Whether a text begins with an answer, up to case, spaces and leading marks, and ending at the end of a word.

    >>> begins_with(' "Paris", which is', "paris"), begins_with(" Parisian", "Paris")
    (True, False)
    """
    folded, wanted = _fold(text), _fold(answer)
    return bool(wanted) and folded.startswith(wanted) and not folded[len(wanted) : len(wanted) + 1].isalnum()


def _fold(text: str) -> str:
    folded = " ".join(text.casefold().split())
    while folded and not folded[0].isalnum():
        folded = folded[1:]
    return folded


def _tokenizations(model: Model, item: Labelled, answer: str) -> Iterator[list[int]]:
    """The answer's tokens after this prompt: as part of the whole text, and by itself."""
    word = answer.strip()
    before = tokenize(model, item.prompt)
    text = item.prompt.text
    if text is None:
        text = "".join(token_texts(model, before[-1:]) or [""])
    needs_space = text[-1:].isalnum()
    if item.prompt.text is not None:
        whole = _encode(model, text + (f" {word}" if needs_space else answer), special=True)
        if whole[: len(before)] == before and len(whole) > len(before):
            yield whole[len(before) :]
    variants = [f" {word}"] if needs_space else [answer, f" {word}", word]
    yield from (ids for variant in variants if (ids := _encode(model, variant, special=False)))


def _encode(model: Model, text: str, *, special: bool) -> list[int]:
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give the answer as a token id")
    return list(model.tokenizer(text, add_special_tokens=special)["input_ids"])


def _is_blank(model: Model, token: int) -> bool:
    texts = token_texts(model, [token])
    return texts is not None and not texts[0].strip()
