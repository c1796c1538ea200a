"""`eics score`."""

from pathlib import Path
from typing import Any

import click

from eics.options import CHOICES, PAPER, PRESETS, Options


def _alpha(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:  # noqa: ARG001
    if value is None or value == "auto":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"must be a number > 0, or 'auto'. Got {value!r}.") from None


_HELP = {
    "mode": "exact: by factorization. lanczos: stochastic quadrature. fast: small-alpha form, for ranking.",
    "linearization": "jacobian: the true one. frozen: multiplicative nonlinearities held, affine.",
    "residual": "C_sh by edge (equation 2), joint by node, or propagated to the sinks.",
    "parts": "What dEI subtracts.",
    "metric": "relative: each stalk in its own units, position by position.",
    "emergence": "difference (equation 3, clipped at 0) or intensive (nats for each channel).",
    "positions": "no_sink: from the second token on.",
    "factorization": "How mode exact factorizes: svd (every alpha at once) or cholesky (one alpha).",
}
_NUMBERS = {
    "seed": "Seed of the probes.",
    "node_probes": "Probes for each part, in lanczos and fast; at least 4.",
    "macro_probes": "Probes for the macro map, in lanczos and fast; at least 4.",
    "steps": "Lanczos steps for each probe.",
    "top_k": "In lanczos: count only the K largest singular values, sampling nothing.",
}


def scoring_options(command: Any) -> Any:
    """Every option of `eics.Options`, by the same name; what is not given comes from the preset."""
    for name, text in reversed(_NUMBERS.items()):
        default = "" if PAPER[name] is None else f"  [preset: {PAPER[name]}]"
        command = click.option(f"--{name.replace('_', '-')}", name, type=int, help=text + default)(command)
    for name, text in reversed(_HELP.items()):
        command = click.option(f"--{name}", type=click.Choice(CHOICES[name]), help=_with_presets(name, text))(command)
    target = "With --alpha auto: median macro EI asked for, nats for each read-out dimension."
    command = click.option("--target", type=float, help=f"{target}  [preset: {PAPER.target:.4f}]")(command)
    alpha = "Signal-to-noise scale > 0, or 'auto': calibrated on the prompts given.  [preset: 1.0]"
    return click.option("--alpha", callback=_alpha, metavar="NUMBER|auto", help=alpha)(command)


def _with_presets(name: str, text: str) -> str:
    values = {preset: options[name] for preset, options in PRESETS.items()}
    if len(set(values.values())) == 1:
        return f"{text}  [preset: {PAPER[name]}]"
    return f"{text}  [{', '.join(f'{preset}: {value}' for preset, value in values.items())}]"


@click.command()
@click.option(
    "--circuit",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Explicit linear circuit, .safetensors: `eics toy` writes one, eics.linear_file.save_linear yours.",
)
@click.option(
    "--preset",
    type=click.Choice([*PRESETS, "both"]),
    default="paper",
    show_default=True,
    help="Options to start from; 'both' gives two records a prompt.",
)
@scoring_options
@click.option("--curve", is_flag=True, default=None, help="Keep dEI(alpha) and its zeros in the record.")
@click.option(
    "--laplacian",
    is_flag=True,
    default=None,
    help="Keep kernel dimension, lambda2, spectral gap and projection distance.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Records: .jsonl or .parquet.")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON lines instead of a table.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def score(circuit: Path, preset: str, out: Path | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Scores an explicit linear circuit: every edge a matrix, every node an activation.

    Prints a table of the score, its components and the worst edges of each prompt.
    """
    from eics.options import resolve
    from eics.records import check_path

    chosen = {name: value for name, value in given.items() if value is not None}
    names = list(PRESETS) if preset == "both" else [preset]
    runs: dict[str, Options] = {name: resolve(name, chosen) for name in names}
    if out is not None:
        check_path(out)
    from eics.linear_file import load_linear
    from eics.records import write_records
    from eics.result import Scores
    from eics.score import score_batch

    loaded = load_linear(circuit)
    scored = {name: score_batch(loaded.linearize(o.linearization), o) for name, o in runs.items()}
    # Records in input order: both presets' records of a prompt stand together.
    together = Scores(one for prompt in zip(*scored.values(), strict=True) for one in prompt)
    if out is not None:
        write_records(together, out)
    if not quiet:
        _show(scored, together, as_json)


def _show(scored: dict[str, Any], together: Any, as_json: bool) -> None:
    from eics.cli.tables import score_table
    from eics.cli.terminal import console
    from eics.records import to_line

    if as_json:
        for record in together:
            click.echo(to_line(record))
        return
    screen = console()
    for name, scores in scored.items():
        screen.print(score_table(scores, f"EICS, preset {name}"))
        for sentence in scores.summary():
            screen.print(f"- {sentence}", markup=False)
