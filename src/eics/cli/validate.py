"""`eics validate`: the paper's protocol on labelled prompts."""

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
@click.option("--circuit", required=True, help="Circuit file (see `eics circuit`) or the name of a bundled one.")
@click.option(
    "--data",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help='Lines of {"prompt" or "tokens", "answer" or "label", optionally "id" and fields to group by}; or the name of '
    "bundled prompts: people, people-withheld, induction.",
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
    help="When the model's answer is correct: if its most probable token, or the text that it generates, begins an "
    "answer.",
)
@click.option(
    "--generate", type=click.IntRange(min=1), default=8, show_default=True, help="Tokens generated for --match text."
)
@click.option(
    "--drop-function-words", is_flag=True, help="Exclude prompts whose answer or predicted token is a function word."
)
@click.option(
    "--matched", metavar="FIELD", help="Keep as many correct as wrong prompts within each group of this field."
)
@click.option(
    "--group",
    metavar="FIELD",
    help="Split by this field, so that test groups are unseen; intervals resample whole groups.",
)
@click.option(
    "--dev-share", type=float, default=0.5, show_default=True, help="Share of prompts in the development split."
)
@click.option("--coverage", type=float, default=0.9, show_default=True, help="Coverage of the conformal sets.")
@click.option("--ensemble", metavar="M2,M3,...", help="Other models with the same vocabulary, separated by commas.")
@click.option(
    "--mode",
    type=click.Choice(["exact", "lanczos", "fast"]),
    default="lanczos",
    show_default=True,
    help="How EI terms are computed; fast is quickest, and has no alpha to choose.",
)
@click.option("--resamples", type=int, default=2000, show_default=True, help="Bootstrap resamples, at least 1200.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed for matching, split, folds, probes and resamples.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts per forward pass."
)
@click.option(
    "--memory", type=float, default=64.0, show_default=True, help="Megabytes that one temporary block may take."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16"]),
    help="Precision of the models.  [default: float32]",
)
@click.option("--device", help="Device of the models, as torch names it.  [default: cpu]")
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
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
    """Does the score separate correct answers from wrong ones? The paper's protocol on labelled prompts.

    Every choice is made on a development split; the test split is only measured. The score is compared with
    max-probability, entropy, ensembles, conformal sets, and baselines that expose self-deception: prompt length,
    activation norms, the predicted token, the group.

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
    validation = run(loaded, loaded_circuit, prompts, ensemble=others, progress=partial(track, quiet=quiet), **how)
    if quiet:
        return
    screen = console()
    screen.print(_table(validation))
    for sentence in validation.sentences:
        screen.print(f"- {sentence}", markup=False)
    screen.print(f"- Report: {how['out'] / 'report.html'}", markup=False)


def _table(validation: "Validation") -> "Table":
    from rich.table import Table

    correct, wrong = validation.counts.test
    table = Table(title=f"Test split: {correct} correct, {wrong} wrong")
    for name in ("score", "AUROC (95%)", "less max-probability's", "p (Holm)"):
        table.add_column(name)
    for result in validation.results.values():
        difference = "" if result.difference is None else str(result.difference)
        p_value = "" if result.p_value is None else f"{result.p_value:.3f}"
        table.add_row(result.kind.title, str(result.auroc), difference, p_value)
    return table
