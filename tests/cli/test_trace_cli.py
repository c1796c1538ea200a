"""`eics trace`: what it prints, with and without colours, on wide and narrow terminals, and its exit codes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import eics
from eics.cli import main, trace_view
from eics.studies.tracing.result import Header, Trace

DATA = Path(eics.__file__).parent / "data/prompts/people.jsonl"
TEXT = "Ratta Bakett plays the"
DAMAGE = ["--patch", "m1@2=Fivi Mekett plays the"]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    path = tmp_path_factory.mktemp("usual") / "usual.safetensors"
    prompts = [json.loads(line)["prompt"] for line in DATA.read_text().splitlines()[:700]]
    model, circuit = eics.load_model("people-0"), eics.load_circuit("people")
    eics.save_calibration(eics.calibrate(model, circuit, prompts, terms="sheaf", at="all"), path)
    return str(path)


def run(usual, *arguments, code=0, **more):
    given = ["trace", "--model", "people-0", "--circuit", "people", "--calibration", usual, *map(str, arguments)]
    result = CliRunner().invoke(main, given, **more)
    assert result.exit_code == code, result.output
    return result


def test_a_node_patched_at_a_token_in_the_middle_is_named_with_its_token(usual):
    output = run(usual, "--prompt", TEXT, *DAMAGE).stdout
    assert "<s> Ratta [Bakett] plays the" in output
    assert re.search(r"^ m1 +2 +'Bakett'", output, flags=re.M)
    assert "- m1 wrote something unusual at token 2 ('Bakett'): z" in output
    plain = run(usual, "--prompt", TEXT).stdout
    assert "[" not in plain.splitlines()[0]
    assert "every token (p =" in plain


def test_lines_and_file_are_the_same_and_read_back(usual, tmp_path):
    out = tmp_path / "traces.jsonl"
    run(usual, "--prompt", TEXT, "--prompt", "Fivi Mekett works as a", "--out", out)
    printed = run(usual, "--prompt", TEXT, "--prompt", "Fivi Mekett works as a", "--json").stdout
    assert printed == out.read_text()
    header, *lines = map(json.loads, printed.splitlines())
    assert header["format"] == "eics-trace"
    model, circuit = eics.load_model("people-0"), eics.load_circuit("people")
    traces = eics.trace(model, circuit, [TEXT, "Fivi Mekett works as a"], calibration=usual)
    assert lines == json.loads(json.dumps([trace.to_record() for trace in traces]))


def test_many_texts_are_a_table(usual, tmp_path):
    output = run(usual, "--prompts", DATA, "--limit", 6, "--out", tmp_path / "traces.jsonl").stdout
    assert "of 6 texts ha" in output
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == 7
    again = run(usual, "--prompts", DATA, "--limit", 9, "--out", tmp_path / "traces.jsonl", "--resume")
    assert "of 9 texts ha" in again.stdout
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == 10


def test_texts_that_fail_make_the_exit_code_1_and_the_others_are_shown(usual):
    result = run(usual, "--prompt", TEXT, "--prompt", "", code=1)
    assert "1 prompt failed. The first, 1: a prompt must have at least one token" in result.stderr
    assert "Ratta Bakett plays the" in result.stdout


def test_refusals_are_one_line(usual, tmp_path):
    for arguments, message in (
        (["--prompt", TEXT, "--resume"], "--resume needs --out"),
        (["--prompt", TEXT, "--level", "0.0001"], "'level' option must be at least"),
        (["--prompt", TEXT, "--out", tmp_path / "new.parquet"], "a .jsonl file"),
        (["--prompt", TEXT, "--temperature", "1"], "given with generate"),
        (["--prompt", TEXT, "--generate", "2", "--ablate", "m1"], "the prompt's own positions"),
        ([], "--prompt TEXT (repeatable) or on --prompts FILE"),
    ):
        result = run(usual, *arguments, code=2)
        assert message in result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert not list(tmp_path.glob("new*"))


def test_the_model_goes_on(usual):
    output = run(usual, "--prompt", "Ratta Bakett plays", "--generate", 1).stdout
    assert output.startswith("<s> Ratta Bakett plays the\n")
    assert run(usual, "--prompt", TEXT, "--quiet").output == ""


def test_on_a_terminal_tokens_appear_as_they_come(usual, capsys):
    """A terminal stands in for the pipe: the text is printed once, coloured, before what follows it."""
    from eics.models.prompts import as_prompts
    from eics.scoring.calibration.file import load_calibration
    from eics.studies.tracing.run import traced
    from eics.studies.tracing.task import checked_task

    model, circuit = eics.load_model("people-0"), eics.load_circuit("people")
    task = checked_task(
        model, circuit, as_prompts(["Ratta Bakett plays"]), load_calibration(usual), level=0.05, seed=0, memory=None,
        batch_size=8, interventions=None, generate=2, temperature=0.0, allow_changed_weights=False,
    )  # fmt: skip
    shown = trace_view.Shown(task, 1)
    shown.screen = Console(force_terminal=True, width=80, record=True, color_system="truecolor")
    assert shown.streams
    coming = traced(task, task.prompts, shown.step)
    trace = next(coming)
    before = shown.screen.export_text(clear=False)
    assert before.startswith("<s> Ratta Bakett plays the")
    shown.text(trace)
    after = shown.screen.export_text()
    assert after.count("Ratta") == 1
    assert "a column is a token" in " ".join(after.split())
    said = capsys.readouterr().out
    assert "- logits wrote something unusual at token 5 ('horn')" in said
    assert "No text of the calibration ends in 'horn'" in " ".join(said.split())


def drawn(tokens, table, threshold=4.0):
    nodes = tuple(f"m{layer}" for layer in range(len(table)))
    header = Header(None, "", {}, (), 0.05, "", nodes, (0.5,) * len(nodes), threshold, {})
    ids = tuple(range(len(tokens)))
    return Trace(header, 0, "".join(tokens), ids, tuple(tokens), None, np.array(table), 0.5)


def test_shades_of_the_map_are_steps_of_the_threshold():
    trace = drawn(["a", " b", " c", " d", " e"], [[np.nan, 1.9, 2.1, 3.1, 4.0], [np.nan, 0, 0, 0, 0]])
    rows = trace_view.heat_map(trace, 80).plain.splitlines()
    assert rows[0] == "m0   ░▒█"
    assert rows[1].rstrip() == "m1"
    assert "░ from 2.00, ▒ from 3.00, █ from 4.00 (a suspect)" in rows[2]
    assert trace_view.coloured(trace, colours=False).plain == "a b c d [e]"
    coloured = trace_view.coloured(trace, colours=True)
    assert coloured.plain == "a b c d e"
    assert [str(span.style) for span in coloured.spans] == ["yellow", "dark_orange", "bold white on red"]


@pytest.mark.parametrize("width", [30, 80])
@pytest.mark.parametrize("length", [5, 200])
def test_the_map_fits_the_terminal_and_loses_no_suspect(width, length):
    table = np.zeros((3, length))
    table[1, length // 2] = 9.0
    trace = drawn([f" {place}" for place in range(length)], table)
    *rows, _ = trace_view.heat_map(trace, width).plain.splitlines()
    assert max(map(len, rows)) <= width
    assert rows[0].startswith("m1 ")
    assert rows[0].count("█") == 1


def test_a_token_cannot_command_the_terminal():
    trace = drawn(["a", "\x1b[31m"], [[np.nan, 9.0]])
    assert "\x1b" not in trace_view.coloured(trace, colours=False).plain
    assert "\x1b" not in trace.sentence


def test_the_page_is_that_of_the_file_alone(usual, tmp_path):
    out, page, again = (tmp_path / name for name in ("traces.jsonl", "page.html", "again.html"))
    run(usual, "--prompt", TEXT, *DAMAGE, "--out", out, "--report", page)
    made = CliRunner().invoke(main, ["report", str(out), "--out", str(again)])
    assert made.exit_code == 0, made.output
    assert again.read_text() == page.read_text()
    assert (
        "an .html file in a folder that exists" in run(usual, "--prompt", TEXT, "--report", "page.txt", code=2).stderr
    )
