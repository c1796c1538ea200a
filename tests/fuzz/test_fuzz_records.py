"""Damaged and hostile records and calibrations: what they can still say or one clear line, wherever they are read."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics.circuits.formats.files import WRITERS
from eics.cli.export import configuration_of
from eics.cli.score_table import score_table
from eics.reporting.export import scored_graph
from eics.reporting.page import read_readable
from eics.reporting.page.build import build_page, report_data
from eics.scoring.calibration.file import load_calibration, save_calibration
from eics.scoring.calibration.summary import node_summaries, sheaf_sentences
from eics.scoring.record_file import RecordFile
from eics.scoring.records import read_records, to_line, write_records
from support.hostile import (
    ANY_JSON,
    FUZZ,
    as_json,
    as_json_lines,
    as_safetensors,
    damaged,
    damaged_bytes,
    outcome,
    split_safetensors,
    write,
)
from support.learned import kept_calibration
from support.valid_files import DETAILED_RECORDS, RECORDS, SCORES, SMALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


def try_records(folder, path) -> None:
    """Every reader of records, and what commands do with what was read."""
    records = outcome(read_records, path)
    if records is not None:
        use(folder, records)
    readable = outcome(read_readable, path)
    if readable is not None:
        for score in readable.scores:
            to_line(score)
        outcome(lambda: build_page(report_data(readable.scores, notes=readable.notes, origins=readable.origins)))
    file = outcome(RecordFile, path, resume=True)
    if file is not None:
        repr(file.earlier)


def use(folder, records) -> None:
    repr(records)
    records.summary()
    records.to_pandas()
    for score in records:
        repr(score)
        score._repr_html_()
        to_line(score).encode()
        configuration_of(score)
        graph = outcome(scored_graph, score)
        for writer in WRITERS.values() if graph is not None else ():
            outcome(writer.write, graph)
    outcome(score_table, records, "title")
    outcome(lambda: build_page(report_data(records)))
    for suffix in (".parquet", ".csv"):
        outcome(write_records, records, folder / f"again{suffix}")


@FUZZ
@given((damaged([RECORDS, RECORDS[:1], DETAILED_RECORDS]) | ANY_JSON).map(as_json_lines))
def test_records_that_say_something_else(folder, content):
    try_records(folder, write(folder / "r.jsonl", content))


@FUZZ
@given(damaged_bytes([as_json_lines(RECORDS), as_json_lines(DETAILED_RECORDS)]))
def test_records_with_damaged_bytes(folder, content):
    try_records(folder, write(folder / "r.jsonl", content))


@pytest.fixture(scope="module")
def table(folder):
    """Our records as Parquet, as a table in memory."""
    write_records(SCORES[:2], folder / "valid.parquet")
    return pq.read_table(folder / "valid.parquet"), (folder / "valid.parquet").read_bytes()


@FUZZ
@given(st.data())
def test_parquet_records(folder, table, data):
    """Columns with damaged values, of other types, and damaged bytes."""
    valid, content = table
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes([content]))
    else:
        rows = data.draw(damaged([[row | {"extra": None} for row in plain(valid.to_pylist())]]))
        try:
            file = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(rows), file)
            content = file.getvalue()
        except (pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError, ValueError, AttributeError):
            pass  # Arrow has no such table: the valid one, then
    try_records(folder, write(folder / "r.parquet", content))


def plain(rows: list) -> list:
    """Rows of JSON types: maps come as lists of pairs."""
    return json.loads(json.dumps(rows))


MEANS = eics.transformer.means.Means({"input": torch.ones(2), "a0.h0": torch.zeros(2)}, {"a0": torch.ones(2)})
CALIBRATION = eics.Calibration(
    model="m",
    circuit=SMALL.label(),
    options=dict(**eics.WELL_POSED),
    alpha=0.5,
    chosen=None,
    prompts=3,
    quantiles={"eics": (0.0, 0.5, 1.0), "c_sh": (0.1, 0.2)},
    means=MEANS,
    answer=None,
    tokens=None,
)


@pytest.fixture(scope="module", params=[".json", ".safetensors", "sheaf"])
def calibration(folder, request):
    suffix = ".safetensors" if request.param == "sheaf" else request.param
    path = folder / f"valid{suffix}"
    save_calibration(kept_calibration() if request.param == "sheaf" else CALIBRATION, path)
    content = path.read_bytes()
    return suffix, content if suffix == ".json" else as_safetensors(*split_safetensors(content))


@FUZZ
@given(st.data())
def test_calibrations(folder, calibration, data):
    suffix, content = calibration
    how = data.draw(st.sampled_from(["bytes", "fields", "fields", "header"]))
    if how == "bytes":
        content = data.draw(damaged_bytes([content]))
    elif suffix == ".json":
        content = as_json(data.draw(damaged([json.loads(content)]) | ANY_JSON))
    else:
        header, numbers = split_safetensors(content)
        if how == "header":
            header = data.draw(damaged([header]))
        else:
            document = json.loads(header["__metadata__"]["calibration"])
            header["__metadata__"]["calibration"] = as_json(data.draw(damaged([document]) | ANY_JSON)).decode()
        content = as_safetensors(header, numbers)
    loaded = outcome(load_calibration, write(folder / f"c{suffix}", content))
    if loaded is not None:
        repr(loaded)
        outcome(lambda: loaded.sha256)
        outcome(loaded.fit, eics.WELL_POSED, SMALL.label(), None, None)
        outcome(loaded.place, SCORES[0])
        outcome(lambda: loaded.learned and (list(sheaf_sentences(loaded.learned)), node_summaries(loaded.learned)))
        for again in (".json", ".safetensors"):
            outcome(save_calibration, loaded, folder / f"again{again}")
