"""ACDC: `.pth`, a dict of flags by (receiver, index, sender, index), and `edges.pkl`, a list of such keys with effects.

An index is `(None, None, 3)` for head 3, or ACDC's `TorchIndex`, which holds such a tuple.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Reader, What
from eics.circuits.formats.hooks import Hook, edge_between, last_layer, parse_hook
from eics.circuits.formats.safe_pickle import Inert
from eics.circuits.formats.shared import EMBEDDINGS, Merged
from eics.circuits.graph import Node
from eics.errors import CircuitError

FLAGS, EFFECTS = "acdc-pth", "acdc-edges"


class _Row(NamedTuple):
    written: str  # the edge with both hooks and heads, as errors show it
    readout_layer: int | None  # L if the receiver is `blocks.L.hook_resid_post`
    sender: Hook
    receiver: Hook
    effect: float | None
    flag: bool


def read_flags(value: Any) -> CircuitGraph:
    """Reads every edge in the file, and which of them are kept."""
    rows = []
    for key, flag in value.items():
        rows.append(_row(key, None, flag))
        if not isinstance(flag, bool):
            raise CircuitError(f"must map each edge to true or false. {rows[-1].written} has {str(flag)[:40]!r}.")
    return _graph(rows, FLAGS)


def read_effects(value: Any) -> CircuitGraph:
    """Reads effects as scores; every edge in such a file is in the circuit."""
    rows = []
    for index, item in enumerate(value):
        if not _is_item(item):
            raise CircuitError(f"must be a list of (edge, effect). Item {index} is {str(item)[:80]!r}.")
        key, effect = item
        if effect is not None and (isinstance(effect, bool) or not isinstance(effect, int | float)):
            raise CircuitError(f"must have numbers as effects. Item {index} has {str(effect)[:40]!r}.")
        rows.append(_row(key, effect, True))
    return _graph(rows, EFFECTS)


def _graph(rows: list[_Row], format: str) -> CircuitGraph:
    inside = [row for row in rows if row.sender.node == row.receiver.node]
    closed = {(row.receiver.node, row.sender.port or row.receiver.port) for row in inside if not row.flag}
    merged, seen, cut_off = Merged(), set(), 0
    for row in rows:
        edge = edge_between(row.sender, row.receiver, row.written)
        if edge is not None:
            if row.written in seen:
                raise CircuitError(f"must give each edge once. {row.written} came twice: remove one of them.")
            seen.add(row.written)
        is_closed = edge is not None and (edge.target, edge.port) in closed
        cut_off += row.flag and is_closed
        merged.add(edge, row.effect, row.flag and not is_closed)
    _check_readout(rows, {name for edge in merged.edges for name in edge[:2]})
    notes = merged.notes(EMBEDDINGS)
    if cut_off:
        notes += (f"{cut_off} edges into a port that the file cuts off inside its node are not kept.",)
    kept = merged.kept if format == FLAGS else None
    return CircuitGraph(tuple(merged.edges), scores=merged.scores, kept=kept, format=format, notes=notes)


def _row(key: Any, effect: float | None, flag: bool) -> _Row:
    if not _is_key(key):
        raise CircuitError(f"must name edges by (receiver, index, sender, index). Got {repr(key)[:80]}.")
    receiver, receiver_head, sender, sender_head = key[0], _head(key[1]), key[2], _head(key[3])
    written = f"{sender}[{sender_head}]->{receiver}[{receiver_head}]"
    hooks = parse_hook(sender, sender_head), parse_hook(receiver, receiver_head)
    return _Row(written, last_layer(receiver), *hooks, effect, flag)


def _is_item(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2


def _is_key(key: Any) -> bool:
    return isinstance(key, tuple | list) and len(key) == 4 and isinstance(key[0], str) and isinstance(key[2], str)


def _head(index: Any) -> int | None:
    """The head that an index selects: its third entry, if it has one."""
    entries = getattr(index, "hashable_tuple", None) if isinstance(index, Inert) else index
    if entries is None:
        return None
    if not isinstance(entries, tuple | list) or not all(e is None or type(e) is int for e in entries):
        raise CircuitError(f"must have indices such as (None, None, 3). Got {str(entries)[:40]!r}.")
    head = entries[2] if len(entries) > 2 else None
    if head is not None and head < 0:
        raise CircuitError(f"must count heads from 0. Got {head}.")
    return head


def _check_readout(rows: Iterable[_Row], nodes: Iterable[str]) -> None:
    """`blocks.L.hook_resid_post` is the read-out only if L is the last layer."""
    ends = {row.readout_layer for row in rows if row.readout_layer is not None}
    layers = [layer for name in nodes if (layer := Node.parse(name).layer) is not None]
    if len(ends) > 1 or (ends and max(layers, default=0) > min(ends)):
        raise CircuitError(
            f"must read out after the last layer. Got blocks.{min(ends)}.hook_resid_post before other layers."
        )


_BINARY: tuple[What, ...] = ("torch", "pickle")
FLAGS_READER = Reader("ACDC .pth", _BINARY, dict, lambda value: _is_key(next(iter(value), None)), read_flags)
EFFECTS_READER = Reader(
    "ACDC edges.pkl",
    _BINARY,
    list,
    lambda value: bool(value) and _is_item(value[0]) and _is_key(value[0][0]),
    read_effects,
)
