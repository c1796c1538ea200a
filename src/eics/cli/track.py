"""`eics track`: do the scores track what ablation says about a circuit?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output
from eics.cli.help import Command
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.studies.tracking.measure import Subject


@click.command(cls=Command)
@options.model
@click.option("--task", "tasks", multiple=True, required=True, help="Task, as for `eics discover`; repeatable.")
@click.option(
    "--circuit", "circuits", multiple=True, required=True, help="Its circuit: one for each --task, in the same order."
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    help="Tasks whose prompts give the means for mean ablation and for the propagated run, one for each --task.  "
    "[default: the task itself]",
)
@click.option("--out", required=True, type=options.FOLDER, help="Folder for rows, findings, page and figure.")
@click.option("--prompts", type=click.IntRange(min=8), default=32, help="Use the first N prompts of each task.")
@click.option(
    "--family-prompts", type=options.POSITIVE, default=8, help="Compare all circuits on the first N of these prompts."
)
@click.option(
    "--perturbed", type=click.IntRange(min=0), default=8, help="Circuits with 10% to 90% of their edges replaced."
)
@click.option("--controls", type=options.POSITIVE, default=3, help="Rewired circuits, and random ones.")
@click.option(
    "--all-eics", is_flag=True, help="Compute EICS for every circuit, not only the given one; takes much longer."
)
@click.option(
    "--metric", type=click.Choice(["logit_diff", "log_prob"]), default="logit_diff", help="Metric of faithfulness."
)
@options.memory(512)
@options.passes()
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed for circuits, probes and resampling.")
@options.resume
@options.overwrite
@options.quiet
def track(model: str, out: Path, quiet: bool, **given: Any) -> None:
    """Do the scores track what ablation says about a circuit? And what does each cost?

    Over prompts with the circuit fixed, and over circuits of one size with the prompt fixed: rank correlations of all
    forms of C_sh and of EICS with faithfulness and KL divergence under corrupted, mean and zero ablation, plain and
    given the confounds, with random and rewired circuits as controls. Rows are written as they are made: --resume
    continues a run.

    \b
    eics track --model smollm2 --task facts --circuit facts \\
        --task ioi --circuit ioi --out tracking
    """
    _check_counts(given["tasks"], given["circuits"], given["references"])
    from eics.cli.terminal import console, print_list
    from eics.cli.terminal import track as progress
    from eics.studies.tracking.run import FILES, ROWS
    from eics.studies.tracking.run import track as run

    output.check_run_folder(
        out,
        FILES,
        [ROWS],
        {f"--{name}": given[f"{name}s"] for name in ("task", "circuit", "reference")} | {"--model": model},
        resume=given["resume"],
        overwrite=given["overwrite"],
    )
    loaded = options.model_loader(given)(model)
    subjects = _subjects(loaded, given)
    setup = {
        "model": model,
        **{f"task {s.task.name}": _describe(s, name) for s, name in zip(subjects, given["circuits"], strict=True)},
        "metric of faithfulness": given["metric"],
        "seed": given["seed"],
    }
    how = {name: given[name] for name in ("batch_size", "memory", "seed", "resume", "overwrite")}
    rows = sum(subject.rows for subject in subjects)
    with progress("rows", rows, quiet=quiet, model=loaded, resumed=True) as tick:
        page = run(loaded, subjects, setup, out, tick=tick, **how)
    if not quiet:
        console().print(page.split("\n\n")[2], markup=False)  # the verdict
        print_list(f"Full results: {out / 'track.md'}, {out / 'track.png'}, {out / 'rows.parquet'}.")


def _check_counts(tasks: Sequence[str], circuits: Sequence[str], references: Sequence[str]) -> None:
    """Requires one circuit, and one reference or none, for each task, and no task twice."""
    if len(circuits) != len(tasks):
        raise OptionError(f"--circuit must be given once for each --task. Got {len(circuits)} for {len(tasks)}.")
    if references and len(references) != len(tasks):
        raise OptionError(f"--reference must be given once for each --task. Got {len(references)} for {len(tasks)}.")
    if len(set(tasks)) < len(tasks):
        raise OptionError(f"Every --task must be given once. Got {', '.join(tasks)}.")


def _subjects(model: Any, given: dict[str, Any]) -> "list[Subject]":
    from eics.circuits.load import load_circuit
    from eics.studies.discovery.full_graph import FullGraph
    from eics.studies.discovery.task import read_task
    from eics.studies.tracking.families import family
    from eics.studies.tracking.measure import Subject

    subjects = []
    for task, name, reference in zip(
        given["tasks"], given["circuits"], given["references"] or given["tasks"], strict=True
    ):
        circuit = load_circuit(name)
        model.check_circuit(circuit)
        own = read_task(task, model, given["prompts"])
        sizes = {name: given[name] for name in ("perturbed", "controls", "seed")}
        members = family(circuit, FullGraph.of(model), **sizes)
        reference_task = own if reference == task else read_task(reference, model)
        how = {name: given[name] for name in ("metric", "family_prompts", "all_eics")}
        subjects.append(Subject(own, members, reference_task, **how))
    return subjects


def _describe(subject: "Subject", circuit: str) -> str:
    edges, means = len(subject.members[0].circuit.edges), len(subject.reference.pairs)
    return (
        f"{len(subject.task.pairs)} prompts, circuit {circuit} ({edges} edges), means of {means} prompts of "
        f"{subject.reference.name}"
    )
