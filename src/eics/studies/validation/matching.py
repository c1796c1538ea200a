"""When does the model's answer match? By the first token of an answer, or by the text that the model generates.

Function words are predictions that are easy to make and carry no answer: a score that only notices that the model is
about to say "the" looks like a detector of wrong answers, because "the" is never a right one. Tokens without a letter
or a digit (punctuation, a line break) count as function words too. Words that are also names (may, us, will) are not on
the list.
"""

from collections.abc import Iterator

from eics.errors import PromptError
from eics.models.base import Model
from eics.models.prompts import encode, token_texts, tokenize
from eics.studies.validation.data import Labelled

FUNCTION_WORDS = frozenset(
    """
    a about above after again against all also although am among an and another any anything are around as at
    away be because been before being below between both but by can cannot could did do does doing down during
    each either else etc even ever every few for from further had has have having he her here hers herself him
    himself his how however i if in including into is it its itself just least less let like made make many me
    might more most much must my myself near neither never no nobody none nor not nothing now of off often on
    once one only onto or other others our ours ourselves out over own part per perhaps rather same several
    shall she should since so some someone something sometimes soon still such than that the their theirs them
    themselves then there therefore these they thing this those though through thus to together too toward
    towards under until up upon used very was we well were what whatever when where whether which while who
    whoever whole whom whose why with within without would yes yet you your yours yourself yourselves called
    known located named situated
    """.split()  # noqa: SIM905 - a list of two hundred strings reads worse
)


def is_function_word(text: str) -> bool:
    """Whether the text of a token or answer is a function word, or no word at all.

    >>> [is_function_word(text) for text in (" the", "Paris", "\\n", "1984", " It")]
    [True, False, True, False, True]
    """
    word = text.strip().strip(".,;:!?()[]\"'").lower()
    return word in FUNCTION_WORDS or not any(letter.isalnum() for letter in word)


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
        special = item.prompt.tokens is None  # a chat's text has its special tokens already
        whole = _encode(model, text + (f" {word}" if needs_space else answer), special=special)
        if whole[: len(before)] == before and len(whole) > len(before):
            yield whole[len(before) :]
    variants = [f" {word}"] if needs_space else [answer, f" {word}", word]
    yield from (ids for variant in variants if (ids := _encode(model, variant, special=False)))


def _encode(model: Model, text: str, *, special: bool) -> list[int]:
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give the answer as a token id")
    return encode(model, text, add_special_tokens=special)


def _is_blank(model: Model, token: int) -> bool:
    texts = token_texts(model, [token])
    return texts is not None and not texts[0].strip()
