"""Edge attribution patching (EAP, Syed et al. 2023) and its integrated-gradients form (EAP-IG, Hanna et al. 2024).

    score(u -> v, port) = < a_u - a_u', dM/d(what v reads through the port) >

with a' the ablated write and M the metric: to first order, how much the metric falls when this edge alone carries a'
instead of a. EAP takes the gradient at the clean prompt; EAP-IG averages it while the embeddings move from ablated to
clean, so that the scores of the edges out of `input` add up to `M(clean) - M(ablated input)`.

All edges of a batch cost one backward sweep and one matrix product per layer; there is no loop over edges. With g the
gradient at the residual stream, a node's write has cotangent g and what it read gets `J^T g`, which joins the stream
below: a backward pass made of the score's own operators gives the gradient at every reader, port by port. Under
`frozen` the operators hold patterns, norms and gates, and scores are exact for that affine model.

A norm after a layer's heads (Gemma) belongs to no single head. The sweep uses its full Jacobian, so that the gradient
is the model's, whereas the score's map of a single head holds the norm's denominator.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.circuits.graph import Edge
from eics.errors import OptionError
from eics.linalg.memory import chunk_width, memory_bound, memory_limit
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.scoring.numbers import number
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import measure, slope
from eics.studies.discovery.reference import Writes, head_differences, mean_writes
from eics.studies.discovery.task import Pair, Task, targets
from eics.transformer.attention import AttentionState
from eics.transformer.forward import ForwardState, run
from eics.transformer.head import HeadMap
from eics.transformer.mlp import MLPMap
from eics.transformer.norm import NormMap
from eics.transformer.readout import ReadoutMap

METHODS = ("eap", "eap-ig")


@dataclass(frozen=True)
class Attribution:
    """The score of every edge, averaged over the pairs of a task.

    Attributes:
        graph: what rows and columns stand for.
        scores: (writers, readers), on the CPU; zero where there is no edge.
        clean, ablated: mean of the metric on clean prompts, and with ablated input (corrupted prompts, or mean or zero
            embeddings).
    """

    graph: FullGraph
    scores: Tensor
    clean: float
    ablated: float
    pairs: int

    def __repr__(self) -> str:
        metric = f"clean={number(self.clean)}, ablated={number(self.ablated)}"
        return f"Attribution({sum(self.graph.prefix)} edges, {self.pairs} pairs; {metric})"

    def __getitem__(self, edge: Edge | str) -> float:
        edge = Edge.parse(edge) if isinstance(edge, str) else edge
        return float(self.scores[self.graph.rows[edge.source], self.graph.columns[edge.target, edge.port]])

    def edges(self) -> Iterator[tuple[Edge, float]]:
        """Every edge with its score, reader by reader."""
        for column, upto in enumerate(self.graph.prefix):
            for row, score in enumerate(self.scores[:upto, column].tolist()):
                yield self.graph.edge(row, column), score


@dataclass(frozen=True)
class How:
    """How to attribute: metric, method, integration steps (EAP-IG), ablation and linearization."""

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


@memory_explained
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
        how: defaults to `How()`.
        batch_size: pairs per forward pass.
        memory: megabytes that the largest temporary blocks may take.
        tick: called after each batch with its number of pairs.
    """
    how = how or How()
    task.check(how.metric, how.ablation)
    graph = FullGraph.of(model)
    total = torch.zeros(len(graph.writers), len(graph.readers), dtype=torch.float64)
    clean = ablated = 0.0
    with torch.no_grad(), memory_limit(memory):
        means = None
        if how.ablation == "mean":
            means = mean_writes(_run(model, [p.clean for p in pairs]) for pairs in task.batches(batch_size))
        for pairs in task.batches(batch_size):
            batch = _Batch(model, graph, how, pairs, means)
            total += batch.scores().double().cpu()
            clean, ablated = clean + batch.clean_metric, ablated + batch.ablated_metric
            tick(len(pairs))
    count = len(task.pairs)
    return Attribution(graph, total / count, clean / count, ablated / count, count)


def _run(model: Model, prompts: Sequence[Sequence[int]], embeddings: Tensor | None = None) -> ForwardState:
    return run(model, prompts, logits=True, embeddings=embeddings)


