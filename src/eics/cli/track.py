"""`eics track`: do the scores track what ablation says about a circuit?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.studies.tracking.measure import Subject


@click.command()
@click.option(
    "--model", required=True, help="Folder or hub id of a transformers model, or a name from `eics models list`."
)
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
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for rows, findings, page and figure.",
)
@click.option(
    "--prompts", type=click.IntRange(min=8), default=32, show_default=True, help="Use the first N prompts of each task."
)
@click.option(
    "--family-prompts",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="Compare all circuits on the first N of these prompts.",
)
@click.option(
    "--perturbed",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Circuits with 10% to 90% of their edges replaced.",
)
@click.option(
    "--controls", type=click.IntRange(min=1), default=3, show_default=True, help="Rewired circuits, and random ones."
)
@click.option(
    "--all-eics", is_flag=True, help="Compute EICS for every circuit, not only the given one; takes much longer."
)
@click.option(
    "--metric",
    type=click.Choice(["logit_diff", "log_prob"]),
    default="logit_diff",
    show_default=True,
    help="Metric of faithfulness.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts per forward pass."
)
@click.option("--memory", type=float, default=512, show_default=True, help="Megabytes for the largest blocks.")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="Precision of the model.  [default: float32]"
)
@click.option("--device", help="Device of the model, as torch names it.  [default: cpu]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for circuits, probes and resampling.")
@click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def track(
    model: str,
    out: Path,
    batch_size: int,
    memory: float,
    dtype: str | None,
    device: str | None,
    seed: int,
    resume: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Do the scores track what ablation says about a circuit? And what does each cost?

    Over prompts with the circuit fixed, and over circuits of one size with the prompt fixed: rank correlations of all
    forms of C_sh and of EICS with faithfulness and KL divergence under corrupted, mean and zero ablation, plain and
    given the confounds, with random and rewired circuits as controls. Rows are written as they are made: --resume
    continues a run.

    \b
    eics track --model smollm2 --task facts --circuit facts --task ioi --circuit ioi --out tracking
    """
    check_counts(given["tasks"], given["circuits"], given["references"])
    from eics.cli.terminal import console
    from eics.cli.terminal import track as progress
    from eics.studies.tracking.run import track as run
    from eics.transformer.adapt import load_model

    loaded = load_model(model, dtype=dtype, device=device)
    subjects = _subjects(loaded, given, seed)
    setup = {
        "model": model,
        **{f"task {s.task.name}": _describe(s, name) for s, name in zip(subjects, given["circuits"], strict=True)},
        "metric of faithfulness": given["metric"],
        "seed": seed,
    }
    how: dict[str, Any] = {"batch_size": batch_size, "memory": memory, "seed": seed, "resume": resume}
    with progress("rows", sum(subject.rows for subject in subjects), quiet=quiet) as tick:
        page = run(loaded, subjects, setup, out, tick=tick, **how)
    if not quiet:
        screen = console()
        for line in page.split("\n\n")[2].split("\n"):  # the verdict
            screen.print(line, markup=False)
        screen.print(f"- Full results: {out / 'track.md'}, {out / 'track.png'}, {out / 'rows.parquet'}.", markup=False)


def check_counts(tasks: Sequence[str], circuits: Sequence[str], references: Sequence[str]) -> None:
    """Requires one circuit, and one reference or none, for each task, and no task twice."""
    if len(circuits) != len(tasks):
        raise OptionError(f"--circuit must be given once for each --task. Got {len(circuits)} for {len(tasks)}.")
    if references and len(references) != len(tasks):
        raise OptionError(f"--reference must be given once for each --task. Got {len(references)} for {len(tasks)}.")
    if len(set(tasks)) < len(tasks):
        raise OptionError(f"Every --task must be given once. Got {', '.join(tasks)}.")


def _subjects(model: Any, given: dict[str, Any], seed: int) -> "list[Subject]":
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
        members = family(
            circuit, FullGraph.of(model), perturbed=given["perturbed"], controls=given["controls"], seed=seed
        )
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
