"""Damaged files on the command line: every command that reads a file by itself ends with a result or one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eics.circuits.formats.files import WRITERS
from eics.circuits.load import save_circuit
from support.hostile import FUZZ, as_json, as_json_lines, damaged, damaged_bytes, one_line, run, write
from support.valid_files import JSON_CIRCUITS, RECORDS, SMALL, TABLE_CIRCUITS

FORMATS = st.sampled_from(sorted(WRITERS))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    save_circuit(SMALL, folder / "small.json")
    return folder


@FUZZ
@given(
    damaged(JSON_CIRCUITS).map(as_json) | damaged_bytes([*map(as_json, JSON_CIRCUITS), *TABLE_CIRCUITS]),
    st.one_of(
        st.just(["show", "FILE"]),
        st.just(["show", "FILE", "--top-edges", "2"]),
        FORMATS.map(lambda name: ["convert", "FILE", "out", "--to", name]),
        st.sampled_from([["draw", "FILE", "out.svg"], ["show", "FILE", "--share", "0.5", "--no-prune"]]),
    ),
)
def test_circuit_commands(folder, content, command):
    file = write(folder / "c", content)
    one_line(run("circuit", *(str(file) if word == "FILE" else word for word in command)))


@FUZZ
@given(
    damaged([RECORDS, RECORDS[:1]]).map(as_json_lines) | damaged_bytes([as_json_lines(RECORDS)]),
    st.one_of(
        FORMATS.filter(lambda name: name != "dot").map(lambda name: ["export", "FILE", "out", "--to", name]),
        st.just(["report", "FILE", "--out", "out.html"]),
        st.sampled_from(
            [["export", "FILE", "out", "--prompt-id", "p0"], ["export", "FILE", "out", "--preset", "paper"]]
        ),
        st.just(["circuit", "draw", "CIRCUIT", "out.svg", "--record", "FILE"]),
    ),
)
def test_commands_on_records(folder, content, command):
    paths = {"FILE": str(write(folder / "r.jsonl", content)), "CIRCUIT": str(folder / "small.json")}
    one_line(run(*(paths.get(word, word) for word in command)))
