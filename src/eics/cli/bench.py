"""`eics bench`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output
from eics.cli.help import Command
from eics.data.files import write_text
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.circuits.graph import Circuit
    from eics.models.base import Model
    from eics.studies.bench.rows import Row, Setting
    from eics.studies.bench.table import Report


@click.command(cls=Command)
@click.option("--shape", help="Random weights in a well-known shape: gpt2 (default), llama-1b, llama-8b.")
@click.option("--model", help="A real model instead: folder, hub id, or a name from `eics models list`.")
@click.option("--circuit", help="Only the rows of medium, heads or ioi; or a circuit file.  [default: all three]")
@click.option("--rows", help="Only these rows: names separated by commas.")
@click.option("--device", default="auto", help="As torch names it; auto: a GPU (CUDA, else MPS), else the CPU.")
@click.option("--dtype", help="float32, float64, bfloat16 or float16.  [default: float32; llama-8b: bfloat16]")
@options.trust
@click.option("--batch", type=options.POSITIVE, help="Prompts in the batch.  [default: 8; 64 on CUDA, but llama-8b: 8]")
@click.option("--tokens", type=click.IntRange(min=2), help="Tokens of each prompt.  [default: 16; llama-8b: 128]")
@click.option("--repeats", type=options.POSITIVE, default=5, help="Timed runs per row.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    help="Time after which a row is not repeated again and a growth curve ends.",
)
@click.option("--straightforward", is_flag=True, help="Also measure the straightforward version of every row.")
@click.option(
    "--growth", is_flag=True, help="Also measure how cost grows with positions, nodes, edges, width and batch."
)
@click.option("--out", type=options.FILE, help="JSON file for all measurements.")
@click.option("--markdown", type=options.FILE, help="Markdown file for the table.")
@click.option("--picture", type=options.FILE, help="Figure of the growth curves: .png, .pdf or .svg. Implies --growth.")
@options.overwrite
@options.quiet
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

    \b
    eics bench --rows medium-fast-frozen
    eics bench --model people-0 --circuit people --repeats 1
    """
    from eics.cli.tables import bench_table
    from eics.cli.terminal import console, track
    from eics.studies.bench.growth import grow, steps
    from eics.studies.bench.measure import machine
    from eics.studies.bench.run import Bench, Plan, describe
    from eics.studies.bench.run import bench as measure
    from eics.studies.bench.table import Report, notes

    options.check_picture(picture)
    for path in (rest["out"], rest["markdown"]):
        if path is not None and not path.parent.is_dir():
            raise OptionError(f"The folder of {path} must exist. It does not: make it first.")
    files = output.outputs(
        {"--out": rest["out"], "--markdown": rest["markdown"], "--picture": picture},
        {"--circuit": circuit, "--model": model},
        overwrite=rest["overwrite"],
    )
    chosen, given = _rows(circuit, rows)
    setting = _setting(shape, model, device, rest)
    adapted = _model(setting, model, trust=rest["trust_remote_code"])
    measured = Bench(adapted, setting, Plan(rest["repeats"], rest["seconds"], rest["straightforward"]), given)
    for row in (row for row in chosen if row.configurations):
        adapted.check_circuit(measured.circuit(row.circuit))  # before spending minutes on measurements
    curves = growth or picture is not None
    context = machine(adapted.device), describe(adapted, setting), setting

    measured_rows: list[Any] = []

    def write(*results: Any) -> None:  # after every row and every curve: an interrupted run keeps them
        _write(Report(*context, *results), rest["out"], rest["markdown"], picture)
        measured_rows[:] = results[1]

    written = [path for path in (rest["out"], rest["markdown"]) if path is not None]
    output.keep_count(lambda: dict.fromkeys(written, len(measured_rows)), "rows", "--overwrite")
    with files, track("bench", 1 + len(chosen) + (steps() if curves else 0), quiet=quiet) as tick:
        plain, results = measure(measured, chosen, tick, write)
        done = partial(write, plain, results)
        points = grow(adapted, setting, limit=rest["seconds"], tick=tick, done=done) if curves else None
        write(plain, results, points)
    if not quiet:
        report = Report(*context, plain, results, points)
        screen = console()
        screen.print(bench_table(report))
        screen.print("\n".join(notes(report)), markup=False)


def _setting(shape: str | None, model: str | None, device: str, rest: dict[str, Any]) -> "Setting":
    from eics.models.device import choose_device
    from eics.studies.bench.rows import Setting
    from eics.studies.bench.shapes import shape_named

    if shape is not None and model is not None:
        raise OptionError.of("shape", "given without --model", shape)
    name = None if model is not None else shape or "gpt2"
    if name is not None:
        shape_named(name)
    chosen = choose_device(device)
    kind, large = chosen.type, name == "llama-8b"
    return Setting(
        shape=name,
        device=str(chosen) if kind != "cuda" else "cuda",
        dtype=rest["dtype"] or ("bfloat16" if large else "float32"),
        batch=rest["batch"] or (64 if kind == "cuda" and not large else 8),
        tokens=rest["tokens"] or (128 if large else 16),
    )


def _model(setting: "Setting", path: str | None, *, trust: bool) -> "Model":
    from eics.studies.bench.shapes import random_model, shape_named
    from eics.transformer.adapt import load_model

    if path is not None:
        return load_model(path, dtype=setting.dtype, device=setting.device, trust_remote_code=trust)
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


def _write(report: "Report", out: Path | None, markdown: Path | None, picture: Path | None) -> None:
    from eics.reporting.plots import save
    from eics.studies.bench.growth import growth_figure
    from eics.studies.bench.table import markdown as as_markdown

    if out is not None:
        write_text(out, json.dumps(report.to_json(), indent=1) + "\n")
    if markdown is not None:
        write_text(markdown, as_markdown(report))
    if picture is not None and report.growth is not None:
        save(growth_figure(report.growth), picture)
