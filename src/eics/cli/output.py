"""What commands do about their output files: which they may write, what is safe when they end early, and exit codes.

Exit codes: 0 all scored; 1 some prompts failed, or the disk was full; 2 nothing could be done; 130 interrupted, 143
terminated.
"""

import errno
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from eics.data.files import count_rows
from eics.data.locks import FOLDER_LOCK
from eics.data.outputs import Outputs, check_distinct

if TYPE_CHECKING:
    from eics.scoring.result import Score

Safe = Callable[[], Mapping[Path, int]]
"""How many rows are on disk, by file, when it is called."""

_KEYS = ("arguments", "paths", "safe", "rows", "go_on")
_ARGUMENTS, _PATHS, _SAFE, _ROWS, _GO_ON = (f"eics.{name}" for name in _KEYS)  # of `Context.meta`
_FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would grow beyond what the system allows",
    errno.EIO: "the disk reports an error",
}
_RESUME = "--resume"
_REASONS = 5  # reasons for failed prompts that get a line each


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, with another exit code."""


def outputs(
    files: Mapping[str, Path | None],
    inputs: Mapping[str, Any],
    *,
    overwrite: bool,
    resume: bool | None = None,
    records: Sequence[str] = (),
) -> Outputs:
    """The files of a command, checked before any work; a context that locks them while they are written."""
    _remember_paths(path for path in files.values() if path is not None)
    return Outputs(files, _on_disk(inputs), overwrite, resume, tuple(records))


def check_run_folder(
    path: Path, files: Sequence[str], rows: Sequence[str], inputs: Mapping[str, Any], *, resume: bool, overwrite: bool
) -> None:
    """Checks the folder of a run before any work: `files` is what the run writes, `rows` those that grow.

    From here on, a run that ends early says how many rows are safe.
    """
    from eics.studies.run_folder import SETTINGS, check_folder

    check_folder(path, files, resume=resume, overwrite=overwrite)
    written = {f"{name} in --out": path / name for name in (SETTINGS, *files)}
    check_distinct(written, _on_disk(inputs), {"the lock file in --out": path / FOLDER_LOCK}, resume=resume)
    before = _stamp(path / SETTINGS)

    def safe() -> dict[Path, int]:
        if overwrite and _stamp(path / SETTINGS) == before:  # the earlier run is still there, untouched
            return {}
        return {path / name: count for name in rows if (count := count_rows(path / name))}

    _remember_paths([path / name for name in (SETTINGS, *files)])
    keep_count(safe, "rows")


def keep_count(safe: Safe, rows: str = "records", go_on: str = _RESUME) -> None:
    """Lets a command that ends early say how many rows are safe, and with which option it goes on."""
    click.get_current_context().meta.update({_SAFE: safe, _ROWS: rows, _GO_ON: go_on})


def remember(context: click.Context, arguments: Sequence[str]) -> None:
    """Keeps the arguments as they were given, to print the command that goes on."""
    context.meta[_ARGUMENTS] = list(arguments)


@contextmanager
def terminable() -> Iterator[None]:
    """While a command runs, SIGTERM raises `Terminated`, so that files are closed and locks released.

    Libraries turn an interruption into errors of their own, as numpy does while it is imported: an error that comes
    after one is the interruption.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[KeyboardInterrupt] = []

    def stop(number: int, _: object) -> None:
        received.append(Terminated() if number == signal.SIGTERM else KeyboardInterrupt())
        raise received[-1]

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where Ctrl-C is ignored
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:
        if received:
            raise received[-1] from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def interrupted(context: click.Context, error: KeyboardInterrupt) -> int:
    """Says what is safe after Ctrl-C or SIGTERM; returns the exit code."""
    terminated = isinstance(error, Terminated)
    say_error(f"{'terminated' if terminated else 'interrupted'}: {_what_is_safe(context)}")
    return 143 if terminated else 130


