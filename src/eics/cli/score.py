"""`eics score`: prompts on a circuit of a model, or an explicit linear circuit."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command
from eics.cli.interventions import bound, has_interventions, intervening, interventions
from eics.errors import CircuitError, OptionError

if TYPE_CHECKING:
    from eics.data.outputs import Outputs
    from eics.models.prompts import Prompt
    from eics.scoring.calibration.calibration import Calibration
    from eics.scoring.options import Options
    from eics.scoring.record_file import RecordFile, Run
    from eics.scoring.result import Score, Scores

    Prepared = Callable[[], dict[str, Scores]]

_FEW = 3  # prompts whose reasons are worth a line each


@click.command(cls=Command)
@click.option(
    "--model",
    help="Folder or hub id of a transformers model, or a name from `eics models list`; without it, --circuit is an "
    "explicit linear circuit (.safetensors).",
)
@options.circuit
@prompt_options.texts
@prompt_options.prompt_files(required=False)
@prompt_options.no_sort
@intervening
@options.preset(
    "calibrated",
    "both",
    text="Options to start from. calibrated: against what is usual, from --calibration. both: two records per prompt, "
    "paper and well-posed, from one forward pass.",
)
@options.scoring()
@click.option(
    "--calibration",
    type=options.FILE,
    help="From `eics calibrate`, for the same model, circuit and options: provides alpha, percentiles and the means "
    "off the circuit for --residual propagated, and what is usual for --preset calibrated.",
)
@click.option(
    "--allow-changed-weights", is_flag=True, help="Go on if the model's weights have changed since the calibration."
)
@click.option(
    "--level",
    type=float,
    help="With --preset calibrated: the probability that a usual prompt has any suspect.  [default: 0.05]",
)
@options.tokens
@options.answer
@options.passes()
@click.option("--curve", is_flag=True, default=None, help="Keep dEI(alpha) and its zeros in the record.")
@click.option(
    "--laplacian", is_flag=True, default=None, help="Keep kernel dimension, lambda2, spectral gap, projection distance."
)
@click.option(
    "--against-random",
    type=options.POSITIVE,
    metavar="N",
    help="Also score N random circuits of the same size on each prompt, to compare with; costs N more scores.",
)
@click.option(
    "--details",
    is_flag=True,
    help="Keep shares by token position, the heads' attention patterns and the top tokens of each write in the record, "
    "for the report; with --preset calibrated also what each node was expected to write, and which parents carried it "
    "elsewhere. A head takes 2 KB for 16 tokens and 25 KB for 64.",
)
@click.option("--out", type=options.FILE, help="Records: .jsonl, .parquet, or .csv (flat columns).")
@click.option("--picture", type=options.FILE, help="Figure: .png, .pdf or .svg.")
@click.option("--report", type=options.FILE, help="Interactive page: .html.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run: keep its records in --out, score only the missing prompts.",
)
@options.overwrite
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON lines instead of a table.")
@options.quiet
def score(
    preset: str, out: Path | None, picture: Path | None, report: Path | None, as_json: bool, quiet: bool, **given: Any
) -> None:
    """Scores prompts on a circuit of a model, or an explicit linear circuit.

    Prints a table of the score, its components and the main causes of inconsistency for each prompt; for a single
    prompt also the model's predictions and a bar for each of the worst edges.

    \b
    eics score --model people-0 --circuit people --mode fast \\
        --prompt "The profession of Lura Medorn is"
    eics score --model smollm2 --circuit facts --preset well-posed \\
        --prompt "The capital of France is" --report report.html
    """
    runs = options.chosen_options(preset, given)
    if given["calibration"] is None and any(chosen.residual == "calibrated" for chosen in runs.values()):
        raise OptionError(
            "Residual 'calibrated', of --preset calibrated, needs --calibration FILE: make it with `eics calibrate`."
        )
    files = _outputs(given, out, picture, report)
    explicit = given["model"] is None
    prepared = _explicit(runs, given, out) if explicit else _on_model(runs, given, out, quiet=quiet)
    if out is not None and given["resume"] and _is_complete_csv(out):
        _refuse_without_records({"--picture": picture, "--report": report, "--json": as_json or None})
    with files:
        scored = prepared()
        if picture is not None:
            from eics.reporting.plots import save, scores_figure

            save(scores_figure(scored), picture)
        if report is not None:
            from eics.reporting.page import write_report

            write_report(_together(scored), report, source=out.name if out is not None else None)
    if not quiet and scored:
        _show(scored, as_json)
    output.exit_if_failed(_together(scored))


def _outputs(given: dict[str, Any], out: Path | None, picture: Path | None, report: Path | None) -> "Outputs":
    """The files to write, checked before any work."""
    if given["resume"] and out is None:
        raise OptionError("--resume needs --out FILE, the file of the run to continue.")
    if out is not None:
        from eics.scoring.records import check_path

        check_path(out)
    options.check_picture(picture)
    if report is not None:
        from eics.reporting.page.shell import check_report_path

        check_report_path(report)
    return output.outputs(
        {"--out": out, "--picture": picture, "--report": report},
        {f"--{name}": given[name] for name in ("circuit", "calibration", "model", "vector")}
        | {"--prompts": prompt_options.input_files(given)},
        overwrite=given["overwrite"],
        resume=given["resume"],
        records=["--out"],
    )


def _is_complete_csv(out: Path) -> bool:
    from eics.scoring.complete_csv import is_complete_csv

    return is_complete_csv(out)


def _refuse_without_records(wanted: dict[str, Any]) -> None:
    """Refuses what is made of whole records where there are only flat columns."""
    for option, value in wanted.items():
        if value is not None:
            raise OptionError(
                f"{option} needs records with their edges, which a complete .csv lacks: use --overwrite, or another "
                "--out."
            )


def _explicit(runs: "dict[str, Options]", given: dict[str, Any], out: Path | None) -> "Prepared":
    """Scores an explicit circuit, which has its activations already: no model, no prompts."""
    if given["texts"] or given["prompts"]:
        raise OptionError("Prompts need a --model to run on; an explicit circuit has its activations already.")
    if given["calibration"]:
        raise OptionError("A calibration needs a --model; an explicit circuit has no prompts to calibrate on.")
    if given["against_random"]:
        raise OptionError("--against-random needs a --model to draw circuits from; an explicit circuit has none.")
    if given["details"]:
        raise OptionError("--details needs a --model: an explicit circuit has no tokens, heads or vocabulary.")
    if given["resume"]:
        raise OptionError("--resume needs a --model; an explicit circuit is scored at once.")
    if has_interventions(given):
        raise OptionError("Interventions need a --model; an explicit circuit runs nothing.")
    from eics.linearized.explicit_file import load_linear
    from eics.scoring.batch import score_explicit
    from eics.scoring.records import write_records

    try:
        loaded = load_linear(given["circuit"])
    except CircuitError as error:
        if Path(given["circuit"]).suffix == ".safetensors":
            raise
        raise CircuitError(f"{error} A circuit of a transformer needs its --model.") from None

    def run() -> "dict[str, Scores]":
        scored = {name: score_explicit(loaded, chosen, name=given["circuit"]) for name, chosen in runs.items()}
        if out is not None:
            write_records(_together(scored), out)
        return scored

    return run


def _on_model(runs: "dict[str, Options]", given: dict[str, Any], out: Path | None, *, quiet: bool) -> "Prepared":
    """Loads everything, then scores every prompt that `out` lacks; returns all records by preset."""
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import console
    from eics.scoring.calibration.file import load_calibration
    from eics.scoring.record_file import RecordFile, Run
    from eics.scoring.result import Scores

    prompts = prompt_options.read(given, given["texts"])
    tokens = options.token_ids(given["tokens"])
    circuit = load_circuit(given["circuit"])
    calibration = None if given["calibration"] is None else load_calibration(given["calibration"])
    if calibration is not None:
        calibration.check_alpha(given["alpha"])
        setup = (circuit.label(), given["answer"], tokens)
        runs = {name: calibration.fit(chosen, *setup) for name, chosen in runs.items()}
    means = None if calibration is None else calibration.means
    changes = interventions(given, means)
    model = options.model_loader(given)(given["model"])
    model.check_circuit(circuit)
    if calibration is not None:
        calibration.check_model(model, allow_changed_weights=given["allow_changed_weights"])
    changes = bound(changes, model, circuit)
    prompts = prompt_options.in_chat(prompts, model, given)
    sha256 = None if calibration is None else calibration.sha256
    further = {"details": given["details"], "against_random": given["against_random"] or 0}
    asked = Run(model, circuit, tuple(runs.values()), given["answer"], tokens, sha256, changes or (), further)
    how = {"batch_size": given["batch_size"], "sort": not given["no_sort"], "interventions": changes, **further}

    def run() -> "dict[str, Scores]":
        file = None
        if out is not None and given["resume"] and _is_complete_csv(out):
            return _nothing_left(out, asked, prompts, quiet=quiet)
        if out is not None:
            file = RecordFile(out, resume=given["resume"])
            asked.check(file, prompts)
            output.keep_count(lambda: file.safe)
        if not quiet:
            console(stderr=True).print(f"{given['model']}: {circuit!r}", markup=False)
        ordered = _score_missing(asked, prompts, file, calibration, quiet=quiet, **how)
        return {name: Scores(scores[index] for scores in ordered) for index, name in enumerate(runs)}

    return run


def _nothing_left(out: Path, asked: "Run", prompts: "list[Prompt]", *, quiet: bool) -> "dict[str, Scores]":
    """Says that a complete .csv has everything, and no records: its flat columns cannot be read back as such."""
    from eics.cli.terminal import say
    from eics.scoring.complete_csv import check_complete

    failures = check_complete(out, asked, prompts)
    if not quiet:
        say(f"{out} has the records of all {len(prompts)} prompts already: nothing to do.")
    output.exit_with_reasons(failures)
    return {}


def _score_missing(
    asked: "Run",
    prompts: "list[Prompt]",
    file: "RecordFile | None",
    calibration: "Calibration | None",
    *,
    quiet: bool,
    **how: Any,
) -> "list[list[Score]]":
    """Every prompt's records, in order: earlier ones, and those that are made and written now."""
    from eics.cli.terminal import track
    from eics.cli.verbosity import tell
    from eics.scoring.batch import score_prompts
    from eics.scoring.record_file import by_prompt

    earlier = [] if file is None else file.earlier
    done = by_prompt(earlier)
    count = len(asked.configurations)
    todo = [prompt for prompt in prompts if len(done.get(prompt.id, ())) < count]
    tell(f"{len(todo)} prompts in batches of {how['batch_size']}")
    scored = score_prompts(
        asked.model,
        asked.circuit,
        todo,
        list(asked.with_known_alpha(earlier).configurations),
        answer=asked.answer,
        tokens=asked.tokens,
        **how,
        means=None if calibration is None else calibration.means,
        judge=None if calibration is None else calibration.judge,
    )
    with track("prompts", len(todo), quiet=quiet) as tick:
        for prompt, raw in zip(todo, scored, strict=True):
            scores = asked.as_requested(raw if calibration is None else map(calibration.place, raw), earlier)
            known = done.setdefault(prompt.id, [])
            new = scores[len(known) :]  # an interruption may have left the first of two presets
            if file is not None:
                file.append(new)
            known.extend(new)
            tick(tokens=len(scores[0].token_ids or ()))
    ordered = [done[prompt.id] for prompt in prompts]
    if file is not None:
        file.finish([score for scores in ordered for score in scores])
    return ordered


