"""Means of what a circuit's nodes write and read over a reference set, which stand in for everything off the circuit.

A mean is over prompts and positions, padding left out: one vector for each node, as in mean ablation. A node reads the
sum of all upstream writes and biases, so the mean of a read less the means of the parents' writes is the mean of all
that comes from outside the circuit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.transformer.linearize import TransformerRun


@dataclass(frozen=True)
class Means:
    """Vectors of the residual stream's width.

    Attributes:
        writes: by node; none for the read-out, which no node reads.
        reads: by `read_name`.
    """

    writes: dict[str, Tensor]
    reads: dict[str, Tensor]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All means, named `write:a3.h7` and `read:a3`."""
        writes = {f"write:{name}": mean for name, mean in self.writes.items()}
        return writes | {f"read:{name}": mean for name, mean in self.reads.items()}

    def check(self, circuit: Circuit, width: int) -> None:
        """Refuses means that lack a node of the circuit or have another width than the model."""
        needed = [(self.writes, node) for node in circuit.order if circuit.children[node]]
        needed += [(self.reads, read_name(node)) for node in circuit.inner]
        for part, name in needed:
            if name not in part or part[name].shape != (width,):
                kind = "writes" if part is self.writes else "reads"
                came = f"shape {tuple(part[name].shape)}" if name in part else "none"
                raise OptionError(
                    f"A reference must have the mean of what {name!r} {kind}, {width} numbers. It has {came}: "
                    "calibrate again."
                )


def read_name(node: str) -> str:
    """The residual stream that a node reads: one for all heads of a layer.

    >>> read_name("a3.h7"), read_name("m3"), read_name("logits")
    ('a3', 'm3', 'logits')
    """
    parsed = Node.parse(node)
    return f"a{parsed.layer}" if parsed.kind is Kind.HEAD else node


def mean_of(runs: "Iterable[TransformerRun]") -> Means:
    """Means over recorded passes of the same circuit, in float64 on the CPU."""
    writes: dict[str, Tensor] = {}
    reads: dict[str, Tensor] = {}
    count = 0
    for run in runs:
        valid = run.state.valid
        count += int(valid.sum())
        for totals, tensors in ((writes, run.writes()), (reads, run.reads())):
            for name, tensor in tensors.items():
                totals[name] = totals.get(name, 0.0) + tensor[valid].double().sum(dim=0).cpu()
    assert count > 0
    return Means(*({name: total / count for name, total in part.items()} for part in (writes, reads)))
