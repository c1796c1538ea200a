"""How commands print: colour and progress bars on a terminal, plain text elsewhere.

Results go to standard output; progress, and what `--verbose` adds, to standard error.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from eics.errors import printable
from eics.scoring.numbers import number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from eics.models.base import Model

_WIDTH = 80  # of a terminal of unknown width
_LEAST_SECONDS = 1.0  # a run that took less has no rate worth a line


def console(*, stderr: bool = False) -> "Console":
    """A console as wide as the terminal, or as `COLUMNS` says, or 80; without escape codes under `NO_COLOR`."""
    from eics.cli.safe_console import SafeConsole

    plain: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    screen = SafeConsole(stderr=stderr, highlight=False, **plain)
    if screen.width < 1:  # COLUMNS=0, from shells that do not know: rich would print nothing
        screen.width = _WIDTH
    return screen


def say(text: object, *, err: bool = False) -> None:
    """Prints lines of plain text, whatever a file put into them; JSON keeps its meaning."""
    click.echo(printable(text, lines=True), err=err)


def blocks() -> bool:
    """Whether standard output can show block characters."""
    return console().encoding.lower().startswith("utf")


def print_list(*sentences: str) -> None:
    """Prints each sentence as an item of a list, its lines indented; brackets in it are text, not markup."""
    screen = console()
    for sentence in sentences:
        lines = screen.render_str(sentence, markup=False).wrap(screen, max(1, screen.width - 2))
        for index, line in enumerate(lines):
            line.rstrip()
            screen.print(f"{'  ' if index else '- '}{line.plain}", markup=False, soft_wrap=True)


@contextmanager
def track(
    what: str, steps: int, *, quiet: bool = False, model: "Model | None" = None, resumed: bool = False
) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, with rates and time left; yields the function that advances it.

    `tick(count)` advances by `count` steps, 1 by default; `total=` corrects the number of steps, `tokens=` counts
    tokens. Given a model, every token that it runs on counts instead. If `resumed`, the first tick has the steps of
    earlier runs, which are left out of the rates. Piped, there is no bar; with `--verbose`, one line at the end.
    """
    with track_phases(quiet=quiet, model=model, resumed=resumed) as phase:
        yield phase(what, steps)


@contextmanager
def track_phases(
    *, quiet: bool = False, model: "Model | None" = None, resumed: bool = False
) -> Iterator[Callable[[str, int], Callable[..., None]]]:
    """The same for work in phases, a bar for each: yields the function that begins one, given its name and steps, and
    that returns the function that advances it."""
    from rich import progress

    from eics.cli.verbosity import is_verbose, tell

    screen = console(stderr=True)
    shown = screen.is_terminal and not screen.is_dumb_terminal and not quiet
    meters: list[_Meter] = []
    counting = nullcontext() if model is None else _counted(model, meters)
    with counting, progress.Progress(*_columns(screen.width), console=screen, disable=not shown) as bar:

        def phase(what: str, steps: int) -> Callable[..., None]:
            meter, task = _Meter(what, resumed=resumed), bar.add_task(what, total=steps, rate="")
            meters.append(meter)

            def tick(count: int = 1, *, total: int | None = None, tokens: int = 0) -> None:
                meter.add(count, tokens)
                bar.update(task, advance=count, total=total, rate=meter.rate())

            return tick

        yield phase
    for meter in meters:
        if meter.steps and meter.seconds >= _LEAST_SECONDS and not shown and is_verbose():
            tell(meter.sentence())


class _Meter:
    """Steps and tokens since the start, and their rates."""

    def __init__(self, what: str, *, resumed: bool = False) -> None:
        self.what, self.resumed = what, resumed
        self.start, self.steps, self.tokens = perf_counter(), 0, 0
        self.last = self.start  # a later phase may follow

    def add(self, steps: int, tokens: int) -> None:
        if not self.resumed:
            self.steps += steps
            self.tokens += tokens
        self.resumed = False
        self.last = perf_counter()

    @property
    def seconds(self) -> float:
        return self.last - self.start

    def rate(self) -> str:
        """Such as "3.25/s, 48.1 tokens/s"."""
        seconds = max(self.seconds, 1e-9)
        if not self.steps:
            return ""
        tokens = f", {number(self.tokens / seconds)} tokens/s" if self.tokens else ""
        return f"{number(self.steps / seconds)}/s{tokens}"

    def sentence(self) -> str:
        """The whole run in one line."""
        return f"{self.what}: {self.steps} in {number(self.seconds)} s ({self.rate()})"


@contextmanager
def _counted(model: "Model", meters: list[_Meter]) -> Iterator[None]:
    """Counts the tokens of every forward pass, padding included, for the phase that it is in."""

    def count(_: Any, __: Any, keywords: Any) -> None:
        if meters and "input_ids" in keywords:
            meters[-1].tokens += keywords["input_ids"].numel()

    handle = model.module.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _columns(width: int) -> "list[ProgressColumn]":
    """What the bar shows: a narrow terminal has no room for the bar itself."""
    from rich import progress

    columns: list[ProgressColumn] = [
        progress.TextColumn("{task.description}"),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    ]
    if width >= 70:
        columns.insert(1, progress.BarColumn(bar_width=None if width >= 120 else 14))
    return columns
