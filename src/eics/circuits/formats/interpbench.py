"""InterpBench (`edges.pkl`): a pickled list of (from, to), hook names with an index."""

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.hooks import joined, parse_indexed
from eics.circuits.formats.merge import Merged, is_pair, pairs_of
from eics.circuits.formats.seam import Reader

NAME = "interpbench"


def matches(content: Content) -> bool:
    """A pickled list of pairs of names."""
    value = content.value
    return content.what in ("pickle", "torch") and isinstance(value, list) and bool(value) and is_pair(value[0])


def read(content: Content) -> CircuitGraph:
    """Reads the pairs; those inside one node are contracted."""
    merged, inside = Merged(), 0
    for place, source, target in pairs_of(content.value):
        edge = joined(parse_indexed(source), parse_indexed(target), f"{source} to {target} (item {place})")
        if edge is None:
            inside += 1
        else:
            merged.add(edge)
    notes = merged.notes("token and position embeddings are one node, input.")
    if inside:
        notes += (f"{inside} edges inside nodes were contracted: they join no two nodes.",)
    return CircuitGraph(tuple(merged.edges), format=NAME, notes=notes)


READER = Reader(NAME, "InterpBench edges.pkl", matches, read)
