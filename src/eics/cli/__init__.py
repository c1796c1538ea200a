"""The command line. Heavy imports wait inside the commands, so that `--help` is instant."""

import os
import sys

import click

from eics import __version__
from eics.cli.bench import bench
from eics.cli.calibrate import calibrate
from eics.cli.circuit import circuit
from eics.cli.circuit_draw import draw
from eics.cli.damage import damage
from eics.cli.discover import discover
from eics.cli.export import export
from eics.cli.faithfulness import faithfulness
from eics.cli.models import models
from eics.cli.report import report
from eics.cli.score import score
from eics.cli.toy import toy
from eics.cli.track import track
from eics.cli.validate import validate
from eics.errors import EICSError


class _Commands(click.Group):
    """Turns an error that the user can mend into one line and exit code 2."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except EICSError as error:
            click.echo(f"eics: {error}", err=True)
            sys.exit(2)
        except BrokenPipeError:  # the reader of our output has seen enough
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter flushes it on its way out
            sys.exit(0)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            click.echo(f"eics: cannot write or read{where}: {error.strerror or error}", err=True)
            sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eics")
def main() -> None:
    """EICS: is this circuit working on this input, and which edges break?"""


circuit.add_command(draw)
circuit.add_command(faithfulness)
main.add_command(bench)
main.add_command(calibrate)
main.add_command(circuit)
main.add_command(damage)
main.add_command(discover)
main.add_command(export)
main.add_command(models)
main.add_command(report)
main.add_command(score)
main.add_command(toy)
main.add_command(validate)
main.add_command(track)
