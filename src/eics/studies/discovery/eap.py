"""Edge attribution patching (Syed et al. 2023) and its integrated-gradients form (Hanna et al. 2024).

    score(u -> v, port) = < a_u - a_u', dM/d(what v reads through the port) >

with a' the ablated write and M the metric: by how much, to first order, the metric falls when the edge alone carries
a' instead of a. EAP takes the gradient at the clean prompt; EAP-IG averages it while the embeddings move from the
ablated ones to the clean ones, so that the scores of the edges out of `input` add up to `M(clean) - M(ablated input)`.

All edges of a batch cost one backward sweep (`eics.studies.discovery.backward`) and one matrix product a layer; no loop
over edges. Under `frozen` scores are exact for the affine model that holds patterns, norms and gates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.errors import OptionError
from eics.linalg.memory import chunk_width, memory_bound, memory_limit
from eics.models.base import Model
from eics.studies.discovery.backward import gradients
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import Targets, measure, slope
from eics.studies.discovery.reference import Writes, mean_writes
from eics.studies.discovery.task import Pair, Task, targets
from eics.transformer.forward import ForwardState, run

METHODS = ("eap", "eap-ig")


@dataclass(frozen=True)
class Attribution:
    """Mean score of every edge over a task's pairs.

    Attributes:
        graph: what rows and columns are.
        scores: (writers, readers), on the CPU; zero where there is no edge.
        clean, ablated: the metric's mean on clean prompts, and with the input ablated (corrupted prompts, or mean or
            zero embeddings).
    """

    graph: FullGraph
    scores: Tensor
    clean: float
    ablated: float
    pairs: int

    def __getitem__(self, edge: Edge | str) -> float:
        """One edge's score."""
        edge = Edge.parse(edge) if isinstance(edge, str) else edge
        return float(self.scores[self.graph.rows[edge.source], self.graph.columns[edge.target, edge.port]])

    def edges(self) -> Iterator[tuple[Edge, float]]:
        """Every edge with its score, reader by reader."""
        for column, upto in enumerate(self.graph.prefix):
            for row, score in enumerate(self.scores[:upto, column].tolist()):
                yield self.graph.edge(row, column), score


@dataclass(frozen=True)
class How:
    """How to attribute: see `attribute`."""

    metric: str = "logit_diff"
    method: str = "eap-ig"
    steps: int = 5
    ablation: str = "corrupted"
    linearization: str = "jacobian"

    def __post_init__(self) -> None:
        for name, choices in (("method", METHODS), ("linearization", ("jacobian", "frozen"))):
            if getattr(self, name) not in choices:
                raise OptionError.of(name, f"one of {', '.join(choices)}", getattr(self, name))
        if not isinstance(self.steps, int) or self.steps < 1:
            raise OptionError.of("steps", "a whole number >= 1", self.steps)
        if self.metric == "kl" and self.method == "eap":
            raise OptionError(
                "Metric 'kl' has no gradient at the clean prompt, where it is 0 and greatest: use method 'eap-ig'."
            )


def attribute(
    model: Model,
    task: Task,
    how: How | None = None,
    *,
    batch_size: int = 8,
    memory: float = 512,
    tick: Callable[[int], None] = lambda _: None,
) -> Attribution:
    """Scores every edge of the model on a task.

    Args:
        model: from `eics.load_model` or `eics.adapt`.
        task: from `read_task`.
        how: metric, method, integration steps, ablation, linearization.
        batch_size: pairs in a pass.
        memory: megabytes that the largest temporary blocks may take.
        tick: called with the number of pairs done.
    """
    how = how or How()
    task.check(how.metric, how.ablation)
    graph = FullGraph.of(model)
    total = torch.zeros(len(graph.writers), len(graph.readers), dtype=torch.float64)
    clean = ablated = 0.0
    with torch.no_grad(), memory_limit(memory):
        means = None
        if how.ablation == "mean":
            means = mean_writes(_run(model, [p.clean for p in batch]) for batch in task.batches(batch_size))
        for batch in task.batches(batch_size):
            found = _Batch.of(model, graph, how, batch, means)
            total += found.scores().double().cpu()
            clean, ablated = clean + found.clean_value(), ablated + found.ablated_value()
            tick(len(batch))
    count = len(task.pairs)
    return Attribution(graph, total / count, clean / count, ablated / count, count)


def _run(model: Model, prompts: Sequence[Sequence[int]], embeddings: Tensor | None = None) -> ForwardState:
    return run(model, prompts, logits=True, embeddings=embeddings)


