"""`eics circuit`: shows and converts circuit files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import FILE, combine, quiet_option
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.circuits.formats import CircuitGraph

FORMATS = ("eics-circuit", "eap-json", "neuronpedia", "csv", "graphml", "dot")  # the writers, without importing them


@click.group()
def circuit() -> None:
    """Shows, converts and draws circuit files.

    Recognises by content the files of EAP-IG and MIB, Edge-Pruning, ACDC, InterpBench, auto-circuit, circuit-tracer and
    Neuronpedia, GraphML, CSV and our own JSON. Nothing in a file is executed.
    """


cut_options = combine(
    click.option("--top-edges", type=click.IntRange(min=1), metavar="N", help="Keep the N edges that score highest."),
    click.option("--share", type=float, metavar="X", help="Keep this share of all edges, such as 0.01."),
    click.option("--min-score", type=float, metavar="X", help="Keep edges that score at least X."),
    click.option("--signed", is_flag=True, help="Compare scores with their sign.  [default: absolute scores]"),
    click.option("--no-prune", is_flag=True, help="After a cut, keep edges on no path from a source to a sink."),
)
"""The options that choose edges by score, for `chosen_graph`."""


def chosen_graph(file: str, cut_by: dict[str, Any]) -> "tuple[CircuitGraph, list[str]]":
    """Reads a file, cuts and prunes it as the options say, and returns it with notes on what happened."""
    from eics.circuits.formats import cut, prune
    from eics.circuits.load import load_graph

    limits = {name: cut_by[name] for name in ("top_edges", "share", "min_score") if cut_by[name] is not None}
    graph = load_graph(file)
    if not limits:
        if cut_by["no_prune"] or cut_by["signed"]:
            raise OptionError("--signed and --no-prune must come with --top-edges, --share or --min-score.")
        return graph, list(graph.notes)
    notes = [note for note in graph.notes if "until you cut them" not in note]  # advice that was just followed
    graph = cut(graph, **limits, signed=cut_by["signed"])
    notes.append(f"The cut keeps {len(graph.kept_edges)} of {len(graph.edges)} edges.")
    if not cut_by["no_prune"]:
        graph, dropped = prune(graph)
        notes.append(str(dropped))
    return graph, notes


@circuit.command()
@click.argument("file")
@cut_options
@click.option("--model", help="Check that the circuit fits this model: folder, hub id or name from `eics models list`.")
def show(file: str, model: str | None, **cut_by: Any) -> None:
    """Shows a circuit FILE: nodes by layer, edges, ports, sources, sinks, and the models that it fits.

    FILE may also be the folder of a MIB submission, or the name of a bundled circuit such as facts-by-hand.
    """
    from eics.cli.circuit_tables import layer_table, sentences
    from eics.cli.terminal import console, print_list

    graph, notes = chosen_graph(file, cut_by)
    kept = graph.circuit()
    console().print(layer_table(kept, f"{file}: {graph.format}"))
    print_list([*sentences(graph, kept), *notes])
    if model is not None:
        from eics.transformer.adapt import load_model

        load_model(model).check_circuit(kept)
        print_list([f"It fits {model}: the model has all its nodes and edges."])


@circuit.command()
@click.argument("source", metavar="IN")
@click.argument("out", type=FILE)
@click.option(
    "--to", type=click.Choice(FORMATS), help="Format to write.  [default: by the ending of OUT; .json is ours]"
)
@cut_options
@click.option("--only-kept", is_flag=True, help="Write only the circuit.  [default: all edges, flagged where possible]")
@quiet_option
def convert(source: str, out: Path, to: str | None, only_kept: bool, quiet: bool, **cut_by: Any) -> None:
    """Writes the circuit file IN as OUT, in another format or cut by score.

    \b
    eics circuit convert scores.pt circuit.json --top-edges 200
    eics circuit convert circuit.json circuit.graphml
    eics circuit convert edges.pkl circuit.json --to eap-json
    """
    from eics.circuits.formats.files import write_graph, writer_for
    from eics.cli.terminal import console, print_list

    writer = writer_for(out, to)
    _check_not_input(Path(source), out)
    graph, notes = chosen_graph(source, cut_by)
    if only_kept:
        graph = graph.only_kept()
    notes += write_graph(graph, out, writer.name)
    if not quiet:
        counted = f"{len(graph.kept_edges)} edges kept of {len(graph.edges)}"
        console().print(f"{out}: {writer.about}, {counted}.", markup=False)
        print_list(notes)


def _check_not_input(source: Path, out: Path) -> None:
    if not (out.exists() and source.exists()):
        return
    if out.samefile(source) or (source.is_dir() and source.resolve() in out.resolve().parents):
        raise OptionError(f"OUT must not be the file that is read. Got {str(out)!r} for both: choose another name.")
