"""`eics validate`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from eics.studies.validation.analysis import Validation


@click.command()
@click.option(
    "--model", required=True, help="Folder or hub id of a transformers model, or a name from `eics models list`."
)
@click.option("--circuit", required=True, help="Circuit file (see `eics circuit`) or a bundled one's name.")
@click.option(
    "--data",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help='Lines of {"prompt" or "tokens", "answer" or "label", perhaps "id" and fields to group by}; or bundled ones: '
    "people, people-withheld, induction.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for scores.parquet, results.json, report.html and report.md.",
)
@click.option(
    "--match",
    type=click.Choice(["first-token", "text"]),
    default="first-token",
    show_default=True,
    help="When the model's answer is right: its most probable token begins an answer, or the text that it writes does.",
)
@click.option(
    "--generate", type=click.IntRange(min=1), default=8, show_default=True, help="Tokens written for --match text."
)
@click.option(
    "--drop-function-words", is_flag=True, help="Drop prompts whose answer or predicted token is a function word."
)
@click.option(
    "--matched", metavar="FIELD", help="Keep as many correct as wrong prompts within each group of this field."
)
@click.option(
    "--group",
    metavar="FIELD",
    help="Split by this field, so that test groups are unseen; intervals resample whole groups.",
)
@click.option("--dev-share", type=float, default=0.5, show_default=True, help="Share of the development split.")
@click.option("--coverage", type=float, default=0.9, show_default=True, help="Of the conformal sets.")
@click.option("--ensemble", metavar="M2,M3,...", help="Other models with the same vocabulary, separated by commas.")
@click.option(
    "--mode",
    type=click.Choice(["exact", "lanczos", "fast"]),
    default="lanczos",
    show_default=True,
    help="Of the scores' EI terms; fast is quickest, and has no alpha to choose.",
)
@click.option("--resamples", type=int, default=2000, show_default=True, help="Of the bootstrap; at least 1200.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of matching, split, folds, probes, resamples.",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts in a pass.")
@click.option("--memory", type=float, default=64.0, show_default=True, help="Megabytes one temporary block may take.")
@click.option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="[default: float32]")
@click.option("--device", help="Of the models, as torch names it.  [default: cpu]")
@click.option("--resume", is_flag=True, help="Continue what an interrupted run left in --out.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def validate(
    model: str,
    circuit: str,
    data: Path,
    ensemble: str | None,
    dtype: str | None,
    device: str | None,
    quiet: bool,
    **how: Any,
) -> None:
    """Does the score tell correct answers from wrong ones? The paper's protocol on labelled prompts.

    Everything that is chosen is chosen on a development split; the test split is only measured. The score is compared
    with max-probability, entropy, ensembles, conformal sets and with baselines that catch self-deception: prompt
    length, activation norms, the predicted token, the group.

    \b
    eics validate --model smollm2 --circuit facts --data facts.jsonl --drop-function-words --matched relation --out v
    """
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console, track
    from eics.studies.validation.data import read_labelled
    from eics.studies.validation.run import validate as run
    from eics.transformer.adapt import load_model

    prompts = read_labelled(data)  # before minutes are spent on loading models
    loaded_circuit = load_circuit(circuit)
    loaded, *others = [
        load_model(name.strip(), dtype=dtype, device=device) for name in [model, *(ensemble or "").split(",")] if name
    ]
    found = run(loaded, loaded_circuit, prompts, ensemble=others, progress=partial(track, quiet=quiet), **how)
    if quiet:
        return
    screen = console()
    screen.print(_table(found))
    for sentence in found.sentences:
        screen.print(f"- {sentence}", markup=False)
    screen.print(f"- The report: {how['out'] / 'report.html'}", markup=False)


def _table(found: "Validation") -> "Table":
    from rich.table import Table

    counts = found.counts
    table = Table(title=f"Test split: {counts.test[0]} correct, {counts.test[1]} wrong")
    for name in ("score", "AUROC (95%)", "less max-probability's", "p (Holm)"):
        table.add_column(name)
    for result in found.results.values():
        difference = "" if result.difference is None else str(result.difference)
        p_value = "" if result.p_value is None else f"{result.p_value:.3f}"
        table.add_row(result.kind.title, str(result.auroc), difference, p_value)
    return table
