"""`eics damage`: the score while nodes of the circuit are damaged."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from eics.cli import interventions, options, output, prompt_options
from eics.cli.help import Command


@click.command(cls=Command)
@options.model
@options.circuit
@prompt_options.prompt_files("Prompts on which the circuit works")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for rows, tables and figures.")
@click.option(
    "--kind",
    "kinds",
    default="noise,ablate,patch,steer",
    help="Kinds of damage, separated by commas. patch takes the write from another prompt with as many tokens.",
)
@click.option(
    "--strengths",
    default="0,0.1,0.3,1,3",
    help="Strengths relative to the node's own write. 0 is the undamaged run; above 1 for noise and steer only.",
)
@click.option(
    "--nodes", default="8", help="How many of the circuit's nodes, 'all', or their names, separated by commas."
)
@click.option(
    "--off-circuit",
    type=int,
    default=1,
    help="Nodes outside the circuit that get equal damage, per damaged node: same kind, similar layer and size.",
)
@click.option("--at", default="all", help="Damaged positions: all, last, or numbers separated by commas.")
@interventions.vector
@options.preset("both", default="both", text="Scores to compute, from the same forward pass.")
@options.scoring(mode="fast")
@options.answer
@options.passes("Runs")
@options.resume
@options.overwrite
@options.quiet
def damage(model: str, circuit: str, quiet: bool, **given: Any) -> None:
    """Scores prompts while nodes of the circuit are damaged one at a time, beside equal damage outside the circuit.

    A score of how well the circuit works must fall with damage to it, stay put under equal damage elsewhere, and point
    at the damaged node. Rows are written as they are made: --resume continues a run.

    \b
    eics damage --model people-0 --circuit people --prompts people \\
        --limit 8 --nodes 2 --out damaged
    """
    chosen = {name: value for name, value in prompt_options.without(given).items() if value is not None}
    chosen |= {name: parse(chosen[name]) for name, parse in _PARSERS.items() if name in chosen}
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console, print_list, track
    from eics.studies.damage import damage as run
    from eics.studies.damage.batches import FILES, ROWS
    from eics.studies.damage.plan import NONE

    output.check_run_folder(
        given["out"],
        FILES,
        [ROWS],
        {
            "--prompts": prompt_options.input_files(given),
            "--circuit": circuit,
            "--vector": given["vector"],
            "--model": model,
        },
        resume=given["resume"],
        overwrite=given["overwrite"],
    )
    listed = prompt_options.read(given)
    loaded_circuit = load_circuit(circuit)
    loaded = options.model_loader(chosen)(model)
    listed = prompt_options.in_chat(listed, loaded, given)
    with track("runs", 0, quiet=quiet, model=loaded, resumed=True) as tick:
        summary = run(loaded, loaded_circuit, listed, tick=lambda done, total: tick(done, total=total), **chosen)
    if not quiet:
        from eics.cli.tables import damage_table
        from eics.studies.damage.words import sentences

        console().print(damage_table(summary))
        print_list(*sentences(summary), f"Full results: {chosen['out'] / 'damage.md'}, dose-response.png, auroc.png.")
    undamaged = (row for row in summary.rows if row["kind"] == NONE)
    output.exit_with_reasons({row["id"]: row["reason"] for row in undamaged if row["status"] == "failed"})


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _strengths(text: str) -> list[float]:
    return options.numbers("strengths", _words(text), float, "numbers separated by commas")


def _nodes(text: str) -> int | str | list[str]:
    return int(text) if text.lstrip("-").isdigit() else text if text == "all" else _words(text)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "kinds": _words,
    "strengths": _strengths,
    "nodes": _nodes,
    "at": partial(interventions.positions, "at"),
    "vector": interventions.steering_vector,
}
