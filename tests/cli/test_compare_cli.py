"""`eics compare` on the command line: what it prints, refuses and writes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main

PEOPLE = Path(eics.__file__).parent / "data/prompts/people.jsonl"


@pytest.fixture
def place(tmp_path, monkeypatch):
    lines = PEOPLE.read_text().splitlines(keepends=True)
    for name, kept in (("few", lines[:4]), ("a", lines[:120]), ("b", lines[200:230])):
        (tmp_path / f"{name}.jsonl").write_text("".join(kept))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["compare", "--model", "people-0", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refused(*arguments):
    lines = run(*arguments, code=2).stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_two_models_print_a_table_and_sentences_and_write_a_page(place):
    result = run("--against", "people-1", "--prompts", "few.jsonl", "--restore", "2", "--out", "new")
    assert "people-1 against people-0" in result.output
    assert "restored" in result.output
    assert "- 4 of 4 prompts are touched" in result.output
    assert "Full results: new/compare.json, new/compare.html." in " ".join(result.output.split())
    document = json.loads((place / "new/compare.json").read_text())
    assert (document["model"], document["against"]) == ("people-0", "people-1")
    assert len([entry for entry in document["nodes"] if entry["restored"]]) == 2
    assert "people-1" in (place / "new/compare.html").read_text()


def test_one_model_at_a_time_prints_the_same(place):
    arguments = ["--against", "people-1", "--prompts", "few.jsonl", "--restore", "1"]
    assert run(*arguments).output == run(*arguments, "--one-at-a-time").output


def test_two_sets_print_roles_and_write_a_page(place):
    result = run("--circuit", "people", "--prompts", "a.jsonl", "--against-prompts", "b.jsonl", "--report", "new.html")
    assert "shift of z" in result.output
    assert "Full results: new.html." in result.output
    assert "a.jsonl" in (place / "new.html").read_text()
    assert not (place / "new").exists()


def test_quiet_prints_nothing(place):
    assert run("--against", "people-1", "--prompts", "few.jsonl", "--quiet").output == ""


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs another model (--against, or --adapter) or another set of prompts"),
        (["--against", "people-1", "--adapter", "x"], "Got --against and --adapter."),
        (["--against", "people-1", "--against-prompts", "b.jsonl"], "Got --against and --against-prompts."),
        (["--against-prompts", "b.jsonl"], "compared on a circuit: give --circuit"),
        (["--circuit", "people", "--against-prompts", "b.jsonl", "--metric", "kl"], "--metric concerns two models"),
        (["--circuit", "people", "--against-prompts", "b.jsonl", "--restore", 2], "--restore concerns two models"),
        (["--against", "people-1", "--level", "0.1"], "--level concerns two sets of prompts"),
        (["--against", "people-1", "--paired"], "--paired concerns two sets of prompts"),
        (["--against", "people-1", "--resume"], "--resume needs --out DIR"),
        (["--against", "people-9"], "people-9"),
        (["--against", "induction"], "must have the same"),
        (["--adapter", "nowhere"], "must be a folder with adapter_config.json"),
        (["--against", "people-1", "--report", "page.txt"], "an .html file in a folder that exists"),
        (["--against", "people-1", "--circuit", "nothing.json"], "nothing.json"),
        (["--against", "people-1", "--metric", "logit_diff"], "needs the field 'foil' in every prompt"),
        (["--against", "people-1", "--group", "planet"], "planet"),
    ],
)
def test_wrong_calls_are_one_line(arguments, said):
    assert said in refused("--prompts", "few.jsonl", *arguments)


@pytest.mark.usefixtures("place")
def test_prompts_that_fail_give_exit_code_one():
    Path("few.jsonl").write_text(Path("few.jsonl").read_text() + '{"tokens": [99999]}\n')
    result = run("--against", "people-1", "--prompts", "few.jsonl", code=1)
    assert "1 prompt failed. The first, 4: token ids must be" in result.stderr
    assert "4 of 4 prompts are touched" in result.output


def test_pages_are_made_again_from_documents_alone(place):
    run("--against", "people-1", "--prompts", "few.jsonl", "--out", "new")
    runner = CliRunner()
    made = runner.invoke(main, ["report", "new/compare.json", "--out", "again.html"])
    assert made.exit_code == 0, made.output
    assert Path("again.html").read_text() == Path("new/compare.html").read_text()
    Path("torn.json").write_text(Path("new/compare.json").read_text()[:5000])
    torn = runner.invoke(main, ["report", "torn.json", "--out", "torn.html"])
    assert torn.exit_code == 2
    assert "must hold a JSON object: it is damaged or was cut short" in torn.stderr
    both = runner.invoke(main, ["report", "new/compare.json", "few.jsonl", "--out", "both.html"])
    assert "A comparison has a page of its own" in both.stderr
