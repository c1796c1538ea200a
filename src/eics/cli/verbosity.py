"""`--quiet` and `--verbose`: how much a command says besides its results.

Quiet: nothing but errors, and files. Verbose: what is loaded, from where, in which precision, how long each stage took,
and every warning in full, on standard error.
"""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from eics.errors import OptionError
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from eics.models.base import Model

_KEY = "eics verbosity"
_HUB_BARS = "HF_HUB_DISABLE_PROGRESS_BARS"


def is_verbose() -> bool:
    """Whether the running command was given `--verbose`."""
    return _level() == "verbose"


def is_quiet() -> bool:
    """Whether the running command was given `--quiet`."""
    return _level() == "quiet"


def tell(line: str) -> None:
    """Prints a line on standard error if the command is verbose."""
    if is_verbose():
        from eics.cli.terminal import say

        say(line, err=True)


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Says, if the command is verbose, how long the work inside took."""
    start = perf_counter()
    yield
    tell(f"{what}: {number(perf_counter() - start)} s")


def describe_model(model: "Model", path: str) -> None:
    """Says, if the command is verbose, what was loaded and from where."""
    if is_verbose():
        origin = getattr(model.module.config, "name_or_path", None) or path
        tell(f"{model!r}, from {origin}")


def set_level(context: click.Context, parameter: click.Parameter, given: bool) -> bool:
    """The callback of both options."""
    if not given or parameter.name is None:
        return given
    others = {"quiet", "verbose"} - {parameter.name}
    if _levels(context) & others:
        raise OptionError("--quiet and --verbose must not be given together.")
    _levels(context).add(parameter.name)
    context.with_resource(_silence() if parameter.name == "quiet" else _every_warning())
    return given


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps the libraries below from warning and from drawing bars, until the command ends."""
    before = os.environ.get(_HUB_BARS)
    os.environ[_HUB_BARS] = "1"  # read when the hub's library is imported, which may be later
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ[_HUB_BARS]


@contextmanager
def _every_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield


def _levels(context: click.Context) -> set[str]:
    levels: set[str] = context.meta.setdefault(_KEY, set())
    return levels


def _level() -> str | None:
    context: Any = click.get_current_context(silent=True)
    return next(iter(_levels(context)), None) if context is not None else None
