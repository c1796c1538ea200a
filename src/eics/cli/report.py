"""`eics report`."""

from pathlib import Path

import click

from eics.cli.options import FILE, quiet_option


@click.command()
@click.argument("records", metavar="RECORDS.jsonl|.parquet", type=FILE)
@click.option("--out", type=FILE, required=True, help="The page: an .html file.")
@quiet_option
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
