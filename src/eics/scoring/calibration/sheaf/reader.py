"""The prompts of a reference set, and how they become samples: tokenized, put in their places, run in batches."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from eics.circuits.graph import Circuit
from eics.errors import PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.scoring.batching import batches_by_length
from eics.scoring.calibration.sheaf.assign import Place, assign, group_of_tokens, order
from eics.scoring.calibration.sheaf.samples import Layout, Samples, check_second_token, sample
from eics.scoring.checks import check_answer, keeps_positions
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.options import Options
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun

Tick = Callable[[int], None]
"""Called with the number of steps finished since the last call."""

Phase = Callable[[str, int], Tick]
"""Called when a phase begins, with its name and its number of steps."""


def unseen(_: str, __: int) -> Tick:
    """A phase whose progress nobody watches."""
    return lambda _: None


@dataclass(frozen=True, slots=True)
class Item:
    """A reference prompt: its tokens, where it belongs, and its rank among those that fit.

    There is one for each prompt as long as the fit takes, so it is small: no dictionary, and four bytes a token.
    """

    id: str | int
    tokens: "array[int]"
    place: Place
    order: bytes


@dataclass(frozen=True)
class Reader:
    """How prompts become samples.

    Attributes:
        model, circuit: what runs, and whose nodes are judged.
        options: linearization and read-out; answer, tokens: as `score` takes them.
        at: where nodes are judged.
        phase: told when a long phase begins, so that its progress can be shown.
        failures: filled with the reason of each prompt that the model cannot run.
    """

    model: Model
    circuit: Circuit
    options: Options
    at: str
    batch_size: int
    answer: int | None = None
    tokens: tuple[int, ...] | None = None
    phase: Phase = field(default=unseen)
    failures: dict[str | int, str] = field(default_factory=dict)

    @cached_property
    def layout(self) -> Layout:
        """The circuit's nodes as rows."""
        spec = self.model.transformer
        return Layout.of(self.circuit, spec.width, parallel=spec.blocks[0].parallel)

    def items(self, prompts: Sequence[Prompt], groups: Sequence[Any] | None, seed: int) -> list[Item]:
        """The prompts that the model can run, each in its place."""
        items, tick = [], self.phase("tokens", len(prompts))
        for index, prompt in enumerate(prompts):
            try:
                tokens = self._tokens(prompt)
                group = group_of_tokens(tokens) if groups is None else f"group:{groups[index]}"
                rank = order(group, tokens, seed)
                items.append(Item(prompt.id, array("i", tokens), assign(group, seed), rank))
            except PromptError as error:
                self.failures[prompt.id] = str(error)
            tick(1)
        return items

    def survivors(self, items: Sequence[Item]) -> list[Item]:
        """The items on which the model has not overflowed, of those that it has run."""
        return [item for item in items if item.id not in self.failures]

    def batches(self, items: Sequence[Item], tick: Tick = lambda _: None) -> Iterator[tuple[list[Item], Samples]]:
        """Items that shared a pass, and their samples; prompts on which the model overflows are left out."""
        for indices in batches_by_length([len(item.tokens) for item in items], self.batch_size):
            chosen = [items[index] for index in indices]
            samples, bad = self.samples([item.tokens.tolist() for item in chosen])
            tick(len(chosen))
            if bad:
                for row in bad:
                    self.failures[chosen[row].id] = "the model's activations are not finite on this prompt"
                good = [row for row in range(len(chosen)) if row not in bad]
                if not good:
                    continue
                samples, chosen = _without(samples, bad, len(chosen)), [chosen[row] for row in good]
            yield chosen, samples

    def samples(self, token_lists: Sequence[Sequence[int]]) -> tuple[Samples, set[int]]:
        """The samples of one pass, and the rows on which the model overflowed."""
        answer = None if self.answer is None else [self.answer % len(tokens) for tokens in token_lists]
        logits = self.options.readout == "tokens"
        with torch.no_grad():
            state = run(self.model, token_lists, self.circuit, answer=answer, logits=logits)
            bad = zero_nonfinite_rows(state)
            made = TransformerRun(state, self.circuit, self.options.readout, self.tokens)
            return sample(made, self.layout, self.at), bad

    def _tokens(self, prompt: Prompt) -> list[int]:
        tokens = tokenize(self.model, prompt)
        check_answer(self.answer, len(tokens))
        check_second_token(self.at, len(tokens), self.answer)
        if not keeps_positions(self.circuit, len(tokens), [self.options]):
            raise PromptError(f"a prompt must be long enough for every node; this has {len(tokens)} tokens")
        return tokens


def _without(samples: Samples, bad: set[int], prompts: int) -> Samples:
    """The samples without some prompts, the others renumbered."""
    good = [row for row in range(prompts) if row not in bad]
    number = torch.full((prompts,), -1, device=samples.prompt.device)
    number[good] = torch.arange(len(good), device=samples.prompt.device)
    kept = samples.rows(number[samples.prompt] >= 0)
    return replace(kept, prompt=number[kept.prompt])
