"""`eics calibrate` and `eics calibration show`."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command, Group
from eics.errors import OptionError
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.scoring.calibration.calibration import Calibration

AT = ("answer", "all")
_FEW = 50  # prompts; with fewer, percentiles are too coarse not to warn


@click.command(cls=Command)
@options.model
@options.circuit
@prompt_options.prompt_files("The reference set", required=False)
@click.option(
    "--add",
    type=options.FILE,
    multiple=True,
    help="More prompts for the calibration in --out, which must have kept its moments. Repeatable.",
)
@click.option("--out", required=True, type=options.FILE, help="A .safetensors file; or .json, without a sheaf.")
@options.preset("calibrated", default="calibrated", text="Options to start from; calibrated also learns a sheaf.")
@click.option(
    "--group",
    metavar="FIELD",
    help="Field of the prompts that says what they belong to (subject, template, ...): a group is never split between "
    "the part that teaches and the part that says what is usual.",
)
@click.option(
    "--at",
    type=click.Choice(AT),
    default="answer",
    show_default=True,
    help="Where nodes are judged: at the answer position, or at all but the first, pooled, as `eics trace` needs it.",
)
@click.option(
    "--keep-moments", is_flag=True, help="Keep what the fit summed up: about a megabyte for each node of the circuit."
)
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
    add: tuple[Path, ...],
    group: str | None,
    at: str,
    keep_moments: bool,
    tokens: str | None,
    answer: int | None,
    batch_size: int,
    overwrite: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Learns from a reference set of prompts what is usual, so that later scores can be compared with it.

    With the preset calibrated, which is the default, at least 100 prompts teach a sheaf: for each node, what it writes
    given what the circuit gives it, and how much that varies. It also keeps alpha (as given, or chosen with --alpha
    auto), quantiles of the score and its components, and the means of what the circuit's nodes write and read;
    --terms sheaf leaves these out, and costs little more than a forward pass for each prompt. The other presets keep
    these alone, from two prompts on.

    \b
    eics calibrate --model people-0 --circuit people --prompts people \\
        --terms sheaf --out usual.safetensors
    eics score --model people-0 --circuit people --prompts people-withheld \\
        --preset calibrated --terms sheaf --calibration usual.safetensors
    """
    if bool(add) == bool(given["prompts"]):
        raise OptionError("A calibration is made from --prompts FILE, or goes on with --add FILE: give one of the two.")
    if add:
        given |= {"prompts": tuple(map(str, add)), "terms": "sheaf"}
    chosen = options.chosen_options(preset, given)[preset]
    from eics.circuits.load import load_circuit
    from eics.cli.terminal import print_list, track_phases
    from eics.scoring.calibration.file import check_calibration_path, save_calibration
    from eics.scoring.calibration.fit import made
    from eics.scoring.calibration.task import checked_task

    check_calibration_path(out, learned=chosen.residual == "calibrated")
    files = output.outputs(
        {"--out": out},
        {"--prompts": prompt_options.input_files(given), "--circuit": circuit, "--model": model},
        overwrite=overwrite or bool(add),
    )
    earlier = _earlier(out, group) if add else None
    (listed, groups), loaded_circuit = prompt_options.read_grouped(given, group), load_circuit(circuit)
    loaded = options.model_loader(given)(model)
    listed = prompt_options.in_chat(listed, loaded, given)
    failures: dict[str | int, str] = {}
    with files, track_phases(quiet=quiet, model=loaded) as phase:
        task = checked_task(
            loaded,
            loaded_circuit,
            listed,
            preset=chosen,
            options={},
            group=groups,
            at=at,
            keep_moments=keep_moments,
            add_to=earlier,
            answer=answer,
            tokens=options.token_ids(tokens),
            batch_size=batch_size,
            phase=phase,
            failures=failures,
        )
        calibration = replace(made(task), group=group)
        save_calibration(calibration, out)
    if not quiet:
        show_nodes(calibration)
        print_list(f"{out}: {_headline(calibration)}", *_sentences(calibration, len(failures)))
    output.exit_with_reasons(failures)


