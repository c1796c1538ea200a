"""The command line `eics`: each module parses the options of a command or two, calls the library and prints.

It may import every room, and no room imports it. Heavy imports (torch, numpy, matplotlib, rich) stand inside the
commands, so that `--help` is instant. Start with `score.py`; `options.py` has the options that commands share,
`output.py` what they do about their output files, `tables.py` and `terminal.py` what they print with.
"""

import click

from eics import __version__
from eics.cli.bench import bench
from eics.cli.boundary import Commands
from eics.cli.calibrate import calibrate, calibration
from eics.cli.circuit import circuit
from eics.cli.compare import compare
from eics.cli.damage import damage
from eics.cli.discover import discover
from eics.cli.export import export, report
from eics.cli.models import models
from eics.cli.score import score
from eics.cli.toy import toy
from eics.cli.trace import trace
from eics.cli.track import track
from eics.cli.validate import validate


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="eics")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; also after a command.")
def main() -> None:
    """EICS: is this circuit working on this input, and which edges break?

    \b
    eics score --model people-0 --circuit people --mode fast \\
        --prompt "The profession of Lura Medorn is"
    """


_COMMANDS = (
    bench, calibrate, calibration, circuit, compare, damage, discover, export, models, report, score, toy, trace, track,
    validate,
)  # fmt: skip
for command in _COMMANDS:
    main.add_command(command)
