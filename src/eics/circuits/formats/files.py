"""Reading and writing circuit files of every format. A new format is a new module, listed here."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from eics.circuits.file_graph import CircuitGraph
from eics.circuits.formats import acdc, auto_circuit, circuit_tracer, dot, eap, graphml, neuronpedia, own, pairs, table
from eics.circuits.formats.content import Content, Reader, Writer, read_content
from eics.circuits.names import shorten
from eics.data.files import write_text
from eics.errors import CircuitError, OptionError

READERS: tuple[Reader, ...] = (
    own.READER,
    eap.JSON_READER,
    neuronpedia.READER,
    pairs.EDGE_PRUNING_READER,
    graphml.READER,
    table.READER,
    eap.PT_READER,
    circuit_tracer.READER,
    acdc.FLAGS_READER,
    acdc.EFFECTS_READER,
    pairs.INTERPBENCH_READER,
    auto_circuit.READER,
)
WRITERS: dict[str, Writer] = {
    module.WRITER.name: module.WRITER for module in (own, eap, neuronpedia, table, graphml, dot)
}
_MANY_FILES = 5000  # in a folder that is searched for a circuit file
_MANY = 2000  # this many scored edges are more likely a whole model than a circuit


def read_graph(path: str | Path) -> CircuitGraph:
    """Reads a circuit file, or a folder with one, in any format, recognised by its content.

    Nothing in the file is executed. An error is one line that names the file and what in it is wrong.
    """
    path = Path(path)
    file = path
    try:
        if path.is_dir():
            file = _circuit_in(path)
        graph = _parse(read_content(file))
    except CircuitError as error:
        raise CircuitError(f"The circuit file {str(file)!r} {_sentence(str(error))}") from None
    except OSError as error:
        raise CircuitError(f"The circuit file {str(file)!r} must be readable: {error.strerror}.") from None
    if graph.kept is None and len(graph.scores) > _MANY:
        note = f"The file scores {len(graph.scores)} edges but marks none as kept: all are, until you cut them."
        graph = replace(graph, notes=(*graph.notes, note))
    return graph if file is path else replace(graph, metadata=graph.metadata | {"file": file.name})


def write_graph(graph: CircuitGraph, path: str | Path, format: str | None = None) -> tuple[str, ...]:
    """Writes a whole circuit file, in place of an earlier one; returns sentences about what the format cannot hold.

    Args:
        graph: what to write.
        path: where to write; its ending chooses the format unless `format` does.
        format: one of `WRITERS`.
    """
    text, notes = writer_for(path, format).write(graph)
    write_text(path, text, newline="")
    return notes


def writer_for(path: str | Path, format: str | None = None) -> Writer:
    """The writer for a format, or for the ending of a file name."""
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


def _circuit_in(folder: Path) -> Path:
    """The only circuit file in a folder, such as a MIB submission; if there are several, an error lists them."""
    files = sorted(path for path in _files_in(folder) if path.suffix in (".json", ".pt") and path.is_file())
    if not files:
        raise CircuitError("must be a folder with a circuit file (.json or .pt). It has none.")
    if len(files) > 1:
        names = shorten((path.relative_to(folder).as_posix() for path in files), limit=12)
        raise CircuitError(f"holds several circuits: {names}. Name one of these files.")
    return files[0]


def _files_in(folder: Path) -> Iterator[Path]:
    """The files in a folder and below, links not followed; a folder with too many is no submission but a disk."""
    count = 0
    for root, _, names in os.walk(folder):
        count += len(names)
        if count > _MANY_FILES:
            raise CircuitError(f"must be a folder with one circuit file. It has over {_MANY_FILES:,} files: name one.")
        yield from (Path(root) / name for name in names)


def _parse(content: Content) -> CircuitGraph:
    for reader in READERS:
        if reader.recognises(content):
            return _read(reader, content)
    formats = "; ".join(reader.about for reader in READERS)
    raise CircuitError(f"must be in a known format: {formats}. It is {_described(content)}.")


def _read(reader: Reader, content: Content) -> CircuitGraph:
    """What a reader makes of a file; foreign files may hold anything anywhere, in more ways than a reader checks."""
    try:
        return reader.read(content.value)
    except CircuitError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, RuntimeError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise CircuitError(
            f"must be {reader.about}, with the types of that format. It could not be read: {reason or 'unknown'}."
        ) from None


def _described(content: Content) -> str:
    value = content.value
    if isinstance(value, dict):
        return f"{content.what} with keys {shorten(str(key)[:40] for key in value) or 'none'}"
    if isinstance(value, list):
        return f"{content.what}, a list of {len(value)}"
    return f"{content.what} that begins {str(value)[:40]!r}"


def _sentence(reason: str) -> str:
    """Errors of readers continue after the file's name; those of the graph are sentences of their own."""
    return reason if reason.split(" ", 1)[0] in ("must", "has", "holds") else f"is not a circuit. {reason}"
