"""`eics discover`."""

from pathlib import Path
from typing import Any

import click

from eics.errors import OptionError


def task_options(command: Any) -> Any:
    """Model, task, metric and ablation, for every command that runs a task."""
    options = (
        click.option(
            "--model",
            required=True,
            help="Folder or hub id of a transformers model, or a name from `eics models list`.",
        ),
        click.option(
            "--task",
            required=True,
            help='Lines of {"clean", "corrupted", "answer", "foil"}, or a bundled task: facts, ioi, greater-than, '
            "people, induction.",
        ),
        click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Use the first N lines of the task."),
        click.option(
            "--metric",
            type=click.Choice(["logit_diff", "log_prob", "kl"]),
            default="logit_diff",
            show_default=True,
            help="Answer's logit over the foil's, answer's log-probability, or minus the KL divergence.",
        ),
        click.option(
            "--ablation",
            type=click.Choice(["corrupted", "mean", "zero"]),
            default="corrupted",
            show_default=True,
            help="What an ablated node writes: as on the corrupted prompt, its mean over the task, or zero.",
        ),
        click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Pairs in a pass."),
        click.option(
            "--memory", type=float, default=512, show_default=True, help="Megabytes that the largest blocks may take."
        ),
        click.option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="[default: float32]"),
        click.option("--device", help="Of the model, as torch names it.  [default: cpu]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@task_options
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The circuit file.")
@click.option("--edges", type=click.IntRange(min=1), default=100, show_default=True, help="How many edges to choose.")
@click.option(
    "--select",
    "selection",
    type=click.Choice(["greedy", "top"]),
    default="greedy",
    show_default=True,
    help="greedy: from the read-out down, so that every edge leads to it. top: the best edges wherever they lie.",
)
@click.option(
    "--method",
    type=click.Choice(["eap-ig", "eap"]),
    default="eap-ig",
    show_default=True,
    help="Gradients averaged on the way from ablated to clean embeddings, or taken at the clean prompt.",
)
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Of that average.")
@click.option(
    "--linearization",
    type=click.Choice(["jacobian", "frozen"]),
    default="jacobian",
    show_default=True,
    help="frozen: attention patterns, norms and gates held; queries and keys then carry nothing.",
)
@click.option("--all-scores", is_flag=True, help="Write every edge of the model with its score, the circuit's flagged.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def discover(
    model: str,
    task: str,
    out: Path,
    edges: int,
    selection: str,
    all_scores: bool,
    quiet: bool,
    batch_size: int,
    memory: float,
    limit: int | None,
    dtype: str | None,
    device: str | None,
    **how: Any,
) -> None:
    """Finds the edges of a model that matter for a task, by edge attribution patching, and writes them as a circuit.

    \b
    eics discover --model smollm2 --task facts --edges 200 --out facts.json
    eics circuit draw facts.json facts.svg
    eics circuit faithfulness facts.json --model smollm2 --task facts-test
    """
    if not out.parent.is_dir():
        raise OptionError.of("out", "a file in a folder that exists", str(out))
    from eics.circuits.formats.files import write_graph, writer_for

    writer = writer_for(out, None)
    from eics.cli.terminal import console, track
    from eics.studies.discovery.eap import How, attribute
    from eics.studies.discovery.find import found_graph
    from eics.studies.discovery.task import read_task
    from eics.transformer.adapt import load_model

    chosen = How(**how)
    loaded = load_model(model, dtype=dtype, device=device)
    read = read_task(task, loaded, limit)
    read.check(chosen.metric, chosen.ablation)
    with track("pairs", len(read.pairs), quiet=quiet) as tick:
        found = attribute(loaded, read, chosen, batch_size=batch_size, memory=memory, tick=tick)
    graph, dropped = found_graph(loaded, task, found, chosen, edges, selection, all_edges=all_scores)
    notes = write_graph(graph, out, writer.name)
    if quiet:
        return
    from eics.cli.circuit_tables import layer_table

    screen = console()
    circuit = graph.circuit()
    screen.print(layer_table(circuit, f"{out}: {len(circuit.edges)} of {found.graph.edges} edges"))
    best = sorted(circuit.scores.items(), key=lambda pair: -abs(pair[1]))[:5]
    sentences = [
        f"{read.name}: {len(read.pairs)} pairs; {chosen.metric} {found.clean:.3f} clean, {found.ablated:.3f} ablated.",
        *(f"{len(read.skipped)} lines cannot be used, such as {line}." for line in read.skipped[:1]),
        f"Largest scores: {', '.join(f'{edge} {score:+.3f}' for edge, score in best)}.",
        str(dropped),
        *notes,
        "Before you score it, look whether it does what the model does: eics circuit faithfulness.",
    ]
    for sentence in sentences:
        screen.print(f"- {sentence}", markup=False)
