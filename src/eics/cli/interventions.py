"""Interventions on the command line: `--noise m3=1 --ablate a5.h2 --patch a5.h2="..." --steer m3@last=0.5`.

Each is `NODE[@POSITIONS][=VALUE]`; positions are `all`, `last`, or numbers separated by commas. The value is a
strength, for `--patch` and `--patch-read` the other prompt's text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options
from eics.data.json_text import parse_json
from eics.errors import EICSError, OptionError

if TYPE_CHECKING:
    from eics.circuits.graph import Circuit
    from eics.models.base import Model
    from eics.transformer.interventions import Intervention
    from eics.transformer.means import Means

_KINDS = ("ablate", "patch", "patch_read", "steer", "noise")
_PATCHES = ("patch", "patch_read")
_MEAN = "mean"

vector = click.option(
    "--vector",
    type=options.FILE,
    help="Steering vector: a JSON list with one number per dimension of the residual stream.  "
    "[default: a random direction]",
)

intervening = options.combine(
    click.option(
        "--ablate",
        multiple=True,
        metavar="NODE[=STRENGTH|mean]",
        help="Move what a node writes to zero, or to its mean in --calibration. Repeatable, as the next four. "
        "NODE@last or NODE@2,3 intervenes at these positions only.",
    ),
    click.option(
        "--patch", multiple=True, metavar="NODE=TEXT", help="Replace what a node writes by its write on another prompt."
    ),
    click.option(
        "--patch-read",
        multiple=True,
        metavar="MLP=TEXT",
        help="Replace what an MLP reads from outside the circuit by what it reads there on another prompt.",
    ),
    click.option(
        "--steer", multiple=True, metavar="NODE[=STRENGTH]", help="Add a direction, as long as the write at strength 1."
    ),
    click.option(
        "--noise", multiple=True, metavar="NODE[=STRENGTH]", help="Add noise, about as long as the write at strength 1."
    ),
    vector,
)


def has_interventions(given: dict[str, Any]) -> bool:
    """Whether any were asked for."""
    return any(given[kind] for kind in _KINDS)


def interventions(given: dict[str, Any], means: "Means | None" = None) -> "list[Intervention] | None":
    """The interventions that `intervening` names: ablations first, then patches, steering and noise.

    `means` are those of a calibration, for ablation to the mean.
    """
    if given["vector"] is not None and not given["steer"]:
        raise OptionError("--vector is the direction of --steer NODE: name the node to steer.")
    if not has_interventions(given):
        return None
    direction = None if given["vector"] is None else steering_vector(given["vector"])
    return list(_parsed(given, direction, means))


def bound(changes: "list[Intervention] | None", model: "Model", circuit: "Circuit") -> "list[Intervention] | None":
    """The interventions as records will have them; what the model cannot do is refused, before anything is written."""
    from eics.transformer.interventions.donors import bind

    return None if changes is None else list(bind(model, circuit, changes))


def steering_vector(path: Path) -> list[float]:
    """The numbers in a JSON file."""
    try:
        numbers = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OptionError(f"The steering vector must be a readable JSON file. Got {str(path)!r}: {reason}.") from None
    if not isinstance(numbers, list) or not all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in numbers
    ):
        raise OptionError.of("vector", "a JSON list of numbers", str(path))
    try:
        return [float(number) for number in numbers]
    except OverflowError:
        raise OptionError.of("vector", "a JSON list of numbers that fit into 64 bits", str(path)) from None


def positions(option: str, text: str) -> str | list[int]:
    """Token positions: `all`, `last`, or numbers separated by commas."""
    if text in ("all", "last"):
        return text
    words = [word.strip() for word in text.split(",") if word.strip()]
    return options.numbers(option, words, int, "all, last or whole numbers separated by commas")


def _parsed(given: dict[str, Any], direction: list[float] | None, means: "Means | None") -> "Iterator[Intervention]":
    from eics.transformer.interventions import KINDS

    seed = {"seed": given.get("seed") or 0}
    further: dict[str, dict[str, Any]] = {"noise": seed, "steer": seed | {"vector": direction}}
    for kind in _KINDS:
        for text in given[kind]:
            node, at, value = _split(kind, text)
            fields: dict[str, Any] = {"node": node, "at": at} | further.get(kind, {})
            if kind in _PATCHES:
                fields["prompt"] = value
            elif kind == "ablate" and value == _MEAN:
                fields["mean"] = _mean(node, means)
            elif value is not None:
                fields["strength"] = _strength(kind, text, value)
            try:
                yield KINDS[kind](**fields)
            except EICSError as error:
                raise OptionError(f"--{_flag(kind)} {text}: {error}") from None


def _split(kind: str, text: str) -> tuple[str, str | list[int], str | None]:
    """Node, positions and value of `NODE[@POSITIONS][=VALUE]`."""
    place, equals, value = text.partition("=")
    node, at_sign, at = place.partition("@")
    if not node.strip() or (kind in _PATCHES and not value):
        must = "NODE=TEXT, the node and the other prompt" if kind in _PATCHES else "a node, as in m3 or m3=0.5"
        raise OptionError.of(_flag(kind), must, text)
    chosen: str | list[int] = positions(_flag(kind), at.strip()) if at_sign else "all"
    return node.strip(), chosen, value if equals else None


def _flag(kind: str) -> str:
    return kind.replace("_", "-")


def _strength(kind: str, text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        hint = "; positions go with the node, as in m3@last=1" if "@" in value else ""
        either = ", or 'mean'" if kind == "ablate" else ""
        raise OptionError.of(kind, f"NODE=STRENGTH with a number{either}{hint}", text) from None


def _mean(node: str, means: "Means | None") -> Any:
    if means is None:
        raise OptionError(f"--ablate {node}=mean needs --calibration, whose prompts give the mean.")
    if node not in means.writes:
        nodes = ", ".join(sorted(means.writes))
        raise OptionError(f"--ablate {node}=mean needs a node of the calibration's circuit, which has: {nodes}.")
    return means.writes[node]
