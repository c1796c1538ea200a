"""`eics export`."""

from pathlib import Path

import click

from eics.cli.choose import choose_record, configuration_of, record_options

FORMATS = ("neuronpedia", "eap-json", "eics-circuit", "csv", "graphml")  # writers that can hold what we add


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to", "format", type=click.Choice(FORMATS), default="neuronpedia", show_default=True, help="Format.")
@record_options
@click.option("--quiet", is_flag=True, help="Print nothing.")
def export(records: Path, out: Path, format: str, prompt_id: str | None, preset: str | None, quiet: bool) -> None:
    """One prompt's scored circuit for other tools.

    Weights are the edges' attributions where the records have them, else their shares of the inconsistency; residuals,
    shares, cosines, norms and EI are extra keys that other tools do not look at.
    """
    from eics.circuits.formats import write_graph
    from eics.errors import OptionError
    from eics.reporting.export import scored_graph

    if not out.parent.is_dir() or (out.exists() and out.samefile(records)):
        raise OptionError.of("out", "a file in a folder that exists, and not the records themselves", str(out))
    score = choose_record(records, prompt_id, preset)
    notes = write_graph(scored_graph(score), out, format)
    done = f"Prompt {score.id}, {configuration_of(score)}: {len(score.edges)} edges, written to {out}."
    for line in () if quiet else (*notes, done):
        click.echo(line)
