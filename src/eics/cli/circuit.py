"""`eics circuit`: shows, converts and draws circuit files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output
from eics.cli.export import choose_record, configuration_of, record_options
from eics.cli.help import Group
from eics.errors import OptionError, RecordError
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.circuits.formats import CircuitGraph
    from eics.circuits.graph import Circuit, Edge
    from eics.scoring.result import Score

_PROMPT = 60  # characters of the prompt in the title of a drawing
FORMATS = ("eics-circuit", "eap-json", "neuronpedia", "csv", "graphml", "dot")  # the writers, without importing them


@click.group(cls=Group)
def circuit() -> None:
    """Lists, shows, converts, draws and measures circuits.

    Recognises by content the files of EAP-IG and MIB, Edge-Pruning, ACDC, InterpBench, auto-circuit, circuit-tracer and
    Neuronpedia, GraphML, CSV and our own JSON. Nothing in a file is executed.

    \b
    eics circuit show facts
    """


cut_options = options.combine(
    click.option("--top-edges", type=options.POSITIVE, metavar="N", help="Keep the N edges that score highest."),
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


@circuit.command("list")
def list_circuits() -> None:
    """Lists the bundled circuits: their model, their size, and how much of the model's behaviour each keeps.

    \b
    eics circuit list
    """
    from eics.circuits.load import bundled_circuits, load_graph
    from eics.cli.tables import circuits_table
    from eics.cli.terminal import console, print_list

    console().print(circuits_table({name: load_graph(name) for name in bundled_circuits()}))
    print_list(
        "Faithfulness: the share of the model's metric that the circuit keeps on held-out prompts, with the rest "
        "of the model as on corrupted prompts (95% interval); '-' if it was not measured.",
        "Use a name in place of a file: eics circuit show facts.",
    )


@circuit.command()
@click.argument("file")
@cut_options
@click.option("--model", help="Check that the circuit fits this model: folder, hub id or name from `eics models list`.")
@options.trust
@options.quiet
def show(file: str, model: str | None, trust_remote_code: bool, quiet: bool, **cut_by: Any) -> None:
    """Shows a circuit FILE: nodes by layer, edges, ports, sources, sinks, and the models that it fits.

    FILE may also be the folder of a MIB submission, or the name of a bundled circuit such as facts-by-hand.

    \b
    eics circuit show people --model people-0
    """
    from eics.cli.tables import circuit_sentences, layer_table
    from eics.cli.terminal import console, print_list

    graph, notes = chosen_graph(file, cut_by)
    kept = graph.circuit()
    if not quiet:
        console().print(layer_table(kept, f"{file}: {graph.format}"))
        print_list(*circuit_sentences(graph, kept), *notes)
    if model is not None:
        from eics.transformer.adapt import load_model

        load_model(model, trust_remote_code=trust_remote_code).check_circuit(kept)
        if not quiet:
            print_list(f"It fits {model}: the model has all its nodes and edges.")


@circuit.command()
@click.argument("source", metavar="IN")
@click.argument("out", type=options.FILE)
@click.option(
    "--to", type=click.Choice(FORMATS), help="Format to write.  [default: by the ending of OUT; .json is ours]"
)
@cut_options
@click.option("--only-kept", is_flag=True, help="Write only the circuit.  [default: all edges, flagged where possible]")
@options.overwrite
@options.quiet
def convert(
    source: str, out: Path, to: str | None, only_kept: bool, overwrite: bool, quiet: bool, **cut_by: Any
) -> None:
    """Writes the circuit file IN as OUT, in another format or cut by score.

    \b
    eics circuit convert scores.pt circuit.json --top-edges 200
    eics circuit convert circuit.json circuit.graphml
    eics circuit convert edges.pkl circuit.json --to eap-json
    """
    from eics.circuits.formats.files import write_graph, writer_for
    from eics.cli.terminal import console, print_list

    writer = writer_for(out, to)
    files = output.outputs({"OUT": out}, {"IN": source}, overwrite=overwrite)
    graph, notes = chosen_graph(source, cut_by)
    if only_kept:
        graph = graph.only_kept()
    with files:
        notes += write_graph(graph, out, writer.name)
    if not quiet:
        counted = f"{len(graph.kept_edges)} edges kept of {len(graph.edges)}"
        console().print(f"{out}: {writer.about}, {counted}.", markup=False)
        print_list(*notes)


@circuit.command()
@click.argument("file", metavar="CIRCUIT")
@click.argument("out", metavar="OUT.svg|.png|.pdf", type=options.FILE)
@click.option("--record", type=options.FILE, help="Records of `eics score`, to colour the edges.")
@record_options
@click.option(
    "--max-edges",
    type=options.POSITIVE,
    default=150,
    help="Above this, only the most important edges are drawn in full, and the picture says so.",
)
@click.option("--title", help="Of the picture.  [default: the circuit's name]")
@options.overwrite
@options.quiet
@cut_options
def draw(
    file: str,
    out: Path,
    record: Path | None,
    prompt_id: str | None,
    preset: str | None,
    max_edges: int,
    title: str | None,
    overwrite: bool,
    quiet: bool,
    **cut_by: Any,
) -> None:
    """Draws a circuit: layers upwards, width by attribution, colour by inconsistency.

    CIRCUIT is a circuit file, the name of a bundled circuit, or an explicit circuit (.safetensors). Attributions in the
    file set the widths of the edges; the shares in a record set their colours.

    \b
    eics circuit draw people people.svg
    """
    options.check_picture(out, "out")
    if record is None and (prompt_id is not None or preset is not None):
        raise OptionError("--prompt-id and --preset choose a record, so they need --record with a file of records.")
    files = output.outputs({"OUT": out}, {"CIRCUIT": file, "--record": record}, overwrite=overwrite)
    drawn, notes = _load(file, cut_by)
    shares = node_shares = None
    lines = [drawn.name or Path(file).stem if title is None else title]
    if record is not None:
        score = choose_record(record, prompt_id, preset)
        shares = _shares(score, drawn)
        node_shares = {term.node: term.share for term in score.nodes} or None
        lines.append(_describe(score))
        if score.is_consistent:
            shares, node_shares = dict.fromkeys(shares, 0.0), None
            lines.append("Consistent to rounding: no edge is to blame.")
    from eics.cli.terminal import say
    from eics.reporting.drawing import draw_circuit
    from eics.reporting.plots import save

    figure = draw_circuit(
        drawn, scores=drawn.scores, shares=shares, node_shares=node_shares, max_edges=max_edges, title="\n".join(lines)
    )
    with files:
        save(figure, out)
    for line in () if quiet else (*notes, *lines[1:], f"Written to {out}."):
        say(line)


def _load(file: str, cut_by: dict[str, Any]) -> "tuple[Circuit, list[str]]":
    if Path(file).suffix == ".safetensors":
        from eics.linearized.explicit_file import load_linear

        return load_linear(file).circuit, []
    from eics.circuits.cuts import cut_name

    graph, notes = chosen_graph(file, cut_by)
    limits = {name: cut_by[name] for name in ("top_edges", "share", "min_score")}
    how = f", {cut_name(**limits, signed=cut_by['signed'])}" if any(v is not None for v in limits.values()) else ""
    return graph.circuit(f"{Path(file).stem}{how}"), notes


def _shares(score: "Score", circuit: "Circuit") -> "dict[Edge, float]":
    """Shares by edge; edges that the linearization held fixed have none, and the record says how many those are."""
    from eics.circuits.graph import Edge

    shares = {Edge(term.source, term.target, term.port): term.share for term in score.edges}
    unknown = sorted(set(shares) - set(circuit.edges), key=str)
    missing = [edge for edge in circuit.edges if edge not in shares]
    if not unknown and len(missing) == score.diagnostics.get("edges_left_out", 0):
        return shares
    example = f"it has {unknown[0]}, which the circuit lacks" if unknown else f"it lacks {missing[0]}"
    raise RecordError(
        f"The record's edges must be those of the circuit. Record {score.id}: {example}. "
        "Draw the circuit that was scored."
    )


def _describe(score: "Score") -> str:
    prompt = score.prompt or ""
    quoted = f" ({prompt if len(prompt) <= _PROMPT else prompt[: _PROMPT - 3] + '...'!r})" if prompt else ""
    numbers = (("EICS", score.eics), ("C_sh", score.c_sh))
    known = ", ".join(f"{name} {number(value)}" for name, value in numbers if value is not None)
    return f"Prompt {score.id}{quoted}, {configuration_of(score)}: {known}"
