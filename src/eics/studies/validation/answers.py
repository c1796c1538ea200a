"""The first stage, one plain pass a batch: what the model answers, whether that is right, and how sure it is.

The label of a prompt is the one given with it, or whether the model's own answer matches: `first-token` (its most
probable next token is the first token of an answer) or `text` (what it writes greedily begins with an answer).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import ModelError, OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import token_texts, tokenize
from eics.studies.validation.data import Labelled
from eics.studies.validation.store import Row
from eics.studies.validation.words import is_function_word
from eics.transformer.forward import ForwardState, run

MATCHES = ("first-token", "text")
_NOTHING = Circuit(["input->logits"])
"""Of a plain pass only its ends are kept."""


@dataclass(frozen=True)
class Answering:
    """How answers are asked for and matched; `ensemble` are other models over the same vocabulary."""

    model: Model
    match: str = "first-token"
    generate: int = 8
    ensemble: Sequence[Model] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise OptionError.of("match", f"one of {', '.join(MATCHES)}", self.match)
        for other in self.ensemble:
            _check_alike(self.model, other)


def answer_rows(
    how: Answering, prompts: Sequence[Labelled], batch_size: int, tick: Callable[[int], None] = lambda _: None
) -> Iterator[list[Row]]:
    """The rows of each batch, in order. A prompt that cannot be run has a row that says why."""
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        yield _batch(how, batch)
        tick(len(batch))


def accepted_tokens(model: Model, item: Labelled) -> tuple[frozenset[int], bool]:
    """Tokens that begin an answer right after this prompt, and whether the tokenizer splits an answer.

    After a letter or a digit the answer needs a space of its own, which most tokenizers put into the token: " Paris"
    and "Paris" are different tokens, and only one is what a model would say. So the answer is taken as it is tokenized
    after the prompt, and by itself with a space before it; without one only where the prompt ends in a space, a quote
    or the like. A first token that is only a space says nothing and is left out.
    """
    found: set[int] = set()
    splits = False
    for answer in item.answers:
        ways = [[answer]] if isinstance(answer, int) else list(_ways(model, item, answer))
        firsts = {ids[0] for ids in ways if 0 <= ids[0] < model.vocabulary and _says_something(model, ids[0])}
        if not firsts:
            raise PromptError(
                f"the answer {answer!r} must begin with a token of the model that is not only a space: use --match text"
            )
        found |= firsts
        splits |= min(len(ids) for ids in ways) > 1
    return frozenset(found), splits


def begins_with(text: str, answer: str) -> bool:
    """Whether a text begins with an answer: case, spaces and leading marks aside, and at a word's end.

    >>> begins_with(' "Paris", which is', "paris"), begins_with(" Parisian", "Paris")
    (True, False)
    """
    said, wanted = _plain(text), _plain(answer)
    return bool(wanted) and said.startswith(wanted) and not said[len(wanted) : len(wanted) + 1].isalnum()


def _plain(text: str) -> str:
    folded = " ".join(text.casefold().split())
    while folded and not folded[0].isalnum():
        folded = folded[1:]
    return folded


def _ways(model: Model, item: Labelled, answer: str) -> Iterator[list[int]]:
    """The answer's tokens after this prompt: within the whole text, and by themselves."""
    word = answer.strip()
    before = tokenize(model, item.prompt)
    text = item.prompt.text
    if text is None:
        text = "".join(token_texts(model, before[-1:]) or [""])
    glued = text[-1:].isalnum()
    if item.prompt.text is not None:
        whole = _encode(model, text + (f" {word}" if glued else answer), special=True)
        if whole[: len(before)] == before and len(whole) > len(before):
            yield whole[len(before) :]
    variants = [f" {word}"] if glued else [answer, f" {word}", word]
    yield from (ids for variant in variants if (ids := _encode(model, variant, special=False)))


def _encode(model: Model, text: str, *, special: bool) -> list[int]:
    if model.tokenizer is None:
        raise PromptError("the model has no tokenizer: give the answer as a token id")
    return list(model.tokenizer(text, add_special_tokens=special)["input_ids"])


def _says_something(model: Model, token: int) -> bool:
    texts = token_texts(model, [token])
    return texts is None or bool(texts[0].strip())


def _batch(how: Answering, batch: Sequence[Labelled]) -> list[Row]:
    rows: dict[str | int, Row] = {}
    good: list[tuple[Labelled, list[int], frozenset[int]]] = []
    for item in batch:
        row: Row = {"id": item.id, "groups": item.groups, "label_given": item.label is not None}
        rows[item.id] = row
        try:
            ids = tokenize(how.model, item.prompt)
            accepted, row["answer_split"] = _accepted(how, item)
            good.append((item, ids, accepted))
        except PromptError as error:
            row["failed"] = str(error)
    if good:
        state = run(how.model, [ids for _, ids, _ in good], _NOTHING, logits=True)
        for (item, _, _), row in zip(good, _said(how, good, state), strict=True):
            rows[item.id] |= row
    return list(rows.values())


def _accepted(how: Answering, item: Labelled) -> tuple[frozenset[int], bool]:
    """Without an answer there is nothing to accept; where the text decides, an odd first token is no failure."""
    if not item.answers:
        return frozenset(), False
    try:
        return accepted_tokens(how.model, item)
    except PromptError:
        if how.match == "text" or item.label is not None:
            return frozenset(), True
        raise


