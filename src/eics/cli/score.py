"""`eics score`: prompts on a circuit of a model, or an explicit linear circuit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import check_picture, chosen_options, scoring_options
from eics.errors import OptionError
from eics.scoring.options import PRESETS

if TYPE_CHECKING:
    from eics.scoring.options import Options
    from eics.scoring.result import Scores


@click.command()
@click.option("--model", help="Folder or hub id of a transformers model, or a name from `eics models list`.")
@click.option(
    "--circuit",
    required=True,
    help="Circuit file (see `eics circuit`) or the name of a bundled one; without --model an explicit one "
    "(.safetensors).",
)
@click.option("--prompt", "texts", multiple=True, help="Prompt text; repeatable.")
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Prompts, one JSON object per line; or the name of bundled prompts: people, people-withheld, induction.",
)
@click.option(
    "--preset",
    type=click.Choice([*PRESETS, "both"]),
    default="paper",
    show_default=True,
    help="Options to start from; 'both' gives two records per prompt from one forward pass.",
)
@scoring_options
@click.option(
    "--calibration",
    type=click.Path(dir_okay=False, path_type=Path),
    help="From `eics calibrate`, for the same model, circuit and options: provides alpha, percentiles and the means "
    "off the circuit for --residual propagated.",
)
@click.option("--tokens", help="Token ids for --readout tokens, separated by commas.")
@click.option("--answer", type=int, help="Position of the answer, from the end if negative.  [default: last token]")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="Precision of the model.  [default: float32]"
)
@click.option("--device", help="Device of the model, as torch names it.  [default: cpu]")
@click.option(
    "--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts per forward pass."
)
@click.option("--trust-remote-code", is_flag=True, help="Allow code that comes with a hub model to run.")
@click.option("--curve", is_flag=True, default=None, help="Keep dEI(alpha) and its zeros in the record.")
@click.option(
    "--laplacian", is_flag=True, default=None, help="Keep kernel dimension, lambda2, spectral gap, projection distance."
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Records: .jsonl (written as they are made) or .parquet.",
)
@click.option("--picture", type=click.Path(dir_okay=False, path_type=Path), help="Figure: .png, .pdf or .svg.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Interactive page: .html.")
@click.option(
    "--resume",
    is_flag=True,
    help="Continue an interrupted run: keep the records in --out (.jsonl), score only the missing prompts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON lines instead of a table.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def score(
    preset: str,
    out: Path | None,
    picture: Path | None,
    report: Path | None,
    as_json: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Scores prompts on a circuit of a model, or an explicit linear circuit.

    Prints a table of the score, its components and the main causes of inconsistency for each prompt; for a single
    prompt also a bar for each of the worst edges.
    """
    where = {name: given.pop(name) for name in _NOT_OPTIONS}
    runs = chosen_options(preset, given)
    if out is not None:
        from eics.scoring.records import check_path

        check_path(out)
    check_picture(picture)
    if report is not None:
        from eics.reporting.page.build import check_report_path

        check_report_path(report)
    if where["model"] is None:
        scored = _explicit(runs, where, out)
    else:
        from eics.cli.score_model import score_model

        scored = score_model(runs, where, out, quiet=quiet)
    if picture is not None:
        from eics.reporting.plots import save, scores_figure

        save(scores_figure(scored), picture)
    if report is not None:
        from eics.reporting.page import write_report

        write_report(together(scored), report, source=out.name if out is not None else None)
    if not quiet:
        _show(scored, as_json)


def _explicit(runs: "dict[str, Options]", where: dict[str, Any], out: Path | None) -> "dict[str, Scores]":
    """Scores an explicit circuit, which has its activations already: no model, no prompts."""
    if where["texts"] or where["prompts"]:
        raise OptionError("Prompts need a --model to run on; an explicit circuit has its activations already.")
    if where["calibration"]:
        raise OptionError("A calibration needs a --model; an explicit circuit has no prompts to calibrate on.")
    if out is not None and out.resolve() == Path(where["circuit"]).resolve():
        raise OptionError("--out must not be the circuit file itself.")
    from eics.linearized.explicit_file import load_linear
    from eics.scoring.batch import score_explicit
    from eics.scoring.records import write_records

    loaded = load_linear(where["circuit"])
    scored = {name: score_explicit(loaded, options, name=where["circuit"]) for name, options in runs.items()}
    if out is not None:
        write_records(together(scored), out)
    return scored


def together(scored: "dict[str, Scores]") -> "Scores":
    """Records in input order, with the records of both presets for a prompt next to each other."""
    from eics.scoring.result import Scores

    return Scores(score for of_prompt in zip(*scored.values(), strict=True) for score in of_prompt)


def _show(scored: "dict[str, Scores]", as_json: bool) -> None:
    from eics.cli.tables import edge_bars, reasons, score_table
    from eics.cli.terminal import console
    from eics.scoring.records import to_line

    if as_json:
        for record in together(scored):
            click.echo(to_line(record))
        return
    screen = console()
    for name, scores in scored.items():
        screen.print(score_table(scores, f"EICS, preset {name}"))
        if len(scores) == 1 and (bars := edge_bars(scores[0])) is not None:
            screen.print(bars)
        for sentence in [*scores.summary(), *(reasons(scores) if len(scores) <= _FEW else [])]:
            screen.print(f"- {sentence}", markup=False)


_NOT_OPTIONS = (
    "model", "circuit", "texts", "prompts", "tokens", "answer", "dtype", "device", "batch_size", "trust_remote_code",
    "resume", "calibration",
)  # fmt: skip
_FEW = 3  # prompts whose reasons are worth a line each
