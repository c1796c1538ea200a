"""Options and checks that several commands share. Scoring options take their names and choices from `eics.Options`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli.verbosity import describe_model, set_level, stage
from eics.errors import OptionError
from eics.linalg.memory import MEMORY_MB
from eics.models.device import DTYPES
from eics.scoring.numbers import number
from eics.scoring.options import BOTH, CHOICES, PAPER, PRESETS, Options, resolve

if TYPE_CHECKING:
    from eics.models.base import Model

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE = click.IntRange(min=1)
Decorator = Callable[[Any], Any]


def combine(*options: Decorator) -> Decorator:
    """One decorator that declares several options, listed by `--help` in this order."""

    def declare(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return declare


model = click.option(
    "--model", required=True, help="Folder or hub id of a transformers model, or a name from `eics models list`."
)
circuit = click.option(
    "--circuit", required=True, help="Circuit file (see `eics circuit`), or the name of a bundled circuit."
)
tokens = click.option("--tokens", help="Token ids for --readout tokens, separated by commas.")
answer = click.option(
    "--answer", type=int, help="Position of the answer; negative counts from the end.  [default: last token]"
)
trust = click.option(
    "--trust-remote-code", is_flag=True, help="Let Python files that come with a model run on this machine."
)
resume = click.option("--resume", is_flag=True, help="Continue an interrupted run in --out.")
overwrite = click.option("--overwrite", is_flag=True, help="Replace outputs that exist.")
quiet = combine(
    click.option("--quiet", is_flag=True, callback=set_level, help="Print nothing but errors."),
    click.option(
        "--verbose",
        is_flag=True,
        callback=set_level,
        expose_value=False,
        help="Also say what is loaded, from where, how long each stage takes, and every warning in full.",
    ),
)
"""How much is printed; only `--quiet` reaches the command."""


def preset(*further: str, default: str | None = "paper", text: str = "Options to start from.") -> Decorator:
    """`--preset`: the name of a preset, or one of `further`."""
    return click.option("--preset", type=click.Choice([*BOTH, *further]), default=default, help=text)


def memory(default: float) -> Decorator:
    """`--memory` of the commands that do not take it from `scoring`."""
    return click.option("--memory", type=float, default=default, help="Megabytes for the largest temporary blocks.")


def passes(what: str = "Prompts") -> Decorator:
    """How the model is loaded and runs: `--dtype`, `--device`, `trust` and `--batch-size`, which counts `what`."""
    return combine(
        click.option("--dtype", type=click.Choice(DTYPES), help="Precision of the model.  [default: float32]"),
        click.option("--device", default="auto", help="As torch names it; auto: a GPU (CUDA, else MPS), else the CPU."),
        click.option("--batch-size", type=POSITIVE, default=8, help=f"{what} per forward pass."),
        trust,
    )


def model_loader(given: dict[str, Any]) -> "Callable[..., Model]":
    """Loads models as `passes` says; takes their values, except the batch size, out of `given`. What it returns takes
    a path and further options of `load_model`."""
    from eics.transformer.adapt import load_model

    names = ("dtype", "device", "trust_remote_code")
    load: Callable[..., Model] = partial(load_model, **{name: given.pop(name) for name in names if name in given})

    def loaded(path: str, **more: Any) -> "Model":
        with stage(f"loading {path}"):
            model = load(path, **more)
        describe_model(model, path)
        return model

    return loaded


def numbers(option: str, parts: Sequence[str], kind: Callable[[str], Any], must: str) -> list[Any]:
    """The parts of a list separated by commas, as `kind`, which raises `ValueError` for what they must not be."""
    try:
        return [kind(part) for part in parts]
    except ValueError:
        raise OptionError.of(option, must, ",".join(parts)) from None


def token_ids(text: str | None) -> list[int] | None:
    """The token ids that `tokens` gives."""
    return None if text is None else numbers("tokens", text.split(","), int, "token ids separated by commas")


def check_out(path: Path | None, option: str = "out") -> None:
    """Refuses a file whose folder does not exist, before any work is done."""
    if path is not None and not path.parent.is_dir():
        raise OptionError.of(option, "a file in a folder that exists", str(path))


def check_picture(path: Path | None, option: str = "picture") -> None:
    """Refuses a picture of an unknown format or in a missing folder, before any work is done."""
    if path is not None and (path.suffix not in (".png", ".pdf", ".svg") or not path.parent.is_dir()):
        raise OptionError.of(option, "a .png, .pdf or .svg file in a folder that exists", str(path))


_CHOICES_HELP = {
    "mode": "How EI is computed. exact: by factorization. lanczos: stochastic Lanczos quadrature. fast: from moments "
    "of the spectra, at about the cost of limit. limit: the limit of small alpha, for ranking.",
    "linearization": "jacobian: the true Jacobian. frozen: norms, attention patterns and gates held fixed.",
    "residual": "C_sh per edge (equation 2), joint per node, propagated to the sinks, or calibrated per node.",
    "parts": "What dEI subtracts: the EI of every node, or of every edge into a sink.",
    "metric": "euclidean: plain norms. relative: each stalk in its own units, position by position.",
    "emergence": "difference (equation 3, clipped at 0) or intensive (nats per channel, not clipped).",
    "positions": "Token positions that count; no_sink starts at the second token.",
    "readout": "What the logits node holds: output of the final norm, all centred logits, or those of --tokens.",
    "terms": "all, or the sheaf term alone, which costs little more than a forward pass.",
    "factorization": "For mode exact: svd (every alpha at once), cholesky (one alpha), or auto, whichever fits.",
}
_NUMBERS_HELP = {
    "seed": "Seed of the probes.",
    "node_probes": "Probes per part, at least 4; not in exact.",
    "macro_probes": "Probes for the macro map, at least 4; not in exact.  [lanczos: 12, fast: 5, limit: 8]",
    "steps": "Lanczos steps per probe.",
    "top_k": "In lanczos: count only the K largest singular values, without sampling.",
}


def _alpha(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:  # noqa: ARG001
    if value is None or value == "auto":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"must be a number > 0, or 'auto'. Got {value!r}.") from None


def scoring(mode: str = PAPER.mode) -> Decorator:
    """Every option of `eics.Options` under the same name; the preset, and `mode`, fill in those that are not given."""
    alpha = "Signal-to-noise scale > 0, or 'auto': calibrated on the given prompts.  [preset: 1.0]"
    target = "With --alpha auto: median macro EI to reach, in nats per read-out dimension."
    block = "Megabytes that one temporary block may take before work is cut into chunks."
    return combine(
        click.option("--alpha", callback=_alpha, metavar="NUMBER|auto", help=alpha),
        click.option("--target", type=float, help=f"{target}  [preset: {number(PAPER.target)}]"),
        click.option("--memory", type=float, help=f"{block}  [default: {MEMORY_MB}, on a GPU an eighth of its memory]"),
        *(
            click.option(f"--{name}", type=click.Choice(CHOICES[name]), help=_with_presets(name, text, mode))
            for name, text in _CHOICES_HELP.items()
        ),
        *(
            click.option(f"--{name.replace('_', '-')}", name, type=int, help=_with_presets(name, text, mode))
            for name, text in _NUMBERS_HELP.items()
        ),
    )


def _with_presets(name: str, text: str, mode: str) -> str:
    if name == "mode" and mode != PAPER.mode:
        return f"{text}  [default: {mode}]"
    values = {preset: options[name] for preset, options in PRESETS.items()}
    if PAPER[name] is None:
        return text
    if len(set(values.values())) == 1:
        return f"{text}  [preset: {PAPER[name]}]"
    return f"{text}  [{', '.join(f'{preset}: {value}' for preset, value in values.items())}]"


def chosen_options(preset: str, given: dict[str, Any]) -> dict[str, Options]:
    """The configurations to score, by preset name; the preset fills in options that are None.

    Values in `given` that are no options of scoring are left alone.
    """
    chosen = {name: given[name] for name in PAPER if given.get(name) is not None}
    names = list(BOTH) if preset == "both" else [preset]
    return {name: resolve(name, chosen) for name in names}
