"""`eics calibrate`."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import (
    FILE,
    answer_option,
    chosen_options,
    circuit_option,
    model_option,
    pass_options,
    quiet_option,
    scoring_options,
    tokens_option,
    trust_option,
)
from eics.scoring.options import PRESETS

if TYPE_CHECKING:
    from eics.scoring.calibration.calibration import Calibration

_FEW = 50  # prompts; with fewer, percentiles are too coarse not to warn


@click.command()
@model_option
@circuit_option
@click.option("--prompts", required=True, type=FILE, help="The reference set, one JSON object per line.")
@click.option("--out", required=True, type=FILE, help="The calibration: .safetensors or .json.")
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="paper", show_default=True, help="Options to start from."
)
@scoring_options
@tokens_option
@answer_option
@pass_options()
@trust_option
@quiet_option
def calibrate(
    model: str,
    circuit: str,
    prompts: Path,
    out: Path,
    preset: str,
    tokens: str | None,
    answer: int | None,
    dtype: str | None,
    device: str | None,
    batch_size: int,
    trust_remote_code: bool,
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
    chosen = chosen_options(preset, given)[preset]
    from eics.circuits.load import load_circuit
    from eics.cli.score_model import token_ids
    from eics.cli.terminal import print_list, track
    from eics.models.prompts import read_prompts
    from eics.scoring.calibration.file import check_calibration_path, save_calibration
    from eics.scoring.calibration.fit import calibrate as fit
    from eics.transformer.adapt import load_model

    check_calibration_path(out)
    listed, loaded_circuit = read_prompts(prompts), load_circuit(circuit)
    options = {"trust_remote_code": True} if trust_remote_code else {}
    loaded = load_model(model, dtype=dtype, device=device, **options)
    with track("prompts", len(listed), quiet=quiet) as tick:
        calibration = fit(
            loaded,
            loaded_circuit,
            listed,
            preset=chosen,
            answer=answer,
            tokens=token_ids(tokens),
            batch_size=batch_size,
            tick=tick,
        )
    save_calibration(calibration, out)
    if not quiet:
        print_list(_sentences(calibration, out, len(listed)))


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
