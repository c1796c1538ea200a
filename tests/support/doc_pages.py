"""Pages of README and docs/ as a reader runs them: one folder for a page, its blocks in order.

| block | what happens |
|---|---|
| ```` ```bash ```` | every command runs: `eics ...` and `NAME=value eics ...` in this process, others in a shell |
| ```` ```python ```` | runs with the names of the page's earlier blocks; `>>>` makes it a doctest |
| ```` ```text ```` right after one of these | what it printed; `...` stands for anything, spaces count once |
| ```` ```json ```` after `<!-- file: NAME -->` | becomes that file |
| any other | is shown only, so it must not hold a command |

A block that takes too long for CI carries a line above it, for the reader and for `make slow-test`, which renews the
date: `*Takes about 3 minutes, downloads 260 MB, last run 2026-11-16.*` (`pending` until the first run). One that no
test can run says why, in a comment above it: `<!-- not run: needs a GPU -->`. Indented blocks are for formulas: code
there would not be run, and fails.
"""

import ast
import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
LANGUAGES = ("bash", "python", "text", "json", "")
SLOW = re.compile(
    r"^\*Takes (?P<time>[^,]+), downloads (?P<size>[^,]+), last run (?P<date>\d{4}-\d\d-\d\d|pending)\.\*$"
)
NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")
FILE = re.compile(r"^<!-- file: (?P<name>[\w.-]+) -->$")
_FENCE = re.compile(r"^```(?P<language>\w*)\s*$")
_PLAIN = re.compile(r"^([A-Z_]+=\w+ )*eics\b[^|<>;&`$]*$")  # nothing that only a shell understands


class PageError(AssertionError):
    """A page says something that is not so; the message names the file, the line and the command."""


@dataclass
class Block:
    """A fenced block, the mark above it and, if a `text` block follows at once, the output that it shows."""

    page: Path
    line: int
    language: str
    body: str
    mark: str
    output: str | None = None

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether it is something to run at all."""
        return self.language in ("bash", "python")

    @property
    def is_slow(self) -> bool:
        return SLOW.match(self.mark) is not None

    @property
    def is_left_out(self) -> bool:
        return NOT_RUN.match(self.mark) is not None


@dataclass
class Reader:
    """Someone at a page: the folder, and what Python remembers."""

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    lines, blocks = page.read_text(encoding="utf-8").splitlines(), []
    number, above = 0, ""
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            above = lines[number] if lines[number].strip() else above
            number += 1
            continue
        end = number + 1
        while end < len(lines) and not lines[end].startswith("```"):
            end += 1
        block = Block(page, number + 1, fence["language"], "\n".join(lines[number + 1 : end]), above)
        if block.language == "text" and blocks and above == "```" and blocks[-1].runs:
            blocks[-1].output = block.body
        blocks.append(block)
        number, above = end + 1, "```"
    return blocks


def indented_code(page: Path) -> list[str]:
    """Lines of indented blocks that look like code of ours: they belong into fences, where they are run."""
    text = re.sub(r"```.*?```", lambda fence: "\n" * fence[0].count("\n"), page.read_text(encoding="utf-8"), flags=re.S)
    code = re.compile(r"^ {4,}(\$ |eics |make |>>> |import |.*\beics\.\w+\()")
    lines = enumerate(text.split("\n"), start=1)
    return [
        f"{page.name}:{number}: code must be in a fence, so that it is run: {line.strip()}"
        for number, line in lines
        if code.match(line)
    ]


def commands_of(block: Block) -> list[str]:
    """The commands of a bash block: comments removed, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", block.body)
    lines = (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]


def complaints(block: Block) -> list[str]:
    """Why a block is neither run, nor marked, nor plainly something to look at."""
    found = []
    if block.language not in LANGUAGES:
        found.append(
            f"{block.where}: a block must be one of {', '.join(filter(None, LANGUAGES))}. Got {block.language!r}."
        )
    shown_only = not block.runs and block.language != "text"
    if shown_only and re.search(r"^\s*(\$ |eics |make |pip |python )", block.body, flags=re.M):
        found.append(f"{block.where}: a block with commands must be ```bash, so that they are run.")
    marked = block.mark.startswith(("*Takes", "<!-- "))
    known = any(pattern.match(block.mark) for pattern in (SLOW, NOT_RUN, FILE))
    if marked and not known:
        found.append(f"{block.where}: this mark is not one of those in tests/support/doc_pages.py: {block.mark}")
    return found


