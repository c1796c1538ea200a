"""InterpBench (`edges.pkl`): a pickled list of (from, to), hook names with an index."""

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content
from eics.circuits.formats.hooks import edge_between, parse_indexed
from eics.circuits.formats.seam import Reader
from eics.circuits.formats.shared import EMBEDDINGS, Merged, is_pair, pairs_of

NAME = "interpbench"


def matches(content: Content) -> bool:
    """A pickled list of pairs of names."""
    value = content.value
    return content.what in ("pickle", "torch") and isinstance(value, list) and bool(value) and is_pair(value[0])


def read(content: Content) -> CircuitGraph:
    """Reads the pairs; those inside a node are contracted."""
    merged = Merged()
    for index, source, target in pairs_of(content.value):
        written = f"{source} to {target} (item {index})"
        merged.add(edge_between(parse_indexed(source), parse_indexed(target), written))
    return CircuitGraph(tuple(merged.edges), format=NAME, notes=merged.notes(EMBEDDINGS))


READER = Reader(NAME, "InterpBench edges.pkl", matches, read)
