"""`eics export`."""

from pathlib import Path

import click

FORMATS = ("neuronpedia", "eap-json", "eics-circuit", "csv", "graphml")  # writers that can hold what we add


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--to", "format", type=click.Choice(FORMATS), default="neuronpedia", show_default=True, help="Format.")
@click.option("--prompt-id", help="Which record to export.  [default: the first that was scored]")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def export(records: Path, out: Path, format: str, prompt_id: str | None, quiet: bool) -> None:
    """One prompt's scored circuit for other tools.

    Weights are the edges' attributions where the records have them, else their shares of the inconsistency; residuals,
    shares, cosines, norms and EI are extra keys that other tools do not look at.
    """
    from eics.cli.choose import choose_record
    from eics.errors import OptionError
    from eics.formats import write_graph
    from eics.formats.scored import scored_graph

    if not out.parent.is_dir() or (out.exists() and out.samefile(records)):
        raise OptionError.of("out", "a file in a folder that exists, and not the records themselves", str(out))
    score = choose_record(records, prompt_id)
    notes = write_graph(scored_graph(score), out, format)
    for line in () if quiet else (*notes, f"Prompt {score.id}: {len(score.edges)} edges, written to {out}."):
        click.echo(line)
