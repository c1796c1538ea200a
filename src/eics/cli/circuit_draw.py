"""`eics circuit draw`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.choose import choose_record, configuration_of, record_options
from eics.cli.circuit import chosen_graph, cut_options
from eics.cli.options import FILE, check_picture, quiet_option
from eics.errors import OptionError, RecordError

if TYPE_CHECKING:
    from eics.circuits.graph import Circuit, Edge
    from eics.scoring.result import Score

_PROMPT = 60  # characters of the prompt in the title


@click.command()
@click.argument("file", metavar="CIRCUIT")
@click.argument("out", metavar="OUT.svg|.png|.pdf", type=FILE)
@click.option("--record", type=FILE, help="Records of `eics score`, to colour the edges.")
@record_options
@click.option(
    "--max-edges",
    type=click.IntRange(min=1),
    default=150,
    show_default=True,
    help="Above this, only the most important edges are drawn in full, and the picture says so.",
)
@click.option("--title", help="Of the picture.  [default: the circuit's name]")
@quiet_option
@cut_options
def draw(
    file: str,
    out: Path,
    record: Path | None,
    prompt_id: str | None,
    preset: str | None,
    max_edges: int,
    title: str | None,
    quiet: bool,
    **cut_by: Any,
) -> None:
    """Draws a circuit: layers upwards, width by attribution, colour by inconsistency.

    CIRCUIT is a circuit file, the name of a bundled circuit, or an explicit circuit (.safetensors). Attributions in the
    file set the widths of the edges; the shares in a record set their colours.
    """
    check_picture(out, "out")
    if record is None and (prompt_id is not None or preset is not None):
        raise OptionError("--prompt-id and --preset choose a record, so they need --record with a file of records.")
    circuit, notes = _load(file, cut_by)
    shares = node_shares = None
    lines = [Path(file).stem if title is None else title]
    if record is not None:
        score = choose_record(record, prompt_id, preset)
        shares = _shares(score, circuit)
        node_shares = {term.node: term.share for term in score.nodes} or None
        lines.append(_describe(score))
        if score.is_consistent:
            shares, node_shares = dict.fromkeys(shares, 0.0), None
            lines.append("Consistent to rounding: no edge is to blame.")
    from eics.reporting.drawing import draw_circuit
    from eics.reporting.plots import save

    figure = draw_circuit(
        circuit,
        scores=circuit.scores,
        shares=shares,
        node_shares=node_shares,
        max_edges=max_edges,
        title="\n".join(lines),
    )
    save(figure, out)
    for line in () if quiet else (*notes, *lines[1:], f"Written to {out}."):
        click.echo(line)


def _load(file: str, cut_by: dict[str, Any]) -> "tuple[Circuit, list[str]]":
    if Path(file).suffix == ".safetensors":
        from eics.linearized.explicit_file import load_linear

        return load_linear(file).circuit, []
    graph, notes = chosen_graph(file, cut_by)
    return graph.circuit(), notes


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
    return f"Prompt {score.id}{quoted}, {configuration_of(score)}: EICS {score.eics:.4g}, C_sh {score.c_sh:.4g}"
