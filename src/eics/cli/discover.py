"""`eics discover` and `eics circuit faithfulness`: from a task to a circuit, and how much of the model it keeps."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output
from eics.cli.circuit import circuit
from eics.cli.help import Command
from eics.data.files import write_text
from eics.errors import CircuitError
from eics.scoring.numbers import number, signed

if TYPE_CHECKING:
    from eics.circuits.formats import CircuitGraph
    from eics.circuits.graph import Circuit

_task_options = options.combine(
    options.model,
    click.option(
        "--task",
        required=True,
        help='JSON lines or a table with "clean", "corrupted", "answer" and "foil", or a bundled task: facts, ioi, '
        "greater-than, people, induction.",
    ),
    click.option("--limit", type=options.POSITIVE, metavar="N", help="Use only the first N usable lines of the task."),
    click.option(
        "--metric",
        type=click.Choice(["logit_diff", "log_prob", "kl"]),
        default="logit_diff",
        help="Logit difference of answer and foil, log-probability of the answer, or minus the KL divergence from "
        "the full model.",
    ),
    click.option(
        "--ablation",
        type=click.Choice(["corrupted", "mean", "zero"]),
        default="corrupted",
        help="What an ablated node writes: its write on the corrupted prompt, its mean over the task, or zero.",
    ),
    options.passes("Pairs"),
    options.memory(512),
)


@click.command(cls=Command)
@_task_options
@click.option("--out", required=True, type=options.FILE, help="Circuit file to write.")
@click.option("--edges", type=options.POSITIVE, default=100, help="Number of edges to select.")
@click.option(
    "--select",
    "selection",
    type=click.Choice(["greedy", "top"]),
    default="greedy",
    help="greedy: from the read-out down, so that every edge leads there. top: the best edges wherever they lie.",
)
@click.option(
    "--method",
    type=click.Choice(["eap-ig", "eap"]),
    default="eap-ig",
    help="Gradients averaged between ablated and clean embeddings, or taken at the clean prompt.",
)
@click.option("--steps", type=options.POSITIVE, default=5, help="Integration steps of eap-ig.")
@click.option(
    "--linearization",
    type=click.Choice(["jacobian", "frozen"]),
    default="jacobian",
    help="frozen: attention patterns, norms and gates are held; queries and keys then carry nothing.",
)
@click.option(
    "--all-scores", is_flag=True, help="Write every edge of the model with its score; edges of the circuit are flagged."
)
@options.overwrite
@options.quiet
def discover(
    model: str,
    task: str,
    out: Path,
    edges: int,
    selection: str,
    all_scores: bool,
    overwrite: bool,
    quiet: bool,
    batch_size: int,
    memory: float,
    limit: int | None,
    **how: Any,
) -> None:
    """Finds the edges of a model that matter for a task, by edge attribution patching, and writes them as a circuit.

    \b
    eics discover --model smollm2 --task facts --edges 200 --out facts.json
    eics circuit draw facts.json facts.svg
    eics circuit faithfulness facts.json --model smollm2 --task facts-test
    """
    options.check_out(out)
    from eics.circuits.formats.files import write_graph, writer_for

    writer = writer_for(out, None)
    files = output.outputs({"--out": out}, {"--task": task, "--model": model}, overwrite=overwrite)
    from eics.cli.terminal import console, print_list, track
    from eics.studies.discovery.eap import How, attribute
    from eics.studies.discovery.select import found_graph
    from eics.studies.discovery.task import read_task

    load_model = options.model_loader(how)
    chosen = How(**how)
    loaded = load_model(model)
    read = read_task(task, loaded, limit)
    read.check(chosen.metric, chosen.ablation)
    with files, track("pairs", len(read.pairs), quiet=quiet, model=loaded) as tick:
        attribution = attribute(loaded, read, chosen, batch_size=batch_size, memory=memory, tick=tick)
        graph, dropped = found_graph(loaded, task, attribution, chosen, edges, selection, all_edges=all_scores)
        notes = write_graph(graph, out, writer.name)
    if quiet:
        return
    from eics.cli.tables import layer_table

    kept = graph.circuit()
    console().print(layer_table(kept, f"{out}: {len(kept.edges)} of {attribution.graph.edges} edges"))
    best = sorted(kept.scores.items(), key=lambda pair: -abs(pair[1]))[:5]
    print_list(
        f"{read.name}: {len(read.pairs)} pairs; {chosen.metric} {number(attribution.clean)} clean, "
        f"{number(attribution.ablated)} ablated.",
        *(f"Skipped lines: {len(read.skipped)}, the first for this reason: {line}." for line in read.skipped[:1]),
        f"Largest scores: {', '.join(f'{edge} {signed(score)}' for edge, score in best)}.",
        str(dropped),
        *notes,
        "Before you score it, check that it does what the model does: eics circuit faithfulness.",
    )


@circuit.command()
@click.argument("file", metavar="CIRCUIT")
@_task_options
@click.option(
    "--shares",
    help="Sizes of the curve as shares of all edges, separated by commas; the file must have scores of edges outside "
    "the circuit.  [default: those of MIB, 0.001 to 1, if the file has them]",
)
@click.option("--out", type=options.FILE, help="JSON file for the numbers.")
@click.option("--picture", type=options.FILE, help="Figure of the curve: .png, .pdf or .svg.")
@click.option("--seed", type=int, default=0, help="Seed of the bootstrap over prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead of a table.")
@options.overwrite
@options.quiet
def faithfulness(
    file: str,
    model: str,
    task: str,
    limit: int | None,
    shares: str | None,
    out: Path | None,
    picture: Path | None,
    as_json: bool,
    overwrite: bool,
    quiet: bool,
    **how: Any,
) -> None:
    """Measures whether a circuit does what the model does: its metric with everything else ablated.

    1 is the full model, 0 the model with everything ablated. A file with the scores of all edges (`eics discover
    --all-scores`) gives a curve over circuit sizes and its two areas: CPR (under the curve; higher is better) and CMD
    (between the curve and 1; lower is better).

    \b
    eics circuit faithfulness people --model people-0 --task people-test
    """
    options.check_picture(picture)
    options.check_out(out)
    files = output.outputs(
        {"--out": out, "--picture": picture},
        {"CIRCUIT": file, "--task": task, "--model": model},
        overwrite=overwrite,
    )
    from eics.circuits.load import load_graph
    from eics.cli.terminal import console, print_list, say, track
    from eics.studies.discovery.faithfulness import faithfulness as measure
    from eics.studies.discovery.full_graph import FullGraph
    from eics.studies.discovery.task import read_task

    graph = load_graph(file)
    loaded = options.model_loader(how)(model)
    circuits = _circuits(graph, shares, FullGraph.of(loaded).edges)
    read = read_task(task, loaded, limit)
    setting = {"circuit": file, "model": model, "task": task, "metric": how["metric"], "ablation": how["ablation"]}
    with files, track("pairs", len(read.pairs), quiet=quiet, model=loaded) as tick:
        result = measure(loaded, read, circuits, tick=tick, **how)
        record = json.dumps({**setting, **result.to_record()}, indent=1)
        if out is not None:
            write_text(out, record + "\n")
        if picture is not None:
            from eics.reporting.plots import save
            from eics.studies.discovery.faithfulness import faithfulness_figure

            save(faithfulness_figure(result, f"{file}, {task}: {how['metric']}, {how['ablation']} ablation"), picture)
    if as_json and not quiet:
        say(record)
    elif not quiet:
        from eics.cli.tables import faithfulness_table

        console().print(faithfulness_table(result, f"{file} on {task}, {how['ablation']} ablation"))
        print_list(
            f"{how['metric']}: {number(result.full)} for the full model, {number(result.empty)} with everything "
            f"ablated; {result.prompts} prompts; 95% intervals over prompts.",
            *([] if result.cpr is None else [f"CPR {result.cpr}, CMD {result.cmd}."]),
        )


def _circuits(graph: "CircuitGraph", shares: str | None, edges: int) -> "dict[str, Circuit]":
    """The circuit of the file and, if it has scores of further edges, circuits of growing size."""
    from eics.circuits.formats import cut
    from eics.studies.discovery.faithfulness import SHARES

    scored = len(graph.scores) > len(graph.kept_edges) or (graph.kept is None and len(graph.scores) > edges // 2)
    if shares is None and not scored:
        return {"circuit": graph.circuit()}
    if not scored:
        raise CircuitError(
            f"A curve needs the scores of more edges than the circuit's {len(graph.kept_edges)}. The file has none: "
            "write it with `eics discover --all-scores`."
        )
    circuits = {} if graph.kept is None else {"circuit": graph.circuit()}
    must = "numbers above 0 and at most 1, separated by commas"
    for share in options.numbers("shares", shares.split(","), _share, must) if shares else SHARES:
        count = min(len(graph.scores), max(1, round(share * edges)))
        circuits[f"top {share:.1%}"] = cut(graph, top_edges=count).circuit()
    return circuits


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise ValueError
    return share
