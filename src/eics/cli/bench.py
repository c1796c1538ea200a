"""`eics bench`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import check_picture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eics.circuits.graph import Circuit
    from eics.models.base import Model
    from eics.studies.bench.growth import Point
    from eics.studies.bench.rows import Row, Setting
    from eics.studies.bench.run import ForwardResult, RowResult
    from eics.studies.bench.table import Report

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--shape", help="Random weights in a well-known shape: gpt2 (default), llama-1b, llama-8b.")
@click.option("--model", help="A real model instead: folder, hub id, or a name from `eics models list`.")
@click.option("--circuit", help="Only the rows of medium, heads or ioi; or a circuit file.  [default: all three]")
@click.option("--rows", help="Only these rows: names separated by commas.")
@click.option("--device", default="cpu", show_default=True, help="The torch device.")
@click.option("--dtype", help="float32, float64 or bfloat16.  [default: float32; llama-8b: bfloat16]")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Prompts in the batch.  [default: 8; 64 on CUDA, but llama-8b: 8]"
)
@click.option("--tokens", type=click.IntRange(min=2), help="Tokens of each prompt.  [default: 16; llama-8b: 128]")
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Timed runs per row.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Time after which a row is not repeated again and a growth curve ends.",
)
@click.option("--straightforward", is_flag=True, help="Also measure the straightforward version of every row.")
@click.option(
    "--growth", is_flag=True, help="Also measure how cost grows with positions, nodes, edges, width and batch."
)
@click.option("--out", type=_FILE, help="JSON file for all measurements.")
@click.option("--markdown", type=_FILE, help="Markdown file for the table.")
@click.option("--picture", type=_FILE, help="Figure of the growth curves: .png, .pdf or .svg. Implies --growth.")
@click.option("--quiet", is_flag=True, help="No progress bar, no table.")
def bench(
    shape: str | None,
    model: str | None,
    circuit: str | None,
    rows: str | None,
    device: str,
    growth: bool,
    picture: Path | None,
    quiet: bool,
    **rest: Any,
) -> None:
    """Measures what a score costs in forward passes of the model: time, memory, products, FLOPs.

    A cost of 3 is the time of three plain forward passes of the batch, including the pass of the score itself.
    """
    from eics.cli.terminal import track
    from eics.studies.bench.growth import grow, steps
    from eics.studies.bench.measure import machine
    from eics.studies.bench.run import Bench, Plan, describe
    from eics.studies.bench.run import bench as measure
    from eics.studies.bench.table import Report

    check_picture(picture)
    _check_files(rest["out"], rest["markdown"])
    chosen, given = _rows(circuit, rows)
    setting = _setting(shape, model, device, rest)
    adapted = _model(setting, model)
    measured = Bench(adapted, setting, Plan(rest["repeats"], rest["seconds"], rest["straightforward"]), given)
    for row in (row for row in chosen if row.configurations):
        adapted.check_circuit(measured.circuit(row.circuit))  # before spending minutes on measurements
    curves = growth or picture is not None
    with track("bench", 1 + len(chosen) + (steps() if curves else 0), quiet=quiet) as tick:
        context = machine(adapted.device), describe(adapted, setting), setting

        def write(plain: "ForwardResult", results: "Sequence[RowResult]") -> None:  # an interrupted run keeps its rows
            _write(Report(*context, plain, results), rest["out"], rest["markdown"], None)

        plain, results = measure(measured, chosen, tick, write)

        def draw(points: "Sequence[Point]") -> None:
            _write(Report(*context, plain, results, points), rest["out"], rest["markdown"], picture)

        points = grow(adapted, setting, limit=rest["seconds"], tick=tick, done=draw) if curves else None
    report = Report(*context, plain, results, points)
    _write(report, rest["out"], rest["markdown"], picture)
    if not quiet:
        _show(report)


def _setting(shape: str | None, model: str | None, device: str, rest: dict[str, Any]) -> "Setting":
    from eics.errors import OptionError
    from eics.studies.bench.rows import Setting
    from eics.studies.bench.shapes import checked_device, shape_named

    if shape is not None and model is not None:
        raise OptionError.of("shape", "given without --model", shape)
    name = None if model is not None else shape or "gpt2"
    if name is not None:
        shape_named(name)
    kind, large = checked_device(device).type, name == "llama-8b"
    return Setting(
        shape=name,
        device=device if kind != "cuda" else "cuda",
        dtype=rest["dtype"] or ("bfloat16" if large else "float32"),
        batch=rest["batch"] or (64 if kind == "cuda" and not large else 8),
        tokens=rest["tokens"] or (128 if large else 16),
    )


def _model(setting: "Setting", path: str | None) -> "Model":
    from eics.studies.bench.shapes import random_model, shape_named
    from eics.transformer.adapt import load_model

    if path is not None:
        return load_model(path, dtype=setting.dtype, device=setting.device)
    assert setting.shape is not None
    name = f"{setting.shape} shape"
    return random_model(shape_named(setting.shape), name=name, device=setting.device, dtype=setting.dtype)


def _rows(circuit: str | None, names: str | None) -> "tuple[tuple[Row, ...], Circuit | None]":
    from eics.studies.bench.circuits import REFERENCES
    from eics.studies.bench.rows import ROWS, chosen_rows, given_rows

    wanted = None if names is None else [name.strip() for name in names.split(",")]
    if circuit is None:
        return chosen_rows(ROWS, wanted), None
    if circuit in REFERENCES:
        return chosen_rows([row for row in ROWS if row.circuit == circuit], wanted), None
    from eics.circuits.load import load_circuit

    return chosen_rows(given_rows(), wanted), load_circuit(circuit)


def _check_files(*files: Path | None) -> None:
    """Fails before minutes are spent if the folder of an output file is missing."""
    from eics.errors import OptionError

    for path in files:
        if path is not None and not path.parent.is_dir():
            raise OptionError(f"The folder of {path} must exist. It does not: make it first.")


def _write(report: "Report", out: Path | None, markdown: Path | None, picture: Path | None) -> None:
    from eics.reporting.plots import save
    from eics.studies.bench.growth import growth_figure
    from eics.studies.bench.table import markdown as as_markdown

    if out is not None:
        out.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if markdown is not None:
        markdown.write_text(as_markdown(report), encoding="utf-8")
    if picture is not None and report.growth is not None:
        save(growth_figure(report.growth), picture)


def _show(report: "Report") -> None:
    from eics.cli.terminal import console
    from eics.studies.bench.table import bench_table, notes

    screen = console()
    screen.print(bench_table(report))
    for note in notes(report):
        screen.print(note, markup=False)
