"""Maps along all paths at once: the macro map `J_M` and its branches, by sweeps in topological order.

The number of directed paths is exponential in the depth; a sweep visits every edge once. Forwards,
`x_v = sum_u rho_{u->v} x_u` from the sources on; transposed, cotangents run the same way back.
"""

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import by_vector, cat_blocks, rescale, zeros_by_vector
from eics.linalg.operators import LinearOperator
from eics.linearized.circuit import Level, LinearizedCircuit
from eics.linearized.sweep import sweep_back
from eics.transformer.closed_forms.answer_paths import AnswerPaths


class PathMap(LinearOperator):
    """From the stacked sources that reach `targets` to the stacked targets: the sum over all paths.

    A target that is itself a source is reached by the empty path, the identity.
    """

    def __init__(self, linearized: LinearizedCircuit, targets: Sequence[str]) -> None:
        circuit = linearized.circuit
        upstream = circuit.ancestors(targets)
        self.linearized, self.targets = linearized, tuple(targets)
        self.sources = tuple(node for node in circuit.sources if node in upstream)
        self.swept = tuple(node for node in circuit.inner if node in upstream)
        self.batch, self.dtype = linearized.batch, linearized.dtype
        self.device = linearized.stalks[circuit.order[0]].activation.device
        self.rows = sum(linearized.stalks[node].dim for node in self.targets)
        self.cols = sum(linearized.stalks[node].dim for node in self.sources)
        self._last_use = self._last_uses()
        self.live = self._most_live()

    def mv(self, x: Tensor) -> Tensor:
        """One sweep forwards."""
        values = self._split(x, self.sources)
        for level in self._levels:
            values |= self.linearized.carry(level, values)
            for done in (done for node in level.nodes for done in self._last_use.get(node, ())):
                del values[done]
        return cat_blocks([self.linearized.written(node, values[node]) for node in self.targets])

    def rmv(self, y: Tensor) -> Tensor:
        """One sweep backwards."""
        cotangents = {
            node: self.linearized.unwritten(node, part) for node, part in self._split(y, self.targets).items()
        }
        for _ in sweep_back(self.linearized, self._levels, cotangents):
            pass
        return cat_blocks(
            [
                self._masked(node, cotangents[node]) if node in cotangents else self._zeros(node, y)
                for node in self.sources
            ]
        )

    @property
    def gram_side(self) -> int | None:
        """The read-out's rows, where it reads one position."""
        return None if self._answer is None else self._answer.side

    @property
    def gram_copies(self) -> int:
        """The maps to the answer position have as many columns as J_M, where they are made at all."""
        if self._answer is None or self._answer.by_terms:
            return 1
        return 4 + self.cols // max(1, self._answer.side)

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """From the last node of each path that writes through few numbers (`closed_forms.answer_paths`)."""
        return None if self._answer is None else self._answer.gram(left, right).unsqueeze(1)

    @cached_property
    def _answer(self) -> AnswerPaths | None:
        return AnswerPaths.of(self.linearized, self.swept, self.targets, self.sources)

    @property
    def _levels(self) -> tuple[Level, ...]:
        return self.linearized.levels(self.swept, short=True)

    def prompt(self, index: int) -> "PathMap":
        """The paths' map for one prompt."""
        return PathMap(self.linearized.prompt(index), self.targets)

    def double(self) -> "PathMap":
        """The paths' map in float64."""
        return PathMap(self.linearized.double(), self.targets)

    def _split(self, block: Tensor, nodes: Sequence[str]) -> dict[str, Tensor]:
        parts = by_vector(block).split([self.linearized.stalks[node].dim for node in nodes], dim=1)
        return {node: self._masked(node, part) for node, part in zip(nodes, parts, strict=True)}

    def _masked(self, node: str, block: Tensor) -> Tensor:
        stalk = self.linearized.stalks[node]
        return block if stalk.mask is None else rescale(stalk.mask, block)

    def _zeros(self, node: str, like: Tensor) -> Tensor:
        return zeros_by_vector(like, self.linearized.stalks[node].dim)

    def _most_live(self) -> int:
        """How many nodes' values a sweep holds at most."""
        live = most = len(self.sources)
        for level in self._levels:
            live += len(level.nodes)
            most = max(most, live)
            live -= sum(len(self._last_use.get(node, ())) for node in level.nodes)
        return most

    def _last_uses(self) -> dict[str, list[str]]:
        """Which values a sweep may forget after computing a node: memory follows the width of the graph."""
        last: dict[str, str] = {}
        for node in self.swept:
            for edge in self.linearized.circuit.parents[node]:
                last[edge.source] = node
        freed: dict[str, list[str]] = {}
        for source, node in last.items():
            if source not in self.targets:
                freed.setdefault(node, []).append(source)
        return freed


def macro_map(linearized: LinearizedCircuit) -> PathMap:
    """J_M: stacked sources to stacked sinks."""
    sinks = linearized.circuit.sinks
    return PathMap(linearized.narrowed(sinks), sinks)


def branch_maps(linearized: LinearizedCircuit) -> dict[Edge, LinearOperator]:
    """One part for each carrying edge into a sink: the paths that end with that edge.

    `rho_{u->s}` after all paths to `u`. Its rows are the stalk of that sink and its columns the sources that
    reach `u`; put back among all sinks and sources, the branches add up to `J_M`.
    """
    sinks = set(linearized.circuit.sinks)
    return {
        edge: linearized.edge_map(edge) @ PathMap(linearized, [edge.source])
        for edge in linearized.edges
        if edge.target in sinks
    }
