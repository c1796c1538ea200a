"""Whole texts, in batches: one pass, and z for each node and position."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from eics.errors import PromptError
from eics.linalg.memory import memory_limit
from eics.models.prompts import Prompt
from eics.scoring.batching import batch_indices, in_input_order
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.out_of_memory import halving
from eics.studies.tracing.result import Trace
from eics.studies.tracing.task import OVERFLOWED, Task
from eics.transformer.forward import run
from eics.transformer.interventions.donors import with_writes
from eics.transformer.linearize import TransformerRun


def trace_texts(task: Task, prompts: Sequence[Prompt]) -> Iterator[Trace]:
    """The trace of each text, in order, as soon as it is there."""
    indices = batch_indices(prompts, task.batch_size, sort=True)
    batches = ([prompts[index] for index in batch] for batch in indices)
    traced = (halving(partial(_trace_batch, task), batch, failed=task.failed) for batch in batches)
    yield from in_input_order(zip(indices, traced, strict=True))


def _trace_batch(task: Task, prompts: Sequence[Prompt]) -> list[Trace]:
    traces: dict[int, Trace] = {}
    items: list[tuple[int, list[int]]] = []
    for row, prompt in enumerate(prompts):
        try:
            items.append((row, task.tokens(prompt)))
        except PromptError as error:
            traces[row] = task.failed(prompt, str(error))
    if items:
        traces |= _trace_tokens(task, prompts, items)
    return [traces[row] for row in range(len(prompts))]


def _trace_tokens(task: Task, prompts: Sequence[Prompt], items: Sequence[tuple[int, list[int]]]) -> dict[int, Trace]:
    """The traces of texts that share a pass, by row."""
    changes, _ = with_writes(task.model, [task.interventions.get(prompts[row].id, ()) for row, _ in items])
    readout, chosen = task.readout
    with memory_limit(task.options.memory, task.model.device), torch.no_grad():
        logits = readout == "tokens"
        state = run(task.model, [tokens for _, tokens in items], task.circuit, logits=logits, interventions=changes)
        overflowed = zero_nonfinite_rows(state)
        z = task.judge.whole(TransformerRun(state, task.circuit, readout, chosen)).numpy()
    return {
        row: task.failed(prompts[row], OVERFLOWED)
        if place in overflowed
        else task.traced(prompts[row], tokens, z[place][:, : len(tokens)])
        for place, (row, tokens) in enumerate(items)
    }
