"""A text that the model goes on with: every new token is scored as it comes, from the model's own cache."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eics.errors import PromptError
from eics.linalg.memory import memory_limit
from eics.linalg.probes import generator
from eics.models.prompts import Prompt
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.out_of_memory import halving
from eics.studies.tracing.result import Trace
from eics.studies.tracing.task import OVERFLOWED, Task
from eics.studies.tracing.words import ENDED, STOPPED
from eics.transformer.cached import GrowingText
from eics.transformer.forward import ForwardState
from eics.transformer.interventions.donors import with_writes
from eics.transformer.stretches import Stretches


@dataclass(frozen=True)
class Step:
    """The next tokens of a text and their z, (nodes, tokens), without the read-out: it is judged at the last token of
    the text, which a step cannot know. The first step has the prompt, each later one a token that the model wrote."""

    tokens: tuple[int, ...]
    z: NDArray[np.float64]
    generated: bool


Watch = Callable[[Step], None]
"""Called with each step as it comes."""


class Generation:
    """One text while it grows: iterate over it for its steps, then take its `trace`."""

    def __init__(self, task: Task, prompt: Prompt) -> None:
        """Refuses a prompt that cannot be traced."""
        self.task, self.prompt = task, prompt
        self.tokens = task.tokens(prompt)
        self.start = len(self.tokens)
        self._draw = generator(task.options.seed, f"trace:{','.join(map(str, self.tokens))}")
        self._columns: list[NDArray[np.float64]] = []
        self._last: NDArray[np.float64] | None = None
        self._notes: list[str] = []

    def __iter__(self) -> Iterator[Step]:
        """The prompt, then token by token; a step is there before the next one is computed."""
        task, model = self.task, self.task.model
        text, whole = GrowingText(model, task.circuit), Stretches(task.circuit, *task.readout)
        changes, _ = with_writes(model, [task.interventions.get(self.prompt.id, ())])
        following, written = list(self.tokens), 0
        while True:
            with memory_limit(task.options.memory, model.device), torch.inference_mode():
                state = text.advance(following, changes if not written else None, whole.follow)
                if _overflowed(state):
                    raise PromptError(OVERFLOWED)
                z = task.judge.following(whole, state).numpy()
            yield self._step(following, z, generated=written > 0)
            if written == task.generate or self._is_full():
                return
            assert state.logits is not None
            token = self._next(state.logits[0])
            if token in ends(task):
                self._notes.append(ENDED.format(asked=task.generate))
                return
            following, written = [token], written + 1
            self.tokens.append(token)

    @property
    def trace(self) -> Trace:
        """The text as far as it has come."""
        z = np.concatenate(self._columns, axis=1)
        if self._last is not None:
            z[:, -1] = self._last
        return self.task.traced(self.prompt, self.tokens[: z.shape[1]], z, self.start, *self._notes)

    def _step(self, tokens: Sequence[int], z: NDArray[np.float64], *, generated: bool) -> Step:
        """Keeps the read-out's z aside: only the last token's counts."""
        self._last = z[:, -1].copy()
        z = z.copy()
        for node in self._read_out:
            z[node] = np.nan
        self._columns.append(z)
        return Step(tuple(tokens), z, generated)

    @property
    def _read_out(self) -> list[int]:
        return [place for place, name in enumerate(self.task.header.nodes) if name == "logits"]

    def _is_full(self) -> bool:
        """Whether the model has no position left; the text stops there, and says so."""
        context = self.task.model.context
        if context is None or len(self.tokens) < context:
            return False
        self._notes.append(STOPPED.format(context=context))
        return True

    def _next(self, logits: Tensor) -> int:
        """The next token: the likeliest one, or drawn at the temperature. On the CPU: the same draw on every device."""
        if not self.task.temperature:
            return int(logits.argmax())
        weights = (logits.double().cpu() / self.task.temperature).softmax(dim=0)
        return int(torch.multinomial(weights, 1, generator=self._draw))


def _overflowed(state: ForwardState) -> bool:
    """Whether the model overflowed: whatever did is in the residual stream by the end, and so in the logits; while the
    prompt is read, at any of its positions."""
    assert state.logits is not None
    return not bool(state.logits.isfinite().all()) or (state.longest > 1 and bool(zero_nonfinite_rows(state)))


def ends(task: Task) -> set[int]:
    """The tokens with which the model ends a text."""
    module = task.model.module
    given = getattr(getattr(module, "generation_config", None), "eos_token_id", None)
    given = module.config.eos_token_id if given is None else given
    return set(given) if isinstance(given, list | tuple) else {given} - {None}


def generate_texts(task: Task, prompts: Sequence[Prompt], watch: Watch = lambda _: None) -> Iterator[Trace]:
    """The trace of each text with what the model wrote after it, one text after another; `watch` sees every step."""
    for prompt in prompts:
        yield from halving(lambda batch: [_generated(task, one, watch) for one in batch], [prompt], failed=task.failed)


def _generated(task: Task, prompt: Prompt, watch: Watch) -> Trace:
    try:
        generation = Generation(task, prompt)
        for step in generation:
            watch(step)
    except PromptError as error:
        return task.failed(prompt, str(error))
    return generation.trace
