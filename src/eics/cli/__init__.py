"""The command line `eics`: each module parses the options of a command or two, calls the library and prints.

It may import every room, and no room imports it. Heavy imports (torch, numpy, matplotlib, rich) stand inside the
commands, so that `--help` is instant. Start with `score.py`; `options.py` has the options that commands share,
`tables.py` and `terminal.py` have what they print with.
"""

import os
import sys

import click

from eics import __version__
from eics.cli.bench import bench
from eics.cli.calibrate import calibrate
from eics.cli.circuit import circuit
from eics.cli.damage import damage
from eics.cli.discover import discover
from eics.cli.export import export, report
from eics.cli.models import models
from eics.cli.score import score
from eics.cli.toy import toy
from eics.cli.track import track
from eics.cli.validate import validate
from eics.errors import EICSError


class _Commands(click.Group):
    """Turns an error that the user can fix into one line and exit code 2."""

    def invoke(self, context: click.Context) -> object:
        try:
            return super().invoke(context)
        except EICSError as error:
            click.echo(f"eics: {error}", err=True)
            sys.exit(2)
        except BrokenPipeError:  # as in `eics ... | head`
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter still flushes it at exit
            sys.exit(0)
        except OSError as error:
            path = f" {error.filename}" if error.filename else ""
            click.echo(f"eics: cannot write or read{path}: {error.strerror or error}", err=True)
            sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="eics")
def main() -> None:
    """EICS: is this circuit working on this input, and which edges break?"""


for command in (bench, calibrate, circuit, damage, discover, export, models, report, score, toy, validate, track):
    main.add_command(command)
