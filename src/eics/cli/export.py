"""`eics export`."""

from pathlib import Path

import click

from eics.cli.choose import choose_record, configuration_of, record_options
from eics.cli.options import FILE, check_out, quiet_option
from eics.errors import OptionError

FORMATS = ("neuronpedia", "eap-json", "eics-circuit", "csv", "graphml")  # the writers that keep our extra keys


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=FILE)
@click.argument("out", metavar="OUT", type=FILE)
@click.option("--to", "format", type=click.Choice(FORMATS), default="neuronpedia", show_default=True, help="Format.")
@record_options
@quiet_option
def export(records: Path, out: Path, format: str, prompt_id: str | None, preset: str | None, quiet: bool) -> None:
    """Writes one prompt's scored circuit for other tools.

    Edge weights are attributions if the records have them, else shares of the inconsistency. Residuals, shares,
    cosines, norms and EI are written as extra keys, which other tools ignore.
    """
    check_out(out)
    if out.exists() and out.samefile(records):
        raise OptionError.of("out", "another file than the records", str(out))
    from eics.circuits.formats import write_graph
    from eics.reporting.export import scored_graph

    score = choose_record(records, prompt_id, preset)
    notes = write_graph(scored_graph(score), out, format)
    done = f"Prompt {score.id}, {configuration_of(score)}: {len(score.edges)} edges, written to {out}."
    for line in () if quiet else (*notes, done):
        click.echo(line)
