"""`eics validate`: the paper's protocol on labelled prompts."""

from functools import partial
from typing import Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command
from eics.scoring.options import CHOICES


@click.command(cls=Command)
@options.model
@options.circuit
@prompt_options.prompt_files(
    'Labelled prompts, {"prompt" or "tokens", "answer" or "label", optionally "id" and fields to group by}', "--data"
)
@click.option(
    "--out",
    required=True,
    type=options.FOLDER,
    help="Folder for scores.parquet, results.json, report.html and report.md.",
)
@click.option(
    "--match",
    type=click.Choice(["first-token", "text"]),
    default="first-token",
    help="When the model's answer is correct: if its most probable token, or the text that it generates, begins an "
    "answer.",
)
@click.option("--generate", type=options.POSITIVE, default=8, help="Tokens generated for --match text.")
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
@click.option("--dev-share", type=float, default=0.5, help="Share of prompts in the development split.")
@click.option("--coverage", type=float, default=0.9, help="Coverage of the conformal sets.")
@click.option("--ensemble", metavar="M2,M3,...", help="Other models with the same vocabulary, separated by commas.")
@click.option(
    "--mode",
    type=click.Choice(CHOICES["mode"]),
    default="lanczos",
    help="How EI is computed; fast is several times quicker than lanczos. In limit there is no alpha to choose.",
)
@click.option("--resamples", type=int, default=2000, help="Bootstrap resamples, at least 1200.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed for matching, split, folds, probes and resamples."
)
@options.memory(64.0)
@options.passes()
@options.resume
@options.overwrite
@options.quiet
def validate(model: str, circuit: str, ensemble: str | None, quiet: bool, **given: Any) -> None:
    """Does the score separate correct answers from wrong ones? The paper's protocol on labelled prompts.

    Every choice is made on a development split; the test split is only measured. The score is compared with
    max-probability, entropy, ensembles, conformal sets, and baselines that expose self-deception: prompt length,
    activation norms, the predicted token, the group.

    \b
    eics validate --model people-0 --circuit people --data people --out validated
    """
    from eics.circuits.load import load_circuit
    from eics.cli.tables import validation_table
    from eics.cli.terminal import console, print_list, track
    from eics.studies.validation.run import ANSWERS, FILES, MEASURED, TABLE
    from eics.studies.validation.run import validate as run
    from eics.studies.validation.split import FAILED
    from eics.studies.validation.table import read_table

    how = prompt_options.without(given)
    output.check_run_folder(
        how["out"],
        FILES,
        [ANSWERS, MEASURED, TABLE],
        {
            "--data": prompt_options.input_files(given),
            "--circuit": circuit,
            "--model": [model, *(ensemble or "").split(",")],
        },
        resume=how["resume"],
        overwrite=how["overwrite"],
    )
    prompts = prompt_options.read_labelled(given)  # before minutes are spent on loading models
    loaded_circuit = load_circuit(circuit)
    load_model = options.model_loader(how)
    loaded, *others = [load_model(name.strip()) for name in [model, *(ensemble or "").split(",")] if name]
    prompts = prompt_options.labelled_in_chat(prompts, loaded, given)
    progress = partial(track, quiet=quiet, model=loaded)
    validation = run(loaded, loaded_circuit, prompts, ensemble=others, progress=progress, **how)
    if not quiet:
        console().print(validation_table(validation))
        print_list(*validation.sentences, f"Report: {how['out'] / 'report.html'}")
    table = read_table(how["out"] / TABLE)
    output.exit_with_reasons({row["id"]: row["failed"] for row in table if row["dropped"] == FAILED})
