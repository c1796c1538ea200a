"""`eics export` and `eics report`: a file of records for other tools and for readers."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.cli import options
from eics.errors import OptionError, RecordError
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
    scored = [score for score in records if score.eics is not None]
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


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=options.FILE)
@click.argument("out", metavar="OUT", type=options.FILE)
@click.option("--to", "format", type=click.Choice(FORMATS), default="neuronpedia", show_default=True, help="Format.")
@record_options
@options.quiet
def export(records: Path, out: Path, format: str, prompt_id: str | None, preset: str | None, quiet: bool) -> None:
    """Writes one prompt's scored circuit for other tools.

    Edge weights are attributions if the records have them, else shares of the inconsistency. Residuals, shares,
    cosines, norms and EI are written as extra keys, which other tools ignore.
    """
    options.check_out(out)
    if out.exists() and out.samefile(records):
        raise OptionError.of("out", "another file than the records", str(out))
    from eics.circuits.formats import write_graph
    from eics.reporting.export import scored_graph

    score = choose_record(records, prompt_id, preset)
    notes = write_graph(scored_graph(score), out, format)
    done = f"Prompt {score.id}, {configuration_of(score)}: {len(score.edges)} edges, written to {out}."
    for line in () if quiet else (*notes, done):
        click.echo(line)


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=options.FILE)
@click.option("--out", type=options.FILE, required=True, help="The page: an .html file.")
@options.quiet
def report(records: Path, out: Path, quiet: bool) -> None:
    """Builds an HTML page from scored records.

    One interactive file from the output of `eics score` alone, without network or server: the run, all prompts, and for
    each prompt the circuit, its edges and the curve of dEI. The page, and this command, list what could not be read.
    """
    from eics.reporting.page import read_readable, write_report
    from eics.reporting.page.build import check_report_path

    check_report_path(out)
    readable = read_readable(records)
    write_report(readable.scores, out, notes=readable.notes, source=records.name)
    if quiet:
        return
    for note in readable.notes:
        click.echo(note, err=True)
    click.echo(f"{len(readable.scores)} records, written to {out} ({out.stat().st_size / 1e6:.2g} MB).")