def run_page(page: Path, folder: Path, *, slow: bool = False) -> int:
    """Runs a page in a folder, slow blocks only if asked; returns how many blocks ran. Raises PageError."""
    for shared in ("examples", "scripts", "src"):
        (folder / shared).symlink_to(ROOT / shared)
    reader, ran = Reader(folder), 0
    with contextlib.chdir(folder):
        for block in blocks_of(page):
            if named := FILE.match(block.mark):
                (folder / named["name"]).write_text(block.body + "\n", encoding="utf-8")
            if not block.runs or block.is_left_out or (block.is_slow and not slow):
                continue
            printed = _python(block, reader) if block.language == "python" else _bash(block, reader)
            if block.output is not None and not matches(block.output, printed):
                raise PageError(
                    f"{block.where}: the page shows\n\n{block.output}\n\nbut this was printed:\n\n{printed}"
                )
            ran += 1
    return ran


def matches(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed: `...` stands for anything, and spaces and empty lines count once.

    >>> matches("EICS  0.1...", "EICS 0.123\\n\\n"), matches("EICS 0.2...", "EICS 0.123")
    (True, False)
    """
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    return re.fullmatch(r"\s*.*?\s*".join(parts), " ".join(printed.split()), flags=re.S) is not None


def _bash(block: Block, reader: Reader) -> str:
    printed = []
    for command in commands_of(block):
        code, output = _in_process(command) if _PLAIN.match(command) else _in_shell(command, reader.folder)
        if code:
            raise PageError(f"{block.where}: exit code {code} from\n\n  {command}\n\n{output}")
        printed.append(output)
    return "\n".join(printed)


def _in_process(command: str) -> tuple[int, str]:
    from eics.cli import main

    words = shlex.split(command)
    start = words.index("eics")
    settings = dict(word.split("=", 1) for word in words[:start])
    result = CliRunner().invoke(main, words[start + 1 :], env=_environment() | settings)
    trouble = "" if result.exception is None or isinstance(result.exception, SystemExit) else repr(result.exception)
    return result.exit_code, (result.stdout if not result.exit_code else result.output) + trouble


def _in_shell(command: str, folder: Path) -> tuple[int, str]:
    tools = folder / ".tools"
    tools.mkdir(exist_ok=True)
    for name, call in (("eics", f"{sys.executable} -m eics"), ("python", sys.executable)):
        (tools / name).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    where = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["bash", "-c", f"set -eo pipefail; {command}"],
        capture_output=True, text=True, check=False, cwd=folder,
        env=os.environ | _environment() | {"PATH": path, "PYTHONPATH": where},
    )  # fmt: skip
    return done.returncode, done.stdout if not done.returncode else done.stdout + done.stderr


def _environment() -> dict[str, str]:
    return {"COLUMNS": "100", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"}


def _python(block: Block, reader: Reader) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if ">>>" in block.body:
            _doctest(block, reader)
        else:
            _script(block, reader)
    return out.getvalue()


def _doctest(block: Block, reader: Reader) -> None:
    test = doctest.DocTestParser().get_doctest(block.body + "\n", reader.names, block.where, None, block.line)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False)
    report = io.StringIO()
    if runner.run(test, out=report.write, clear_globs=False).failed:
        raise PageError(f"{block.where}: an example prints something else.\n\n{report.getvalue()}")
    reader.names |= test.globs


def _script(block: Block, reader: Reader) -> None:
    """Statement by statement, so that an expression's value is shown, as in a notebook."""
    for statement in ast.parse(block.body).body:
        line = block.line + statement.lineno
        try:
            if isinstance(statement, ast.Expr):
                value = eval(compile(ast.Expression(statement.value), block.where, "eval"), reader.names)
                if value is not None:
                    sys.stdout.write(f"{value!r}\n")
            else:
                exec(compile(ast.Module([statement], []), block.where, "exec"), reader.names)
        except Exception as error:
            source = ast.get_source_segment(block.body, statement)
            raise PageError(f"{block.page.name}:{line}: {type(error).__name__}: {error}\n\n  {source}") from error
