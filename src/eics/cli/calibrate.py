"""`eics calibrate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.scoring.calibration.calibration import Calibration

_FEW = 50  # prompts; with fewer, percentiles are too coarse not to warn


@click.command(cls=Command)
@options.model
@options.circuit
@prompt_options.prompt_files("The reference set")
@click.option("--out", required=True, type=options.FILE, help="The calibration: .safetensors or .json.")
@options.preset()
@options.scoring()
@options.tokens
@options.answer
@options.passes()
@options.overwrite
@options.quiet
def calibrate(
    model: str,
    circuit: str,
    out: Path,
    preset: str,
    tokens: str | None,
    answer: int | None,
    batch_size: int,
    overwrite: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Scores a reference set of prompts and keeps what later scores are compared with.

    Keeps alpha (as given, or chosen with --alpha auto), quantiles of the score and its components, and the means of
    what the circuit's nodes write and read.

    \b
    eics calibrate --model people-0 --circuit people --prompts people \\
        --preset well-posed --mode fast --out usual.safetensors
    eics score --model people-0 --circuit people --prompts people-withheld \\
        --preset well-posed --mode fast --calibration usual.safetensors
    """
    chosen = options.chosen_options(preset, given)[preset]
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import print_list, track
    from eics.scoring.calibration.file import check_calibration_path, save_calibration
    from eics.scoring.calibration.fit import calibrate as fit

    check_calibration_path(out)
    files = output.outputs(
        {"--out": out},
        {"--prompts": prompt_options.input_files(given), "--circuit": circuit, "--model": model},
        overwrite=overwrite,
    )
    listed, loaded_circuit = prompt_options.read(given), load_circuit(circuit)
    loaded = options.model_loader(given)(model)
    listed = prompt_options.in_chat(listed, loaded, given)
    failures: dict[str | int, str] = {}
    with files, track("prompts", len(listed), quiet=quiet, model=loaded) as tick:
        calibration = fit(
            loaded,
            loaded_circuit,
            listed,
            preset=chosen,
            answer=answer,
            tokens=options.token_ids(tokens),
            batch_size=batch_size,
            tick=tick,
            failures=failures,
        )
        save_calibration(calibration, out)
    if not quiet:
        print_list(*_sentences(calibration, out, len(listed)))
    output.exit_with_reasons(failures)


def _sentences(calibration: "Calibration", out: Path, given: int) -> Iterator[str]:
    prompts, chosen = calibration.prompts, calibration.chosen
    yield f"{out}: {prompts} prompts on {calibration.model}, {calibration.circuit['name']}."
    if chosen is None:
        yield f"alpha {number(calibration.alpha, trim=True)}, as given."
    else:
        low, high = chosen.quartiles
        yield (
            f"alpha {number(calibration.alpha)}: macro EI per read-out dimension has a median of "
            f"{number(chosen.median)} nats (quartiles {number(low)} to {number(high)})."
        )
    for name, quantiles in calibration.quantiles.items():
        lower, median, upper = (number(quantiles[percent]) for percent in (25, 50, 75))
        yield f"{name}: median {median}, quartiles {lower} to {upper}."
    if prompts < given:
        yield f"{given - prompts} prompts could not be scored and are left out."
    if prompts < _FEW:
        yield f"With {prompts} prompts a percentile is coarse: one step is {number(100 / prompts)}."
