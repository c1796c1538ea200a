"""`eics trace`: a text, token by token, while it is read or while the model goes on with it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command
from eics.cli.interventions import bound, intervening, interventions
from eics.errors import OptionError

if TYPE_CHECKING:
    from eics.studies.tracing.result import Trace
    from eics.studies.tracing.task import Task


@click.command(cls=Command)
@options.model
@options.circuit
@prompt_options.texts
@prompt_options.prompt_files("Texts", required=False)
@click.option("--generate", type=options.POSITIVE, metavar="N", help="Let the model go on with N tokens.")
@click.option(
    "--temperature", type=float, help="With --generate: draw tokens at this temperature.  [default: the likeliest]"
)
@intervening
@click.option(
    "--calibration",
    type=options.FILE,
    required=True,
    help="From `eics calibrate --at all`, for the same model and circuit: what is usual.",
)
@click.option(
    "--allow-changed-weights", is_flag=True, help="Go on if the model's weights have changed since the calibration."
)
@click.option("--level", type=float, default=0.05, help="The probability that a usual text has any suspect.")
@click.option("--seed", type=int, default=0, help="Seed of noise, random directions, and of drawn tokens.")
@click.option(
    "--memory", type=float, help="Megabytes that one temporary block may take before work is cut into chunks."
)
@options.passes("Texts")
@click.option("--out", type=options.FILE, help="Traces: .jsonl, a header and a line for each text.")
@click.option("--report", type=options.FILE, help="One HTML page with every text, token by token.")
@options.resume
@options.overwrite
@click.option("--json", "as_json", is_flag=True, help="Print the traces as JSON lines, as --out has them.")
@options.quiet
def trace(out: Path | None, report: Path | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Says at which token which node of a circuit wrote something unusual for what it read.

    Prints the text with its unusual tokens marked, a map of the most unusual nodes over the tokens, and the suspects.
    While the model writes, every token is marked as it comes.

    \b
    eics calibrate --model people-0 --circuit people --prompts people \\
        --at all --terms sheaf --out usual.safetensors
    eics trace --model people-0 --circuit people \\
        --prompt "Ratta Bakett plays the" --calibration usual.safetensors
    """
    if given["resume"] and out is None:
        raise OptionError("--resume needs --out FILE, the file of the run to continue.")
    if out is not None:
        from eics.studies.tracing.trace_file import check_trace_path

        check_trace_path(out)
    if report is not None:
        from eics.reporting.page.shell import check_report_path

        check_report_path(report)
    files = output.outputs(
        {"--out": out, "--report": report},
        {f"--{name}": given[name] for name in ("circuit", "calibration", "model", "vector")}
        | {"--prompts": prompt_options.input_files(given)},
        overwrite=given["overwrite"],
        resume=given["resume"],
        records=["--out"],
    )
    task = _task(given)
    with files:
        traces = _traces(task, out, resume=given["resume"], shows=not (quiet or as_json))
        if report is not None:
            from eics.reporting.page import write_trace_page

            write_trace_page(task.header.to_record(), (trace.to_record() for trace in traces), report)
    if as_json and not quiet:
        _print_lines(task, traces)
    output.exit_with_reasons({trace.id: str(trace.reason) for trace in traces if trace.failed})


def _task(given: dict[str, Any]) -> "Task":
    """Everything loaded and checked."""
    from eics.circuits.load import load_circuit
    from eics.scoring.calibration.file import load_calibration
    from eics.studies.tracing.task import checked_task

    prompts = prompt_options.read(given, given["texts"])
    circuit, calibration = load_circuit(given["circuit"]), load_calibration(given["calibration"])
    changes = interventions(given, calibration.means)
    model = options.model_loader(given)(given["model"])
    model.check_circuit(circuit)
    return checked_task(
        model,
        circuit,
        prompt_options.in_chat(prompts, model, given),
        calibration,
        level=given["level"],
        seed=given["seed"],
        memory=given["memory"],
        batch_size=given["batch_size"],
        interventions=bound(changes, model, circuit),
        generate=given["generate"] or 0,
        temperature=given["temperature"] or 0.0,
        allow_changed_weights=given["allow_changed_weights"],
    )


def _traces(task: "Task", out: Path | None, *, resume: bool, shows: bool) -> "list[Trace]":
    """Every text's trace: from the file, or made, written and shown now."""
    from eics.cli.terminal import track
    from eics.cli.trace_view import Shown
    from eics.studies.tracing.run import missing, traced
    from eics.studies.tracing.trace_file import TraceFile

    file, shown = None, Shown(task, len(task.prompts))
    watch: Callable[[Any], None] = shown.step if shows else lambda _: None
    if out is not None:
        file = TraceFile(out, task.header, resume=resume)
        file.check(task.prompts, task.model)
        output.keep_count(lambda: file.safe, "traces")
    coming = traced(task, task.prompts, watch) if file is None else missing(task, file, watch)
    streams = shows and shown.streams
    traces = []
    with track("texts", len(task.prompts), quiet=not shows or streams, resumed=False) as tick:
        for trace in coming:
            tick(tokens=len(trace))
            traces.append(trace)
            if streams:
                shown.text(trace)
    if file is not None:
        file.finish(traces)
    if shows and not streams:
        shown.all(traces)
    return traces


def _print_lines(task: "Task", traces: "list[Trace]") -> None:
    from eics.cli.terminal import say
    from eics.data.files import to_lines

    say(to_lines([task.header.to_record(), *(trace.to_record() for trace in traces)]).decode().rstrip("\n"))
