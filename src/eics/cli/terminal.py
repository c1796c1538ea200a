"""What every command prints with: colour and bars on a terminal, plain text elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> "Console":
    """A console: as wide as the terminal, or as `COLUMNS` says, or 80."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


@contextmanager
def track(what: str, steps: int, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar with rate and time left on standard error; gives the function that advances it, by 1 or more.

    `total` changes how many steps there are, where that is known only later.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    screen = console(stderr=True)
    with Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=steps, rate="")

        def tick(count: int = 1, *, total: int | None = None) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=count, total=total, rate=f"{speed:.1f}/s" if speed else "")

        yield tick
