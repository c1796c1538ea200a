"""Where every command starts and where its errors end: one line on standard error, and an exit code.

A user's mistake, a missing device, a full memory or a bug: none of them is a traceback unless `--debug` asks for it.
"""

import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from eics.cli import output
from eics.cli.help import Group
from eics.errors import EICSError, did_you_mean, printable

_LONGEST = 2000  # characters of a message; an exception may quote a whole file


class Commands(Group):
    """Turns an error into one line and exit code 2; takes `--debug` before and after the command's name."""

    debug = False

    def main(self, args: Sequence[str] | None = None, *more: Any, **how: Any) -> Any:
        """Takes `--debug` out of the arguments, wherever it stands, and runs the command."""
        given = list(sys.argv[1:] if args is None else args)
        end = given.index("--") if "--" in given else len(given)
        self.debug = "--debug" in given[:end] or bool(os.environ.get("EICS_DEBUG"))
        _encode_anything()
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            return super().main([arg for arg in given[:end] if arg != "--debug"] + given[end:], *more, **how)

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **extra: Any) -> click.Context:
        """Remembers the arguments, for the command that continues an interrupted run."""
        given = list(args)  # parsing consumes them
        context = super().make_context(info_name, args, *more, **extra)
        output.remember(context, given)
        return context

    def invoke(self, context: click.Context) -> object:
        """Runs the command and ends on any error with one line."""
        try:
            with output.terminable():
                return super().invoke(context)
        except (click.exceptions.Exit, click.Abort):
            raise
        except click.ClickException as error:
            error.message = (printable(error.message) + _nearest_choice(error))[:_LONGEST]  # type: ignore[misc]
            raise
        except BrokenPipeError:  # as in `eics ... | head`
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the interpreter still flushes it at exit
            sys.exit(0)
        except KeyboardInterrupt as error:
            sys.exit(output.interrupted(context, error))
        except Exception as error:
            if self.debug:
                click.echo(printable(traceback.format_exc(), lines=True).rstrip(), err=True)
            if isinstance(error, OSError) and output.is_full(error):
                sys.exit(output.disk_full(context, error))
            click.echo(f"eics: {error_line(error)}", err=True)
            sys.exit(2)


def _encode_anything() -> None:
    """Lets a terminal or file that is not UTF-8 show what it cannot encode as escapes, such as \\xb1 for a plus-minus.

    The alternative is an error after all the work is done.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _nearest_choice(error: click.ClickException) -> str:
    """After a value that is none of an option's choices: the choices that are near it."""
    choices = getattr(getattr(error, "param", None), "type", None)
    value = re.match(r"'(.*?)' is not one of", error.message)
    return did_you_mean(value[1], map(str, choices.choices)) if value and isinstance(choices, click.Choice) else ""


def error_line(error: Exception) -> str:
    """What a user reads about an error, in one line.

    >>> error_line(EICSError("The file 'a\\x1b[2J' must be a circuit."))
    "The file 'a\\\\u001b[2J' must be a circuit."
    """
    return printable(_sentence(error))[:_LONGEST]


def _sentence(error: Exception) -> str:
    from eics.models.out_of_memory import is_out_of_memory, memory_advice

    if isinstance(error, EICSError):
        return str(error)
    if is_out_of_memory(error):
        return f"The work must fit in memory. It does not. {memory_advice(None)}"
    if isinstance(error, OSError):
        path = f" {error.filename}" if error.filename else ""
        return f"cannot write or read{path}: {error.strerror or error}"
    reason = " ".join(str(error).split())[:200]
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return f"internal error ({what}). This is a bug: run the command again with --debug, and report what it prints."


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the code that raised it."""
    click.echo(f"eics: warning: {printable(message)[:_LONGEST]}", err=True)
