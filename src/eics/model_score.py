"""Prompts on a circuit of a model: tokens, one forward pass a batch, then Algorithm 1 for each configuration."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from eics.circuit import Circuit
from eics.errors import OptionError, PromptError
from eics.memory import memory_limit
from eics.models.base import Model
from eics.options import Options
from eics.prompts import Prompt, tokenize
from eics.result import Score, Scores, failed
from eics.score import score_batch
from eics.state import ForwardState, run
from eics.transformer.linearize import TransformerRun

Item = tuple[Prompt, list[int]]


def score_prompts(
    model: Model,
    circuit: Circuit,
    prompts: Sequence[Prompt],
    configurations: Sequence[Options],
    *,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    batch_size: int = 8,
) -> Iterator[list[Score]]:
    """For each prompt, in order, its score in each configuration; all of them from one forward pass.

    A prompt that cannot be scored gives results that say why; the others are scored.
    """
    model.check_circuit(circuit)
    readouts = {options.readout for options in configurations}
    _check_readout(model, readouts, tokens)
    for start in range(0, len(prompts), batch_size):
        yield from _score_some(model, circuit, prompts[start : start + batch_size], configurations, answer, tokens)


def _score_some(
    model: Model,
    circuit: Circuit,
    prompts: Sequence[Prompt],
    configurations: Sequence[Options],
    answer: int | None,
    tokens: Sequence[int] | None,
) -> list[list[Score]]:
    good: list[Item] = []
    found: dict[int, list[Score]] = {}
    arguments: tuple[Any, ...] = (configurations, answer, tokens)
    for place, prompt in enumerate(prompts):
        try:
            ids = tokenize(model, prompt)
            _check_answer(answer, len(ids))
        except PromptError as error:
            found[place] = [_failed(prompt, str(error), options) for options in configurations]
            continue
        if _has_room(circuit, len(ids), configurations):
            good.append((prompt, ids))
        else:  # alone, so that what it lacks stays its own trouble
            found[place] = _score_whole(model, circuit, [(prompt, ids)], *arguments)[0]
    scored = iter(_score_batch(model, circuit, good, *arguments))
    return [found[place] if place in found else next(scored) for place in range(len(prompts))]


def _has_room(circuit: Circuit, length: int, configurations: Sequence[Options]) -> bool:
    """Whether every node keeps a position of a prompt of this length."""
    least = 1 if any(options.positions == "no_sink" for options in configurations) else 0
    kept = [max(positions) for positions in circuit.positions.values()]
    return length > max([least, *kept])


def _score_batch(
    model: Model,
    circuit: Circuit,
    items: Sequence[Item],
    configurations: Sequence[Options],
    answer: int | None,
    tokens: Sequence[int] | None,
) -> list[list[Score]]:
    """A batch; halved where memory runs out, down to a prompt that fails alone."""
    if not items:
        return []
    try:
        return _score_whole(model, circuit, items, configurations, answer, tokens)
    except torch.OutOfMemoryError:
        if len(items) == 1:
            reason = "out of memory, even alone: lower --memory, restrict positions or shorten the prompt"
            return [[_failed(items[0][0], reason, options) for options in configurations]]
    half = len(items) // 2
    arguments: tuple[Any, ...] = (configurations, answer, tokens)
    return [
        *_score_batch(model, circuit, items[:half], *arguments),
        *_score_batch(model, circuit, items[half:], *arguments),
    ]


def _score_whole(
    model: Model,
    circuit: Circuit,
    items: Sequence[Item],
    configurations: Sequence[Options],
    answer: int | None,
    tokens: Sequence[int] | None,
) -> list[list[Score]]:
    lists = [ids for _, ids in items]
    at = None if answer is None else [answer if answer >= 0 else len(ids) + answer for ids in lists]
    needs_logits = any(options.readout != "final_norm" for options in configurations)
    state = run(model, lists, circuit, answer=at, logits=needs_logits)
    broken = _repair(state)
    by_configuration = []
    for options in configurations:
        chosen = tuple(tokens) if options.readout == "tokens" and tokens is not None else None
        taken = TransformerRun(state, circuit, options.readout, chosen)
        try:
            with torch.no_grad(), memory_limit(options.memory):
                scores = score_batch(
                    taken.linearize(options.linearization), options, [prompt.id for prompt, _ in items]
                )
        except OptionError as error:
            if len(items) > 1:
                raise
            scores = Scores([_failed(items[0][0], str(error), options)])
        by_configuration.append(scores)
    return [
        [
            _finish(scores[row], items[row][0], state, options, row in broken)
            for scores, options in _pair(by_configuration, configurations)
        ]
        for row in range(len(items))
    ]


def _pair(scores: Sequence[Scores], configurations: Sequence[Options]) -> list[tuple[Scores, Options]]:
    return list(zip(scores, configurations, strict=True))


def _finish(score: Score, prompt: Prompt, state: ForwardState, options: Options, broken: bool) -> Score:
    if score.status == "failed":
        return score
    if broken:
        return _failed(prompt, "the model's activations are not finite on this prompt", options)
    return replace(score, prompt=prompt.text, readout=options.readout, forward_passes=state.forward_passes)


def _failed(prompt: Prompt, reason: str, options: Options) -> Score:
    used = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed")
    return failed(prompt.id, reason, prompt=prompt.text, **{name: options[name] for name in used})


def _repair(state: ForwardState) -> set[int]:
    """Rows with numbers that are not finite, which are set to 0 so that the other rows can be factorized."""
    broken: set[int] = set()
    stores = (state.attention_reads, state.mlp_reads, state.z, state.summed, state.mlp_writes)
    tensors = [tensor for store in stores for tensor in store.values()]
    tensors += [t for t in (state.input, state.final_read, state.final, state.logits) if t is not None]
    for tensor in tensors:
        bad = ~tensor.flatten(1).isfinite().all(dim=1)
        if bool(bad.any()):
            broken |= set(bad.nonzero().flatten().tolist())
            tensor[bad] = 0.0
    return broken


def _check_answer(answer: int | None, length: int) -> None:
    if answer is not None and not -length <= answer < length:
        raise PromptError(f"the answer position must lie in the prompt's {length} tokens; it is {answer}")


def _check_readout(model: Model, readouts: set[str], tokens: Sequence[int] | None) -> None:
    if "tokens" not in readouts:
        return
    if not tokens or any(not 0 <= token < model.vocabulary for token in tokens):
        must = f"a list of ids from 0 to {model.vocabulary - 1} for readout 'tokens'"
        raise OptionError.of("tokens", must, None if tokens is None else list(tokens))
