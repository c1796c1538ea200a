"""Damaged and hostile circuit files of every format that we read: a circuit or one clear line, and nothing is run."""

import io
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import eics
from eics.circuits.formats import read_graph
from eics.circuits.formats.files import WRITERS
from eics.linearized.explicit_file import load_linear, save_linear
from support.circuits import build
from support.hostile import (
    ANY_JSON,
    FUZZ,
    ODD,
    as_json,
    as_safetensors,
    damaged,
    damaged_bytes,
    outcome,
    split_safetensors,
    write,
)
from support.valid_files import GRAPHML_CIRCUITS, JSON_CIRCUITS, ODD_TENSORS, PICKLED_CIRCUITS, TABLE_CIRCUITS


class Runs:
    """Runs a shell command when it is unpickled; the one thing that a file must never do."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __deepcopy__(self, _: dict) -> "Runs":  # copying would run it, too
        return self

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("circuits")


def try_circuit(path: Path) -> None:
    """Reads the file, and does with it what commands do; each step may refuse it."""
    graph = outcome(read_graph, path)
    circuit = outcome(eics.load_circuit, path)
    outcome(eics.load_circuit, path, top_edges=2)
    if graph is not None:
        for writer in WRITERS.values():
            outcome(writer.write, graph)
    if circuit is not None:
        repr(circuit)
        circuit.label()
        outcome(circuit.carrying, "frozen")


@FUZZ
@given(damaged(JSON_CIRCUITS).map(as_json) | ANY_JSON.map(as_json))
def test_json_circuits_that_say_something_else(folder, content):
    try_circuit(write(folder / "c.json", content))


@FUZZ
@given(damaged_bytes([*map(as_json, JSON_CIRCUITS), *TABLE_CIRCUITS, *GRAPHML_CIRCUITS]))
def test_text_circuits_with_damaged_bytes(folder, content):
    try_circuit(write(folder / "c", content))


def saved(value, how) -> bytes:
    if how in (2, 4):
        return pickle.dumps(value, protocol=how)
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=how == "zip")
    return file.getvalue()


HOWS = (2, 4, "zip", "legacy")


@FUZZ
@given(st.data())
def test_pickled_circuits_that_say_something_else(folder, data):
    proof = folder / "proof"
    odd = ODD | st.integers(0, len(ODD_TENSORS) - 1).map(ODD_TENSORS.__getitem__) | st.just(Runs(proof))
    value = data.draw(damaged(PICKLED_CIRCUITS, odd))
    try_circuit(write(folder / "c.pt", saved(value, data.draw(st.sampled_from(HOWS)))))
    assert not proof.exists()


@FUZZ
@given(damaged_bytes([saved(value, how) for value in PICKLED_CIRCUITS for how in HOWS]))
@example(b"\x80\x04cos\nsystem\n(X\x04\x00\x00\x00exittR.")
def test_pickled_circuits_with_damaged_bytes(folder, content):
    try_circuit(write(folder / "c.pt", content))


LINEAR = build(3, batch=2, density=0.6)


@pytest.fixture(scope="module")
def linear(folder):
    save_linear(LINEAR, folder / "valid.safetensors")
    return as_safetensors(*split_safetensors((folder / "valid.safetensors").read_bytes()))


def try_linear(path: Path) -> None:
    circuit = outcome(load_linear, path)
    if circuit is not None:
        repr(circuit)
        outcome(eics.score, circuit, mode="limit")


@FUZZ
@given(st.data())
def test_explicit_circuits(folder, linear, data):
    header, numbers = split_safetensors(linear)
    inner = {"edges", "batched", "positions"}
    metadata = {name: json.loads(text) if name in inner else text
                for name, text in header["__metadata__"].items()}  # fmt: skip
    changed = data.draw(damaged([metadata]))
    if isinstance(changed, dict):
        texts = {k: v if isinstance(v, str) and k not in inner else as_json(v).decode() for k, v in changed.items()}
    else:
        texts = changed
    content = data.draw(
        st.sampled_from([as_safetensors(header | {"__metadata__": texts}, numbers)])
        | damaged([header]).map(lambda damaged_header: as_safetensors(damaged_header, numbers))
        | damaged_bytes([linear])
    )
    try_linear(write(folder / "c.safetensors", content))
