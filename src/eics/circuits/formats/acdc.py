"""ACDC: `.pth`, a dict of flags by (receiver, index, sender, index), and `edges.pkl`, a list of such keys with effects.

Receiver first. An index is `(None, None, 3)` for head 3, or ACDC's `TorchIndex` that holds such a tuple.
"""

from collections.abc import Iterable
from typing import Any

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.hooks import Hook, joined, last_layer, parse_hook
from eics.circuits.formats.merge import Merged
from eics.circuits.formats.safe_pickle import Inert
from eics.circuits.formats.seam import Reader
from eics.circuits.graph import Edge, Node
from eics.errors import CircuitError

FLAGS, EFFECTS = "acdc-pth", "acdc-edges"
Row = tuple[Any, float | None, bool]


def matches_flags(content: Content) -> bool:
    """A dict whose keys are such quadruples."""
    value = content.value
    return content.what in ("torch", "pickle") and isinstance(value, dict) and _is_key(next(iter(value), None))


def matches_effects(content: Content) -> bool:
    """A list of (quadruple, effect)."""
    value = content.value
    first = value[0] if content.what in ("torch", "pickle") and isinstance(value, list) and value else None
    return isinstance(first, tuple | list) and len(first) == 2 and _is_key(first[0])


def read_flags(content: Content) -> CircuitGraph:
    """Reads flags: every edge that the file names, and which of them are kept."""
    rows: list[Row] = []
    for key, flag in content.value.items():
        if not isinstance(flag, bool):
            raise CircuitError(f"must say true or false of each edge. {_shown(key)} has {str(flag)[:40]!r}.")
        rows.append((key, None, flag))
    return _graph(rows, FLAGS)


def read_effects(content: Content) -> CircuitGraph:
    """Reads effects as scores; every edge in such a file is in the circuit."""
    rows: list[Row] = []
    for place, item in enumerate(content.value):
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise CircuitError(f"must be a list of (edge, effect). Item {place} is {str(item)[:80]!r}.")
        key, effect = item
        if effect is not None and (isinstance(effect, bool) or not isinstance(effect, int | float)):
            raise CircuitError(f"must have numbers as effects. Item {place} has {str(effect)[:40]!r}.")
        rows.append((key, effect, True))
    return _graph(rows, EFFECTS)


def _graph(rows: Iterable[Row], name: str) -> CircuitGraph:
    merged, inside, closed = Merged(), 0, set()
    parsed = [(*_hooks(key), effect, flag, key) for key, effect, flag in rows]
    for sender, receiver, _, flag, _ in parsed:
        if sender.node == receiver.node:
            inside += 1
            if not flag:
                closed.add((receiver.node, sender.port or receiver.port))
    seen: set[tuple[str, ...]] = set()
    shut = 0
    for sender, receiver, effect, flag, key in parsed:
        edge = joined(sender, receiver, _shown(key))
        if edge is None:
            continue
        if (raw := _raw(key)) in seen:
            raise CircuitError(f"must give each edge once. {_shown(key)} came twice: remove one of them.")
        seen.add(raw)
        shut += flag and (edge.target, edge.port) in closed
        merged.add(edge, effect, flag and (edge.target, edge.port) not in closed)
    edges = tuple(merged.edges)
    _check_last(parsed, edges)
    notes = merged.notes("token and position embeddings are one node, input.")
    if inside:
        notes += (f"{inside} edges inside nodes were contracted: they join no two nodes.",)
    if shut:
        notes += (f"{shut} edges into a port that the file cuts off inside its node are not kept.",)
    kept = merged.kept if name == FLAGS else None
    return CircuitGraph(edges, scores=merged.scores, kept=kept, format=name, notes=notes)


def _hooks(key: Any) -> tuple[Hook, Hook]:
    if not _is_key(key):
        raise CircuitError(f"must name edges by (receiver, index, sender, index). Got {_shown(key)}.")
    receiver, receiver_index, sender, sender_index = key
    return parse_hook(sender, _head(sender_index)), parse_hook(receiver, _head(receiver_index))


def _is_key(key: Any) -> bool:
    return isinstance(key, tuple | list) and len(key) == 4 and isinstance(key[0], str) and isinstance(key[2], str)


def _head(index: Any) -> int | None:
    """The head that an index picks: the third entry, where there is one."""
    entries = getattr(index, "hashable_tuple", None) if isinstance(index, Inert) else index
    if entries is None:
        return None
    if not isinstance(entries, tuple | list) or not all(e is None or type(e) is int for e in entries):
        raise CircuitError(f"must have indices such as (None, None, 3). Got {str(entries)[:40]!r}.")
    head = entries[2] if len(entries) > 2 else None
    if head is not None and head < 0:
        raise CircuitError(f"must count heads from 0. Got {head}.")
    return head


def _check_last(parsed: Iterable[tuple[Hook, Hook, Any, Any, Any]], edges: tuple[Edge, ...]) -> None:
    """`blocks.L.hook_resid_post` is the read-out only where L is the last layer."""
    ends = {layer for *_, key in parsed if (layer := last_layer(key[0])) is not None}
    layers = [layer for edge in edges for name in edge[:2] if (layer := Node.parse(name).layer) is not None]
    if len(ends) > 1 or (ends and max(layers, default=0) > min(ends)):
        raise CircuitError(f"must read out after the last layer. Got blocks.{min(ends)}.hook_resid_post before others.")


def _raw(key: Any) -> tuple[str, ...]:
    return (key[0], str(_head(key[1])), key[2], str(_head(key[3])))


def _shown(key: Any) -> str:
    return f"{key[2]}[{_head(key[3])}]->{key[0]}[{_head(key[1])}]" if _is_key(key) else repr(key)[:80]


FLAGS_READER = Reader(FLAGS, "ACDC .pth", matches_flags, read_flags)
EFFECTS_READER = Reader(EFFECTS, "ACDC edges.pkl", matches_effects, read_effects)
