"""`eics toy`."""

from pathlib import Path

import click

from eics.cli import options, output
from eics.cli.help import Command
from eics.data.files import writable


@click.command(cls=Command)
@click.option("--out", type=options.FOLDER, required=True, help="Folder to write figures and numbers to.")
@click.option("--seeds", type=click.IntRange(min=2), default=100, help="Random circuits to average over.")
@click.option(
    "--noisy-edge",
    "noisy",
    multiple=True,
    metavar="EDGE",
    help="Edge with additive noise in the protocol, such as 'n3->n5'; repeatable.  [default: n3->n5, n5->n6]",
)
@options.overwrite
@options.quiet
def toy(out: Path, seeds: int, noisy: tuple[str, ...], overwrite: bool, quiet: bool) -> None:
    """Reproduces the paper's six-node sanity check: figure and numbers.

    Writes toy.pdf/.png and toy.json (the paper's figure and numbers), toy-general.* (the same six nodes scored by the
    general code), toy-protocol.* (additive noise on chosen edges, with baselines), and toy-circuit.safetensors, an
    explicit circuit to try `eics score` on.

    \b
    eics toy --out toy
    eics score --circuit toy/toy-circuit.safetensors
    """
    from eics.cli.terminal import console, print_list, track
    from eics.studies.toy.experiment import FILES, STEPS, run_toy
    from eics.studies.toy.protocol import NOISY, check_noisy

    chosen = check_noisy(noisy or NOISY)
    files = output.outputs({f"{name} in --out": out / name for name in FILES}, {}, overwrite=overwrite)
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
    with files, track("toy experiment", STEPS, quiet=quiet) as tick:
        result = run_toy(seeds, chosen, tick)
        written = result.save(out)
    if quiet:
        return
    from eics.cli.tables import curve_table

    screen = console()
    screen.print(curve_table(result.paper))
    for title, sentences in result.sentences().items():
        screen.print(f"\n[bold]{title}[/bold] ({seeds} seeds)")
        print_list(*sentences)
    screen.print(f"\nWritten to {out}/: {', '.join(path.name for path in written)}", markup=False)
