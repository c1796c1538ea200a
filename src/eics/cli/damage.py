"""`eics damage`: the score while nodes of the circuit are damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eics.cli import options
from eics.errors import OptionError


@click.command()
@options.model
@options.circuit
@click.option(
    "--prompts", required=True, type=options.FILE, help="Prompts on which the circuit works, one JSON object per line."
)
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
@click.option(
    "--vector",
    type=options.FILE,
    help="Steering vector: a JSON list with one number per dimension of the residual stream.  "
    "[default: a random direction]",
)
@click.option("--limit", type=options.POSITIVE, metavar="N", help="Use the first N prompts.")
@options.preset("both", default="both", text="Scores to compute, from the same forward pass.")
@options.scoring
@options.answer
@options.passes("Runs")
@options.resume
@options.quiet
def damage(model: str, circuit: str, prompts: Path, limit: int | None, quiet: bool, **given: Any) -> None:
    """Scores prompts while nodes of the circuit are damaged one at a time, beside equal damage outside the circuit.

    A score of how well the circuit works must fall with damage to it, stay put under equal damage elsewhere, and point
    at the damaged node. The mode defaults to fast here. Rows are written as they are made: --resume continues a run.

    \b
    eics damage --model smollm2 --circuit facts --prompts examples/facts.jsonl --out damaged
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen |= {name: parse(chosen[name]) for name, parse in _PARSERS.items() if name in chosen}
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console, print_list, track
    from eics.models.prompts import read_prompts
    from eics.studies.damage import damage as run

    listed = read_prompts(prompts)[:limit]
    loaded_circuit = load_circuit(circuit)
    loaded = options.model_loader(chosen)(model)
    with track("runs", 0, quiet=quiet) as tick:
        summary = run(loaded, loaded_circuit, listed, tick=lambda done, total: tick(done, total=total), **chosen)
    if quiet:
        return
    from eics.cli.tables import damage_table
    from eics.studies.damage.words import sentences

    console().print(damage_table(summary))
    print_list(*sentences(summary), f"Full results: {chosen['out'] / 'damage.md'}, dose-response.png, auroc.png.")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _strengths(text: str) -> list[float]:
    return options.numbers("strengths", _words(text), float, "numbers separated by commas")


def _nodes(text: str) -> int | str | list[str]:
    return int(text) if text.lstrip("-").isdigit() else text if text == "all" else _words(text)


def _positions(text: str) -> str | list[int]:
    if text in ("all", "last"):
        return text
    return options.numbers("at", _words(text), int, "all, last or whole numbers separated by commas")


def _vector(path: Path) -> list[float]:
    try:
        vector = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"The steering vector must be a readable JSON file. Got {str(path)!r}: {error}.") from None
    if not isinstance(vector, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in vector):
        raise OptionError.of("vector", "a JSON list of numbers", str(path))
    return [float(number) for number in vector]


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "kinds": _words,
    "strengths": _strengths,
    "nodes": _nodes,
    "at": _positions,
    "vector": _vector,
}
