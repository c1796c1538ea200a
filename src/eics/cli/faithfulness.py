"""`eics circuit faithfulness`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.discover import task_options
from eics.cli.options import check_picture
from eics.errors import CircuitError, OptionError

if TYPE_CHECKING:
    from eics.circuits.formats import CircuitGraph
    from eics.circuits.graph import Circuit


@click.command()
@click.argument("file", metavar="CIRCUIT")
@task_options
@click.option(
    "--shares",
    help="Sizes of the curve as shares of all edges, separated by commas; the file must have scores of edges outside "
    "the circuit.  [default: those of MIB, 0.001 to 1, if the file has them]",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for the numbers.")
@click.option(
    "--picture", type=click.Path(dir_okay=False, path_type=Path), help="Figure of the curve: .png, .pdf or .svg."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the bootstrap over prompts.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON instead of a table.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def faithfulness(
    file: str,
    model: str,
    task: str,
    limit: int | None,
    shares: str | None,
    out: Path | None,
    picture: Path | None,
    as_json: bool,
    quiet: bool,
    dtype: str | None,
    device: str | None,
    **how: Any,
) -> None:
    """Measures whether a circuit does what the model does: its metric with everything else ablated.

    1 is the full model, 0 the model with everything ablated. A file with the scores of all edges (`eics discover
    --all-scores`) gives a curve over circuit sizes and its two areas: CPR (under the curve; higher is better) and CMD
    (between the curve and 1; lower is better).
    """
    check_picture(picture)
    if out is not None and not out.parent.is_dir():
        raise OptionError.of("out", "a file in a folder that exists", str(out))
    import json

    from eics.circuits.load import load_graph
    from eics.cli.terminal import console, track
    from eics.studies.discovery.faithfulness import faithfulness as measure
    from eics.studies.discovery.full_graph import FullGraph
    from eics.studies.discovery.task import read_task
    from eics.transformer.adapt import load_model

    graph = load_graph(file)
    loaded = load_model(model, dtype=dtype, device=device)
    circuits = _circuits(graph, shares, FullGraph.of(loaded).edges)
    read = read_task(task, loaded, limit)
    with track("pairs", len(read.pairs), quiet=quiet) as tick:
        result = measure(loaded, read, circuits, tick=tick, **how)
    setting = {"circuit": file, "model": model, "task": task, "metric": how["metric"], "ablation": how["ablation"]}
    record = json.dumps({**setting, **result.to_record()}, indent=1)
    if out is not None:
        out.write_text(record + "\n", encoding="utf-8")
    if picture is not None:
        from eics.reporting.plots import save
        from eics.studies.discovery.figure import faithfulness_figure

        save(faithfulness_figure(result, f"{file}, {task}: {how['metric']}, {how['ablation']} ablation"), picture)
    if as_json and not quiet:
        click.echo(record)
    elif not quiet:
        from eics.cli.tables import faithfulness_table

        screen = console()
        screen.print(faithfulness_table(result, f"{file} on {task}, {how['ablation']} ablation"))
        screen.print(
            f"- {how['metric']}: {result.full:.3f} for the full model, {result.empty:.3f} with everything ablated; "
            f"{result.prompts} prompts; 95% intervals over prompts.",
            markup=False,
        )
        if result.cpr is not None:
            screen.print(f"- CPR {result.cpr}, CMD {result.cmd}.", markup=False)


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
    for share in _shares(shares) if shares else SHARES:
        count = min(len(graph.scores), max(1, round(share * edges)))
        circuits[f"top {share:.1%}"] = cut(graph, top_edges=count).circuit()
    return circuits


def _shares(text: str) -> list[float]:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share <= 1 for share in shares):
        raise OptionError.of("shares", "numbers above 0 and at most 1, separated by commas", text)
    return shares
