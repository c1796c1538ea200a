"""The map along all paths, swept by z; and its Gram matrix from the answer position."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from eics.linalg.blocks import cat_blocks
from eics.linalg.structure import GramOnly, structure
from eics.linearized.paths import PathMap
from eics.transformer.fast_sweep.answer_paths import AnswerPaths

if TYPE_CHECKING:
    from eics.transformer.fast_sweep.engine import TransformerEngine


class FastPathMap(PathMap):
    """`PathMap` with heads carried as z."""

    engine: "TransformerEngine"

    def __init__(self, engine: "TransformerEngine", targets: Sequence[str]) -> None:
        super().__init__(engine, targets)

    def mv(self, x: Tensor) -> Tensor:
        values = self._split(x, self.sources)
        for level in self.engine.levels(self.swept, by_z=True):
            values |= self.engine.carry_level(level, values)
            for done in (done for node in level.nodes for done in self.last_use.get(node, ())):
                del values[done]
        return cat_blocks([self.engine.to_write(node, values[node]) for node in self.targets])

    def rmv(self, y: Tensor) -> Tensor:
        cotangents = {node: self.engine.from_write(node, part) for node, part in self._split(y, self.targets).items()}
        self.engine.pull_by_z(cotangents, self.swept)
        return self._at_sources(cotangents, y)

    def _most_live(self) -> int:
        """Nodes of a level are computed before any value is forgotten."""
        live = most = len(self.sources)
        for level in self.engine.levels(self.swept, by_z=True):
            live += len(level.nodes)
            most = max(most, live)
            live -= sum(len(self.last_use.get(node, ())) for node in level.nodes)
        return most

    @cached_property
    def answer_paths(self) -> AnswerPaths | None:
        """The same map cut at the answer position, if it is read out there alone."""
        return AnswerPaths.of(self.engine, self.swept, self.targets, self.sources)


@structure.register
def path_structure(operator: FastPathMap) -> GramOnly | None:
    """A Gram matrix from the last node of each path that writes through few numbers (`answer_paths.py`)."""
    paths = operator.answer_paths
    if paths is None:
        return None
    # The maps to the answer position have as many columns as J_M, if they are made at all.
    copies = 1 if paths.by_terms else 4 + operator.cols // max(1, paths.side)
    return GramOnly(
        operator.rows,
        operator.cols,
        side=paths.side,
        gram=lambda left, right: paths.gram(left, right).unsqueeze(1),
        copies=copies,
    )