def say_error(text: str) -> None:
    """Prints what went wrong on standard error; nothing in it can control the terminal."""
    from eics.cli.terminal import say

    say(f"eics: {text}", err=True)


def is_full(error: BaseException) -> bool:
    """Whether there is no room for a file."""
    return isinstance(error, OSError) and error.errno in _FULL


def disk_full(context: click.Context, error: OSError) -> int:
    """Says what is safe after the disk was full; returns the exit code."""
    say_error(f"{_FULL[error.errno or 0]}: {_what_is_safe(context)}")
    return 1


def exit_if_failed(scores: "Iterable[Score]") -> None:
    """Ends with exit code 1 if prompts failed: says how many, the first reason, and how often each reason came."""
    reasons = {score.id: str(score.reason) for score in scores if score.status == "failed"}
    exit_with_reasons(reasons)


def exit_with_reasons(reasons: Mapping[Any, str]) -> None:
    """As `exit_if_failed`, from the reason of each prompt that failed."""
    if not reasons:
        return
    first, *_ = reasons.items()
    counted = Counter(reasons.values()).most_common()
    lines = [f"{len(reasons)} {'prompt' if len(reasons) == 1 else 'prompts'} failed. The first, {first[0]}: {first[1]}"]
    if len(counted) > 1:
        lines += [f"{count} x {reason}" for reason, count in counted[:_REASONS]]
        if len(counted) > _REASONS:
            lines.append(f"{sum(count for _, count in counted[_REASONS:])} x other reasons")
    say_error("\n  ".join(lines))
    click.get_current_context().exit(1)


def _remember_paths(paths: Iterable[Path]) -> None:
    """Keeps how the outputs are before the command, to tell in the end which of them it wrote."""
    click.get_current_context().meta[_PATHS] = {path: _stamp(path) for path in paths}


def _what_is_safe(context: click.Context) -> str:
    """How many rows are in which file, and the command that goes on; a command without rows starts again."""
    given = context.meta.get(_ARGUMENTS, [])
    arguments = [name for name in given if name not in ("--overwrite", "--resume")]
    safe: Safe | None = context.meta.get(_SAFE)
    counts = {} if safe is None else {path: count for path, count in safe().items() if count}
    if counts:
        rows = context.meta[_ROWS]
        files = " and ".join(
            f"{count} {rows if count > 1 else rows.removesuffix('s')} {'are' if count > 1 else 'is'} safe in {path}"
            for path, count in counts.items()
        )
        go_on = context.meta[_GO_ON]
        how = "Go on with" if go_on == _RESUME else "Start again, and replace them, with"
        return f"{files}. {how}: {_command([*arguments, go_on])}"
    written = [path for path, before in context.meta.get(_PATHS, {}).items() if _stamp(path) != before]
    if written:
        files = ", ".join(str(path) for path in written)
        return f"only {files} had been written. Start again with: {_command([*arguments, '--overwrite'])}"
    return f"nothing was written. Start again with: {_command(given)}"


def _command(arguments: Sequence[str]) -> str:
    """The command line as one types it into a shell."""
    program = ["python", "-m", "eics"] if Path(sys.argv[0]).parts[-2:] == ("eics", "__main__.py") else ["eics"]
    line = [*program, *arguments]
    return subprocess.list2cmdline(line) if sys.platform == "win32" else shlex.join(line)


def _on_disk(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs with the folders of fetched models in place of their names, and the package's own files."""
    from importlib.resources import files

    from eics.models.download.cache import fetched

    def folder(given: Any) -> Any:
        is_name = isinstance(given, str) and given and Path(given).name == given and not Path(given).exists()
        return fetched(given) or given if is_name else given

    paths = {
        name: [folder(item) for item in given] if isinstance(given, list | tuple) else folder(given)
        for name, given in inputs.items()
    }
    return paths | {"the installed package": Path(str(files("eics.data")))}


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns
