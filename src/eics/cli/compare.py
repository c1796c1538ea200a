"""`eics compare`: two models on the same prompts, or two sets of prompts on one model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click

from eics.cli import options, output, prompt_options
from eics.cli.help import Command
from eics.errors import OptionError

METRICS = ("kl", "log_prob", "logit_diff")
PAGE = "compare.html"
_OF_MODELS = ("metric", "restore", "samples", "one_at_a_time")
_OF_SETS = ("calibration", "level", "paired", "allow_changed_weights")
_OF_BOTH = ("resamples", "seed", "memory", "batch_size", "resume", "overwrite")


@click.command(cls=Command)
@options.model
@click.option("--against", help="The other model: folder, hub id, or a name from `eics models list`.")
@click.option("--adapter", type=options.FOLDER, help="The other model is --model with this LoRA adapter merged.")
@click.option("--circuit", help="Whose nodes to compare.  [two models: every part of the model]")
@prompt_options.prompt_files("Prompts")
@click.option(
    "--against-prompts",
    type=prompt_options.FILE,
    multiple=True,
    help="The second set of prompts, in the same formats; repeatable.",
)
@click.option("--group", metavar="FIELD", help="Field of the prompts that says what they belong to: groups count once.")
@click.option("--metric", type=click.Choice(METRICS), default="kl", help="What an effect is measured on; the last two "
              "need an answer (and a foil) for each prompt.")  # fmt: skip
@click.option(
    "--restore",
    type=click.IntRange(min=0),
    default=0,
    metavar="K",
    help="Measure the effect of the K largest parts truly, by writing A's value into B's run.",
)
@click.option(
    "--samples",
    type=options.POSITIVE,
    metavar="N",
    help="Samples of the second order of effects.  [default: an eighth of the prompts, at least 64]",
)
@click.option("--one-at-a-time", is_flag=True, help="Keep one model in memory at a time, and activations on disk.")
@click.option("--calibration", type=options.FILE, help="What is usual, from `eics calibrate`.  [fitted on --prompts]")
@click.option("--allow-changed-weights", is_flag=True, help="Go on if the weights changed since the calibration.")
@click.option("--level", type=float, default=0.05, help="Rate of false discoveries at which a node gets a role.")
@click.option(
    "--paired/--not-paired",
    default=None,
    help="Whether prompts of both sets with the same id belong together.  [default: if all ids are given and equal]",
)
@click.option("--resamples", type=options.POSITIVE, default=1000, help="Bootstrap resamples for intervals.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of samples and resamples.")
@click.option("--memory", type=float, help="Megabytes that one temporary block may take.")
@options.passes()
@click.option("--out", type=options.FOLDER, help="Folder for rows, document and page.")
@click.option("--report", type=options.FILE, help="One HTML page.  [with --out: compare.html there]")
@options.resume
@options.overwrite
@options.quiet
def compare(model: str, out: Path | None, report: Path | None, quiet: bool, **given: Any) -> None:
    """What changed: between two models of one architecture, or between two sets of prompts on one model?

    Two models (--against, --adapter), base and fine-tuned, quantized, pruned or edited, or two checkpoints of a run:
    how much of the change of each part's write was made there, how much it inherited from what it read, and what that
    does to the predictions.

    Two sets (--against-prompts, with --circuit): which nodes do something else on the second set than on the first,
    and whether what they were given explains it.

    \b
    eics compare --model people-0 --against people-1 --prompts people \\
        --limit 64 --restore 3 --out changed
    eics compare --model people-0 --circuit people --prompts people \\
        --against-prompts people-withheld --out sets
    """
    sets = _checked_kind(given)
    run = _sets if sets else _models
    run(model, out, report, quiet, given)


def _checked_kind(given: dict[str, Any]) -> bool:
    """Whether two sets of prompts are compared; refuses what says both or neither, and options of the other kind."""
    ways = [f"--{name.replace('_', '-')}" for name in ("against", "adapter", "against_prompts") if given[name]]
    if len(ways) != 1:
        raise OptionError(
            "A comparison needs another model (--against, or --adapter) or another set of prompts (--against-prompts). "
            f"Got {' and '.join(ways) or 'neither'}."
        )
    sets = bool(given["against_prompts"])
    if sets and given["circuit"] is None:
        raise OptionError("Two sets of prompts are compared on a circuit: give --circuit.")
    context = click.get_current_context()
    for name in _OF_MODELS if sets else _OF_SETS:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            kind = "two models" if sets else "two sets of prompts"
            raise OptionError(f"--{name.replace('_', '-')} concerns {kind}: leave it out.")
    return sets


def _models(model: str, out: Path | None, report: Path | None, quiet: bool, given: dict[str, Any]) -> None:
    from eics.circuits.load import load_circuit
    from eics.cli.compare_tables import parts_table
    from eics.cli.terminal import console, print_list, track
    from eics.studies.comparison.model_rows import DOCUMENT, FILES, RESTORED, ROWS
    from eics.studies.comparison.models import compare_models

    against, adapter = given["against"] or model, given["adapter"]
    inputs = {"--model": model, "--against": against, "--adapter": adapter}
    page, locked = _outputs(out, report, FILES, [ROWS, RESTORED], inputs, given)
    listed, groups = prompt_options.read_grouped(given, given["group"])
    circuit = None if given["circuit"] is None else load_circuit(given["circuit"])
    load = options.model_loader(given)
    load_against = load if adapter is None else partial(load, adapter=adapter)
    apart = given["one_at_a_time"]
    pair: tuple[Any, Any] = (model, against) if apart else (load(model), load_against(against))
    if given["chat"]:
        listed = prompt_options.in_chat(listed, load(model) if apart else pair[0], given)
    how = {name: given[name] for name in (*_OF_MODELS, *_OF_BOTH)} | {"load": load, "load_against": load_against}
    with locked:
        with track("prompts", len(listed), quiet=quiet, model=None if apart else pair[0], resumed=True) as tick:
            found = compare_models(pair[0], circuit, listed, pair[1], group=groups, out=out, tick=tick, **how)
        _write_page(found.to_record(), page)
    if not quiet:
        console().print(parts_table(found))
        print_list(*found.sentences, *_where(out, DOCUMENT, page))
    output.exit_with_reasons({prompt.id: str(prompt.reason) for prompt in found.prompts if prompt.status == "failed"})


def _sets(model: str, out: Path | None, report: Path | None, quiet: bool, given: dict[str, Any]) -> None:
    from eics.circuits.load import load_circuit
    from eics.cli.compare_tables import shifts_table
    from eics.cli.terminal import console, print_list, track
    from eics.studies.comparison.prompt_sets import compare_prompt_sets
    from eics.studies.comparison.set_rows import DOCUMENT, FILES, ROWS

    second = given | {"prompts": given["against_prompts"]}
    inputs = {"--against-prompts": prompt_options.input_files(second), "--calibration": given["calibration"]}
    page, locked = _outputs(out, report, FILES, [ROWS], {"--model": model, **inputs}, given)
    read = [prompt_options.read_grouped(one, given["group"]) for one in (given, second)]
    circuit, loaded = load_circuit(given["circuit"]), options.model_loader(given)(model)
    sets = [prompt_options.in_chat(prompts, loaded, given) for prompts, _ in read]
    groups = [own for _, own in read]
    how = {name: given[name] for name in (*_OF_SETS, *_OF_BOTH)}
    names = [" + ".join(map(str, one["prompts"])) for one in (given, second)]
    how |= {"group_a": groups[0], "group_b": groups[1], "names": names, "out": out}
    with locked:
        with track("prompts", sum(map(len, sets)), quiet=quiet, model=loaded, resumed=True) as tick:
            found = compare_prompt_sets(loaded, circuit, *sets, tick=tick, **how)
        _write_page(found.to_record(), page)
    if not quiet:
        console().print(shifts_table(found))
        print_list(*found.sentences, *_where(out, DOCUMENT, page))
    output.exit_with_reasons({id: reason for one in found.sets.values() for id, reason in one.failures.items()})


def _outputs(
    out: Path | None,
    report: Path | None,
    files: Sequence[str],
    rows: Sequence[str],
    inputs: dict[str, Any],
    given: dict[str, Any],
) -> tuple[Path | None, AbstractContextManager[object]]:
    """Checks the folder and the page before any work: where the page goes, or None, and a context that locks it."""
    inputs |= {"--prompts": prompt_options.input_files(given), "--circuit": given["circuit"]}
    resume, overwrite = given["resume"], given["overwrite"]
    if out is not None:
        output.check_run_folder(out, (*files, PAGE), rows, inputs, resume=resume, overwrite=overwrite)
    elif resume:
        raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
    if report is None:
        return None if out is None else out / PAGE, nullcontext()
    from eics.reporting.page.shell import check_report_path

    check_report_path(report)
    return report, output.outputs({"--report": report}, inputs, overwrite=overwrite or resume)


def _write_page(record: dict[str, Any], page: Path | None) -> None:
    if page is not None:
        from eics.reporting.page import write_comparison_page

        write_comparison_page(record, page)


def _where(out: Path | None, document: str, page: Path | None) -> list[str]:
    """What was written, in a sentence."""
    written = [str(path) for path in (None if out is None else out / document, page) if path is not None]
    return [f"Full results: {', '.join(written)}."] if written else []
