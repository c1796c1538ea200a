"""What is damaged: which nodes of the circuit, how, and the equal damage outside it.

Nodes are damaged one at a time. Each damaged node has partners outside the circuit: nodes of the same kind, in a nearby
layer, with writes of similar size. For noise and steering, equal damage is the very same vector, added to the residual
stream at the partner; for ablation and patching, whose size comes from the node's own write, it is the same strength.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eics.circuits.graph import Circuit, Kind, Node
from eics.errors import OptionError
from eics.transformer.interventions import KINDS

CIRCUIT, OUTSIDE, NONE = "circuit", "outside", "none"
WRITES = tuple(name for name, kind in KINDS.items() if kind.changes == "write")
"""Kinds that can be done to every node; only some nodes have a read of their own."""
GRADED = ("noise", "steer")
"""Kinds that allow strengths above 1; the others move a write towards a target and reach it at 1."""


@dataclass(frozen=True)
class Damage:
    """One node damaged in one way. Outside the circuit, `like` is the circuit node whose damage this one equals."""

    kind: str
    strength: float
    node: str
    place: str = CIRCUIT
    like: str | None = None


@dataclass(frozen=True)
class Plan:
    """All damage that is done to every prompt; `partners` are the nodes outside the circuit for each damaged node."""

    kinds: tuple[str, ...]
    strengths: tuple[float, ...]
    partners: Mapping[str, tuple[str, ...]]
    at: str | tuple[int, ...]
    seed: int

    def damages(self) -> Iterator[Damage]:
        """Weakest first, so that an interrupted run has rows for every node."""
        for strength in self.strengths:
            for kind in self.kinds:
                if strength > 1 and kind not in GRADED:
                    continue
                for node, partners in self.partners.items():
                    yield Damage(kind, strength, node)
                    yield from (Damage(kind, strength, partner, OUTSIDE, node) for partner in partners)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that is ever damaged."""
        return tuple(dict.fromkeys([*self.partners, *(p for partners in self.partners.values() for p in partners)]))

    def to_record(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "kinds": list(self.kinds),
            "strengths": list(self.strengths),
            "partners": {node: list(partners) for node, partners in self.partners.items()},
            "at": self.at if isinstance(self.at, str) else list(self.at),
            "damage_seed": self.seed,
        }


def check_kinds(kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds of damage, each once."""
    unique = tuple(dict.fromkeys(kinds)) if isinstance(kinds, Iterable) else ()
    if isinstance(kinds, str) or not unique or any(kind not in WRITES for kind in unique):
        raise OptionError.of("kinds", f"some of {', '.join(WRITES)}", kinds)
    return unique


def check_strengths(strengths: Sequence[float], kinds: Sequence[str]) -> tuple[float, ...]:
    """The strengths in ascending order, without 0, which is the undamaged run."""
    if not isinstance(strengths, Iterable):
        raise OptionError.of("strengths", "a list of finite numbers >= 0", strengths)
    strengths = list(strengths)
    numbers = [float(s) for s in strengths if isinstance(s, int | float) and not isinstance(s, bool)]
    if len(numbers) != len(strengths) or not all(0 <= number < math.inf for number in numbers):
        raise OptionError.of("strengths", "finite numbers >= 0", list(strengths))
    positive = tuple(sorted({number for number in numbers if number > 0}))
    for kind in kinds:
        if not any(number <= 1 or kind in GRADED for number in positive):
            must = f"above 0, and for {kind} one of them at most 1, its full strength"
            raise OptionError.of("strengths", must, list(strengths))
    return positive


def choose_nodes(
    circuit: Circuit, wanted: int | str | Sequence[str], seed: int, linearizations: Iterable[str] = ("jacobian",)
) -> tuple[str, ...]:
    """A number of the circuit's nodes, drawn with the seed; `all`; or the nodes named.

    Only nodes that have parents under every linearization are drawn: no residual can point at a source, whose write is
    taken as given.
    """
    inner = [set(circuit.carrying(linearization).inner) for linearization in linearizations]
    eligible = [
        node
        for node in circuit.inner
        if Node.parse(node).kind is not Kind.LOGITS and all(node in nodes for nodes in inner)
    ]
    count = len(eligible) if wanted == "all" else wanted
    if isinstance(count, int) and not isinstance(count, bool) and (count >= 1 or wanted == "all"):
        if not eligible:
            raise OptionError(f"The circuit must have a node with parents besides logits to damage. Got {circuit!r}.")
        order = np.random.default_rng(seed).permutation(len(eligible))[:count]
        return tuple(eligible[index] for index in sorted(order))
    if isinstance(wanted, str | int) or not isinstance(wanted, Iterable) or not wanted:
        raise OptionError.of("nodes", "a whole number >= 1, 'all', or names of nodes", wanted)
    names = tuple(dict.fromkeys(wanted))
    wrong = [name for name in names if name not in circuit.order or Node.parse(name).kind is Kind.LOGITS]
    if wrong:
        raise OptionError.of("nodes", "nodes of the circuit that write to the residual stream", wrong[0])
    return names


def choose_partners(
    nodes: Sequence[str], circuit: Circuit, norms: Mapping[str, float], count: int
) -> dict[str, tuple[str, ...]]:
    """For each node, the nearest nodes outside the circuit: layers apart plus |log2| of the ratio of their write norms.

    `norms` has the size of every node's write. A node may be the partner of several; `input` has no partner.
    """
    inside = set(circuit.order)
    partners = {}
    for name in nodes:
        node = Node.parse(name)
        candidates = [c for c in map(Node.parse, norms) if c.kind is node.kind and c.name not in inside]
        distance = {candidate.name: _distance(node, candidate, norms) for candidate in candidates}
        partners[name] = tuple(sorted(distance, key=lambda candidate: (distance[candidate], candidate))[:count])
    return partners


def _distance(node: Node, other: Node, norms: Mapping[str, float]) -> float:
    sizes = norms[node.name], norms[other.name]
    doublings = abs(math.log2(sizes[0] / sizes[1])) if min(sizes) > 0 else math.inf
    return abs((node.layer or 0) - (other.layer or 0)) + doublings
