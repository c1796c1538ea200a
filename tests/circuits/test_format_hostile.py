"""Malformed, truncated, contradictory and hostile circuit files: one clear line, and nothing is executed."""

import io
import json
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path

import pytest
import torch

from eics import CircuitError, load_circuit
from eics.circuits.formats import content, read_graph
from support.circuit_files import eap, neuronpedia, tracer_node, write_json, write_pickle, write_torch


def refused(path: Path, *says: str) -> None:
    for read in (read_graph, load_circuit):
        with pytest.raises(CircuitError) as error:
            read(path)
        message = str(error.value)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) < 1000
        assert all(part in message for part in says), message


class Runs:
    """Runs a shell command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


@pytest.mark.parametrize("wrap", [lambda bad: bad, lambda bad: [("hook_embed", bad)], lambda bad: {"x": bad}])
@pytest.mark.parametrize("write", [write_pickle, write_torch])
def test_code_in_a_pickle_is_not_run(tmp_path, wrap, write):
    proof = tmp_path / "proof"
    path = write(tmp_path / "c.pkl", wrap(Runs(proof)))
    refused(path, "system", "data only")
    assert not proof.exists()
    if write is write_pickle:
        pickle.loads(path.read_bytes())  # without our checks the file does run its command
        assert proof.exists()


def test_code_in_an_older_torch_file_is_not_run(tmp_path):
    proof = tmp_path / "proof"
    torch.save(Runs(proof), tmp_path / "c", _use_new_zipfile_serialization=False)
    refused(tmp_path / "c", "system")
    assert not proof.exists()


def test_code_inside_the_bytes_of_a_tensor_is_not_run(tmp_path):
    """`torch.storage._load_from_bytes` unpickles its argument; the stand-in that we admit must not."""
    proof = tmp_path / "proof"
    inner = io.BytesIO()
    torch.save(Runs(proof), inner, _use_new_zipfile_serialization=False)

    class Nested:
        def __reduce__(self):
            return (torch.storage._load_from_bytes, (inner.getvalue(),))

    refused(write_pickle(tmp_path / "c", {"Resid End": Nested()}), "data only")
    assert not proof.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "builtins.getattr", "functools.partial", "torch.load", "numpy.load"])
def test_other_globals_are_refused_by_name(tmp_path, name):
    module, attribute = name.rsplit(".", 1)
    (tmp_path / "c").write_bytes(b"\x80\x02c" + f"{module}\n{attribute}\n".encode() + b"(U\x01xtR.")
    refused(tmp_path / "c", repr(name), "Nothing was run")


def test_a_class_of_another_tool_becomes_an_inert_stand_in(tmp_path):
    """A name under a tool's package is never imported or called."""
    (tmp_path / "c").write_bytes(b"\x80\x02ctransformers.utils\nsystem\n(U\x01xtR.")
    refused(tmp_path / "c", "known format")


def test_pickle_bombs(tmp_path):
    cases = {
        b"\x80\x02]r\xff\xff\xff\xff.": "memo index",
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.": "whole pickle",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"].": "",
        b"\x80\x04": "whole pickle",
        b"\x80\x04]": "whole pickle",
    }
    for data, says in cases.items():
        (tmp_path / "c").write_bytes(data)
        refused(tmp_path / "c", says)


def test_zip_bombs_and_other_zips(tmp_path):
    with zipfile.ZipFile(tmp_path / "c", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02]." + b"\0" * 10_000_000)
    refused(tmp_path / "c", "uncompressed")
    with zipfile.ZipFile(tmp_path / "d", "w") as archive:
        archive.writestr("hello.txt", b"hello")
    refused(tmp_path / "d", "another kind of zip")
    whole = write_torch(tmp_path / "e", {"a": torch.ones(1000)}).read_bytes()
    (tmp_path / "e").write_bytes(whole[: len(whole) // 2])
    refused(tmp_path / "e", "torch archive")


@pytest.mark.parametrize("write", [write_pickle, write_torch])
def test_a_view_larger_than_its_storage(tmp_path, write):
    huge = torch.ones(1).expand(1 << 40)
    refused(write(tmp_path / "c", {"Resid End": huge}), "plain tensors")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "known format"),
        ("hello", "known format"),
        ("{}", "json with keys none"),
        ("[]", "a list of 0"),
        ('{"cfg": ', "must be JSON: Expecting value: line 1 column 9"),
        ("[" * 100_000, "nested"),
        ('{"a":' * 100_000, "nested"),
        ('{"format": "eics-circuit", "version": 3, "edges": []}', "Got version 3"),
        ('{"format": "eics-circuit", "version": true, "edges": []}', "Got version True"),
        ('{"format": "eics-circuit", "version": 1, "edges": []}', "at least one edge"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["x->y", 7]}', "edges[1]"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["x->y", "y->z", "z->x"]}', "no cycle"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["m3->m1"]}', "must run forwards"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["x->y", "x->y"]}', "given once"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["x->y"], "edges": ["a->b"]}', "'edges' came twice"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["x->y"], "positions": [1]}', "object of 'positions'"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "positions": {"x": 1}}', "positions of node 'x'"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "scores": {"x->z": 1}}', "x->z"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "scores": {"x->y": NaN}}', "finite"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "scores": {"x->y": true}}', "finite"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "left_out": ["x->z"]}', "Got x->z"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "nodes": {"x": 3}}', "must be an object"),
        ('{"format": "eics-circuit", "version": 2, "edges": ["x->y"], "shape": {"n_layers": 1}}', "'shape'"),
        ('{"format": "eics-circuit", "version": 1, "edges": ' + "9" * 5000 + "}", "sensible length"),
        ("<graphml><graph/><graph/></graphml>", "one graph. Got 2"),
        ("<graphml><graph", "must be XML"),
        ('<graphml><graph edgedefault="undirected"/></graphml>', "directed graph"),
        ('<graphml><graph><node id="x"/><edge source="x" target="y"/></graph></graphml>', "Edge 0 names 'y'"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><graphml>&b;</graphml>', "entities"),
    ],
)
def test_bad_text(tmp_path, text, says):
    (tmp_path / "c").write_text(text)
    refused(tmp_path / "c", says)


