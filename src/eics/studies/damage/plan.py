"""What is damaged: which nodes of the circuit, how, and the equal damage outside it.

Nodes are damaged one at a time. A node outside the circuit stands beside each damaged node: of the same kind, near in
layer, with writes of about the same size. For noise and steering vectors equal means the very same vector, entering the
stream at the other node; for ablation and patching, which take their size from the node's own write, the same strength.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import OptionError
from eics.transformer.interventions import KINDS

CIRCUIT, OUTSIDE, NONE = "circuit", "outside", "none"
GRADED = ("noise", "steer")
"""Kinds that take strengths above 1: the others go towards something and arrive at 1."""


@dataclass(frozen=True)
class Damage:
    """One node damaged one way. `like` is the circuit's node to whose damage this, outside, is the equal."""

    kind: str
    strength: float
    node: str
    place: str = CIRCUIT
    like: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from others."""
        return (self.kind, self.strength, self.node, self.place, self.like)


@dataclass(frozen=True)
class Plan:
    """All damage that every prompt gets; `partners` are the nodes outside for each damaged node."""

    kinds: tuple[str, ...]
    strengths: tuple[float, ...]
    partners: Mapping[str, tuple[str, ...]]
    at: str | tuple[int, ...]
    seed: int

    def damages(self) -> Iterator[Damage]:
        """Weakest first, so that a run that is stopped has something of every node."""
        for strength in self.strengths:
            for kind in self.kinds:
                if strength > 1 and kind not in GRADED:
                    continue
                for node, outside in self.partners.items():
                    yield Damage(kind, strength, node)
                    yield from (Damage(kind, strength, other, OUTSIDE, node) for other in outside)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that is ever damaged."""
        return tuple(dict.fromkeys([*self.partners, *(other for some in self.partners.values() for other in some)]))

    def to_record(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "kinds": list(self.kinds),
            "strengths": list(self.strengths),
            "partners": {node: list(outside) for node, outside in self.partners.items()},
            "at": self.at if isinstance(self.at, str) else list(self.at),
            "damage_seed": self.seed,
        }


def check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """Known kinds, each once."""
    found = tuple(dict.fromkeys(kinds))
    if isinstance(kinds, str) or not found or any(kind not in KINDS for kind in found):
        raise OptionError.of("kinds", f"some of {', '.join(KINDS)}", kinds)
    return found


def check_strengths(strengths: Sequence[float], kinds: Sequence[str]) -> tuple[float, ...]:
    """Ascending, without 0, which is the undamaged run."""
    numbers = [float(s) for s in strengths if isinstance(s, int | float) and not isinstance(s, bool)]
    if len(numbers) != len(strengths) or not all(0 <= number < math.inf for number in numbers):
        raise OptionError.of("strengths", "finite numbers >= 0", list(strengths))
    found = tuple(sorted({number for number in numbers if number > 0}))
    for kind in kinds:
        if not any(number <= 1 or kind in GRADED for number in found):
            must = f"above 0, and for {kind} one of them at most 1, which goes all the way"
            raise OptionError.of("strengths", must, list(strengths))
    return found


def choose_nodes(circuit: Circuit, wanted: int | str | Sequence[str], seed: int) -> tuple[str, ...]:
    """So many of the circuit's nodes, drawn by seed; `all`; or those named.

    Only nodes with parents are drawn: the write of a source is taken as it comes, so no residual can point at it.
    """
    able = [node for node in circuit.inner if Node.parse(node).kind is not Kind.LOGITS]
    if wanted == "all":
        return _some(able, circuit)
    if isinstance(wanted, int) and not isinstance(wanted, bool):
        if wanted < 1:
            raise OptionError.of("nodes", "a whole number >= 1, 'all', or names of nodes", wanted)
        order = np.random.default_rng(seed).permutation(len(able))[:wanted]
        return _some([able[place] for place in sorted(order)], circuit)
    if isinstance(wanted, str | int) or not wanted:
        raise OptionError.of("nodes", "a whole number >= 1, 'all', or names of nodes", wanted)
    names = tuple(dict.fromkeys(wanted))
    wrong = [name for name in names if name not in circuit.order or Node.parse(name).kind is Kind.LOGITS]
    if wrong:
        raise OptionError.of("nodes", "nodes of the circuit that write to the residual stream", wrong[0])
    return names


def _some(nodes: Sequence[str], circuit: Circuit) -> tuple[str, ...]:
    if not nodes:
        raise OptionError(f"The circuit must have a node with parents beside logits. {circuit!r} has none to damage.")
    return tuple(nodes)


def choose_partners(
    nodes: Sequence[str], circuit: Circuit, norms: Mapping[str, float], count: int
) -> dict[str, tuple[str, ...]]:
    """For each node the nearest nodes outside the circuit: layers apart, plus doublings between the sizes of writes.

    `norms` has the size of every node's write. A node may stand beside several; `input` has none of its kind.
    """
    inside = set(circuit.order)
    found = {}
    for name in nodes:
        node = Node.parse(name)
        others = [other for other in map(Node.parse, norms) if other.kind is node.kind and other.name not in inside]
        distance = {other.name: _distance(node, other, norms) for other in others}
        found[name] = tuple(sorted(distance, key=lambda other: (distance[other], other))[:count])
    return found


def _distance(node: Node, other: Node, norms: Mapping[str, float]) -> float:
    sizes = norms[node.name], norms[other.name]
    doublings = abs(math.log2(sizes[0] / sizes[1])) if min(sizes) > 0 else math.inf
    return abs((node.layer or 0) - (other.layer or 0)) + doublings
