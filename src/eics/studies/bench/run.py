"""Measures rows: a first run for memory, a second one to count work, then timed runs between forward passes."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from eics.circuits.graph import Circuit
from eics.errors import EICSError
from eics.models.base import Model
from eics.models.prompts import as_prompts
from eics.scoring.api import score
from eics.scoring.batch import score_prompts
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.fit import calibrate
from eics.scoring.cuda_graphs import without_cuda_graphs
from eics.scoring.result import Score
from eics.studies.bench.circuits import REFERENCES
from eics.studies.bench.measure import Counts, Spread, Timing, count, interleaved, peak_memory, timed, timing
from eics.studies.bench.node_functions import PlainCircuit
from eics.studies.bench.rows import COMPARE, GIVEN, Row, Setting
from eics.studies.bench.straightforward import c_sh, dense_seconds, lanczos_seconds, straightforward
from eics.studies.comparison.models import compare_models
from eics.studies.discovery.eap import How, attribute
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.task import Pair, Task
from eics.transformer.adapt import adapt
from eics.transformer.forward import run

_REFERENCE_PROMPTS = 128
_DENSE_MOST = 1024  # the largest stalk for which the dense version is run rather than extrapolated


@dataclass(frozen=True)
class Plan:
    """How to measure: the most timed runs of a row, and the seconds after which no further run starts."""

    repeats: int = 5
    budget: float = 10.0
    straightforward: bool = False


@dataclass(frozen=True)
class Compared:
    """What the straightforward version costs for the whole batch.

    It computes prompts one by one, so one prompt is measured and multiplied. `extrapolated`: the dense matrices are too
    large to make, and the time comes from samples of the work. In `fast`, `times_slower` is for stochastic Lanczos,
    which needs no small alpha, and `same_estimate_times_slower` for the estimate that `fast` makes.
    """

    way: str
    seconds: float
    extrapolated: bool
    times_slower: float
    same_estimate_times_slower: float | None = None


@dataclass(frozen=True)
class RowResult:
    """The measurements of one row; `memory` is the peak in megabytes beyond that of the forward pass.

    On a GPU, later batches of a shape are replayed from a recording (`eics.scoring.cuda_graphs`): `timing` is theirs,
    `unrecorded` that of the first batch of a shape.
    """

    row: Row
    nodes: int
    edges: int
    timing: Timing
    first_seconds: float
    counts: Counts
    flop_ratio: float
    memory: float | None
    compared: Compared | None
    unrecorded: Timing | None = None


@dataclass(frozen=True)
class ForwardResult:
    """The plain forward pass: with logits at the last position only, as `score` runs it, and with all logits."""

    seconds: Spread
    all_logits: Spread
    counts: Counts
    memory: float | None


class Bench:
    """A model and a batch of random token lists, which all rows share."""

    def __init__(self, model: Model, setting: Setting, plan: Plan, given: Circuit | None = None) -> None:
        if model.context is not None and setting.tokens > model.context:
            raise EICSError(f"A prompt must have at most the model's {model.context} tokens. Got {setting.tokens}.")
        self.model, self.setting, self.plan, self.given = model, setting, plan, given
        stream = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, model.vocabulary, (setting.batch, setting.tokens), generator=stream)
        self.tokens: list[list[int]] = self.ids.tolist()
        self._calibrations: dict[str, Calibration] = {}
        self.device = model.device
        self._on_device = self.ids.to(self.device)
        self._mask = torch.ones_like(self._on_device)

    def forward(self, *, all_logits: bool = False) -> None:
        """The plain forward pass, without hooks."""
        keep = 0 if all_logits else 1
        with torch.no_grad():
            self.model.module(
                input_ids=self._on_device, attention_mask=self._mask, use_cache=False, logits_to_keep=keep
            )

    def measure_forward(self) -> ForwardResult:
        """Warms up, then times both kinds of forward pass in turn."""
        self.forward(all_logits=True)
        memory, _ = peak_memory(self.forward, self.device)
        counts = count(self.forward)
        passes = interleaved(
            partial(self.forward, all_logits=True), self.forward, self.device, repeats=self.plan.repeats, budget=30.0
        )
        return ForwardResult(passes.forward, passes.seconds, counts, memory)

    def circuit(self, name: str) -> Circuit:
        """A reference circuit laid out for this model, or the given circuit."""
        if name == GIVEN:
            assert self.given is not None
            return self.given
        blocks = self.model.transformer.blocks
        return REFERENCES[name](len(blocks), blocks[0].attention.heads)

    def score(self, circuit: Circuit, row: Row) -> list[Score]:
        """Scores through the public interface; a prompt that fails makes the row fail."""
        size = len(self.tokens)
        if len(row.configurations) == 1:
            options, usual = row.configurations[0], self.calibration(circuit) if row.judges else None
            scores = score(self.model, circuit, self.tokens, preset=options, batch_size=size, calibration=usual)
            results = list(scores) if not isinstance(scores, Score) else [scores]
        else:
            prompts = as_prompts(self.tokens, None)
            columns = score_prompts(self.model, circuit, prompts, row.configurations, batch_size=size)
            results = [result for column in columns for result in column]
        for result in results:
            if result.status == "failed":
                raise EICSError(f"The benchmark's row {row.name} failed: {result.reason}")
        return results

    def calibration(self, circuit: Circuit) -> Calibration:
        """What is usual for random prompts of the batch's length; learned once for each circuit."""
        if circuit.sha256 not in self._calibrations:
            stream = torch.Generator().manual_seed(1)
            shape = (_REFERENCE_PROMPTS, self.setting.tokens)
            prompts = torch.randint(0, self.model.vocabulary, shape, generator=stream).tolist()
            size = self.setting.batch
            self._calibrations[circuit.sha256] = calibrate(self.model, circuit, prompts, terms="sheaf", batch_size=size)
        return self._calibrations[circuit.sha256]

    def discover(self, method: str) -> None:
        """Attributes every edge of the model; the corrupted prompts are the prompts reversed."""
        pairs = (Pair(tuple(tokens), tuple(reversed(tokens)), (0,), (1,)) for tokens in self.tokens)
        attribute(self.model, Task("bench", tuple(pairs)), How(method=method), batch_size=len(self.tokens))

    def compare(self, circuit: Circuit, batches: int) -> None:
        """Compares the model with a copy that has a little noise in all weights, on this many batches; the second order
        of effects is sampled on one of them."""
        size = len(self.tokens)
        stream = torch.Generator().manual_seed(2)
        shape = (batches * size, self.setting.tokens)
        prompts = torch.randint(0, self.model.vocabulary, shape, generator=stream).tolist()
        compare_models(self.model, circuit, prompts, self.noisy, samples=size, batch_size=size, resamples=100)

    @cached_property
    def noisy(self) -> Model:
        """The model with one percent of noise in each weight."""
        module = copy.deepcopy(self.model.module)
        stream = torch.Generator(device=self.device).manual_seed(3)
        with torch.no_grad():
            for parameter in module.parameters():
                noise = torch.empty_like(parameter).normal_(generator=stream)
                parameter.add_(noise, alpha=0.01 * float(parameter.std()) if parameter.numel() > 1 else 0.0)
        return adapt(module, name="noisy", check=False)

    def work(self, row: Row) -> tuple[int, int, Callable[[], object]]:
        """The number of nodes and of edges that a row works on, and the work itself."""
        if row.method == COMPARE:
            circuit = self.circuit(row.circuit)
            return len(circuit.nodes), len(circuit.edges), partial(self.compare, circuit, row.batches)
        if row.method is not None:
            graph = FullGraph.of(self.model)
            return len(graph.writers) + 1, int(graph.valid.sum()), partial(self.discover, row.method)
        circuit = self.circuit(row.circuit)
        return len(circuit.nodes), len(circuit.edges), partial(self.score, circuit, row)

    def measure(self, row: Row, plain: ForwardResult) -> RowResult:
        nodes, edges, work = self.work(row)
        if row.judges:
            self.calibration(self.circuit(row.circuit))  # is not part of the score
        memory, first = peak_memory(work, self.device)
        forwards = partial(self._forwards, row.batches)
        with without_cuda_graphs():
            counts, while_counted = self._counted(work, forwards)
        first_batch = None
        if (
            self.device.type == "cuda"
            and row.configurations
            and all(o.mode in ("fast", "limit") for o in row.configurations)
        ):
            recording, _ = peak_memory(work, self.device)  # this run makes the recording
            memory = max(memory or 0.0, recording or 0.0)
            with without_cuda_graphs():
                first_batch = self._timed(work, forwards, first, while_counted)
        times = self._timed(work, forwards, first, while_counted)
        return RowResult(
            row=row,
            nodes=nodes,
            edges=edges,
            timing=times,
            first_seconds=first,
            counts=counts,
            flop_ratio=counts.flops / (row.batches * plain.counts.flops),
            memory=None if memory is None or plain.memory is None else max(0.0, memory - plain.memory),
            compared=self._compare(row, times) if self._comparable(row) else None,
            unrecorded=first_batch,
        )

    def _comparable(self, row: Row) -> bool:
        """Whether the straightforward version is wanted, and computes the same."""
        return self.plan.straightforward and bool(row.configurations) and not row.judges

    def _forwards(self, batches: int) -> None:
        """As many plain forward passes as the work has batches."""
        for _ in range(batches):
            self.forward()

    def _counted(self, work: Callable[[], object], forwards: Callable[[], object]) -> tuple[Counts, Timing]:
        before, counts = timed(forwards, self.device), []
        seconds = timed(lambda: counts.append(count(work)), self.device)
        return counts[0], timing([seconds], [before, timed(forwards, self.device)])

    def _timed(
        self, work: Callable[[], object], forwards: Callable[[], object], first: float, while_counted: Timing
    ) -> Timing:
        """A row that exceeds its budget is not run a third time: the counted run is hardly slower than a plain one."""
        if first > self.plan.budget:
            return while_counted
        return interleaved(work, forwards, self.device, repeats=self.plan.repeats, budget=self.plan.budget)

    def _compare(self, row: Row, times: Timing) -> Compared:
        circuit = self.circuit(row.circuit)
        size, exact = len(self.tokens), row.configurations[0].mode == "exact"
        seconds, same, extrapolated = 0.0, 0.0, False
        with torch.no_grad():
            state = run(self.model, self.tokens, circuit)
        for options in row.configurations:
            plain = PlainCircuit(state, circuit, 0, options.linearization)
            c_sh(plain)  # warm-up
            clock = partial(timed, device=self.device)
            if exact and self.setting.tokens * self.model.transformer.width > _DENSE_MOST:
                seconds, extrapolated = seconds + size * dense_seconds(plain, clock), True
            elif options.mode in ("fast", "limit"):
                seconds += size * lanczos_seconds(plain, options, clock)
                same += size * clock(partial(straightforward, plain, options))
            else:
                seconds += size * clock(partial(straightforward, plain, options))
        method = "dense Jacobians by autograd" if exact else "stochastic Lanczos with JVPs and VJPs by torch.func"
        slower, same_slower = ((t + times.forward.median) / times.seconds.median for t in (seconds, same))
        return Compared(method, seconds + times.forward.median, extrapolated, slower, same_slower if same else None)


def bench(
    measured: Bench,
    rows: Sequence[Row],
    tick: Callable[[], None] = lambda: None,
    done: Callable[[ForwardResult, Sequence[RowResult]], None] = lambda plain, results: None,  # noqa: ARG005
) -> tuple[ForwardResult, list[RowResult]]:
    """Measures the forward pass, then every row; calls `tick` after each, and `done` with all rows so far."""
    plain = measured.measure_forward()
    tick()
    results: list[RowResult] = []
    for row in rows:
        results.append(measured.measure(row, plain))
        done(plain, results)
        tick()
    return plain, results


def describe(model: Model, setting: Setting) -> dict[str, Any]:
    """The model and the setting, as the report states them."""
    spec = model.transformer
    return {
        "name": model.name,
        "shape": setting.shape,
        "layers": len(spec.blocks),
        "heads": spec.blocks[0].attention.heads,
        "width": spec.width,
        "parameters": sum(parameter.numel() for parameter in model.module.parameters()),
        "dtype": setting.dtype,
        "batch": setting.batch,
        "tokens": setting.tokens,
    }
