"""`eics report`."""

from pathlib import Path

import click


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The page: a .html file.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
def report(records: Path, out: Path, quiet: bool) -> None:
    """A page to look at, from the records of `eics score` alone.

    One HTML file without network or server: the run, all prompts, and for each prompt the circuit, its edges and the
    curve of dEI. What cannot be read of the records is said on the page and here.
    """
    from eics.reporting.page import read_readable, write_report
    from eics.reporting.page.build import check_report_path

    check_report_path(out)
    found = read_readable(records)
    write_report(found.scores, out, notes=found.notes, source=records.name)
    if quiet:
        return
    for note in found.notes:
        click.echo(note, err=True)
    size = out.stat().st_size
    click.echo(f"{len(found.scores)} records, written to {out} ({size / 1e6:.2g} MB).")
