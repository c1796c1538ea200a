"""What commands print on a terminal and into a pipe."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.cli.score_table import edge_bars, score_table
from eics.cli.terminal import console, print_list
from eics.scoring.numbers import percent
from support.report_records import make_scores

SLOW = """
import time
from eics.cli.terminal import track
with track("prompts", 4, quiet={quiet}) as tick:
    for _ in range(4):
        time.sleep(0.05)
        tick()
"""

BARS = """
import sys
sys.path.insert(0, {tests!r})
from eics.cli.score_table import edge_bars
from eics.cli.terminal import console, print_list
from support.report_records import make_circuit, make_score
console().print(edge_bars(make_score(make_circuit(1, 1), 0, 1)))
"""


def on_a_terminal(*command: str, **variables: str) -> str:
    """What a command shows on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm-256color"} | variables
    running = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # on Linux: the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert running.wait() == 0, shown.decode()
    return shown.decode()


def test_progress_has_a_rate_and_the_time_left():
    shown = on_a_terminal(sys.executable, "-c", SLOW.format(quiet=False))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    for expected in ("prompts", "4/4", "/s", "left 0:00:00"):
        assert expected in shown


def test_no_progress_bar_if_quiet_or_piped():
    assert "prompts" not in on_a_terminal(sys.executable, "-c", SLOW.format(quiet=True))
    piped = subprocess.run([sys.executable, "-c", SLOW.format(quiet=False)], capture_output=True, check=True)
    assert piped.stdout + piped.stderr == b""


def test_colour_only_on_a_terminal():
    command = [sys.executable, "-c", BARS.format(tests=str(Path(__file__).parents[1]))]
    assert "\x1b[35m█" in on_a_terminal(*command)
    piped = subprocess.run(command, capture_output=True, check=True, text=True)
    assert "█" in piped.stdout
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize("preset", ["paper", "well-posed"])
def test_tables_fit_eighty_columns_and_break_between_edges(preset, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    circuit = eics.Circuit(["input->a23.h10<v>", "a23.h10->a29.h11<v>", "a29.h11->m29", "m29->logits"])
    scores = make_scores(circuit, 2, (preset,), dei=-359318.6)
    screen = console()
    with screen.capture() as capture:
        screen.print(score_table(scores, f"EICS, preset {preset}"))
        screen.print(edge_bars(scores[0]))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 80
    terms = scores[0].nodes or scores[0].edges
    assert all(any(f"{term}:{percent(term.share)}" in line for line in lines) for term in terms[:3])


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("command", [("models", "list"), ("models", "families"), ("circuit", "list")])
def test_lists_fit_and_use_the_width(command, width, monkeypatch):
    monkeypatch.setenv("EICS_CACHE", "/here")  # a path is never folded
    output = CliRunner().invoke(main, list(command), env={"COLUMNS": str(width)}).output
    longest = max(len(line.rstrip()) for line in output.splitlines())
    assert longest <= width
    folded = [line for line in output.splitlines() if line.startswith("   ") and line.strip()]
    assert not folded or longest > 0.8 * width


def test_a_terminal_of_no_width_gets_what_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "0")
    console().print("all of it")
    assert capsys.readouterr().out == "all of it\n"


def test_no_colour_and_dumb_terminals_get_plain_text():
    bars = [sys.executable, "-c", BARS.format(tests=str(Path(__file__).parents[1]))]
    slow = [sys.executable, "-c", SLOW.format(quiet=False)]
    assert "\x1b" not in on_a_terminal(*bars, NO_COLOR="1")
    assert "\x1b[35m" not in on_a_terminal(*slow, NO_COLOR="1")
    for command in (bars, slow):
        assert "\x1b" not in on_a_terminal(*command, TERM="dumb")


def test_the_lines_of_an_item_are_indented(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_list("short", f"[not] markup {'word ' * 12}end", f"a-long-name-{'x' * 60}")
    first, *wrapped = capsys.readouterr().out.splitlines()
    assert first == "- short"
    assert wrapped[0].startswith("- [not] markup word")
    assert [line[:2] for line in wrapped] == ["- ", "  ", "- ", "  "]
    assert max(map(len, wrapped)) <= 40


def test_a_clipped_score_has_no_standard_error():
    """Only dEI has one: 0 ± 3 would be no score."""
    clipped = eics.Score(
        0, "clipped", eics=0.0, dei=-9.0, dei_norm=0.0, stderr={"eics": 3.0, "dei": 2.0, "dei_norm": 3.0}
    )
    cells = {column.header: list(column.cells) for column in score_table([clipped], "", 200).columns}
    assert (cells["EICS"], cells["dEI_norm"], cells["dEI (nats)"]) == (["0"], ["0"], ["-9.00 ± 2.00"])
    assert "eics=0," in repr(clipped)


def test_bars_without_block_characters():
    command = [sys.executable, "-c", BARS.format(tests=str(Path(__file__).parents[1]))]
    environment = os.environ | {"PYTHONIOENCODING": "ascii:replace"}
    piped = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    assert "####" in piped.stdout


TOKENS = """
import time
from eics.cli.terminal import track
with track("rows", 10, resumed=True) as tick:
    tick(6)
    for _ in range(4):
        time.sleep(0.05)
        tick(tokens=1000)
"""


def test_rates_count_tokens_and_leave_earlier_rows_out():
    shown = on_a_terminal(sys.executable, "-c", TOKENS)
    assert "10/10" in shown
    rates = re.findall(r"([0-9.]+)/s, ([0-9.e+]+) tokens/s", shown)
    assert rates
    assert all(float(rows) < 25 for rows, _ in rates)  # 4 rows take 0.2 s or more; with the other 6 it would be more
    assert float(rates[-1][1]) == pytest.approx(1000 * float(rates[-1][0]), rel=0.02)


SCORED = (
    "score",
    "--model",
    "people-0",
    "--circuit",
    "people",
    "--prompt",
    "Detta Lustrom plays the",
    "--mode",
    "fast",
)


def test_quiet_and_verbose_mean_what_they_say():
    plain, quiet, verbose = (CliRunner().invoke(main, [*SCORED, *flag]) for flag in ([], ["--quiet"], ["--verbose"]))
    assert (plain.exit_code, quiet.exit_code, verbose.exit_code) == (0, 0, 0)
    assert quiet.output == ""
    assert "Next token: " in plain.stdout
    assert plain.stdout in verbose.stdout
    assert "loading people-0" not in plain.stderr
    for expected in ("loading people-0: ", "GPT2LMHeadModel", "float32 on cpu), from ", "1 prompts in batches of 8"):
        assert expected in verbose.stderr
    both = CliRunner().invoke(main, [*SCORED, "--quiet", "--verbose"])
    assert both.exit_code == 2
    assert "must not be given together" in both.output


def commands(command, path=()):
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, (*path, name))
    else:
        yield path, command


def test_every_command_takes_quiet_and_verbose():
    listings = {("models", "list"), ("models", "where"), ("models", "families"), ("circuit", "list")}
    prints_only = listings | {("models", "fetch")}  # `fetch --quiet` still prints the folder
    for path, command in commands(main):
        names = {parameter.name for parameter in command.params}
        assert path in prints_only or {"quiet", "verbose"} <= names, path
