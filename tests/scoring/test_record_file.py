"""`eics score --resume` compares everything that decides a number, names what differs, and deletes nothing."""

import csv
import json
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.errors import RecordError
from eics.models.prompts import Prompt
from eics.scoring.record_file import RecordFile, Run
from support.tiny_models import tiny_model, tiny_module

EDGES = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
PROMPTS = [{"id": f"é{at}", "tokens": [3 + at, 5, 7, 11], "label": at} for at in range(3)]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a tiny model, a circuit, prompts, and the records of a run."""
    folder = tmp_path_factory.mktemp("score")
    tiny_module("llama").save_pretrained(folder / "model")
    (folder / "circuit.json").write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": EDGES}))
    write_lines(folder / "prompts.jsonl", PROMPTS)
    result = score(folder, folder / "s.jsonl")
    assert result.exit_code == 0, result.output
    return folder


def score(folder, out, *more):
    paths = ["--model", folder / "model", "--circuit", folder / "circuit.json", "--prompts", folder / "prompts.jsonl"]
    how = ["--mode", "limit", "--batch-size", "1", "--quiet", "--out", out]
    return CliRunner().invoke(main, ["score", *map(str, [*paths, *how, *more])])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--alpha", "2"], "alpha. * has 1.0, this run 2.0"),
        (["--alpha", "auto"], "alpha. * has 1.0, this run 'auto'"),
        (["--mode", "exact"], "mode. * has 'limit', this run 'exact'"),
        (["--dtype", "float64"], "dtype. * has 'float32', this run 'float64'"),
        (["--preset", "well-posed"], "linearization"),
        (["--preset", "both"], "number of presets. * has 1, this run 2"),
        (["--node-probes", "9"], "node_probes"),
        (["--macro-probes", "9"], "macro_probes"),
        (["--steps", "7"], "steps"),
        (["--seed", "1"], "seed"),
        (["--factorization", "svd"], "factorization"),
        (["--target", "0.1"], "target"),
        (["--memory", "5"], "memory"),
        (["--readout", "logits"], "readout"),
        (["--answer", "1"], "answer"),
        (["--curve"], "curve"),
    ],
)
def test_every_option_is_compared(finished, tmp_path, change, named):
    out = tmp_path / "s.jsonl"
    shutil.copy(finished / "s.jsonl", out)
    result = score(finished, out, "--resume", *change)
    assert result.exit_code == 2, result.output
    what, _, values = named.partition(". *")
    assert f"--resume must continue with the same {what}. " in result.output
    assert values in result.output
    assert len(result.output.splitlines()) == 1
    assert out.read_bytes() == (finished / "s.jsonl").read_bytes()


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
@pytest.mark.parametrize("alpha", ["1", "auto"])
def test_an_interrupted_run_becomes_the_whole_one(finished, tmp_path, ending, alpha):
    whole, halved, lines = (tmp_path / name for name in (f"whole.{ending}", f"halved.{ending}", "lines.jsonl"))
    assert score(finished, whole, "--alpha", alpha).exit_code == 0
    assert score(finished, lines, "--alpha", alpha).exit_code == 0
    journal = halved if ending == "jsonl" else tmp_path / f"halved.{ending}.part.jsonl"
    journal.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:2])[:-9])
    assert "already exists" in score(finished, halved, "--alpha", alpha).output
    assert score(finished, halved, "--alpha", alpha, "--resume").exit_code == 0
    assert halved.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.part.jsonl"))
    again = score(finished, halved, "--alpha", alpha, "--resume")
    assert again.exit_code == 0, again.output
    assert halved.read_bytes() == whole.read_bytes()


def test_records_of_the_first_version_are_not_continued(finished, tmp_path):
    rows = [json.loads(line) | {"version": 1} for line in (finished / "s.jsonl").read_text().splitlines()]
    write_lines(tmp_path / "s.jsonl", rows)
    assert "the same version of the records" in score(finished, tmp_path / "s.jsonl", "--resume").output


def test_prompts_may_be_added_and_end_in_input_order(finished, tmp_path):
    write_lines(
        tmp_path / "s.jsonl", [json.loads(line) for line in (finished / "s.jsonl").read_text().splitlines()[1:]]
    )
    assert score(finished, tmp_path / "s.jsonl", "--resume").exit_code == 0
    assert [record.id for record in eics.read_records(tmp_path / "s.jsonl")] == [prompt["id"] for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"text": "other"}, "text of prompt 0"),
        ({"text": None, "tokens": (1, 2)}, "text of prompt 0"),
        ({"answer": " Rome"}, "answer of prompt 0"),
        ({"label": "b"}, "label of prompt 0"),
    ],
)
def test_every_prompt_is_compared(tmp_path, change, named):
    model, circuit = tiny_model("llama"), eics.Circuit(EDGES)
    prompt = Prompt(0, text="mine", answer=" Paris", label="a")
    options = eics.Options(mode="limit")
    record = eics.score(model, circuit, [3, 4, 5], mode="limit")
    eics.write_records(replace(record, prompt="mine", answer=" Paris", label="a"), tmp_path / "s.jsonl")
    run, file = Run(model, circuit, (options,)), RecordFile(tmp_path / "s.jsonl", resume=True)
    run.check(file, [prompt])
    with pytest.raises(RecordError, match=f"the same {named}"):
        run.check(file, [replace(prompt, **change)])
    with pytest.raises(RecordError, match="the same calibration"):
        replace(run, calibration="ab").check(file, [prompt])
    with pytest.raises(RecordError, match="the same interventions"):
        replace(run, interventions=[eics.Noise("m1")]).check(file, [prompt])


def test_tokens_are_compared(tmp_path):
    model, circuit = tiny_model("llama"), eics.Circuit(EDGES)
    record = replace(eics.score(model, circuit, [3, 4, 5], mode="limit"), token_ids=[3, 4, 5])
    eics.write_records(record, tmp_path / "s.jsonl")
    run, file = Run(model, circuit, (eics.Options(mode="limit"),)), RecordFile(tmp_path / "s.jsonl", resume=True)
    run.check(file, [Prompt(0, tokens=(3, 4, 5))])
    with pytest.raises(RecordError, match="the same tokens of prompt 0"):
        run.check(file, [Prompt(0, tokens=(3, 4, 6))])


def test_flat_columns(finished, tmp_path):
    records = eics.read_records(finished / "s.jsonl")
    odd = replace(records[0], id="=SUM(A1)", prompt="@x\n- y", answer="-1", label=True)
    eics.write_records([odd, *records[1:]], tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(encoding="utf-8", newline="") as file:
        first, second, third = csv.DictReader(file)
    assert (first["id"], first["prompt"], first["answer"], first["label"]) == ("'=SUM(A1)", "'@x\n- y", "'-1", "true")
    assert float(second["dei"]) == records[1].dei
    assert int(third["diagnostics.length"]) == 4
    assert float(third["stderr.dei"]) == records[2].stderr["dei"]
    assert third["options.alpha"] == "1.0"
    assert not {"edges", "nodes", "tokens", "curve"} & {*first}
    with pytest.raises(RecordError, match="lack the edges"):
        eics.read_records(tmp_path / "s.csv")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["--alpha", "2"], "alpha"),
        (["--dtype", "float64"], "dtype"),
        (["--preset", "both"], "number of presets"),
        (["--noise", "m1"], "interventions"),
        (["--readout", "tokens", "--tokens", "1,2"], "readout"),
        (["--details"], "details"),
    ],
)
def test_a_complete_csv_is_compared_cell_by_cell(finished, tmp_path, change, named):
    out = tmp_path / "s.csv"
    assert score(finished, out).exit_code == 0
    before = out.read_bytes()
    result = score(finished, out, "--resume", *change)
    assert result.exit_code == 2
    assert f"--resume must continue with the same {named}. " in result.output
    assert out.read_bytes() == before
    written = score(finished, tmp_path / "t.csv", *change)
    assert written.exit_code == 0, written.output
    again = score(finished, tmp_path / "t.csv", "--resume", *change)
    assert again.exit_code == 0, again.output
    assert score(finished, tmp_path / "t.csv", "--resume").exit_code == 2  # what only the file has counts too


def test_a_complete_csv_that_lacks_a_prompt_or_records_says_so(finished, tmp_path):
    out = tmp_path / "s.csv"
    assert score(finished, out, "--limit", "2").exit_code == 0
    missing = score(finished, out, "--resume")
    assert missing.exit_code == 2
    assert "lacks 1, such as" in missing.output
    page = score(finished, out, "--limit", "2", "--resume", "--report", tmp_path / "r.html")
    assert "--report needs records with their edges" in page.output
    paths = ["--model", finished / "model", "--circuit", finished / "circuit.json", "--mode", "limit"]
    (tmp_path / "odd.jsonl").write_text('{"tokens": [999999]}\n{"tokens": [1, 2, 3]}\n')
    command = ["score", *paths, "--prompts", tmp_path / "odd.jsonl", "--out", tmp_path / "f.csv"]
    first = CliRunner().invoke(main, [str(part) for part in command])
    again = CliRunner().invoke(main, [str(part) for part in [*command, "--resume"]])
    assert (first.exit_code, again.exit_code) == (1, 1)
    assert "has the records of all 2 prompts already" in again.stdout
    assert again.stderr.splitlines()[-1] == first.stderr.splitlines()[-1]
    (tmp_path / "f.csv").write_bytes(b'id\n"\xff')
    assert score(finished, tmp_path / "f.csv", "--resume").exit_code == 2


def test_another_tokenizer_is_another_prompt(tmp_path):
    class Tokenizer:
        first = 3

        def __call__(self, text, **_):
            return {"input_ids": [self.first, *(len(word) for word in text.split())]}

    tokenizer, circuit = Tokenizer(), eics.Circuit(EDGES)
    model = eics.adapt(tiny_module("llama"), tokenizer)
    eics.write_records(eics.score(model, circuit, "a text", mode="limit"), tmp_path / "s.jsonl")
    run, file = Run(model, circuit, (eics.Options(mode="limit"),)), RecordFile(tmp_path / "s.jsonl", resume=True)
    run.check(file, [Prompt(0, text="a text")])
    tokenizer.first = 4
    with pytest.raises(RecordError, match=r"the same tokens of prompt 0\. .* has \[3, 1, 4\], this run \[4, 1, 4\]"):
        run.check(file, [Prompt(0, text="a text")])


def test_a_prompt_that_no_file_can_hold_does_not_stop_a_resume(finished, tmp_path):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "s.jsonl"
    write_lines(prompts, [{"id": "a", "prompt": "x \ud800", "answer": "\udc00"}, {"id": "b", "tokens": [3, 5, 7]}])
    paths = ["--model", finished / "model", "--circuit", finished / "circuit.json", "--prompts", prompts, "--out", out]
    command = ["score", *map(str, paths), "--mode", "limit", "--quiet"]
    assert CliRunner().invoke(main, command).exit_code == 1  # the lone surrogate failed, the other was scored
    before = out.read_bytes()
    resumed = CliRunner().invoke(main, [*command, "--resume"])
    assert resumed.exit_code == 1
    assert "must continue with" not in resumed.output
    assert out.read_bytes() == before
