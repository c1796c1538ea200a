"""Damaged and hostile files of prompts, labelled prompts, tasks and steering vectors: prompts or one clear line."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics.cli.interventions import steering_vector
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.studies.discovery.task import read_task
from eics.studies.validation.data import read_labelled
from eics.transformer.adapt import load_model
from support.hostile import (
    ANY_JSON,
    FUZZ,
    ODD,
    ODD_TEXTS,
    as_json,
    as_json_lines,
    damaged,
    damaged_bytes,
    outcome,
    write,
)

ROWS = [
    {"prompt": "one, two", "id": "x", "answer": " three", "label": True, "clean": "The", "relation": "r", "foil": " a"},
    {"prompt": 'say "four"', "id": 7, "answer": " five", "label": 0.5, "clean": "The", "corrupted": "A"},
    {"tokens": [1, 2, 3], "id": "z", "label": "correct", "answer": [" a", 3]},
]
TABLE = 'prompt,id,answer,label\r\n"one, two",x, three,True\r\n"say ""four""",y,,0.5\r\n'
SUFFIXES = (".jsonl", ".ndjson", ".json", ".txt", ".csv", ".tsv", ".parquet", ".pq", ".dat", "")


def parquet(rows) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


TEXTS = [
    as_json_lines(ROWS), as_json(ROWS), json.dumps(ROWS, indent=1).encode(), TABLE.encode(),
    TABLE.replace(",", "\t").encode(), b"The capital\r\n\r\nof France\nis\n", b"prompt\nA single column\n",
    b"[1, 2, 3]\n[4, 5]\n", b'"text"\n"more text"\n',
]  # fmt: skip
PARQUET = [parquet(ROWS[:1]), parquet([{"text": "a"}, {"text": "b"}]), parquet([{"tokens": [1, 2]}])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("prompts")


@pytest.fixture(scope="module")
def model():
    return load_model("people-0")


def try_prompts(path, column=None, model=None) -> None:
    prompts = outcome(eics.read_prompts, path, column=column)
    for prompt in prompts or ():
        assert isinstance(prompt, Prompt)
        json.dumps(prompt.metadata, allow_nan=False).encode()
        if model is not None:
            outcome(tokenize, model, prompt)
    outcome(read_labelled, path)
    if model is not None:
        outcome(read_task, path, model)


@FUZZ
@given(
    (damaged([ROWS, ROWS[:1]]) | ANY_JSON).flatmap(lambda rows: st.sampled_from([as_json(rows), as_json_lines(rows)])),
    st.sampled_from(SUFFIXES),
    st.none() | st.sampled_from(["prompt", "id", *ODD_TEXTS]),
)
def test_rows_that_say_something_else(folder, model, content, suffix, column):
    try_prompts(write(folder / f"p{suffix}", content), column, model)


@FUZZ
@given(damaged_bytes(TEXTS), st.sampled_from(SUFFIXES))
def test_text_with_damaged_bytes(folder, content, suffix):
    try_prompts(write(folder / f"p{suffix}", content))


CELLS = {
    "int": pa.int64(), "float": pa.float64(), "text": pa.string(), "binary": pa.binary(), "bool": pa.bool_(),
    "ids": pa.list_(pa.int64()), "floats": pa.list_(pa.float64()), "date": pa.date32(), "time": pa.timestamp("us"),
    "struct": pa.struct([("a", pa.int64())]), "map": pa.map_(pa.string(), pa.int64()), "null": pa.null(),
    "decimal": pa.decimal128(5, 2), "duration": pa.duration("ns"), "dictionary": pa.dictionary(pa.int8(), pa.string()),
}  # fmt: skip


@st.composite
def tables(draw) -> bytes:
    """Parquet whose columns have the usual names and any type."""
    names = draw(st.lists(st.sampled_from(["prompt", "tokens", "id", "label", "answer", "text", "", "\n"]), max_size=4))
    rows = draw(st.integers(0, 3))
    columns = []
    for _ in names:
        kind = CELLS[draw(st.sampled_from(sorted(CELLS)))]
        values = draw(st.lists(ODD, min_size=rows, max_size=rows))
        try:
            columns.append(pa.array(values, kind))
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError):
            columns.append(pa.nulls(rows, kind))
    file = io.BytesIO()
    try:
        pq.write_table(pa.Table.from_arrays(columns, names=names), file)
    except pa.ArrowException:
        return parquet(ROWS[:1])
    return file.getvalue()


@FUZZ
@given(tables() | damaged_bytes(PARQUET), st.sampled_from([".parquet", ".pq", ".bin"]))
def test_parquet_of_any_columns_and_damaged_bytes(folder, content, suffix):
    try_prompts(write(folder / f"t{suffix}", content))


@FUZZ
@given(damaged([[0.5, 1, -2.0]]).map(as_json) | ANY_JSON.map(as_json) | damaged_bytes([b"[0.5, 1, -2.0]"]))
def test_steering_vectors(folder, content):
    outcome(steering_vector, write(folder / "v.json", content))


@FUZZ
@given(ANY_JSON | damaged([ROWS]) | st.lists(st.binary(max_size=5)) | st.binary(max_size=5))
def test_prompts_from_python(value):
    outcome(as_prompts, value)
