"""The transformer's engine: the numbers of `PlainEngine`, for a fraction of its products.

Heads of a layer are computed together. In path sweeps and edge predictions a head is carried as its z, e numbers a
position instead of d, and its readers apply virtual weights. J_M is swept at the answer position only, as far as
nothing else reads a node. Intermediate results are cached on the engine and freed with it.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from torch import Tensor

from eics.circuits.graph import Kind, Node
from eics.linalg.blocks import to_block, to_rows, zeros_by_vector
from eics.linalg.stacking import by_key, stack_key
from eics.linearized.circuit import Entry, LinearizedCircuit
from eics.linearized.sweep import EdgePredictions, PlainEngine, add_to
from eics.transformer.fast_sweep.answer_position import narrowed
from eics.transformer.fast_sweep.from_z import OutputFactor, output_factor
from eics.transformer.fast_sweep.head_step import HeadStep, layer_key
from eics.transformer.fast_sweep.path_map import FastPathMap
from eics.transformer.fast_sweep.steps import EntryFromZ, StackedEntries, StepPredictions, SweepStep, merged

HeadSteps = dict[tuple[int, ...], tuple[Sequence[Entry], HeadStep]]
"""Steps by their entries' identities, with those entries, so that an identity stays taken."""


@dataclass(frozen=True)
class Level:
    """Nodes that do not read each other, computed together."""

    nodes: tuple[str, ...]
    steps: tuple[SweepStep, ...]


