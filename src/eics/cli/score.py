"""`eics score`: prompts on a circuit of a model, or an explicit linear circuit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options
from eics.errors import OptionError, RecordError
from eics.scoring.options import CONFIGURATION

if TYPE_CHECKING:
    from eics.models.prompts import Prompt
    from eics.scoring.calibration.calibration import Calibration
    from eics.scoring.options import Options
    from eics.scoring.result import Score, Scores
    from eics.studies.run_folder import RowFile

_FEW = 3  # prompts whose reasons are worth a line each
_RECORDED = ("mode", *CONFIGURATION, "readout", "seed", "alpha")


@click.command()
@click.option(
    "--model",
    help="Folder or hub id of a transformers model, or a name from `eics models list`; without it, --circuit is an "
    "explicit linear circuit (.safetensors).",
)
@options.circuit
@click.option("--prompt", "texts", multiple=True, help="Prompt text; repeatable.")
@click.option(
    "--prompts",
    type=options.FILE,
    help="Prompts, one JSON object per line; or the name of bundled prompts: people, people-withheld, induction.",
)
@options.preset("both", text="Options to start from; 'both' gives two records per prompt from one forward pass.")
@options.scoring
@click.option(
    "--calibration",
    type=options.FILE,
    help="From `eics calibrate`, for the same model, circuit and options: provides alpha, percentiles and the means "
    "off the circuit for --residual propagated.",
)
@options.tokens
@options.answer
@options.passes()
@options.trust
@click.option("--curve", is_flag=True, default=None, help="Keep dEI(alpha) and its zeros in the record.")
@click.option(
    "--laplacian", is_flag=True, default=None, help="Keep kernel dimension, lambda2, spectral gap, projection distance."
)
@click.option("--out", type=options.FILE, help="Records: .jsonl (written as they are made) or .parquet.")
@click.option("--picture", type=options.FILE, help="Figure: .png, .pdf or .svg.")
@click.option("--report", type=options.FILE, help="Interactive page: .html.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run: keep the records in --out (.jsonl), score only the missing prompts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON lines instead of a table.")
@options.quiet
def score(
    preset: str, out: Path | None, picture: Path | None, report: Path | None, as_json: bool, quiet: bool, **given: Any
) -> None:
    """Scores prompts on a circuit of a model, or an explicit linear circuit.

    Prints a table of the score, its components and the main causes of inconsistency for each prompt; for a single
    prompt also a bar for each of the worst edges.
    """
    runs = options.chosen_options(preset, given)
    if out is not None:
        from eics.scoring.records import check_path

        check_path(out)
    options.check_picture(picture)
    if report is not None:
        from eics.reporting.page.build import check_report_path

        check_report_path(report)
    explicit = given["model"] is None
    scored = _explicit(runs, given, out) if explicit else _on_model(runs, given, out, quiet=quiet)
    if picture is not None:
        from eics.reporting.plots import save, scores_figure

        save(scores_figure(scored), picture)
    if report is not None:
        from eics.reporting.page import write_report

        write_report(_together(scored), report, source=out.name if out is not None else None)
    if not quiet:
        _show(scored, as_json)


def _explicit(runs: "dict[str, Options]", given: dict[str, Any], out: Path | None) -> "dict[str, Scores]":
    """Scores an explicit circuit, which has its activations already: no model, no prompts."""
    if given["texts"] or given["prompts"]:
        raise OptionError("Prompts need a --model to run on; an explicit circuit has its activations already.")
    if given["calibration"]:
        raise OptionError("A calibration needs a --model; an explicit circuit has no prompts to calibrate on.")
    if out is not None and out.resolve() == Path(given["circuit"]).resolve():
        raise OptionError("--out must not be the circuit file itself.")
    from eics.linearized.explicit_file import load_linear
    from eics.scoring.batch import score_explicit
    from eics.scoring.records import write_records

    loaded = load_linear(given["circuit"])
    scored = {name: score_explicit(loaded, chosen, name=given["circuit"]) for name, chosen in runs.items()}
    if out is not None:
        write_records(_together(scored), out)
    return scored


def _on_model(
    runs: "dict[str, Options]", given: dict[str, Any], out: Path | None, *, quiet: bool
) -> "dict[str, Scores]":
    """Scores every prompt that `out` lacks and appends its records there; returns all records by preset."""
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console, track
    from eics.scoring.batch import score_prompts
    from eics.scoring.calibration.file import load_calibration
    from eics.scoring.records import write_records
    from eics.scoring.result import Scores

    prompts = _prompts(given)
    tokens = options.token_ids(given["tokens"])
    circuit = load_circuit(given["circuit"])
    calibration = None if given["calibration"] is None else load_calibration(given["calibration"])
    if calibration is not None:
        setup = (given["model"], circuit.label(), given["answer"], tokens)
        runs = {name: calibration.fit(chosen, *setup) for name, chosen in runs.items()}
    file = _open(out, runs, resume=given["resume"])
    done = _done(file, runs, given["model"], circuit.label(), calibration) if file is not None else {}
    todo = [prompt for prompt in prompts if prompt.id not in done]
    if todo:
        model = options.model_loader(given)(given["model"])
        if not quiet:
            console(stderr=True).print(f"{given['model']}: {circuit!r}", markup=False)
        scored = score_prompts(
            model,
            circuit,
            todo,
            list(runs.values()),
            answer=given["answer"],
            tokens=tokens,
            batch_size=given["batch_size"],
            means=None if calibration is None else calibration.means,
        )
        with track("prompts", len(todo), quiet=quiet) as tick:
            for prompt, raw in zip(todo, scored, strict=True):
                scores = raw if calibration is None else Scores(calibration.place(score) for score in raw)
                done[prompt.id] = scores
                if file is not None:
                    file.append(score.to_record() for score in scores)
                tick()
    ordered = [done[prompt.id] for prompt in prompts]
    if out is not None and out.suffix == ".parquet":
        write_records((score for scores in ordered for score in scores), out)
    return {name: Scores(scores[index] for scores in ordered) for index, name in enumerate(runs)}


def _prompts(given: dict[str, Any]) -> "list[Prompt]":
    from eics.models.prompts import as_prompts, read_prompts

    if bool(given["texts"]) == bool(given["prompts"]):
        raise OptionError("A model is scored on --prompt TEXT (repeatable) or on --prompts FILE, one of the two.")
    return read_prompts(given["prompts"]) if given["prompts"] else as_prompts(given["texts"])


def _open(out: Path | None, runs: "dict[str, Options]", *, resume: bool) -> "RowFile | None":
    """The file that records are appended to; None if they are written at the end, or not at all."""
    from eics.studies.run_folder import RowFile

    is_lines = out is not None and out.suffix == ".jsonl"
    if resume and not is_lines:
        raise OptionError("--resume needs --out FILE.jsonl, the file of the run to continue.")
    if resume and any(chosen.alpha == "auto" for chosen in runs.values()):
        raise OptionError("--resume needs alpha as a number: use the one in the records of the run to continue.")
    return RowFile(out, resume=resume) if out is not None and is_lines else None


def _done(
    file: "RowFile", runs: "dict[str, Options]", model: str, circuit: dict[str, str], calibration: "Calibration | None"
) -> "dict[str | int, list[Score]]":
    """Complete records of an earlier run with the same model, circuit, options and calibration, by prompt."""
    from eics.scoring.records import read_records
    from eics.studies.run_folder import check_same

    by_prompt: dict[str | int, list[Score]] = {}
    for score in read_records(file.path):
        # Records without these fields are older than the fields.
        recorded = {"model": score.model, "circuit": score.circuit}
        for name, value in (("model", model), ("circuit", circuit)):
            if recorded[name] is not None:
                check_same(recorded, {name: value}, str(file.path), what=name)
        by_prompt.setdefault(score.id, []).append(score)
    complete = {id: scores for id, scores in by_prompt.items() if len(scores) == len(runs)}
    for scores in complete.values():
        for score, chosen in zip(scores, runs.values(), strict=True):
            recorded = {name: getattr(score, name) for name in _RECORDED if getattr(score, name) is not None}
            check_same(recorded, {name: chosen[name] for name in recorded}, str(file.path), what="options")
            if score.eics is not None and (score.percentile is None) != (calibration is None):
                theirs = "none" if score.percentile is None else "one"
                raise RecordError(
                    f"--resume must continue with the same calibration. {str(file.path)!r} was made with {theirs}: "
                    "use another --out."
                )
    if len(complete) < len(by_prompt):  # a prompt with only some of its records is scored again
        file.replace(score.to_record() for scores in complete.values() for score in scores)
    return complete


def _together(scored: "dict[str, Scores]") -> "Scores":
    """Records in input order, with the records of both presets for a prompt next to each other."""
    from eics.scoring.result import Scores

    return Scores(score for of_prompt in zip(*scored.values(), strict=True) for score in of_prompt)


def _show(scored: "dict[str, Scores]", as_json: bool) -> None:
    from eics.cli.tables import edge_bars, reasons, score_table
    from eics.cli.terminal import console, print_list
    from eics.scoring.records import to_line

    if as_json:
        for record in _together(scored):
            click.echo(to_line(record))
        return
    screen = console()
    for name, scores in scored.items():
        screen.print(score_table(scores, f"EICS, preset {name}"))
        if len(scores) == 1 and (bars := edge_bars(scores[0])) is not None:
            screen.print(bars)
        print_list(*scores.summary(), *(reasons(scores) if len(scores) <= _FEW else []))
