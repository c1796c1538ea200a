"""Maps along all paths at once: the macro map `J_M` and its branches, by sweeps in topological order.

The number of directed paths is exponential in the depth; a sweep visits every edge once. Forwards,
`x_v = sum_u rho_{u->v} x_u` from the sources on; the transpose propagates cotangents along the same edges in reverse
order. The transformer's own version: `transformer/fast_sweep/path_map.py`.
"""

from collections.abc import Sequence

from torch import Tensor

from eics.circuits.graph import Edge
from eics.linalg.blocks import by_vector, cat_blocks, rescale, zeros_by_vector
from eics.linalg.operators import LinearOperator
from eics.linearized.sweep import Engine


class PathMap(LinearOperator):
    """From the stacked sources that reach `targets` to the stacked targets: the sum over all paths.

    A target that is itself a source is reached by the empty path, the identity.
    """

    def __init__(self, engine: Engine, targets: Sequence[str]) -> None:
        linearized = engine.linearized
        circuit = linearized.circuit
        upstream = circuit.ancestors(targets)
        self.engine, self.linearized, self.targets = engine, linearized, tuple(targets)
        self.sources = tuple(node for node in circuit.sources if node in upstream)
        self.swept = tuple(node for node in circuit.inner if node in upstream)
        self.batch, self.dtype, self.device = linearized.batch, linearized.dtype, linearized.device
        self.rows = sum(linearized.stalks[node].dim for node in self.targets)
        self.cols = sum(linearized.stalks[node].dim for node in self.sources)
        self.last_use = self._last_uses()
        self.live = self._most_live()

    def mv(self, x: Tensor) -> Tensor:
        values = self._split(x, self.sources)
        for node, carried in self.engine.carry(values, self.swept):
            values[node] = carried
            for done in self.last_use.get(node, ()):
                del values[done]
        return cat_blocks([values[node] for node in self.targets])

    def rmv(self, y: Tensor) -> Tensor:
        cotangents = self._split(y, self.targets)
        for _ in self.engine.pull(cotangents, self.swept):
            pass
        return self._at_sources(cotangents, y)

    def prompt(self, index: int) -> "PathMap":
        return type(self)(self.linearized.prompt(index).engine(), self.targets)

    def double(self) -> "PathMap":
        return type(self)(self.linearized.double().engine(), self.targets)

    def _split(self, block: Tensor, nodes: Sequence[str]) -> dict[str, Tensor]:
        parts = by_vector(block).split([self.linearized.stalks[node].dim for node in nodes], dim=1)
        return {node: self._masked(node, part) for node, part in zip(nodes, parts, strict=True)}

    def _at_sources(self, cotangents: dict[str, Tensor], like: Tensor) -> Tensor:
        """What has come back to the sources, stacked; zero for a source that nothing came back to."""
        stalks = self.linearized.stalks
        parts = [
            self._masked(node, cotangents[node]) if node in cotangents else zeros_by_vector(like, stalks[node].dim)
            for node in self.sources
        ]
        return cat_blocks(parts)

    def _masked(self, node: str, block: Tensor) -> Tensor:
        mask = self.linearized.stalks[node].mask
        return block if mask is None else rescale(mask, block)

    def _most_live(self) -> int:
        """How many nodes' values a sweep holds at most."""
        live = most = len(self.sources)
        for node in self.swept:
            live += 1
            most = max(most, live)
            live -= len(self.last_use.get(node, ()))
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


def branch_maps(engine: Engine) -> dict[Edge, LinearOperator]:
    """One part for each carrying edge into a sink: the paths that end with that edge.

    `rho_{u->s}` after all paths to `u`. Its rows are the stalk of that sink and its columns the sources that reach `u`;
    put back among all sinks and sources, the branches add up to `J_M`.
    """
    linearized = engine.linearized
    sinks = set(linearized.circuit.sinks)
    return {
        edge: linearized.edge_map(edge) @ engine.macro_map([edge.source])
        for edge in linearized.edges
        if edge.target in sinks
    }
