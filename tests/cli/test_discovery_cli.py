"""`eics discover` and `eics circuit faithfulness`, from a task to a circuit to its curve."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from eics.circuits.load import load_graph
from eics.cli import main
from support.tiny_models import tiny_module

LINES = [
    {"clean": [3, 5, 7, 11, 13], "corrupted": [3, 5, 2, 11, 13], "answer": 4, "foil": 9},
    {"clean": [1, 2, 3, 4], "corrupted": [1, 8, 3, 4], "answer": 6, "foil": 2},
    {"clean": [9, 8, 7], "corrupted": [9, 1, 7], "answer": [3, 4], "foil": 2},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a tiny model and a task for it."""
    folder = tmp_path_factory.mktemp("discovery")
    tiny_module("llama").save_pretrained(folder / "model")
    (folder / "task.jsonl").write_text("\n".join(map(json.dumps, [*LINES, {"clean": [1]}])) + "\n")
    return folder


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
    shown = result.stdout
    for path in (argument for argument in arguments if isinstance(argument, Path)):
        shown = shown.replace(str(path), path.name)  # the length of a path is not ours
    assert "--json" in arguments or max(map(len, shown.splitlines()), default=0) <= 80
    return result


def test_from_task_to_circuit_to_curve(folder, tmp_path):
    options = ["--model", folder / "model", "--task", folder / "task.jsonl", "--dtype", "float64"]
    result = run("discover", *options, "--edges", 40, "--all-scores", "--out", tmp_path / "all.json")
    assert result.exit_code == 0, result.output
    output = " ".join(result.output.split())
    assert "3 pairs; logit_diff" in output
    assert (
        "Skipped lines: 1, the first for this reason: line 4: a line must be an object with 'clean' and 'answer'"
        in output
    )
    graph = load_graph(tmp_path / "all.json")
    assert len(graph.scores) == 262 == len(graph.edges)  # 3 layers of 4 heads
    assert 0 < len(graph.kept_edges) <= 40
    assert graph.metadata["method"] == "eap-ig"
    assert graph.metadata["pairs"] == 3

    quiet = run("discover", *options, "--edges", 40, "--out", tmp_path / "circuit.json", "--quiet")
    assert (quiet.exit_code, quiet.output) == (0, "")
    assert {*load_graph(tmp_path / "circuit.json").edges} == {*graph.kept_edges}

    out = tmp_path / "curve.json"
    result = run("circuit", "faithfulness", tmp_path / "all.json", *options, "--shares", "0.1,1", "--out", out)
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text())
    assert [point["name"] for point in record["points"]] == ["circuit", "top 10.0%", "top 100.0%"]
    assert record["points"][-1]["faithfulness"]["value"] == pytest.approx(1.0, abs=1e-4)
    assert record["cpr"] is not None
    assert "CPR" in result.output
    result = run("circuit", "faithfulness", tmp_path / "all.json", *options, "--shares", "0.1,1", "--json")
    assert json.loads(result.stdout) == record

    picture = tmp_path / "curve.svg"
    result = run(
        "circuit", "faithfulness", tmp_path / "circuit.json", *options, "--picture", picture, "--ablation", "mean"
    )
    assert result.exit_code == 0, result.output
    assert "CPR" not in result.output
    assert "faithfulness (95% interval over prompts)" in picture.read_text()
    drawn = run("circuit", "draw", tmp_path / "circuit.json", tmp_path / "c.svg")
    assert drawn.exit_code == 0, drawn.output


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--task", "nowhere.jsonl"], "must be a readable file, or one of facts"),
        (["--out", "nowhere/circuit.json"], "must be a file in a folder that exists"),
        (["--out", "circuit.xyz"], "xyz"),
        (["--method", "eap", "--metric", "kl"], "no gradient at the clean prompt"),
    ],
)
def test_wrong_input_is_one_line(folder, tmp_path, monkeypatch, change, says):
    monkeypatch.chdir(tmp_path)
    options = ["--model", folder / "model", "--task", folder / "task.jsonl", "--out", "circuit.json"]
    result = run("discover", *options, *change)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "circuit.json").exists()


def test_a_curve_needs_scores(folder, tmp_path):
    (tmp_path / "bare.json").write_text(
        json.dumps({"format": "eics-circuit", "version": 1, "edges": ["input->a0.h1", "a0.h1->logits"]})
    )
    options = ["--model", folder / "model", "--task", folder / "task.jsonl"]
    result = run("circuit", "faithfulness", tmp_path / "bare.json", *options, "--shares", "0.5")
    assert result.exit_code == 2
    assert "A curve needs the scores of more edges" in result.output
    result = run("circuit", "faithfulness", tmp_path / "bare.json", *options, "--picture", tmp_path / "curve.bmp")
    assert result.exit_code == 2
    assert "must be a .png, .pdf or .svg file in a folder that exists" in result.output
    result = run("circuit", "faithfulness", tmp_path / "bare.json", *options, "--shares", "2")
    assert result.exit_code == 2
    assert run("circuit", "faithfulness", tmp_path / "bare.json", *options).exit_code == 0
