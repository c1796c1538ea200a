import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import eics
from eics import CircuitError, RecordError, read_records, write_records
from eics.linearized.explicit_file import load_linear, save_linear
from eics.scoring.result import failed, with_provenance
from support.circuits import build


@pytest.fixture
def scores():
    batch = build(5, batch=2, density=0.6)
    results = eics.score(batch, ids=["über <b>", 7], mode="lanczos", curve=True, laplacian=True)
    joint = eics.score(batch, preset="well-posed", ids=["a", "b"])
    named = with_provenance(joint[:1], {"name": "c.json", "sha256": "ab" * 32}, "a/model")
    return eics.Scores([*results, *joint[1:], *named, failed("gone", "too long")])


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.parquet"])
def test_records_come_back_as_they_went(tmp_path, scores, name):
    write_records(scores, tmp_path / name)
    assert read_records(tmp_path / name) == scores


def test_a_record_without_model_and_circuit_is_read(tmp_path, scores):
    """The first records of version 1 lacked both fields."""
    import pyarrow.parquet as pq

    bare = eics.Scores(dataclasses.replace(score, model=None, circuit=None) for score in scores)
    write_records(scores, tmp_path / "a.jsonl")
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    older = [{k: v for k, v in record.items() if k not in ("model", "circuit")} for record in records]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in older))
    assert read_records(tmp_path / "a.jsonl") == bare
    write_records(scores, tmp_path / "a.parquet")
    pq.write_table(pq.read_table(tmp_path / "a.parquet").drop_columns(["model", "circuit"]), tmp_path / "a.parquet")
    assert read_records(tmp_path / "a.parquet") == bare


def test_jsonl_is_one_plain_object_a_line(tmp_path, scores):
    path = tmp_path / "scores.jsonl"
    write_records(scores, path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["über <b>", 7, "b", "a", "gone"]
    assert json.loads(lines[-1])["eics"] is None


def test_the_format_is_recognised_from_content(tmp_path, scores):
    write_records(scores, tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(tmp_path / "a.jsonl")
    assert read_records(tmp_path / "a.jsonl") == scores


def test_parquet_reads_in_other_tools(tmp_path, scores):
    import pyarrow.parquet as pq

    write_records(scores, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("eics").to_pylist() == [score.eics for score in scores]
    assert dict(table.column("ei_parts")[0].as_py()) == scores[0].ei_parts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"version": 1, "id": 0', "Line 1 of"),
        ("[1]", "must be a JSON object"),
        ('{"id": 0, "status": "ok"}', "must have version 2 or lower. Got None"),
        ('{"version": 3, "id": 0, "status": "ok"}', "Got 3: update eics"),
        ('{"version": 1, "status": "ok"}', "must have the field 'id'"),
        ('{"version": 1, "id": 0, "status": "ok", "circuit": "c.json"}', "object with 'name' and 'sha256'"),
        ('{"version": 1, "id": 0, "status": "good"}', "one of ok, clipped, failed"),
        ('{"version": 1, "id": 0, "status": "ok", "edges": [{"source": "x"}]}', "must have their fields"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(RecordError) as error:
        read_records(path)
    assert says in str(error.value)
    assert "Line 1" in str(error.value)


def test_bad_files(tmp_path, scores):
    with pytest.raises(RecordError, match="No such file"):
        read_records(tmp_path / "none.jsonl")
    with pytest.raises(RecordError, match=r"ending in .jsonl, .parquet or .csv"):
        write_records(scores, tmp_path / "scores.txt")
    with pytest.raises(RecordError, match="folder for the records must exist"):
        write_records(scores, tmp_path / "none" / "scores.jsonl")
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)))
    with pytest.raises(RecordError, match="JSON lines or Parquet"):
        read_records(tmp_path / "noise")
    (tmp_path / "half").write_bytes(b"PAR1 and no more")
    with pytest.raises(RecordError, match="must be a Parquet file"):
        read_records(tmp_path / "half")


@pytest.mark.parametrize(
    "options", [{}, {"batch": 3}, {"positions": None}, {"constants": True}, {"positions": 1, "batch": 1}]
)
def test_explicit_circuits_come_back_as_they_went(tmp_path, options):
    circuit = build(8, density=0.6, **options)
    save_linear(circuit, tmp_path / "c.safetensors")
    again = load_linear(tmp_path / "c.safetensors")
    assert again.circuit == circuit.circuit
    assert again.circuit.edges == circuit.circuit.edges
    for preset in ("paper", {"linearization": "frozen", "residual": "joint"}):
        keywords = {"preset": preset} if isinstance(preset, str) else preset
        assert eics.score(again, **keywords) == eics.score(circuit, **keywords)


def test_restricted_positions_are_kept(tmp_path):
    circuit = eics.LinearCircuit({"x->y": np.eye(4)}, {"x": np.ones((2, 2)), "y": np.eye(2)}, positions={"x": [1]})
    save_linear(circuit, tmp_path / "c.safetensors")
    assert load_linear(tmp_path / "c.safetensors").circuit.positions == {"x": (1,)}


def write_file(path: Path, tensors, **metadata):
    save_file(tensors, path, metadata=metadata)
    return path


def test_foreign_and_broken_circuit_files(tmp_path):
    plain = {"map:x->y": torch.eye(1), "activation:x": torch.ones(1), "activation:y": torch.ones(1)}
    good = {"format": "eics-linear", "version": "1", "edges": '["x->y"]', "batched": "false", "positions": "{}"}
    cases = [
        (write_file(tmp_path / "a", plain, **good | {"format": "other"}), "Got format 'other'"),
        (write_file(tmp_path / "b", plain, **good | {"version": "9"}), "version '9'"),
        (write_file(tmp_path / "c", plain, **good | {"edges": "[x"}), "must name its edges"),
        (write_file(tmp_path / "d", plain, **good | {"edges": '["x->z"]'}), "map:x->z"),
        (write_file(tmp_path / "e", plain | {"extra": torch.ones(1)}, **good), "Tensor 'extra'"),
        (
            write_file(tmp_path / "f", {k: v for k, v in plain.items() if k != "activation:y"}, **good),
            "Node 'y' has none",
        ),
        (tmp_path / "none", "No such file"),
    ]
    (tmp_path / "pickle").write_bytes(b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.")
    cases.append((tmp_path / "pickle", "safetensors file that can be read"))
    assert load_linear(write_file(tmp_path / "good", plain, **good)).circuit.order == ("x", "y")
    for path, says in cases:
        with pytest.raises(CircuitError) as error:
            load_linear(path)
        assert says in str(error.value), path


def test_fast_in_a_record_of_version_1_is_read_as_limit():
    assert eics.Score.from_record({"version": 1, "id": 0, "status": "ok", "mode": "fast"}).mode == "limit"
    assert eics.Score.from_record({"version": 2, "id": 0, "status": "ok", "mode": "fast"}).mode == "fast"
