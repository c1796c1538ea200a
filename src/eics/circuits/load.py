"""Circuits from files or by name, ready to score."""

import logging
from importlib.resources import as_file
from pathlib import Path

from eics.circuits.cuts import cut_name
from eics.circuits.formats import CircuitGraph, cut, prune, read_graph, write_graph
from eics.circuits.graph import Circuit
from eics.data.bundled import bundled, bundled_file
from eics.errors import CircuitError, as_path, did_you_mean

_LOG = logging.getLogger(__name__)


def load_circuit(
    path: str | Path,
    *,
    top_edges: int | None = None,
    share: float | None = None,
    min_score: float | None = None,
    signed: bool = False,
) -> Circuit:
    """Reads a circuit file of any format (see `docs/circuit-files.md`), or a bundled circuit by its name.

    Without a cut the circuit is what the file marks as kept, or all its edges if it marks none. A cut (exactly one of
    `top_edges`, `share` and `min_score`) chooses among all scored edges of the file, marked or not; then edges on no
    path from a source to a sink are dropped, and their number is logged. The name of a cut circuit says how it was cut.

    >>> load_circuit("facts-by-hand").sinks
    ('logits',)
    """
    graph = load_graph(path)
    for note in graph.notes:
        _LOG.info("%s", note)
    if top_edges is share is min_score is None:
        return graph.circuit(str(path))
    whole = frozenset(graph.kept_edges)
    graph = cut(graph, top_edges=top_edges, share=share, min_score=min_score, signed=signed)
    how = "" if graph.kept == whole else f", {cut_name(top_edges, share, min_score, signed)}"
    pruned, dropped = prune(graph.circuit(f"{path}{how}"))
    _LOG.info("%s", dropped)
    return pruned


def load_graph(path: str | Path) -> CircuitGraph:
    """Everything that a circuit file says; `path` may be the name of a bundled circuit."""
    as_path(path, "circuit's file or name", CircuitError)
    bundle = bundled_file("circuits", str(path), ".json")
    if bundle is not None:
        with as_file(bundle) as file:
            return read_graph(file)
    try:
        exists = Path(path).exists()
    except (OSError, ValueError) as error:  # a name that is too long, a null byte, a folder without permission
        reason = getattr(error, "strerror", None) or error
        raise CircuitError(f"The circuit must be a readable file. Got {str(path)[:80]!r}: {reason}.") from None
    if not exists:
        names = bundled_circuits()
        hint = did_you_mean(path, names)
        raise CircuitError(
            f"The circuit must be a readable file, or one of {', '.join(names)}. Got {str(path)!r}: No such file.{hint}"
        )
    return read_graph(path)


def save_circuit(circuit: Circuit, path: str | Path) -> None:
    """Writes a circuit in our own JSON format."""
    write_graph(CircuitGraph.of(circuit), path, "eics-circuit")


def bundled_circuits() -> list[str]:
    """Names of the circuits that come with the package."""
    return bundled("circuits", ".json")
