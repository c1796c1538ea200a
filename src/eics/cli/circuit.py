"""`eics circuit`: looks at and converts circuit files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.circuits.formats import CircuitGraph

FORMATS = ("eics-circuit", "eap-json", "neuronpedia", "csv", "graphml", "dot")  # the writers, without importing them


@click.group()
def circuit() -> None:
    """Looks at, converts and draws circuit files.

    Files of EAP-IG and MIB, Edge-Pruning, ACDC, InterpBench, auto-circuit, circuit-tracer and Neuronpedia, GraphML, CSV
    and our own JSON are recognised by what is in them. Nothing in them is executed.
    """


def cut_options(command: Any) -> Any:
    """The options that choose edges by score, for every command that takes a circuit file."""
    options = (
        click.option(
            "--top-edges", type=click.IntRange(min=1), metavar="N", help="Keep the N edges that score highest."
        ),
        click.option("--share", type=float, metavar="X", help="Keep this share of all edges, such as 0.01."),
        click.option("--min-score", type=float, metavar="X", help="Keep edges that score at least X."),
        click.option("--signed", is_flag=True, help="Compare scores with their sign.  [default: absolute scores]"),
        click.option("--no-prune", is_flag=True, help="After a cut, keep edges on no path from a source to a sink."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def chosen_graph(file: str, cut_by: dict[str, Any]) -> "tuple[CircuitGraph, list[str]]":
    """Reads a file, cuts and prunes it as asked, and gives sentences about what happened on the way."""
    from eics.circuits.formats import cut, prune
    from eics.circuits.load import load_graph

    no_prune = cut_by.pop("no_prune")
    asked = {name: cut_by[name] for name in ("top_edges", "share", "min_score") if cut_by[name] is not None}
    graph = load_graph(file)
    notes = list(graph.notes)
    if not asked:
        if no_prune or cut_by["signed"]:
            raise OptionError("--signed and --no-prune must come with --top-edges, --share or --min-score.")
        return graph, notes
    graph = cut(graph, **asked, signed=cut_by["signed"])
    notes = list(_without_advice(notes))
    notes.append(f"The cut keeps {len(graph.kept_edges)} of {len(graph.edges)} edges.")
    if not no_prune:
        graph, dropped = prune(graph)
        notes.append(str(dropped))
    return graph, notes


def _without_advice(notes: list[str]) -> list[str]:
    """Without the note that asks for a cut."""
    return [note for note in notes if "until you cut them" not in note]


@circuit.command()
@click.argument("file")
@cut_options
@click.option(
    "--model", help="Check that the circuit fits this model: a folder, a hub id, or a name from `eics models`."
)
def show(file: str, model: str | None, **cut_by: Any) -> None:
    """Says what is in a circuit FILE: nodes by layer, edges, ports, sources, sinks, and the model that it fits.

    FILE may also be a folder of a MIB submission, or the name of a bundled circuit such as facts-by-hand.
    """
    from eics.cli.circuit_tables import layer_table, sentences
    from eics.cli.terminal import console

    graph, notes = chosen_graph(file, cut_by)
    kept = graph.circuit()
    screen = console()
    screen.print(layer_table(kept, f"{file}: {graph.format}"))
    for sentence in [*sentences(graph, kept), *notes]:
        screen.print(f"- {sentence}", markup=False)
    if model is not None:
        from eics.transformer.adapt import load_model

        load_model(model).check_circuit(kept)
        screen.print(f"- It fits {model}: the model has all its nodes and edges.", markup=False)


@circuit.command()
@click.argument("source", metavar="IN")
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--to", type=click.Choice(FORMATS), help="Format to write.  [default: by the ending of OUT; .json is ours]"
)
@cut_options
@click.option("--only-kept", is_flag=True, help="Write only the circuit.  [default: all edges, flagged where possible]")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def convert(source: str, out: Path, to: str | None, only_kept: bool, quiet: bool, **cut_by: Any) -> None:
    """Writes the circuit file IN as OUT, in another format or cut by score.

    \b
    eics circuit convert scores.pt circuit.json --top-edges 200
    eics circuit convert circuit.json circuit.graphml
    eics circuit convert edges.pkl circuit.json --to eap-json
    """
    from eics.circuits.formats.files import write_graph, writer_for
    from eics.cli.terminal import console

    writer = writer_for(out, to)
    read = Path(source)
    if (
        out.exists()
        and read.exists()
        and (out.samefile(read) or (read.is_dir() and read.resolve() in out.resolve().parents))
    ):
        raise OptionError(f"OUT must not be the file that is read. Got {str(out)!r} for both: choose another name.")
    graph, notes = chosen_graph(source, cut_by)
    if only_kept:
        graph = graph.only_kept()
    notes += write_graph(graph, out, writer.name)
    if not quiet:
        screen = console()
        kept = len(graph.kept_edges)
        screen.print(f"{out}: {writer.about}, {kept} edges kept of {len(graph.edges)}.", markup=False)
        for note in notes:
            screen.print(f"- {note}", markup=False)
