"""Reading and writing circuit files of every format."""

from dataclasses import replace
from pathlib import Path

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats.content import Content, read_content
from eics.circuits.formats.merge import some
from eics.circuits.formats.mib import circuit_in
from eics.circuits.formats.registry import READERS, WRITERS
from eics.circuits.formats.seam import Writer
from eics.errors import CircuitError, OptionError

_MANY = 2000  # scored edges that are more likely a whole model than a circuit


def read_graph(path: str | Path) -> CircuitGraph:
    """Reads a circuit file, or a folder that holds one, in any format, recognised from its content.

    Nothing in the file is executed. What is wrong with it is said in one line that names the file and the place.
    """
    path, inside = Path(path), None
    try:
        if path.is_dir():
            inside = circuit_in(path)
        content = read_content(inside or path)
        graph = _recognised(content)
    except CircuitError as error:
        raise CircuitError(f"The circuit file {str(inside or path)!r} {_sentence(str(error))}") from None
    except OSError as error:
        raise CircuitError(f"The circuit file {str(inside or path)!r} must be readable: {error.strerror}.") from None
    if graph.kept is None and len(graph.scores) > _MANY:
        note = (
            f"The file scores {len(graph.scores)} edges and does not say which are kept: all are, until you cut them."
        )
        graph = graph.with_notes(note)
    return graph if inside is None else replace(graph, metadata=graph.metadata | {"file": inside.name})


def write_graph(graph: CircuitGraph, path: str | Path, format: str | None = None) -> tuple[str, ...]:
    """Writes a circuit file and gives sentences about what the format could not hold.

    Args:
        graph: what to write.
        path: where; its ending chooses the format where `format` does not.
        format: one of `eics.circuits.formats.registry.WRITERS`.
    """
    text, notes = writer_for(path, format).write(graph)
    Path(path).write_text(text, encoding="utf-8", newline="")
    return notes


def writer_for(path: str | Path, format: str | None = None) -> Writer:
    """The writer by its name, or by the ending of a file name."""
    if format is not None:
        if format not in WRITERS:
            raise OptionError.of("format", f"one of {', '.join(WRITERS)}", format)
        return WRITERS[format]
    suffix = Path(path).suffix.lower()
    for writer in WRITERS.values():
        if suffix in writer.suffixes:
            return writer
    endings = ", ".join(suffix for writer in WRITERS.values() for suffix in writer.suffixes)
    raise OptionError(f"The file name must end in {endings}, or a format must be named. Got {str(path)!r}.")


def _recognised(content: Content) -> CircuitGraph:
    for reader in READERS:
        if reader.matches(content):
            return reader.read(content)
    known = "; ".join(reader.about for reader in READERS)
    raise CircuitError(f"must be in a known format: {known}. It is {_described(content)}.")


def _described(content: Content) -> str:
    value = content.value
    if isinstance(value, dict):
        return f"{content.what} with keys {some(str(key)[:40] for key in value) or 'none'}"
    if isinstance(value, list):
        return f"{content.what}, a list of {len(value)}"
    return f"{content.what} that begins {str(value)[:40]!r}"


def _sentence(reason: str) -> str:
    """A reader's reason goes on from the file's name; the graph's own is a sentence of its own."""
    return reason if reason.split(" ", 1)[0] in ("must", "has", "holds") else f"is no circuit. {reason}"
