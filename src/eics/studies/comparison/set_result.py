"""What a comparison of two sets of prompts found, and its document."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from eics import __version__
from eics.circuits.formats.shared import json_safe
from eics.errors import printable
from eics.studies.comparison.set_statistics import ENTRY, INHERITS, Shifts, role
from eics.studies.statistics import Interval

FORMAT, VERSION = "eics-comparison", 1
_DIGITS = 5  # of a prompt's z, of which there are many


@dataclass(frozen=True)
class NodeShift:
    """One node between the sets; nan where it cannot be judged, with the `reason`.

    Attributes:
        shift: of z_v, B minus A. p, q: of that.
        write_shift, write_p, write_q: of the logarithm of the whitened write, in standard deviations of A.
        role: `entry`, `inherits` or None.
        r2: how much of the write's variation is explained on the reference.
    """

    node: str
    shift: Interval
    p: float
    q: float
    write_shift: Interval
    write_p: float
    write_q: float
    role: str | None
    r2: float
    reason: str | None = None

    @classmethod
    def unjudged(cls, node: str, r2: float, reason: str) -> "NodeShift":
        """A node that the calibration cannot judge."""
        nan = float("nan")
        return cls(node, Interval(nan, nan, nan), nan, nan, Interval(nan, nan, nan), nan, nan, None, r2, reason)

    @property
    def order(self) -> tuple[Any, ...]:
        """Entries first, by the size of their shift; then what inherits, then the rest, by their p; unjudged last.

        Where two sets hardly overlap, many nodes have the smallest p that there is: only the shift still tells them
        apart.
        """
        rank = {ENTRY: 0, INHERITS: 1, None: 2 if self.reason is None else 3}[self.role]
        return rank, *((-abs(self.shift.value),) if rank == 0 else (self.write_p,) if rank == 1 else (self.p,))


@dataclass(frozen=True)
class SetSummary:
    """One set: its name, how many prompts it has, how many of them were compared, in how many groups, and how many
    failed, with the reasons."""

    name: str
    prompts: int
    compared: int
    groups: int
    failures: Mapping[str | int, str] = field(default_factory=dict)

    def to_record(self) -> dict[str, Any]:
        """As the document has it."""
        counts = {"prompts": self.prompts, "compared": self.compared, "groups": self.groups}
        return {"name": self.name, **counts, "failed": len(self.failures)}


@dataclass(frozen=True)
class SetComparison:
    """What differs between two sets of prompts.

    Attributes:
        nodes: most shifted first: entries, what inherits, the rest, and what cannot be judged.
        sentences: what a person should know.
        about: model, circuit, level and so on, as in the document.
        sets: by key, `a` and `b`.
        prompts: every compared prompt of both sets, with its z by node.
    """

    nodes: tuple[NodeShift, ...]
    sentences: tuple[str, ...]
    about: Mapping[str, Any] = field(repr=False)
    sets: Mapping[str, SetSummary] = field(repr=False)
    prompts: tuple[Mapping[str, Any], ...] = field(repr=False)

    @property
    def entries(self) -> tuple[str, ...]:
        """The nodes at which a difference enters, most shifted first."""
        return self._with(ENTRY)

    @property
    def inherits(self) -> tuple[str, ...]:
        """The nodes that write something else, as what they read predicts."""
        return self._with(INHERITS)

    def _with(self, role: str) -> tuple[str, ...]:
        return tuple(node.node for node in self.nodes if node.role == role)

    def __getitem__(self, node: str) -> NodeShift:
        """A node by its name."""
        return {one.node: one for one in self.nodes}[node]

    def __repr__(self) -> str:
        a, b = self.sets["a"], self.sets["b"]
        judged = sum(node.reason is None for node in self.nodes)
        entries = f"{', '.join(self.entries[:5])}{', ...' * (len(self.entries) > 5)}" or "none"
        what = f"{a.name} and {b.name}, {a.compared} and {b.compared} prompts, {judged} nodes"
        return printable(f"SetComparison({what}; entries: {entries}; {len(self.inherits)} inherit)")

    def to_record(self) -> dict[str, Any]:
        """The document of `compare.json`; what is not a finite number is null."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "kind": "prompts",
            "eics": __version__,
            **self.about,
            "sets": {key: summary.to_record() for key, summary in self.sets.items()},
            "nodes": [asdict(node) for node in self.nodes],
            "prompts": [
                {**prompt, "z": {n: round(value, _DIGITS) for n, value in prompt["z"].items()}}
                for prompt in self.prompts
            ],
            "sentences": list(self.sentences),
        }
        safe: dict[str, Any] = json_safe(document)
        return safe


def node_shifts(
    names: tuple[str, ...], r2: tuple[float, ...], reasons: Mapping[str, str], z: Shifts, write: Shifts, level: float
) -> tuple[NodeShift, ...]:
    """All nodes in order; `z` and `write` have a column for each one that can be judged, in the order of `names`."""
    column = {name: place for place, name in enumerate(name for name in names if name not in reasons)}

    def shift(of: Shifts, place: int) -> tuple[Interval, float, float]:
        numbers = [float(values[place]) for values in (of.value, of.low, of.high, of.p, of.q)]
        return Interval(*numbers[:3]), numbers[3], numbers[4]

    def judged(name: str, explained: float) -> NodeShift:
        own, whitened = shift(z, column[name]), shift(write, column[name])
        return NodeShift(name, *own, *whitened, role(own[2], whitened[2], level), explained)

    nodes = [
        NodeShift.unjudged(name, explained, reasons[name]) if name in reasons else judged(name, explained)
        for name, explained in zip(names, r2, strict=True)
    ]
    return tuple(sorted(nodes, key=lambda node: node.order))
