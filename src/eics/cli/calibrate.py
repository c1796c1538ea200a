"""`eics calibrate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.options import chosen_options, scoring_options
from eics.scoring.options import PRESETS

if TYPE_CHECKING:
    from eics.scoring.calibration.calibration import Calibration

_FEW = 50  # prompts below which a percentile is worth a warning


@click.command()
@click.option(
    "--model", required=True, help="Folder or hub id of a transformers model, or a name from `eics models list`."
)
@click.option("--circuit", required=True, help="Circuit file or a bundled one's name.")
@click.option(
    "--prompts",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The reference set, one JSON object a line.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The calibration: .safetensors or .json.",
)
@click.option(
    "--preset", type=click.Choice(list(PRESETS)), default="paper", show_default=True, help="Options to start from."
)
@scoring_options
@click.option("--tokens", help="Token ids for --readout tokens, separated by commas.")
@click.option("--answer", type=int, help="Position of the answer, from the end if negative.  [default: last token]")
@click.option(
    "--dtype", type=click.Choice(["float32", "float64", "bfloat16"]), help="Of the model.  [default: float32]"
)
@click.option("--device", help="Of the model, as torch names it.  [default: cpu]")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Prompts in a pass.")
@click.option("--trust-remote-code", is_flag=True, help="Allow a model's own code from a hub to run.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
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
    """Scores a reference set of prompts and keeps what later scores are read by.

    Keeps alpha (chosen with --alpha auto, or the one given), quantiles of the score and its parts, and the means of
    what the circuit's nodes write and read.

    \b
    eics calibrate --model M --circuit C --prompts usual.jsonl --preset well-posed --alpha auto --out usual.safetensors
    eics score --model M --circuit C --prompts new.jsonl --preset well-posed --calibration usual.safetensors
    """
    chosen = chosen_options(preset, given)[preset]
    from eics.circuits.load import load_circuit
    from eics.cli.score_model import token_ids
    from eics.cli.terminal import track
    from eics.models.prompts import read_prompts
    from eics.scoring.calibration.file import check_calibration_path, save_calibration
    from eics.scoring.calibration.fit import calibrate as measure
    from eics.transformer.adapt import load_model

    check_calibration_path(out)
    listed, loaded_circuit = read_prompts(prompts), load_circuit(circuit)
    options = {"trust_remote_code": True} if trust_remote_code else {}
    loaded = load_model(model, dtype=dtype, device=device, **options)
    with track("prompts", len(listed), quiet=quiet) as tick:
        found = measure(
            loaded,
            loaded_circuit,
            listed,
            preset=chosen,
            answer=answer,
            tokens=token_ids(tokens),
            batch_size=batch_size,
            tick=tick,
        )
    save_calibration(found, out)
    if not quiet:
        _show(found, out, len(listed))


def _show(found: "Calibration", out: Path, asked: int) -> None:
    from eics.cli.terminal import console

    screen = console()
    lines = [f"{out}: {found.prompts} prompts on {found.model}, {found.circuit['name']}"]
    if found.chosen is None:
        lines.append(f"alpha {found.alpha:g}, as given")
    else:
        low, high = found.chosen.quartiles
        lines.append(
            f"alpha {found.alpha:.6g}: macro EI for each read-out dimension has a median of {found.chosen.median:.4g} "
            f"nats (quartiles {low:.4g} to {high:.4g})"
        )
    for name, known in found.quantiles.items():
        lines.append(f"{name}: median {known[50]:.4g}, quartiles {known[25]:.4g} to {known[75]:.4g}")
    if found.prompts < asked:
        lines.append(f"{asked - found.prompts} prompts could not be scored and are left out")
    if found.prompts < _FEW:
        lines.append(f"with {found.prompts} prompts a percentile is coarse: a step is {100 / found.prompts:.0f}")
    for line in lines:
        screen.print(f"- {line}.", markup=False)
