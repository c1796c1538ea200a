"""The options of scoring, shared by every command that scores: names and choices come from `eics.Options`."""

from pathlib import Path
from typing import Any

import click

from eics.errors import OptionError
from eics.linalg.memory import MEMORY_MB
from eics.scoring.options import CHOICES, PAPER, PRESETS, Options, resolve


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
    "readout": "What the logits node is: after the final norm, all centred logits, or those of --tokens.",
    "factorization": "How mode exact factorizes: svd (every alpha at once), cholesky (one alpha), or what fits.",
}
_NUMBERS = {
    "seed": "Seed of the probes.",
    "node_probes": "Probes for each part, in lanczos and fast; at least 4.",
    "macro_probes": "Probes for the macro map, at least 4.  [lanczos: 12, fast: 8]",
    "steps": "Lanczos steps for each probe.",
    "top_k": "In lanczos: count only the K largest singular values, sampling nothing.",
}


def check_picture(path: Path | None, option: str = "picture") -> None:
    """Before minutes are spent: a picture must be of a known kind, in a folder that exists."""
    if path is not None and (path.suffix not in (".png", ".pdf", ".svg") or not path.parent.is_dir()):
        raise OptionError.of(option, "a .png, .pdf or .svg file in a folder that exists", str(path))


def scoring_options(command: Any) -> Any:
    """Every option of `eics.Options`, by the same name; what is not given comes from the preset."""
    for name, text in reversed(_NUMBERS.items()):
        default = "" if PAPER[name] is None else f"  [preset: {PAPER[name]}]"
        command = click.option(f"--{name.replace('_', '-')}", name, type=int, help=text + default)(command)
    for name, text in reversed(_HELP.items()):
        command = click.option(f"--{name}", type=click.Choice(CHOICES[name]), help=_with_presets(name, text))(command)
    memory = "Megabytes that one temporary block may take before work is cut into chunks."
    default = f"[default: {MEMORY_MB}, on a GPU an eighth of its memory]"
    command = click.option("--memory", type=float, help=f"{memory}  {default}")(command)
    target = "With --alpha auto: median macro EI asked for, nats for each read-out dimension."
    command = click.option("--target", type=float, help=f"{target}  [preset: {PAPER.target:.4f}]")(command)
    alpha = "Signal-to-noise scale > 0, or 'auto': calibrated on the prompts given.  [preset: 1.0]"
    return click.option("--alpha", callback=_alpha, metavar="NUMBER|auto", help=alpha)(command)


def _with_presets(name: str, text: str) -> str:
    values = {preset: options[name] for preset, options in PRESETS.items()}
    if len(set(values.values())) == 1:
        return f"{text}  [preset: {PAPER[name]}]"
    return f"{text}  [{', '.join(f'{preset}: {value}' for preset, value in values.items())}]"


def chosen_options(preset: str, given: dict[str, Any]) -> dict[str, Options]:
    """The configurations asked for, by preset name; what was not given comes from the preset."""
    chosen = {name: value for name, value in given.items() if value is not None}
    names = list(PRESETS) if preset == "both" else [preset]
    return {name: resolve(name, chosen) for name in names}
