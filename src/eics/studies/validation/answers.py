"""The first stage, one plain pass per batch: the model's answer, whether it is correct, and how confident it is.

The label of a prompt is the one given with it, or else whether the model's own answer matches: `first-token` (the most
probable next token begins an answer) or `text` (greedily generated text begins with an answer).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import ModelError, OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import token_texts, tokenize
from eics.studies.run_folder import Row
from eics.studies.validation.data import Labelled
from eics.studies.validation.matching import accepted_tokens, begins_with, is_function_word
from eics.transformer.forward import ForwardState, run

MATCHES = ("first-token", "text")
_NOTHING = Circuit(["input->logits"])  # a plain pass needs no activations in between

Runnable = tuple[Labelled, list[int], frozenset[int]]
"""A prompt with its tokens and the tokens that begin an answer."""


@dataclass(frozen=True)
class Answering:
    """How answers are obtained and matched; `ensemble` holds other models with the same vocabulary."""

    model: Model
    match: str = "first-token"
    generate: int = 8
    ensemble: Sequence[Model] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if self.match not in MATCHES:
            raise OptionError.of("match", f"one of {', '.join(MATCHES)}", self.match)
        for other in self.ensemble:
            _check_vocabulary(self.model, other)


def answer_rows(how: Answering, prompts: Sequence[Labelled], batch_size: int) -> Iterator[list[Row]]:
    """The rows of each batch, in order; the row of a prompt that cannot be run gives the reason."""
    for start in range(0, len(prompts), batch_size):
        yield _batch(how, prompts[start : start + batch_size])


def _batch(how: Answering, batch: Sequence[Labelled]) -> list[Row]:
    rows: dict[str | int, Row] = {}
    runnable: list[Runnable] = []
    for item in batch:
        row: Row = {"id": item.id, "groups": item.groups, "label_given": item.label is not None}
        rows[item.id] = row
        try:
            ids = tokenize(how.model, item.prompt)
            accepted, row["answer_split"] = _accepted(how, item)
            runnable.append((item, ids, accepted))
        except PromptError as error:
            row["failed"] = str(error)
    if runnable:
        state = run(how.model, [ids for _, ids, _ in runnable], _NOTHING, logits=True)
        for (item, _, _), row in zip(runnable, _measured(how, runnable, state), strict=True):
            rows[item.id] |= row
    return list(rows.values())


def _accepted(how: Answering, item: Labelled) -> tuple[frozenset[int], bool]:
    """No tokens if there is no answer, or if an unusable first token does not matter for the label."""
    if not item.answers:
        return frozenset(), False
    try:
        return accepted_tokens(how.model, item)
    except PromptError:
        if how.match == "text" or item.label is not None:
            return frozenset(), True
        raise


def _measured(how: Answering, runnable: Sequence[Runnable], state: ForwardState) -> Iterator[Row]:
    assert state.logits is not None
    assert state.final is not None
    logs = state.logits.double().log_softmax(dim=1)
    finite = logs.isfinite().all(dim=1).tolist()
    logs = torch.where(logs.isfinite(), logs, 0.0)
    token_lists = [ids for _, ids, _ in runnable]
    of_ensemble = _ensemble(how, logs, token_lists)
    texts = _generated(how, runnable)
    finals = state.final[torch.arange(len(token_lists), device=state.answer.device), state.answer]
    for index, (item, ids, accepted) in enumerate(runnable):
        if not finite[index]:
            yield {"failed": "the model's logits are not finite on this prompt"}
            continue
        predicted = int(logs[index].argmax())
        predicted_texts = token_texts(how.model, [predicted])
        row = {
            "length": len(ids),
            "predicted": predicted,
            "predicted_text": predicted_texts[0] if predicted_texts else None,
            "generated": texts[index],
            "label": _label(item, predicted, accepted, texts[index], how.model),
            "function_word": any(
                map(is_function_word, [*(predicted_texts or ()), *(a for a in item.answers if isinstance(a, str))])
            ),
            "final": [float(f"{number:.7g}") for number in finals[index].tolist()],
        }
        yield row | _confidence(logs[index], accepted) | of_ensemble[index]


def _label(item: Labelled, predicted: int, accepted: frozenset[int], text: str | None, model: Model) -> bool:
    if item.label is not None:
        return item.label
    if text is None:
        return predicted in accepted
    answers = [a if isinstance(a, str) else "".join(token_texts(model, [a]) or ()) for a in item.answers]
    return any(begins_with(text, answer) for answer in answers)


def _confidence(logs: Tensor, accepted: frozenset[int]) -> Row:
    """Log-probability of the predicted token, entropy, and margin of the first choice over the second.

    Given answers, also the probability of the most probable one, and the mass of all tokens at least as probable.
    """
    probabilities = logs.exp()
    best = logs.topk(min(2, len(logs))).values.exp()
    row = {
        "log_probability": float(logs.max()),
        "entropy": float(-(probabilities * logs).sum()),
        "margin": float(best[0] - best[-1]),
    }
    if accepted:
        answer = probabilities[sorted(accepted)].max()
        row["answer_probability"] = float(answer)
        row["answer_mass"] = float(probabilities[probabilities >= answer].sum())
    return row


def _ensemble(how: Answering, logs: Tensor, token_lists: list[list[int]]) -> list[Row]:
    """Disagreement of the members' predictions p_m.

    The variance of the predicted token's probability, the share of members with another first choice, and the mutual
    information H(mean p) - mean H(p).
    """
    if not how.ensemble:
        return [{} for _ in token_lists]
    members = [logs]
    for other in how.ensemble:
        members.append(_next_logits(other, token_lists).double().to(logs.device).log_softmax(dim=1))
    stacked = torch.stack(members)  # (M, B, V)
    predicted = logs.argmax(dim=1)
    chosen = stacked.exp()[:, torch.arange(len(token_lists)), predicted]
    information = _entropy(stacked.exp().mean(dim=0).log()) - _entropy(stacked).mean(dim=0)
    columns = {
        "ensemble_variance": chosen.var(dim=0, correction=0),
        "ensemble_information": information.clamp(min=0),
        "ensemble_disagreement": (stacked.argmax(dim=2) != predicted).double().mean(dim=0),
    }
    return [{name: float(column[row]) for name, column in columns.items()} for row in range(len(token_lists))]


def _next_logits(model: Model, token_lists: list[list[int]]) -> Tensor:
    logits = run(model, token_lists, _NOTHING, logits=True).logits
    assert logits is not None
    return logits


def _entropy(logs: Tensor) -> Tensor:
    return -torch.where(logs > -torch.inf, logs.exp() * logs, 0.0).sum(dim=-1)


def _generated(how: Answering, runnable: Sequence[Runnable]) -> list[str | None]:
    """Greedily generated text, for the prompts whose label depends on it."""
    texts: list[str | None] = [None] * len(runnable)
    if how.match != "text":
        return texts
    if how.model.tokenizer is None:
        raise ModelError("The model must have a tokenizer to be matched by text: use --match first-token.")
    sequences = {row: list(ids) for row, (item, ids, _) in enumerate(runnable) if item.label is None}
    for _ in range(how.generate):
        context = how.model.context
        growing = [ids for ids in sequences.values() if context is None or len(ids) <= context]
        if not growing:
            break
        for ids, token in zip(growing, _next_logits(how.model, growing).argmax(dim=1).tolist(), strict=True):
            ids.append(token)
    for row, ids in sequences.items():
        texts[row] = str(how.model.tokenizer.decode(ids[len(runnable[row][1]) :], skip_special_tokens=True))
    return texts


def _check_vocabulary(model: Model, other: Model) -> None:
    vocabularies: list[Any] = [getattr(m.tokenizer, "get_vocab", dict)() for m in (model, other)]
    differ = all(vocabularies) and vocabularies[0] != vocabularies[1]
    if model.vocabulary != other.vocabulary or differ:
        raise ModelError(
            f"The models of an ensemble must share their vocabulary. {model.name!r} has {model.vocabulary} tokens, "
            f"{other.name!r} {other.vocabulary}{'' if model.vocabulary != other.vocabulary else ' different ones'}."
        )
