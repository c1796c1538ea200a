"""What commands print on a terminal and into a pipe."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.cli.tables import edge_bars, score_table
from eics.cli.terminal import console
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
from eics.cli.tables import edge_bars
from eics.cli.terminal import console
from support.report_records import make_circuit, make_score
console().print(edge_bars(make_score(make_circuit(1, 1), 0, 1)))
"""


def on_a_terminal(*command: str) -> str:
    """What a command shows on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm-256color"}
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
    assert all(any(f"{term}:{term.share:.0%}" in line for line in lines) for term in terms[:3])


def test_the_list_of_models_fits_too():
    output = CliRunner().invoke(main, ["models", "list"]).output
    described = [line for line in output.splitlines() if not line.startswith("  /")]  # a folder may be longer
    assert max(map(len, described)) <= 80
