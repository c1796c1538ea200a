"""`eics discover`."""

from pathlib import Path
from typing import Any

import click

from eics.errors import OptionError


def task_options(command: Any) -> Any:
    """The options of every command that runs a task."""
    options = (
        click.option(
            "--model",
            required=True,
            help="Folder or hub id of a transformers model, or a name from `eics models list`.",
        ),
        click.option(
            "--task",
            required=True,
            help='JSON lines with "clean", "corrupted", "answer" and "foil", or a bundled task: facts, ioi, '
            "greater-than, people, induction.",
        ),
        click.option(
            "--limit", type=click.IntRange(min=1), metavar="N", help="Use only the first N usable lines of the task."
        ),
        click.option(
            "--metric",
            type=click.Choice(["logit_diff", "log_prob", "kl"]),
            default="logit_diff",
            show_default=True,
            help="Logit difference of answer and foil, log-probability of the answer, or minus the KL divergence from "
            "the full model.",
        ),
        click.option(
            "--ablation",
            type=click.Choice(["corrupted", "mean", "zero"]),
            default="corrupted",
            show_default=True,
            help="What an ablated node writes: its write on the corrupted prompt, its mean over the task, or zero.",
        ),
        click.option(
            "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Pairs per forward pass."
        ),
        click.option(
            "--memory", type=float, default=512, show_default=True, help="Megabytes for the largest temporary blocks."
        ),
        click.option("--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="[default: float32]"),
        click.option("--device", help="The torch device.  [default: cpu]"),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@task_options
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Circuit file to write.")
@click.option("--edges", type=click.IntRange(min=1), default=100, show_default=True, help="Number of edges to select.")
@click.option(
    "--select",
    "selection",
    type=click.Choice(["greedy", "top"]),
    default="greedy",
    show_default=True,
    help="greedy: from the read-out down, so that every edge leads there. top: the best edges wherever they lie.",
)
@click.option(
    "--method",
    type=click.Choice(["eap-ig", "eap"]),
    default="eap-ig",
    show_default=True,
    help="Gradients averaged between ablated and clean embeddings, or taken at the clean prompt.",
)
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Integration steps of eap-ig.")
@click.option(
    "--linearization",
    type=click.Choice(["jacobian", "frozen"]),
    default="jacobian",
    show_default=True,
    help="frozen: attention patterns, norms and gates are held; queries and keys then carry nothing.",
)
@click.option(
    "--all-scores", is_flag=True, help="Write every edge of the model with its score; edges of the circuit are flagged."
)
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
        attribution = attribute(loaded, read, chosen, batch_size=batch_size, memory=memory, tick=tick)
    graph, dropped = found_graph(loaded, task, attribution, chosen, edges, selection, all_edges=all_scores)
    notes = write_graph(graph, out, writer.name)
    if quiet:
        return
    from eics.cli.circuit_tables import layer_table

    screen = console()
    circuit = graph.circuit()
    screen.print(layer_table(circuit, f"{out}: {len(circuit.edges)} of {attribution.graph.edges} edges"))
    best = sorted(circuit.scores.items(), key=lambda pair: -abs(pair[1]))[:5]
    sentences = [
        f"{read.name}: {len(read.pairs)} pairs; {chosen.metric} {attribution.clean:.3f} clean, "
        f"{attribution.ablated:.3f} ablated.",
        *(f"Skipped lines: {len(read.skipped)}, the first for this reason: {line}." for line in read.skipped[:1]),
        f"Largest scores: {', '.join(f'{edge} {score:+.3f}' for edge, score in best)}.",
        str(dropped),
        *notes,
        "Before you score it, check that it does what the model does: eics circuit faithfulness.",
    ]
    for sentence in sentences:
        screen.print(f"- {sentence}", markup=False)