def _earlier(out: Path, group: str | None) -> "Calibration":
    """The calibration to which prompts are added."""
    from eics.scoring.calibration.file import load_calibration

    earlier = load_calibration(out)
    if earlier.group != group:
        raise OptionError.of("group", f"{earlier.group!r}, as when the calibration was made", group)
    return earlier


@click.group(cls=Group)
def calibration() -> None:
    """Looks at calibrations, which `eics calibrate` makes.

    \b
    eics calibration show usual.safetensors
    """


@calibration.command(cls=Command)
@click.argument("file", type=options.FILE)
@options.quiet
def show(file: Path, quiet: bool) -> None:
    """Says what is in a calibration: whose it is, what it was learned from, and how well each node is explained.

    \b
    eics calibration show usual.safetensors
    """
    from eics.cli.terminal import print_list
    from eics.scoring.calibration.file import load_calibration

    loaded = load_calibration(file)
    if quiet:
        return
    show_nodes(loaded)
    print_list(_headline(loaded), *_identity(loaded), *_sentences(loaded))


def show_nodes(calibration: "Calibration") -> None:
    """A table of the nodes of a learned sheaf; nothing without one."""
    if calibration.learned is None:
        return
    from eics.cli.layout import Column, fitted
    from eics.cli.terminal import console
    from eics.scoring.calibration.summary import node_summaries

    rows = node_summaries(calibration.learned)
    columns = [
        Column("node", [row.node for row in rows], text=True),
        Column("r2", [number(row.r2) for row in rows]),
        Column("notices", [number(row.notices) for row in rows]),
        Column("not judged because", [row.reason or "" for row in rows], text=True, folds=True),
    ]
    if all(row.reason is None for row in rows):
        columns.pop()
    screen = console()
    title = "r2: explained share of what the write varies by; notices: the smallest change noticed, in units of that"
    screen.print(fitted(title, columns, screen.width))


def _headline(calibration: "Calibration") -> str:
    return f"{calibration.prompts} prompts on {calibration.model}, {calibration.circuit['name']}."


def _identity(calibration: "Calibration") -> Iterator[str]:
    yield f"Circuit {calibration.circuit['sha256'][:12]}, calibration {calibration.sha256[:12]}."
    if calibration.fingerprint is not None:
        yield f"Weights {calibration.fingerprint[:12]}."
    used = ", ".join(f"{name} {value}" for name, value in calibration.options.items() if value is not None)
    yield f"Options: {used}."
    if calibration.learned is not None:
        group = f"by {calibration.group}" if calibration.group else "by equal prompts"
        yield f"Split {group}, seed {calibration.seed}."
        if calibration.learned.kept is not None:
            yield "Moments were kept: more prompts can be added."


def _sentences(calibration: "Calibration", failed: int = 0) -> Iterator[str]:
    prompts, chosen = calibration.prompts, calibration.chosen
    if calibration.learned is not None:
        from eics.scoring.calibration.summary import sheaf_sentences

        yield from sheaf_sentences(calibration.learned)
    if calibration.alpha is not None and chosen is None:
        yield f"alpha {number(calibration.alpha, trim=True)}, as given."
    elif chosen is not None:
        low, high = chosen.quartiles
        yield (
            f"alpha {number(calibration.alpha)}: macro EI per read-out dimension has a median of "
            f"{number(chosen.median)} nats (quartiles {number(low)} to {number(high)})."
        )
    for name, quantiles in calibration.quantiles.items():
        lower, median, upper = (number(quantiles[percent]) for percent in (25, 50, 75))
        yield f"{name}: median {median}, quartiles {lower} to {upper}."
    if failed:
        yield f"{failed} prompts could not be scored and are left out."
    if prompts < _FEW and calibration.learned is None:
        yield f"With {prompts} prompts a percentile is coarse: one step is {number(100 / prompts)}."
