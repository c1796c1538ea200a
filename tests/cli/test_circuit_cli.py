"""`eics circuit show` and `eics circuit convert`."""

import json

import pytest
import torch
from click.testing import CliRunner

from eics.circuits.formats import read_graph
from eics.circuits.formats.files import WRITERS
from eics.cli import main
from eics.cli.circuit import FORMATS
from support.circuit_files import eap, write_json
from support.tiny_models import tiny_module

SCORES = {"input->a0.h1<q>": 5.0, "a0.h1->m1": -4.0, "m1->logits": 3.0, "a1.h0->logits": 2.0}


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["circuit", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())  # long temporary paths wrap lines


@pytest.fixture
def file(tmp_path):
    content = eap(2, 2, kept=["input->logits"])
    for name, fields in content["edges"].items():
        fields["score"] = SCORES.get(name, 0.0)
    return write_json(tmp_path / "scores.json", content)


def test_show(file):
    shown = run("show", file)
    assert "1 edges of 46" in shown
    assert "2 layers of 2 heads, width 8" in shown
    cut = run("show", file, "--top-edges", 4)
    assert "a0.h1" in cut
    assert "3 edges of 46" in cut
    assert "The cut keeps 4 of 46 edges." in cut
    assert "1 edge and 1 node on no path from a source to a sink were dropped." in cut
    assert "from -4 to 5" in cut
    assert "4 edges of 46" in run("show", file, "--top-edges", 4, "--no-prune")


def test_show_a_bundled_circuit_and_one_that_fits_no_transformer(tmp_path):
    assert "at least 30 layers of at least 9 heads" in run("show", "facts-by-hand")
    path = write_json(tmp_path / "c", {"format": "eics-circuit", "version": 1, "edges": ["[red]x->y"]})
    assert "[red]x" in run("show", path)
    assert "fits no transformer" in run("show", path)


def test_nothing_is_wider_than_a_terminal():
    result = CliRunner().invoke(main, ["circuit", "show", "facts-by-hand"], env={"COLUMNS": "80"})
    assert max(map(len, result.output.splitlines())) <= 80


def test_show_checks_a_model(file, tmp_path):
    module = tiny_module("gpt2", torch.float32)
    module.save_pretrained(tmp_path / "model")
    assert "It fits" in run("show", file, "--model", tmp_path / "model")
    big = write_json(tmp_path / "big.json", eap(99, 1, kept=["m98->logits"]))
    assert "Node m98 must lie in the model's layers" in run("show", big, "--model", tmp_path / "model", code=2)


@pytest.mark.parametrize("format", FORMATS)
def test_convert_to_every_format(file, tmp_path, format):
    out = tmp_path / "out"
    output = run("convert", file, out, "--to", format, "--share", 0.09)
    assert "3 edges kept of" in output
    assert "on no path from a source to a sink were dropped" in output
    if format != "dot":
        assert [str(edge) for edge in read_graph(out).circuit().edges] == list(SCORES)[:3]


def test_every_writer_can_be_named():
    assert set(FORMATS) == set(WRITERS)


def test_convert_without_a_cut_changes_nothing(file, tmp_path):
    assert run("convert", file, tmp_path / "out.json", "--to", "eap-json", "--quiet") == ""
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(file.read_text())


def test_convert_only_the_circuit(file, tmp_path):
    run("convert", file, tmp_path / "out.json", "--min-score", 3, "--only-kept")
    assert len(read_graph(tmp_path / "out.json").edges) == 3


def test_the_input_is_never_overwritten(file, tmp_path):
    before = file.read_bytes()
    (tmp_path / "link.json").symlink_to(file)
    folder = tmp_path / "ioi_gpt2"
    folder.mkdir()
    inner = folder / "c.json"
    inner.write_bytes(before)
    for source, out in ((file, file), (file, tmp_path / "link.json"), (folder, inner)):
        assert "which is read" in run("convert", source, out, "--overwrite", code=2)
    assert file.read_bytes() == inner.read_bytes() == before


def test_errors_are_clear(file, tmp_path):
    assert "exactly one of" in run("show", file, "--top-edges", 1, "--share", 0.1, code=2)
    assert "must come with" in run("show", file, "--signed", code=2)
    assert "must end in" in run("convert", file, tmp_path / "c.xyz", code=2)
    (tmp_path / "bad").write_text("{")
    assert "must be JSON" in run("show", tmp_path / "bad", code=2)
    assert "no place for" in run("convert", file, tmp_path / "c.csv")
    assert not (tmp_path / "c.xyz").exists()
