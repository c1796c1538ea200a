"""InterpBench (`edges.pkl`): a pickled list of (from, to), hook names with an index."""

from eics.errors import CircuitError
from eics.formats.content import Content
from eics.formats.graph import CircuitGraph
from eics.formats.hooks import joined, parse_indexed
from eics.formats.merge import Merged
from eics.formats.seam import Reader

NAME = "interpbench"


def matches(content: Content) -> bool:
    """A pickled list of pairs of names."""
    value = content.value
    return content.what in ("pickle", "torch") and isinstance(value, list) and bool(value) and _is_pair(value[0])


def read(content: Content) -> CircuitGraph:
    """Reads the pairs; those inside one node are contracted."""
    merged, seen, inside = Merged(), set(), 0
    for place, pair in enumerate(content.value):
        if not _is_pair(pair):
            raise CircuitError(f"must be a list of (from, to). Item {place} is {str(pair)[:80]!r}.")
        if tuple(pair) in seen:
            raise CircuitError(f"must give each edge once. Item {place} gives {pair[0]} to {pair[1]} again: remove it.")
        seen.add(tuple(pair))
        edge = joined(parse_indexed(pair[0]), parse_indexed(pair[1]), f"{pair[0]} to {pair[1]} (item {place})")
        if edge is None:
            inside += 1
        else:
            merged.add(edge)
    notes = merged.notes("token and position embeddings are one node, input.")
    if inside:
        notes += (f"{inside} edges inside nodes were contracted: they join no two nodes.",)
    return CircuitGraph(tuple(merged.edges), format=NAME, notes=notes)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(name, str) for name in value)


READER = Reader(NAME, "InterpBench edges.pkl", matches, read)
