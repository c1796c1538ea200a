"""What every command has in common: errors of one line, `--debug`, and text from files that stays text."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from click.testing import CliRunner
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

import eics
from eics.cli import main
from eics.cli.safe_console import SafeConsole
from eics.errors import CircuitError, EICSError, did_you_mean, printable
from eics.models.families.registry import ADAPTERS

HOSTILE = "a\x1b[2J\x07\x9b31m\u202eb\u2066c\u061c\r\x00"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f]")


def run(*arguments, **how):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **how)


def test_printable_leaves_ordinary_text_alone():
    for text in ("plain", "naïve café", "日本語", "שלום", "👩‍👩‍👧", "tab\tand\nline"):
        assert printable(text, lines=True) == text
    assert printable("a\nb") == "a\\u000ab"
    assert not RAW.search(printable(HOSTILE))
    assert printable("\ud800").encode() == b"\\ud800"


def test_json_keeps_its_meaning():
    record = {"prompt": HOSTILE + "\U000e0041", "n": [1, 2]}
    line = printable(json.dumps(record, ensure_ascii=False))
    assert json.loads(line) == record
    assert not RAW.search(line)


def test_near_names():
    assert did_you_mean("Fact", ["facts", "ioi"]) == " Did you mean 'facts'?"
    assert did_you_mean("zzz", ["facts", "ioi"]) == ""


@pytest.mark.parametrize(
    "renderable",
    [HOSTILE, Text(HOSTILE), lambda: _table(HOSTILE), lambda: _table(Text(HOSTILE))],
    ids=["string", "text", "cell", "text in a cell"],
)
@pytest.mark.parametrize("markup", [True, False])
def test_nothing_raw_reaches_the_terminal(renderable, markup):
    console = SafeConsole(record=True, width=100, file=io.StringIO())
    console.print(renderable() if callable(renderable) else renderable, markup=markup)
    shown = console.export_text()
    assert "\\u001b[2J" in shown
    assert not RAW.search(shown)


def _table(cell):
    table = Table("name", title=HOSTILE)
    table.add_row(cell)
    return table


def test_tables_are_aligned_after_escaping():
    console = SafeConsole(record=True, width=60, file=io.StringIO())
    table = Table("name", "x")
    table.add_row("\x1b[31m", "1")
    table.add_row("plain", "2")
    console.print(table)
    shown = console.export_text()
    assert "\\u001b[31m" in shown  # measured after escaping, so that nothing is cut off
    assert len({len(line) for line in shown.rstrip().splitlines()[1:]}) == 1


def test_a_progress_bar_shows_foreign_text_escaped():
    screen = io.StringIO()
    with Progress(console=SafeConsole(file=screen, force_terminal=True, color_system=None, width=100)) as bar:
        bar.add_task(HOSTILE, total=2)
    assert "a\\u001b[2" in screen.getvalue()
    assert "a\x1b" not in screen.getvalue()
    assert "\u202e" not in screen.getvalue()


@pytest.fixture
def hostile_circuit(tmp_path):
    path = tmp_path / "c.json"
    node = HOSTILE.replace("\r\x00", "x")
    content = {"format": "eics-circuit", "version": 1, "edges": [["input", node], [node, "logits"]], "about": HOSTILE}
    path.write_text(json.dumps(content))
    return path


def test_commands_print_foreign_text_escaped(hostile_circuit, tmp_path):
    shown = run("circuit", "show", hostile_circuit)
    assert shown.exit_code == 0
    assert "\\u001b[2J" in shown.output
    drawn = run("circuit", "draw", hostile_circuit, tmp_path / "c.svg", "--title", "x")
    assert drawn.exit_code == 0, drawn.output
    ElementTree.parse(tmp_path / "c.svg")  # control characters are no XML
    written = run("circuit", "convert", hostile_circuit, tmp_path / "c.dot")
    assert written.exit_code == 0
    for text in (shown.output, drawn.output, written.output, (tmp_path / "c.dot").read_text()):
        assert not RAW.search(text)
    assert not RAW.search(repr(eics.load_circuit(hostile_circuit)))


@pytest.mark.parametrize(
    "arguments",
    [
        ["circuit", "show", "no\x1b[31m\u202esuch"],
        ["score", "--model", "no\x1b[31m\u202esuch", "--circuit", "people", "--prompt", "x"],
        ["score", "--model", "people-0", "--circuit", "people", "--prompts", "no\x1b[31m\u202e"],
        ["score", "--model", "people-0", "--circuit", "people", "--prompt", "x", "--mode", "\x1b[31m\u202e"],
        ["models", "fetch", "\x1b[31m\u202e"],
        ["\x1b[31m\u202e"],
        ["report", "\x1b[31m\u202e", "--out", "x.html"],
    ],
)
def test_errors_are_escaped_too(arguments):
    result = run(*arguments)
    assert result.exit_code == 2
    assert not RAW.search(result.stderr)
    assert "Traceback" not in result.stderr


def test_records_as_json_are_escaped_and_still_json():
    result = run("score", "--model", "people-0", "--circuit", "people", "--mode", "limit", "--json",
                 "--prompt", "no \x9b31m\u202e words", "--quiet")  # fmt: skip
    assert result.output == ""
    result = run("score", "--model", "people-0", "--circuit", "people", "--mode", "limit", "--json",
                 "--prompt", "no \x9b31m\u202e words")  # fmt: skip
    assert not RAW.search(result.stdout)
    assert json.loads(result.stdout)["prompt"] == "no \x9b31m\u202e words"


def test_nobody_echoes_past_the_escapes():
    """`terminal.say`, the console and the boundary are the only ways to the terminal."""
    raw = re.compile(r"click\.s?echo\(|(?<![.\w])print\(|sys\.std(out|err)\.write")
    modules = Path(eics.__file__).parent.glob("cli/*.py")
    users = {path.name for path in modules if raw.search(path.read_text(encoding="utf-8"))}
    assert users == {"terminal.py", "boundary.py"}


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback_wherever_it_stands(place):
    command = ["circuit", "show", "nowhere"]
    plain = run(*command)
    debugged = run("--debug", *command) if place == "before" else run(*command, "--debug")
    assert (plain.exit_code, debugged.exit_code) == (2, 2)
    assert len(plain.stderr.splitlines()) == 1
    assert debugged.stderr.startswith("Traceback")
    assert debugged.stderr.endswith(plain.stderr)
    assert len(run(*command).stderr.splitlines()) == 1  # the flag does not stay


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (KeyError("x"), "internal error (KeyError: 'x'). This is a bug: run the command again with --debug"),
        (RecursionError(), "internal error (RecursionError)"),
        (AssertionError("two\nlines \x1b[2J"), "internal error (AssertionError: two lines \\u001b[2J)"),
        (MemoryError(), "must fit in memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "must fit in memory"),
        (PermissionError(13, "Permission denied", "/x\x1b"), "cannot write or read /x\\u001b: Permission denied"),
        (EICSError("a line\u202e"), "eics: a line\\u202e"),
    ],
)
def test_whatever_goes_wrong_is_one_line(monkeypatch, error, says):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("eics.circuits.load.load_graph", fail)
    result = run("circuit", "show", "facts")
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_that_a_library_takes_for_its_own_error_is_one(monkeypatch, number, code):
    """As numpy does while it is imported."""

    def importing(*_, **__):
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except BaseException:
            raise ImportError("cannot load module") from None

    monkeypatch.setattr("eics.circuits.load.load_graph", importing)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    result = run("circuit", "show", "facts")
    assert result.exit_code == code
    assert result.stderr.endswith("nothing was written. Start again with: eics circuit show facts\n")
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_terminal_that_is_not_utf_8_shows_escapes(tmp_path):
    command = [sys.executable, "-m", "eics", "score", "--model", "people-0", "--circuit", "people", "--mode", "limit"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    how = {"env": environment, "capture_output": True, "text": True, "cwd": tmp_path}
    result = subprocess.run([*command, "--prompt", "Detta"], check=False, **how)
    assert result.returncode == 0, result.stderr
    assert "\\xb1" in result.stdout  # the plus-minus of a standard error


def test_a_warning_is_one_line(monkeypatch):
    import warnings

    def warn(*_, **__):
        warnings.warn("beware\x1b", RuntimeWarning, stacklevel=1)
        raise CircuitError("no")

    monkeypatch.setattr("eics.circuits.load.load_graph", warn)
    warnings.simplefilter("always")
    assert run("circuit", "show", "facts").stderr == "eics: warning: beware\\u001b\neics: no\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["circuit", "show", "fact"], "Did you mean 'facts'"),
        (["score", "--model", "smolm2", "--circuit", "facts", "--prompt", "x"], "Did you mean 'smollm2'?"),
        (["score", "--model", "people-0", "--circuit", "people", "--prompts", "peple"], "Did you mean 'people'"),
        (["discover", "--model", "people-0", "--task", "inducton", "--edges", "5", "--out", "x.json"], "'induction'"),
        (["score", "--model", "people-0", "--circuit", "people", "--prompt", "x", "--preset", "wellposed"],
         "Did you mean 'well-posed'?"),
        (["score", "--model", "people-0", "--circuit", "people", "--prompt", "x", "--device", "cuda:99"], "cuda"),
        (["models", "fetch", "smollm"], "Did you mean 'smollm2'?"),
        (["models", "where", "stories"], "Did you mean 'stories15m'?"),
    ],
)  # fmt: skip
def test_an_unknown_name_suggests_the_nearest(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.stderr


def test_python_suggests_presets_too():
    with pytest.raises(eics.OptionError, match="Did you mean 'well-posed'"):
        eics.score("x", None, preset="wellposed")


def test_circuit_list_has_model_size_and_faithfulness():
    from eics.circuits.load import bundled_circuits, load_circuit, load_graph

    result = run("circuit", "list", env={"COLUMNS": "80"})
    rows = {line.split()[0]: line.split() for line in result.output.splitlines() if line.strip()}
    for name in bundled_circuits():
        circuit, metadata = load_circuit(name), load_graph(name).metadata
        measured = metadata["faithfulness"]["corrupted"]
        assert rows[name][1:4] == [metadata["model"], str(len(circuit.order)), str(len(circuit.edges))]
        assert float(rows[name][4]) == pytest.approx(measured["value"], abs=6e-4)
    assert max(map(len, result.output.splitlines())) <= 80


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": ' + "9" * 5000 + "}"])
@pytest.mark.parametrize(
    "command",
    [
        ["circuit", "show", "FILE"],
        ["export", "FILE", "out.json"],
        ["score", "--model", "people-0", "--circuit", "people", "--prompts", "FILE"],
        ["score", "--model", "people-0", "--circuit", "people", "--prompt", "x", "--calibration", "FILE"],
        ["discover", "--model", "people-0", "--task", "FILE", "--edges", "5", "--out", "out.json"],
        ["validate", "--model", "people-0", "--circuit", "people", "--data", "FILE", "--out", "out"],
    ],
    ids=lambda command: command[0],
)
def test_endless_json_is_one_line(tmp_path, monkeypatch, command, text):
    monkeypatch.chdir(tmp_path)
    file = "c.json" if "--calibration" in command or "circuit" in command else "p.jsonl"
    (tmp_path / file).write_text(text)
    result = run(*(file if part == "FILE" else part for part in command))
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "internal error" not in result.stderr
    assert len(result.stderr) < 700


def test_families_and_module():
    words = [line.split() for line in run("models", "families").output.splitlines()]
    names = [line[0] for line in words if line and line[0] in ADAPTERS]
    assert names == list(ADAPTERS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "eics", "models", "where"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert result.stdout == run("models", "where").output


def test_a_missing_steering_vector_is_named_once():
    result = run(
        *("score", "--model", "people-0", "--circuit", "people", "--prompt", "x", "--steer", "m1"),
        *("--vector", "/nonexistent.json"),
    )
    assert result.exit_code == 2
    assert "Errno" not in result.output
    assert result.output.count("/nonexistent.json") == 1


def test_a_transformer_circuit_without_its_model_says_what_is_missing():
    result = run("score", "--circuit", "people")
    assert result.exit_code == 2
    assert "--model" in result.output


@pytest.mark.parametrize("content", ["", "id,eics\n1,2\n", "{}\n"], ids=["empty", "csv", "no record"])
def test_a_page_of_nothing_is_not_written(tmp_path, content):
    records, page = tmp_path / "records.jsonl", tmp_path / "page.html"
    records.write_text(content)
    result = run("report", records, "--out", page)
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert not page.exists()


def test_a_page_of_flat_columns_says_what_they_lack(tmp_path):
    (tmp_path / "records.csv").write_text("id,eics\n1,2\n")
    result = run("report", tmp_path / "records.csv", "--out", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "the flat columns of a .csv lack the edges" in result.output
