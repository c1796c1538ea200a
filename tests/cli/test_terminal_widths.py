"""Every table at 80, 120 and 200 columns: whole numbers and headers, and the least important columns go first."""

import re
from dataclasses import replace

import pytest
import torch

import eics
from eics.cli import score_table as scores_of
from eics.cli import tables
from eics.cli.layout import Column, fitted
from eics.cli.terminal import console
from eics.scoring.numbers import number, percent, with_error
from eics.studies.bench.measure import Counts, Spread, Timing
from eics.studies.bench.rows import ROWS, Setting
from eics.studies.bench.run import Compared, ForwardResult, RowResult
from eics.studies.bench.table import Report
from eics.studies.discovery.faithfulness import Faithfulness, Point
from eics.studies.statistics import Interval
from eics.studies.toy.curves import Curves
from support.report_records import make_scores

WIDTHS = (80, 120, 200)
DEEP = eics.Circuit(["input->a23.h10<v>", "a23.h10->a29.h11<v>", "a29.h11->m29", "m29->logits"])


def sampled_scores(count=3):
    """Records with everything that a table can show."""
    predicted = [{"token": " Paris", "id": 3, "probability": 0.45678}, {"token": None, "id": 7, "probability": 1.2e-5}]
    return [
        replace(
            score,
            id=f"an-identifier-that-is-far-too-long-for-a-column-{index}",
            percentile=12.5,
            alpha=0.01,
            stderr={"eics": 0.01234, "dei": 1.5, "dei_norm": 0.02},
            prompt="The capital of France, a country in Europe, is the city of",
            predictions=predicted,
            warnings=[{"code": "tiny-ratio", "text": f"r is {index}."}],
        )
        for index, score in enumerate(make_scores(DEEP, count, ("paper",), dei=-359318.6))
    ]