class TransformerEngine(PlainEngine):
    """Sweeps over the maps of a transformer. `head_steps` may come from an engine with some of the same entries."""

    def __init__(self, linearized: LinearizedCircuit, head_steps: HeadSteps | None = None) -> None:
        super().__init__(linearized)
        self._head_steps: HeadSteps = {} if head_steps is None else head_steps
        self._levels: dict[tuple[tuple[str, ...], bool], tuple[Level, ...]] = {}

    def edge_predictions(self, carried: MutableMapping[str, Tensor] | None = None) -> Iterator[EdgePredictions]:
        return merged(self._step_predictions(carried))

    def carry(self, values: Mapping[str, Tensor], nodes: Sequence[str] | None = None) -> Iterator[tuple[str, Tensor]]:
        for level in self.levels(nodes):
            yield from self.carry_level(level, values).items()

    def pull(
        self, cotangents: MutableMapping[str, Tensor], nodes: Sequence[str] | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        return pull_levels(self.levels(nodes), cotangents)

    def macro_map(self, targets: Sequence[str] | None = None) -> FastPathMap:
        if targets is not None:
            return FastPathMap(self, targets)
        sinks = self.linearized.circuit.sinks
        return FastPathMap(TransformerEngine(narrowed(self.linearized, sinks), self._head_steps), sinks)

    @cached_property
    def output_factors(self) -> dict[str, OutputFactor]:
        """W of every node that something enters and that wrote `W z` at each position, z shorter than the write."""
        factors = {}
        for node, entries in self.node_maps():
            factor, stalk = output_factor(entries[0].operator), self.linearized.stalks[node]
            if factor is not None and stalk.z is not None and stalk.z.shape[2] < stalk.width:
                factors[node] = factor
        return factors

    def levels(self, nodes: Sequence[str] | None = None, *, by_z: bool = False) -> tuple[Level, ...]:
        """The nodes (all with parents, if not given) in topological order, heads of a layer together.

        `by_z`: for sweeps that carry the z of the nodes of `output_factors` in place of their writes.
        """
        chosen = self.linearized.circuit.inner if nodes is None else tuple(nodes)
        if (chosen, by_z) not in self._levels:
            steps = self._steps_by_z if by_z else self._steps
            groups = (tuple(node.name for node in run) for _, run in groupby(map(Node.parse, chosen), key=_level_key))
            self._levels[chosen, by_z] = tuple(
                Level(names, tuple(steps([e for name in names for e in self.linearized.entries[name]])))
                for names in groups
            )
        return self._levels[chosen, by_z]

    def carry_level(self, level: Level, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """sum_u rho_{u->v} values_u for each node of the level."""
        carried: dict[str, Tensor] = {}
        for step in level.steps:
            for node, image in step.carry(values):
                add_to(carried, node, image)
        like = next(iter(values.values()))
        for node in level.nodes:
            if node not in carried:
                carried[node] = zeros_by_vector(like, self.linearized.stalks[node].dim)
        return {node: carried[node] for node in level.nodes}

    def pull_by_z(self, cotangents: MutableMapping[str, Tensor], nodes: Sequence[str]) -> None:
        """Pulls cotangents back to the sources of `nodes`, those of the nodes of `output_factors` as z."""
        for _ in pull_levels(self.levels(nodes, by_z=True), cotangents):
            pass

    def to_write(self, node: str, value: Tensor) -> Tensor:
        """A node's write, `W z` if z is what was carried."""
        if node not in self.output_factors:
            return value
        weight = self.output_factors[node].weight
        return to_block(to_rows(value, weight.shape[1]) @ weight.mT)

    def from_write(self, node: str, cotangent: Tensor) -> Tensor:
        """The transpose of `to_write`."""
        if node not in self.output_factors:
            return cotangent
        weight = self.output_factors[node].weight
        return to_block(to_rows(cotangent, weight.shape[0]) @ weight)

    def _step_predictions(self, carried: MutableMapping[str, Tensor] | None) -> Iterator[StepPredictions]:
        """Step by step. The sum over a node's parents is that of its predictions, if these are writes."""
        stalks = self.linearized.stalks
        observed = {} if carried is None else self._observed()
        for step in (step for level in self.levels(by_z=True) for step in level.steps):
            are_writes = True
            for predictions in step.predictions(stalks):
                are_writes = predictions.are_writes
                if carried is not None and are_writes:
                    add_to(carried, predictions.edges[0].target, predictions.predicted.sum(dim=1).flatten(1))
                yield predictions
            if carried is not None and not are_writes:
                for node, value in step.carry(observed):
                    add_to(carried, node, self.to_write(node, value).squeeze(2))

    def _observed(self) -> dict[str, Tensor]:
        """The observed values as blocks of one vector: z of the nodes that are carried so, else the activations."""
        values = {}
        for node, stalk in self.linearized.stalks.items():
            value = stalk.z if node in self.output_factors else stalk.activation
            assert value is not None
            values[node] = value.flatten(1).unsqueeze(2)
        return values

    def _steps(self, entries: Sequence[Entry]) -> Iterator[SweepStep]:
        for group in by_key(entries, lambda entry: stack_key(entry.operator)):
            yield StackedEntries.of(group)

    def _steps_by_z(self, entries: Sequence[Entry]) -> Iterator[SweepStep]:
        for group in by_key(entries, self._step_key):
            if group[0].target in self.output_factors:
                yield self._head_step(group)
            elif self._reads_z(group[0]):
                yield EntryFromZ(group[0], self.output_factors)
            else:
                yield StackedEntries.of(group)

    def _step_key(self, entry: Entry) -> object:
        """Entries with an equal key share a step."""
        if entry.target in self.output_factors:
            return layer_key(entry.operator)
        return None if self._reads_z(entry) else stack_key(entry.operator)

    def _reads_z(self, entry: Entry) -> bool:
        return any(edge.source in self.output_factors for edge in entry.edges)

    def _head_step(self, entries: Sequence[Entry]) -> HeadStep:
        """Made once for all engines that have these entries in common."""
        key = tuple(map(id, entries))
        if key not in self._head_steps:
            self._head_steps[key] = entries, HeadStep(entries, self.output_factors, self.linearized.stalks)
        return self._head_steps[key][1]


def pull_levels(levels: Sequence[Level], cotangents: MutableMapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Pulls cotangents back through levels, yielding each node with its whole one."""
    for level in reversed(levels):
        whole = {node: cotangents.pop(node) for node in level.nodes if node in cotangents}
        if not whole:
            continue
        yield from whole.items()
        for step in level.steps:
            for source, back in step.pull(whole):
                add_to(cotangents, source, back)


def _level_key(node: Node) -> object:
    """Neighbouring heads of a layer have an equal one."""
    return node.rank if node.kind is Kind.HEAD else node.name
