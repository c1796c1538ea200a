"""`eics export` and `eics report`: a file of records for other tools and for readers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options, output
from eics.cli.help import Command
from eics.errors import RecordError
from eics.scoring.numbers import number
from eics.scoring.options import CONFIGURATION, changes_of, nearest_preset

if TYPE_CHECKING:
    from eics.scoring.result import Score

FORMATS = ("neuronpedia", "eap-json", "eics-circuit", "csv", "graphml")  # the writers that keep our extra keys

record_options = options.combine(
    click.option("--prompt-id", help="Prompt whose record to use.  [default: the first that was scored]"),
    options.preset(
        default=None, text="Which record, if the prompt has one per preset.  [default: the first that was scored]"
    ),
)
"""The two options that choose a record, for `choose_record`."""


def choose_record(path: Path, prompt_id: str | None, preset: str | None = None) -> "Score":
    """The first scored record of a file with this prompt and preset."""
    from eics.scoring.records import read_records

    records = [score for score in read_records(path) if prompt_id is None or str(score.id) == prompt_id]
    which = "one record" if prompt_id is None else f"a record of prompt {prompt_id!r}"
    if not records:
        raise RecordError(f"The file {str(path)!r} must have at least {which}. It has none.")
    scored = [score for score in records if not score.failed]
    if not scored:
        raise RecordError(f"A record must have been scored. Prompt {records[0].id} failed: {records[0].reason}")
    matching = [score for score in scored if preset in (None, nearest_preset(_configuration(score)))]
    if not matching:
        present = ", ".join(dict.fromkeys(configuration_of(score) for score in scored))
        raise RecordError(f"The file {str(path)!r} must have {which} of preset {preset}. It has: {present}.")
    return matching[0]


def configuration_of(score: "Score") -> str:
    """The preset that a record was scored with, and the options that differ from it."""
    used = _configuration(score)
    if not any(used.values()):
        return "configuration not recorded"
    preset = nearest_preset(used)
    changes = changes_of(preset, used)
    return f"preset {preset}" + (f" with {', '.join(changes)}" if changes else "")


def _configuration(score: "Score") -> Mapping[str, Any]:
    return {name: getattr(score, name) for name in CONFIGURATION}


@click.command(cls=Command)
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=options.FILE)
@click.argument("out", metavar="OUT", type=options.FILE)
@click.option("--to", "format", type=click.Choice(FORMATS), default="neuronpedia", show_default=True, help="Format.")
@record_options
@options.overwrite
@options.quiet
def export(
    records: Path, out: Path, format: str, prompt_id: str | None, preset: str | None, overwrite: bool, quiet: bool
) -> None:
    """Writes one prompt's scored circuit for other tools.

    Edge weights are attributions if the records have them, else shares of the inconsistency. Residuals, shares,
    cosines, norms and EI are written as extra keys, which other tools ignore.

    \b
    eics export records.jsonl graph.json --prompt-id 0
    """
    options.check_out(out)
    files = output.outputs({"OUT": out}, {"RECORDS": records}, overwrite=overwrite)
    from eics.circuits.formats import write_graph
    from eics.cli.terminal import say
    from eics.reporting.export import scored_graph

    score = choose_record(records, prompt_id, preset)
    graph = scored_graph(score)
    with files:
        notes = write_graph(graph, out, format)
    done = f"Prompt {score.id}, {configuration_of(score)}: {len(score.edges)} edges, written to {out}."
    for line in () if quiet else (*notes, done):
        say(line)


@click.command(cls=Command)
@click.argument("records", metavar="RECORDS.jsonl|.parquet...", type=options.FILE, nargs=-1, required=True)
@click.option("--out", type=options.FILE, required=True, help="The page: an .html file.")
@options.overwrite
@options.quiet
def report(records: tuple[Path, ...], out: Path, overwrite: bool, quiet: bool) -> None:
    """Builds an HTML page from scored records, or from what `eics compare` or `eics trace` wrote.

    One interactive file from the output of `eics score` alone, without network or server: the run, all prompts, and for
    each prompt the circuit, its edges and the curve of dEI. Several files become several runs of one page, which names
    the options in which they differ. The page, and this command, list what could not be read. A comparison
    (compare.json) or a trace has a page of its own.

    \b
    eics report records.jsonl --out report.html
    """
    from eics.cli.terminal import say
    from eics.reporting.page import read_readable, write_report
    from eics.reporting.page.documents import check_single, document_format, write_document_page
    from eics.reporting.page.shell import check_report_path

    check_report_path(out)
    files = output.outputs({"--out": out}, {"RECORDS": list(records)}, overwrite=overwrite)
    if len(records) == 1 and document_format(records[0]) is not None:
        with files:
            write_document_page(records[0], out)
        if not quiet:
            say(f"{records[0]}, written to {out} ({number(out.stat().st_size / 1e6)} MB).")
        return
    check_single(records)
    readable = read_readable(*records)
    if not readable.scores:
        first = readable.notes[0] if readable.notes else "It is empty."
        names = ", ".join(repr(str(path)) for path in records)
        raise RecordError(f"A page must have a record that can be read. {names} has none: {first}")
    source = ", ".join(path.name for path in records)
    with files:
        write_report(readable.scores, out, notes=readable.notes, source=source, origins=readable.origins)
    if quiet:
        return
    for note in readable.notes:
        say(note, err=True)
    say(f"{len(readable.scores)} records, written to {out} ({number(out.stat().st_size / 1e6)} MB).")