@dataclass
class _Batch:
    """One batch on its way from prompts to scores, summed over its pairs."""

    model: Model
    graph: FullGraph
    how: How
    pairs: Sequence[Pair]
    clean: Writes
    state: ForwardState | None
    ablated: Writes
    targets: Targets
    ablated_logits: Tensor

    @classmethod
    def of(cls, model: Model, graph: FullGraph, how: How, pairs: Sequence[Pair], means: Writes | None) -> "_Batch":
        clean = _run(model, [pair.clean for pair in pairs])
        assert clean.logits is not None
        assert clean.input is not None
        if how.ablation == "corrupted":
            other = _run(model, [pair.corrupted or () for pair in pairs])
            writes = Writes.of(other)
        else:
            writes = means or Writes.of(clean).zero()
            other = _run(model, [pair.clean for pair in pairs], writes.input.expand_as(clean.input))
        assert other.logits is not None
        aims = replace(targets(pairs, model), full=clean.logits)
        state = clean if how.method == "eap" else None  # what nodes read is only kept where gradients are taken there
        return cls(model, graph, how, pairs, Writes.of(clean), state, writes, aims, other.logits)

    def clean_value(self) -> float:
        assert self.targets.full is not None
        return float(measure(self.how.metric, self.targets.full, self.targets).sum())

    def ablated_value(self) -> float:
        return float(measure(self.how.metric, self.ablated_logits, self.targets).sum())

    def scores(self) -> Tensor:
        """The batch's scores summed over its pairs, (writers, readers)."""
        total = torch.zeros(len(self.graph.writers), len(self.graph.readers), dtype=torch.float32)
        total = total.to(self.model.device, self.model.dtype)
        differences = _Differences(self.graph, self.clean, self.ablated)
        for state, weight in self.points():
            assert state.logits is not None
            direction = weight * slope(self.how.metric, state.logits, self.targets)
            for columns, gradient in self._gathered(state, direction):
                upto = max(self.graph.prefix[column] for column in columns)
                for rows, difference in differences.upto(upto):
                    total[rows, columns] += difference.flatten(1) @ gradient.flatten(1).mT
        return total * self.graph.valid.to(total.device)

    def _gathered(self, state: ForwardState, direction: Tensor) -> Iterator[tuple[list[int], Tensor]]:
        """Gradients of several readers together, as many as the memory bound allows: few large products."""
        width = chunk_width(self.clean.input.numel(), direction.dtype)
        columns: list[int] = []
        blocks: list[Tensor] = []
        for layer, port, heads, gradient in gradients(state, direction, self.how.linearization == "frozen"):
            if columns and len(columns) + len(gradient) > min(width, 4 * self.graph.heads):
                yield columns, torch.cat(blocks)
                columns, blocks = [], []
            columns = columns + self._columns(layer, port, heads)
            blocks.append(gradient)
        yield columns, torch.cat(blocks)

    def points(self) -> Iterator[tuple[ForwardState, float]]:
        """The states at which gradients are taken, with their weights: midpoints of equal steps for EAP-IG."""
        if self.state is not None:
            yield self.state, 1.0
            return
        for step in range(self.how.steps):
            share = (step + 0.5) / self.how.steps
            between = self.ablated.input + share * (self.clean.input - self.ablated.input)
            yield _run(self.model, [pair.clean for pair in self.pairs], between), 1.0 / self.how.steps

    def _columns(self, layer: int, port: str, heads: list[int]) -> list[int]:
        if port == "logits":
            return [len(self.graph.readers) - 1]
        if port == "m":
            return [self.graph.columns[f"m{layer}", None]]
        return [self.graph.columns[f"a{layer}.h{head}", port] for head in heads]


class _Differences:
    """a_u - a_u' for the writers, (R, B, T, d) a layer at a time; kept where all of them fit under the bound."""

    def __init__(self, graph: FullGraph, clean: Writes, ablated: Writes) -> None:
        self.graph, self.clean, self.ablated = graph, clean, ablated
        size = len(graph.writers) * clean.input.numel() * clean.input.dtype.itemsize
        self.kept = torch.cat([block for _, block in self._layers()]) if size <= memory_bound() else None

    def upto(self, writers: int) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows below `writers`; all in one where they are kept."""
        if self.kept is not None:
            yield slice(0, writers), self.kept[:writers]
            return
        for rows, block in self._layers():
            if rows.start >= writers:
                return
            yield slice(rows.start, min(rows.stop, writers)), block[: writers - rows.start]

    def _layers(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, 1), (self.clean.input - self.ablated.input).unsqueeze(0)
        heads, width = list(range(self.graph.heads)), self.graph.heads + 1
        for layer in range(self.graph.layers):
            mlp = (self.clean.mlps[layer] - self.ablated.mlps[layer]).unsqueeze(0)
            block = torch.cat([self.clean.heads_less(self.ablated, layer, heads), mlp])
            yield slice(1 + layer * width, 1 + (layer + 1) * width), block