def shown(table, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    screen = console()
    with screen.capture() as capture:
        screen.print(table)
    return capture.get()


def every_table(width):
    scores = sampled_scores()
    yield "score", scores_of.score_table(scores, "EICS, preset paper", width)
    yield "edges", scores_of.edge_bars(scores[0], width)
    yield "layers", tables.layer_table(DEEP, "a circuit", width)
    values = {name: torch.rand(11, 4) for name in ("eics", "c_sh", "dei_norm")}
    yield "toy", tables.curve_table(Curves(tuple(index / 10 for index in range(11)), values), width)
    measured = Faithfulness((Point("top 0.1%", 1234, 0.00123, Interval(0.9, 0.8, 1.0)),), 1.0, 0.0, 9, None, None)
    yield "faithfulness", tables.faithfulness_table(measured, "a long path/to/a/circuit.json on facts", width)
    yield "bench", tables.bench_table(bench_report(), width)


def bench_report():
    spread = Spread(2.6, 2.56, 2.61, 5)
    timing, counts = Timing(spread, spread, spread), Counts(320, 1040, 10**9, 0)
    compared = Compared("plain", 9.0, True, 1234.5, 56.7)
    results = [RowResult(row, 9, 99, timing, 1.0, counts, 2.78, 280.4, compared, timing) for row in ROWS]
    forward = ForwardResult(spread, spread, counts, None)
    model = {"name": "gpt2 shape", "dtype": "float32", "batch": 8, "tokens": 16}
    return Report({}, model, Setting("gpt2", "cpu", "float32", 8, 16), forward, results)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_table_fits_with_whole_numbers_and_headers(width, monkeypatch):
    for name, table in every_table(width):
        text = shown(table, width, monkeypatch)
        assert max(map(len, text.splitlines())) <= width, name
        header = next(line for line in text.splitlines()[1:] if line.strip())
        for column in table.columns:
            assert str(column.header) in header, (name, width, column.header)
        assert not re.search(r"\d…|…\.?\d", text), (name, text)  # no number is cut


def test_columns_leave_in_their_order(monkeypatch):
    tables_by_width = {width: scores_of.score_table(sampled_scores(), "EICS", width) for width in WIDTHS}
    heads = {width: shown(table, width, monkeypatch) for width, table in tables_by_width.items()}
    for head in ("id", "EICS", "C_sh", "status", "%ile", "worst edges"):
        assert all(head in text for text in heads.values()), head
    assert "Not shown in 80 columns: prompt, dEI_norm, dEI (nats), next token." in heads[80]
    assert "Not shown in 120 columns: prompt, dEI_norm." in heads[120]
    assert "Not shown" not in heads[200]
    assert "The capital of" in heads[200]


def test_beside_a_score(monkeypatch):
    text = shown(scores_of.score_table(sampled_scores(), "EICS, preset paper", 200), 200, monkeypatch)
    first = sampled_scores()[0]
    for expected in ("alpha 0.01", f"{number(first.eics)} ± 0.0123", "12.5", "' Paris' 45.7%", "-3.59e+05 ± 1.50"):
        assert expected in text
    assert scores_of.prediction_sentences(first) == ["Next token: ' Paris' 45.7%, token 7 0.00120%."]


def test_differing_alphas_get_a_column(monkeypatch):
    scores = sampled_scores(2)
    scores[1] = replace(scores[1], alpha=1.0)
    text = shown(scores_of.score_table(scores, "EICS", 200), 200, monkeypatch)
    assert "alpha" in text.splitlines()[2]
    assert "alpha" not in text.splitlines()[0]


def test_warnings_are_counted_by_kind():
    scores = sampled_scores()
    scores[2] = replace(scores[2], warnings=[])
    (line,) = scores_of.warning_sentences(scores)
    assert line.startswith("Warning for 2 of 3 prompts (")
    assert line.endswith("-0: r is 0.")
    assert len(scores_of.warning_sentences(scores, full=True)) == 2
    assert scores_of.warning_sentences(scores[:1]) == ["Warning for the prompt: r is 0."]


def test_a_narrow_table_keeps_its_numbers(monkeypatch):
    columns = [Column("id", ["x" * 90], text=True), Column("n", ["1.23e-09"]), Column("more", ["1.23"], rank=1)]
    text = shown(fitted("title", columns, 24), 24, monkeypatch)
    assert "1.23e-09" in text
    assert "xxx…xxx" in text
    assert "Not shown in 24 columns" in " ".join(text.split())


IDS = ["unknown-18-instrument", "unknown-1-profession", "unknown-49-instrument", "known-124-instrument"]


@pytest.mark.parametrize(
    "names",
    [IDS, [f"an-identifier-of-some-length-{n}-of-many" for n in range(12)], ["a" * 40 + x for x in "bc"]],
)
def test_names_that_are_cut_stay_different(names, monkeypatch):
    """Two rows that cannot be told apart are worth less than a column that is left out."""
    columns = [
        Column("id", names, names=True),
        Column("n", ["1.23"] * len(names)),
        Column("m", ["x" * 20] * len(names), 1),
    ]
    text = shown(fitted("title", columns, 36), 36, monkeypatch)
    first = [line.split()[0] for line in text.splitlines() if "1.23" in line]
    assert len(set(first)) == len(names)


def test_names_that_cannot_be_told_apart_leave_room(monkeypatch):
    columns = [Column("id", ["a" * 50 + x + "a" * 50 for x in "bc"], names=True), Column("n", ["1.23"] * 2, rank=1)]
    text = shown(fitted("title", columns, 40), 40, monkeypatch)
    assert max(map(len, text.splitlines())) <= 40
    assert "1.23" in text


def test_names_are_cut_where_it_does_no_harm():
    assert Column("id", IDS, names=True).narrowest == 11
    column = Column("id", IDS, names=True)
    column.width = 11
    assert column.shown() == ["unknown-18…", "unknown-1-…", "unknown-49…", "known-124-…"]


def test_a_heading_is_as_wide_as_the_terminal(monkeypatch):
    """It is folded at the terminal's edge, not at the table's."""
    heading = "a heading that is much wider than the table below it"
    text = shown(fitted(heading, [Column("n", ["1"]), Column("wide", ["x" * 90], 1)], 80), 80, monkeypatch)
    assert heading in text
    assert "Not shown in 80 columns: wide." in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0, "0"), (-0.0, "0"), (float("nan"), "nan"), (float("-inf"), "-inf"), (None, ""), (12345, "12345"),
        (0.99999, "1.00"), (99999.9, "1.00e+05"), (-1.23456e-9, "-1.23e-09"), (0.00012345, "0.000123"), (999.6, "1000"),
    ],
)  # fmt: skip
def test_three_significant_digits(value, expected):
    assert number(value) == expected


def test_errors_and_shares():
    assert with_error(1.0, 0.0) == "1.00 ± 0"
    assert with_error(None, 0.1) == ""
    assert percent(0.5) == "50.0%"
