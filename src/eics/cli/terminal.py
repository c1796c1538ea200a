"""How commands print: colour and progress bars on a terminal, plain text elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> "Console":
    """A console as wide as the terminal, or as `COLUMNS` says, or 80."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def print_list(*sentences: str) -> None:
    """Prints each sentence as an item of a list; brackets in it are text, not markup."""
    screen = console()
    for sentence in sentences:
        screen.print(f"- {sentence}", markup=False)


@contextmanager
def track(what: str, steps: int, *, quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, with rate and time left; yields the function that advances it.

    `tick(count)` advances by `count` steps, 1 by default; `total=` corrects the number of steps.
    """
    from rich import progress

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
    )
    screen = console(stderr=True)
    with progress.Progress(*columns, console=screen, disable=quiet or not screen.is_terminal) as bar:
        task = bar.add_task(what, total=steps, rate="")

        def tick(count: int = 1, *, total: int | None = None) -> None:
            speed = bar.tasks[0].speed
            bar.update(task, advance=count, total=total, rate=f"{speed:.1f}/s" if speed else "")

        yield tick
