"""`eics calibrate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options

if TYPE_CHECKING:
    from eics.scoring.calibration.calibration import Calibration

_FEW = 50  # prompts; with fewer, percentiles are too coarse not to warn


@click.command()
@options.model
@options.circuit
@click.option("--prompts", required=True, type=options.FILE, help="The reference set, one JSON object per line.")
@click.option("--out", required=True, type=options.FILE, help="The calibration: .safetensors or .json.")
@options.preset()
@options.scoring
@options.tokens
@options.answer
@options.passes()
@options.trust
@options.quiet
def calibrate(
    model: str,
    circuit: str,
    prompts: Path,
    out: Path,
    preset: str,
    tokens: str | None,
    answer: int | None,
    batch_size: int,
    quiet: bool,
    **given: Any,
) -> None:
    """Scores a reference set of prompts and keeps what later scores are compared with.

    Keeps alpha (as given, or chosen with --alpha auto), quantiles of the score and its components, and the means of
    what the circuit's nodes write and read.

    \b
    eics calibrate --model M --circuit C --prompts usual.jsonl --preset well-posed --alpha auto --out usual.safetensors
    eics score --model M --circuit C --prompts new.jsonl --preset well-posed --calibration usual.safetensors
    """
    chosen = options.chosen_options(preset, given)[preset]
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import print_list, track
    from eics.models.prompts import read_prompts
    from eics.scoring.calibration.file import check_calibration_path, save_calibration
    from eics.scoring.calibration.fit import calibrate as fit

    check_calibration_path(out)
    listed, loaded_circuit = read_prompts(prompts), load_circuit(circuit)
    loaded = options.model_loader(given)(model)
    with track("prompts", len(listed), quiet=quiet) as tick:
        calibration = fit(
            loaded,
            loaded_circuit,
            listed,
            preset=chosen,
            answer=answer,
            tokens=options.token_ids(tokens),
            batch_size=batch_size,
            tick=tick,
        )
    save_calibration(calibration, out)
    if not quiet:
        print_list(*_sentences(calibration, out, len(listed)))


def _sentences(calibration: "Calibration", out: Path, given: int) -> Iterator[str]:
    prompts, chosen = calibration.prompts, calibration.chosen
    yield f"{out}: {prompts} prompts on {calibration.model}, {calibration.circuit['name']}."
    if chosen is None:
        yield f"alpha {calibration.alpha:g}, as given."
    else:
        low, high = chosen.quartiles
        yield (
            f"alpha {calibration.alpha:.6g}: macro EI per read-out dimension has a median of {chosen.median:.4g} nats "
            f"(quartiles {low:.4g} to {high:.4g})."
        )
    for name, quantiles in calibration.quantiles.items():
        yield f"{name}: median {quantiles[50]:.4g}, quartiles {quantiles[25]:.4g} to {quantiles[75]:.4g}."
    if prompts < given:
        yield f"{given - prompts} prompts could not be scored and are left out."
    if prompts < _FEW:
        yield f"With {prompts} prompts a percentile is coarse: one step is {100 / prompts:.0f}."