def _together(scored: "dict[str, Scores]") -> "Scores":
    """Records in input order, with the records of both presets for a prompt next to each other."""
    from eics.scoring.result import Scores

    return Scores(score for of_prompt in zip(*scored.values(), strict=True) for score in of_prompt)


def _show(scored: "dict[str, Scores]", as_json: bool) -> None:
    from eics.cli.score_table import (
        edge_bars,
        node_table,
        prediction_sentences,
        reasons,
        score_table,
        warning_sentences,
    )
    from eics.cli.terminal import console, print_list, say
    from eics.cli.verbosity import is_verbose
    from eics.scoring.records import to_line

    if as_json:
        for record in _together(scored):
            say(to_line(record))
        return
    screen = console()
    for place, (name, scores) in enumerate(scored.items()):
        if place:
            screen.print()
        screen.print(score_table(scores, f"EICS, preset {name}"))
        if len(scores) == 1:
            for table in (node_table(scores[0]), edge_bars(scores[0])):
                if table is not None:
                    screen.print(table)
        print_list(
            *(_verdicts(scores) if len(scores) <= _FEW else []),
            *(prediction_sentences(scores[0]) if len(scores) == 1 else []),
            *scores.summary(),
            *(reasons(scores) if len(scores) <= _FEW or is_verbose() else []),
            *warning_sentences(scores, full=is_verbose()),
        )


def _verdicts(scores: "Scores") -> list[str]:
    """What each record says compared with what is usual, and why; its id goes first if there are several."""
    from eics.scoring.verdict import explanations, verdict

    said = [
        (score.id, sentence)
        for score in scores
        for sentence in (verdict(score), *explanations(score))
        if sentence is not None
    ]
    return [sentence if len(scores) == 1 else f"{id}: {sentence}" for id, sentence in said]