def _said(
    how: Answering, good: Sequence[tuple[Labelled, list[int], frozenset[int]]], state: ForwardState
) -> Iterator[Row]:
    assert state.logits is not None
    assert state.final is not None
    logs = state.logits.double().log_softmax(dim=1)
    finite = logs.isfinite().all(dim=1).tolist()
    logs = torch.where(logs.isfinite(), logs, 0.0)
    lists = [ids for _, ids, _ in good]
    beside = _ensemble(how, logs, lists)
    texts = _generated(how, good)
    finals = state.final[torch.arange(len(lists), device=state.answer.device), state.answer]
    for place, (item, ids, accepted) in enumerate(good):
        if not finite[place]:
            yield {"failed": "the model's logits are not finite on this prompt"}
            continue
        predicted = int(logs[place].argmax())
        said = token_texts(how.model, [predicted])
        row = {
            "length": len(ids),
            "predicted": predicted,
            "predicted_text": said[0] if said else None,
            "generated": texts[place],
            "label": _label(item, predicted, accepted, texts[place], how.model),
            "function_word": _function_word(item, said),
            "final": [float(f"{number:.7g}") for number in finals[place].tolist()],
        }
        yield row | _confidence(logs[place]) | _conformity(logs[place], accepted) | beside[place]


def _label(item: Labelled, predicted: int, accepted: frozenset[int], text: str | None, model: Model) -> bool:
    if item.label is not None:
        return item.label
    if text is None:
        return predicted in accepted
    wanted = [one if isinstance(one, str) else "".join(token_texts(model, [one]) or ()) for one in item.answers]
    return any(begins_with(text, one) for one in wanted)


def _function_word(item: Labelled, said: list[str] | None) -> bool:
    answers = [one for one in item.answers if isinstance(one, str)]
    return any(is_function_word(text) for text in said or ()) or any(is_function_word(text) for text in answers)


def _confidence(logs: Tensor) -> Row:
    """Log-probability of the predicted token, entropy, and the margin of the first over the second."""
    best = logs.topk(min(2, len(logs))).values.exp()
    return {
        "log_probability": float(logs.max()),
        "entropy": float(-(logs.exp() * logs).sum()),
        "margin": float(best[0] - best[-1]),
    }


def _conformity(logs: Tensor, accepted: frozenset[int]) -> Row:
    """The answer's probability (of several: the most probable's) and the mass of all tokens at least as probable."""
    if not accepted:
        return {}
    probabilities = logs.exp()
    answer = probabilities[sorted(accepted)].max()
    return {
        "answer_probability": float(answer),
        "answer_mass": float(probabilities[probabilities >= answer].sum()),
    }


def _ensemble(how: Answering, logs: Tensor, lists: list[list[int]]) -> list[Row]:
    """Over the members' predictions p_m: the variance of the predicted token's probability, the share of members with
    another first choice, and the mutual information H(mean p) - mean H(p)."""
    if not how.ensemble:
        return [{} for _ in lists]
    members = [logs]
    for other in how.ensemble:
        found = run(other, lists, _NOTHING, logits=True).logits
        assert found is not None
        members.append(found.double().to(logs.device).log_softmax(dim=1))
    stacked = torch.stack(members)  # (M, B, V)
    predicted = logs.argmax(dim=1)
    chosen = stacked.exp()[:, torch.arange(len(lists)), predicted]
    information = _entropy(stacked.exp().mean(dim=0).log()) - _entropy(stacked).mean(dim=0)
    others = (stacked.argmax(dim=2) != predicted).double().mean(dim=0)
    columns = {
        "ensemble_variance": chosen.var(dim=0, correction=0),
        "ensemble_information": information.clamp(min=0),
        "ensemble_disagreement": others,
    }
    return [{name: float(column[place]) for name, column in columns.items()} for place in range(len(lists))]


def _entropy(logs: Tensor) -> Tensor:
    return -torch.where(logs > -torch.inf, logs.exp() * logs, 0.0).sum(dim=-1)


def _generated(how: Answering, good: Sequence[tuple[Labelled, list[int], frozenset[int]]]) -> list[str | None]:
    """What the model writes greedily, for prompts whose label it decides."""
    texts: list[str | None] = [None] * len(good)
    if how.match != "text":
        return texts
    if how.model.tokenizer is None:
        raise ModelError("The model must have a tokenizer to be matched by text: use --match first-token.")
    asked = [place for place, (item, _, _) in enumerate(good) if item.label is None]
    lists = {place: list(good[place][1]) for place in asked}
    for _ in range(how.generate):
        going = [place for place in asked if how.model.context is None or len(lists[place]) <= how.model.context]
        if not going:
            break
        logits = run(how.model, [lists[place] for place in going], _NOTHING, logits=True).logits
        assert logits is not None
        for place, token in zip(going, logits.argmax(dim=1).tolist(), strict=True):
            lists[place].append(token)
    for place in asked:
        texts[place] = str(how.model.tokenizer.decode(lists[place][len(good[place][1]) :], skip_special_tokens=True))
    return texts


def _check_alike(model: Model, other: Model) -> None:
    vocabularies: list[Any] = [
        getattr(m.tokenizer, "get_vocab", dict)() if m.tokenizer is not None else {} for m in (model, other)
    ]
    both = all(vocabularies)
    if model.vocabulary != other.vocabulary or (both and vocabularies[0] != vocabularies[1]):
        raise ModelError(
            f"The models of an ensemble must share their vocabulary. {model.name!r} has {model.vocabulary} tokens, "
            f"{other.name!r} {other.vocabulary}{'' if model.vocabulary != other.vocabulary else ', other ones'}."
        )