def test_truncated_anywhere(tmp_path):
    whole = json.dumps(eap(1, 1)).encode()
    for end in range(0, len(whole), 37):
        (tmp_path / "c").write_bytes(whole[:end])
        refused(tmp_path / "c")


def broken(change) -> dict:
    value = eap(2, 2, kept=("input->a0.h1<q>", "a0.h1->logits"))
    change(value)
    return value


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g["nodes"]["a0.h1"].update(in_graph=False), "input->a0.h1<q> is in the graph and node a0.h1 is not"),
        (
            lambda g: g["edges"].update({"a7.h0->logits": {"score": 0, "in_graph": True}}),
            "Node a7.h0 must lie in the model's layers 0 to 1",
        ),
        (lambda g: g["edges"].update({"foo->logits": {"score": 0, "in_graph": True}}), "Got 'foo'"),
        (lambda g: g["edges"].update({"foo": {"score": 0, "in_graph": True}}), "Got 'foo'"),
        (
            lambda g: g["nodes"].update({"a9.h9": {"in_graph": False}}),
            "Node a9.h9 must lie in the model's layers 0 to 1",
        ),
        (lambda g: g["edges"]["m0->m1"].update(score="high"), "m0->m1 must be a finite number"),
        (lambda g: g["edges"]["m0->m1"].update(score=float("nan")), "m0->m1 must be a finite number"),
        (lambda g: g["edges"]["m0->m1"].update(in_graph="yes"), "Edge m0->m1 has 'yes'"),
        (lambda g: g["edges"]["m0->m1"].pop("in_graph"), "Edge m0->m1 has none"),
        (lambda g: g["edges"].update({"m0->m1": 3}), "Edge m0->m1 has 3"),
        (lambda g: g["cfg"].update(n_layers=0), "n_layers must be a whole number"),
        (lambda g: g["cfg"].update(parallel_attn_mlp=True), "run in parallel"),
        (lambda g: g["cfg"].pop("n_heads"), "n_layers and n_heads"),
        (lambda g: g.update(nodes=[]), "nodes"),
        (lambda g: g.update(eics=3), "'eics'"),
    ],
)
def test_contradictory_eap_files(tmp_path, change, says):
    refused(write_json(tmp_path / "c", broken(change)), says)


def test_bad_links(tmp_path):
    nodes = [tracer_node("embedding", "E", 0, 0, "E_1_0"), tracer_node("cross layer transcoder", 1, 2, 0, "1_2_0")]
    backwards = [*nodes, tracer_node("cross layer transcoder", 0, 2, 0, "0_2_0")]
    for made, links, says in (
        (nodes, [("E_1_0", "9_9_9", 1.0)], "The target of links[0], '9_9_9', is not one"),
        (nodes, [("E_1_0", "1_2_0", "w")], "links[0] has 'w'"),
        (nodes, [("E_1_0", "1_2_0", float("inf"))], "finite"),
        (backwards, [("1_2_0", "0_2_0", 1.0)], "must run forwards"),
        (nodes, [("1_2_0", "1_2_0", 1.0)], "stays in m1"),
        ([*nodes, nodes[0]], [("E_1_0", "1_2_0", 1.0)], "nodes[2] ('E_1_0') came before"),
        ([tracer_node("lorsa", 1, 2, 0, "1")], [("1", "1", 1.0)], "nodes[0] is 'lorsa'"),
    ):
        refused(write_json(tmp_path / "c", neuronpedia(made, links)), says)


def test_size_limits_come_before_reading(tmp_path, monkeypatch):
    with (tmp_path / "c").open("wb") as file:
        file.write(b'{"format": "')
        file.truncate(content.MAX_TEXT + (1 << 20))  # sparse: needs no disk space
    refused(tmp_path / "c", "at most 512 MB. It has 513 MB")
    monkeypatch.setattr(content, "MAX_BINARY", 1000)
    refused(write_pickle(tmp_path / "d", ["x" * 5000]), "at most")


def test_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for a writer forever
    refused(tmp_path / "pipe", "Not a plain file")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(CircuitError, match=r"pickle|UTF-8"):
        read_graph(tmp_path / "binary")
    with pytest.raises(CircuitError, match="No such file"):
        load_circuit(tmp_path / "nowhere")


@pytest.mark.parametrize("write", [write_pickle, write_torch])
def test_a_pickle_that_repeats_itself_a_billion_times_is_read_once(tmp_path, write):
    """Each list holds the one before it a thousand times: a few kilobytes on disk, an eternity to walk through."""
    value = ["x"]
    for _ in range(4):
        value = [value] * 1000
    started = time.perf_counter()
    refused(write(tmp_path / "c", value))
    assert time.perf_counter() - started < 5


def test_an_oversized_view_is_found_however_deep_it_lies(tmp_path):
    value = torch.zeros(1).expand(10**6)
    for _ in range(6):
        value = [value]
    refused(write_torch(tmp_path / "c", {"x": value}), "must hold plain tensors")


def test_a_whole_disk_is_not_searched_for_a_circuit(tmp_path, monkeypatch):
    monkeypatch.setattr("eics.circuits.formats.files._MANY_FILES", 20)
    for index in range(30):
        (tmp_path / f"f{index}").touch()
    refused(tmp_path, "over 20 files")
