"""`eics.trace`: texts in, for each of them z by node and token out."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from eics.circuits.graph import Circuit
from eics.data.outputs import Outputs
from eics.errors import as_path
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import Prompt, single_or_many
from eics.scoring.calibration.file import as_calibration
from eics.studies.tracing.generation import Watch, generate_texts
from eics.studies.tracing.result import Trace, Traces
from eics.studies.tracing.task import Task, checked_task
from eics.studies.tracing.texts import trace_texts
from eics.studies.tracing.trace_file import TraceFile, check_trace_path
from eics.transformer.adapt import adapt


@memory_explained
def trace(
    model: Any,
    circuit: Circuit,
    texts: Any,
    *,
    calibration: Any,
    level: float = 0.05,
    generate: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    ids: Sequence[str | int] | None = None,
    batch_size: int = 8,
    interventions: Any = None,
    memory: float | None = None,
    allow_changed_weights: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    tick: Callable[[int], None] = lambda _: None,
) -> Trace | Traces:
    """Says at which token which node wrote something unusual for what it read.

        z_v(t) = log d_v^2 at position t, standardised over all positions of the calibration texts
        p      = (1 + #{calibration texts whose largest z is as large}) / (1 + n)

    A node at a token is a suspect if its z would, as the largest of a text, have a p of at most `level`: a usual text
    has any suspect with probability at most `level`. The first token is apart.

    Args:
        model, circuit, ids, batch_size, interventions, allow_changed_weights: as `eics.score` takes them.
        texts: as `eics.score` takes prompts; a single one gives a `Trace`, a sequence of one result for each position,
            and a list gives `Traces`. A text that cannot be traced gives a failed trace that says why.
        calibration: an `eics.Calibration` of the same model and circuit that was made at all positions (`at="all"`), or
            its file.
        generate: how many tokens the model goes on with; each is scored as it comes. temperature, seed: how they are
            drawn; the likeliest token by default.
        memory: megabytes that one temporary block may take.
        out: a `.jsonl` file, written as the run goes; `resume` continues it.
        tick: called with the number of texts finished since the last call.
    """
    listed, single = single_or_many(texts, ids)
    task = checked_task(
        adapt(model),
        circuit,
        listed,
        as_calibration(calibration),
        level=level,
        seed=seed,
        memory=memory,
        batch_size=batch_size,
        interventions=interventions,
        generate=generate,
        temperature=temperature,
        allow_changed_weights=allow_changed_weights,
    )
    if out is None:
        traces = Traces(_ticked(traced(task, listed), tick))
    else:
        path = as_path(out, "file of traces")
        check_trace_path(path)
        with Outputs({"out": path}, {}, overwrite, resume, ("out",)):
            file = TraceFile(path, task.header, resume=resume)
            file.check(listed, task.model)
            traces = Traces(_ticked(missing(task, file), tick))
            file.finish(traces)
    return traces[0] if single else traces


def traced(task: Task, prompts: Sequence[Prompt], watch: Watch = lambda _: None) -> Iterator[Trace]:
    """The trace of each text, in order, as soon as it is there; `watch` sees every step of texts that grow."""
    return generate_texts(task, prompts, watch) if task.generate else trace_texts(task, prompts)


def missing(task: Task, file: TraceFile, watch: Watch = lambda _: None) -> Iterator[Trace]:
    """The trace of each text in order: those that the file has, and those that it lacks, which are added to it."""
    known = {trace.id: trace for trace in file.earlier}
    new = traced(task, [prompt for prompt in task.prompts if prompt.id not in known], watch)
    for prompt in task.prompts:
        if prompt.id in known:
            yield known[prompt.id]
            continue
        trace = next(new)
        file.append(trace)
        yield trace


def _ticked(traces: Iterator[Trace], tick: Callable[[int], None]) -> Iterator[Trace]:
    for trace in traces:
        tick(1)
        yield trace
