"""Cotangents on their way back through a linearized circuit, every node and edge once."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from eics.linearized.circuit import Level, LinearizedCircuit


def sweep_back(
    linearized: LinearizedCircuit, levels: Sequence[Level], cotangents: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Pulls cotangents back through `levels` (in topological order), yielding each node with its whole one.

    `cotangents` holds those of the targets, is used up on the way, and ends with those of the sources. A node
    that reaches a target only through edges that carry nothing has none and is passed over.
    """
    for level in reversed(levels):
        here = {node: cotangents.pop(node) for node in level.nodes if node in cotangents}
        if not here:
            continue
        yield from here.items()
        for source, back in linearized.pull(level, here):
            known = cotangents.get(source)
            cotangents[source] = back if known is None else known + back
