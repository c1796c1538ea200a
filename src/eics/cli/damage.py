"""`eics damage`: the score while nodes of the circuit are damaged."""

from pathlib import Path
from typing import Any

import click

from eics.cli.options import scoring_options
from eics.errors import OptionError
from eics.scoring.options import PRESETS


@click.command()
@click.option(
    "--model", required=True, help="Folder or hub id of a transformers model, or a name from `eics models list`."
)
@click.option("--circuit", required=True, help="Circuit file (see `eics circuit`) or the name of a bundled one.")
@click.option(
    "--prompts",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Prompts on which the circuit works, one JSON object per line.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for rows, tables and figures.")
@click.option(
    "--kind",
    "kinds",
    default="noise,ablate,patch,steer",
    show_default=True,
    help="Kinds of damage, separated by commas. patch takes the write from another prompt with as many tokens.",
)
@click.option(
    "--strengths",
    default="0,0.1,0.3,1,3",
    show_default=True,
    help="Strengths relative to the node's own write. 0 is the undamaged run; above 1 for noise and steer only.",
)
@click.option(
    "--nodes",
    default="8",
    show_default=True,
    help="How many of the circuit's nodes, 'all', or their names, separated by commas.",
)
@click.option(
    "--off-circuit",
    type=int,
    default=1,
    show_default=True,
    help="Nodes outside the circuit that get equal damage, per damaged node: same kind, similar layer and size.",
)
@click.option(
    "--at", default="all", show_default=True, help="Damaged positions: all, last, or numbers separated by commas."
)
@click.option(
    "--vector",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Steering vector: a JSON list with one number per dimension of the residual stream.  "
    "[default: a random direction]",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use the first N prompts.")
@click.option(
    "--preset",
    type=click.Choice([*PRESETS, "both"]),
    default="both",
    show_default=True,
    help="Scores to compute, from the same forward pass.",
)
@scoring_options
@click.option("--answer", type=int, help="Position of the answer, from the end if negative.  [default: last token]")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="Precision of the model.  [default: float32]"
)
@click.option("--device", help="Device of the model, as torch names it.  [default: cpu]")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Runs per forward pass.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def damage(
    model: str,
    circuit: str,
    prompts: Path,
    kinds: str,
    strengths: str,
    nodes: str,
    at: str,
    vector: Path | None,
    limit: int | None,
    dtype: str | None,
    device: str | None,
    quiet: bool,
    **given: Any,
) -> None:
    """Scores prompts while nodes of the circuit are damaged one at a time, beside equal damage outside the circuit.

    A score of how well the circuit works must fall with damage to it, stay put under equal damage elsewhere, and point
    at the damaged node. The mode defaults to fast here. Rows are written as they are made: --resume continues a run.

    \b
    eics damage --model smollm2 --circuit facts --prompts examples/facts.jsonl --out damaged
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    chosen_strengths = _numbers("strengths", strengths)
    node_choice: Any = int(nodes) if nodes.lstrip("-").isdigit() else nodes if nodes == "all" else _words(nodes)
    positions: Any = at if at in ("all", "last") else [int(number) for number in _numbers("at", at, whole=True)]
    direction = None if vector is None else _vector(vector)
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console, track
    from eics.models.prompts import read_prompts
    from eics.studies.damage import damage as run
    from eics.transformer.adapt import load_model

    listed = read_prompts(prompts)[:limit]
    loaded_circuit = load_circuit(circuit)
    loaded = load_model(model, dtype=dtype, device=device)
    with track("runs", 0, quiet=quiet) as tick:
        summary = run(
            loaded,
            loaded_circuit,
            listed,
            kinds=_words(kinds),
            strengths=chosen_strengths,
            nodes=node_choice,
            at=positions,
            vector=direction,
            tick=lambda done, total: tick(done, total=total),
            **chosen,
        )
    if quiet:
        return
    from eics.cli.tables import damage_table
    from eics.studies.damage.words import sentences

    screen = console()
    screen.print(damage_table(summary))
    for sentence in sentences(summary):
        screen.print(f"- {sentence}", markup=False)
    screen.print(f"- Full results: {chosen['out'] / 'damage.md'}, dose-response.png, auroc.png.", markup=False)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(name: str, text: str, *, whole: bool = False) -> list[float]:
    try:
        return [int(word) if whole else float(word) for word in _words(text)]
    except ValueError:
        must = "all, last or whole numbers separated by commas" if whole else "numbers separated by commas"
        raise OptionError.of(name, must, text) from None


def _vector(path: Path) -> list[float]:
    import json

    try:
        vector = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"The steering vector must be a readable JSON file. Got {str(path)!r}: {error}.") from None
    if not isinstance(vector, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in vector):
        raise OptionError.of("vector", "a JSON list of numbers", str(path))
    return [float(number) for number in vector]