class _Batch:
    """One batch of pairs; its metrics and scores are sums over the pairs."""

    def __init__(self, model: Model, graph: FullGraph, how: How, pairs: Sequence[Pair], means: Writes | None) -> None:
        self.model, self.graph, self.how = model, graph, how
        self.prompts = [pair.clean for pair in pairs]
        clean = _run(model, self.prompts)
        self.clean = Writes.of(clean)
        if how.ablation == "corrupted":
            ablated = _run(model, [pair.corrupted or () for pair in pairs])
            self.ablated = Writes.of(ablated)
        else:
            self.ablated = means or self.clean.zero()
            ablated = _run(model, self.prompts, self.ablated.input.expand_as(self.clean.input))
        assert clean.logits is not None
        assert ablated.logits is not None
        self.targets = replace(targets(pairs, model), full=clean.logits)
        self.clean_metric, self.ablated_metric = (
            float(measure(how.metric, logits, self.targets).sum()) for logits in (clean.logits, ablated.logits)
        )
        # EAP takes gradients at the clean state; EAP-IG does not, and frees what nodes read there.
        self.clean_state = clean if how.method == "eap" else None

    def scores(self) -> Tensor:
        """(writers, readers)."""
        shape = len(self.graph.writers), len(self.graph.readers)
        total = torch.zeros(shape, dtype=self.model.dtype, device=self.model.device)
        differences = _Differences(self.model, self.graph, self.clean, self.ablated)
        for state, weight in self.points():
            assert state.logits is not None
            direction = weight * slope(self.how.metric, state.logits, self.targets)
            for columns, gradient in self._gathered(state, direction):
                upto = max(self.graph.prefix[column] for column in columns)
                for rows, difference in differences.below(upto):
                    total[rows, columns] += difference.flatten(1) @ gradient.flatten(1).mT
        return total * self.graph.valid.to(total.device)

    def points(self) -> Iterator[tuple[ForwardState, float]]:
        """The states at which gradients are taken, with their weights; for EAP-IG the midpoints of equal steps."""
        if self.clean_state is not None:
            yield self.clean_state, 1.0
            return
        for step in range(self.how.steps):
            share = (step + 0.5) / self.how.steps
            between = self.ablated.input + share * (self.clean.input - self.ablated.input)
            yield _run(self.model, self.prompts, between), 1.0 / self.how.steps

    def _gathered(self, state: ForwardState, direction: Tensor) -> Iterator[tuple[list[int], Tensor]]:
        """Gradients of as many readers at a time as the memory bound allows: a few large products, not many small."""
        most = min(chunk_width(self.clean.input.numel(), direction.dtype), 4 * self.graph.heads)
        gathered: list[int] = []
        blocks: list[Tensor] = []
        frozen = self.how.linearization == "frozen"
        for columns, gradient in _gradients(state, self.graph, direction, frozen):
            if gathered and len(gathered) + len(columns) > most:
                yield gathered, torch.cat(blocks)
                gathered, blocks = [], []
            gathered = gathered + columns
            blocks.append(gradient)
        yield gathered, torch.cat(blocks)


class _Differences:
    """a_u - a_u' of the writers, (R, B, T, d), one layer at a time; kept if all of them fit in the memory bound."""

    def __init__(self, model: Model, graph: FullGraph, clean: Writes, ablated: Writes) -> None:
        self.model, self.graph, self.clean, self.ablated = model, graph, clean, ablated
        size = len(graph.writers) * clean.input.numel() * clean.input.dtype.itemsize
        self.kept = torch.cat([block for _, block in self._layers()]) if size <= memory_bound() else None

    def below(self, row: int) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of all rows before `row`; a single block if they are kept."""
        if self.kept is not None:
            yield slice(0, row), self.kept[:row]
            return
        for rows, block in self._layers():
            if rows.start >= row:
                return
            yield slice(rows.start, min(rows.stop, row)), block[: row - rows.start]

    def _layers(self) -> Iterator[tuple[slice, Tensor]]:
        yield slice(0, 1), (self.clean.input - self.ablated.input).unsqueeze(0)
        start = 1
        for layer, block in enumerate(self.model.transformer.blocks):
            spec = block.attention
            heads = head_differences(spec, self.clean.z[layer], self.ablated.z[layer], list(range(spec.heads)))
            mlp = (self.clean.mlps[layer] - self.ablated.mlps[layer]).unsqueeze(0)
            yield slice(start, start + len(heads) + 1), torch.cat([heads, mlp])
            start += len(heads) + 1


def _gradients(
    state: ForwardState, graph: FullGraph, direction: Tensor, frozen: bool
) -> Iterator[tuple[list[int], Tensor]]:
    """Yields, from the top down, columns of the graph and the gradients at what those readers read, (R, B, T, d).

    `direction` is the gradient of the metric by the logits, (B, V). Heads come in chunks that stay within the memory
    bound; under `frozen`, queries and keys have no gradient and are left out.
    """
    spec = state.model.transformer
    assert state.final_read is not None
    readout = ReadoutMap(spec, state.final_read, state.answer, "logits", None, frozen)
    stream = readout.rmv(direction.unsqueeze(2)).view_as(state.final_read)
    yield [graph.columns["logits", None]], stream.unsqueeze(0)
    for layer in reversed(range(len(spec.blocks))):
        block = spec.blocks[layer]
        mlp = MLPMap(block.mlp, state.mlp_reads[layer], frozen)
        by_mlp = mlp.rmv(stream.flatten(1).unsqueeze(2)).view_as(stream)
        yield [graph.columns[f"m{layer}", None]], by_mlp.unsqueeze(0)
        above = stream if block.parallel else stream + by_mlp
        stream = stream + by_mlp
        for port, heads, by_head in _head_gradients(state, layer, above, frozen):
            yield [graph.columns[f"a{layer}.h{head}", port] for head in heads], by_head
            stream = stream + by_head.sum(dim=0)


def _head_gradients(
    state: ForwardState, layer: int, cotangent: Tensor, frozen: bool
) -> Iterator[tuple[str, list[int], Tensor]]:
    spec = state.model.transformer.blocks[layer].attention
    batch, length, width = cotangent.shape
    if spec.post_norm is not None:
        cotangent = NormMap.at(spec.post_norm, state.summed[layer], frozen).rmv(cotangent.unsqueeze(1)).squeeze(1)
    chunk = chunk_width(batch * length * max(2 * width, 4 * length), cotangent.dtype)
    for start in range(0, spec.heads, chunk):
        heads = list(range(start, min(start + chunk, spec.heads)))
        rotation = state.rotations.get(layer)
        attention = AttentionState(spec, state.attention_reads[layer], rotation, None, frozen, heads)
        for port, gradient in HeadMap(attention, range(len(heads)), None).ports_back(cotangent):
            yield port, heads, gradient
