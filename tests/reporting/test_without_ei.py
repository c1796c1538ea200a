"""Results without the EI term have status ok and no score: everything that shows records skips what is not there."""

import csv
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

import eics
from eics.cli import main
from eics.cli.export import choose_record
from eics.cli.score_table import edge_bars, score_table
from eics.errors import OptionError, RecordError
from eics.reporting.export import scored_graph
from eics.reporting.page import read_readable, report_data, write_report
from eics.reporting.plots import distributions, scores_figure
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.result import NodeTerm, Score, Scores, failed
from eics.transformer.means import Means
from support.report_records import make_circuit, make_score

EI = ("eics", "dei", "dei_norm", "ei_macro", "emergence_ratio", "alpha", "percentile", "curve")
CIRCUIT = make_circuit(2, 2)


def without_ei(id="plain", seed=1, **fields):
    """A result as `terms="sheaf"` gives it: nodes and edges, and nothing of EI."""
    score = make_score(CIRCUIT, id, seed, "well-posed", **dict.fromkeys(EI), ei_parts={}, stderr={})
    return replace(score, status="ok", reason=None, **fields)


def bare(id="bare"):
    """By node alone."""
    return Score(id=id, status="ok", c_sh=0.4, nodes=(NodeTerm("m0", 2.0, 0.8), NodeTerm("a0.h1", 0.5, 0.2)))


def batch():
    """With and without EI, by node alone, and one that failed."""
    whole = replace(make_score(CIRCUIT, "whole", 2, "well-posed"), status="ok")
    return Scores([without_ei(), whole, bare(), failed("bad", "too long")])


def table_text(scores):
    screen = Console(width=160)
    with screen.capture() as capture:
        screen.print(score_table(scores, "Scores", width=160))
    return capture.get()


def test_status_alone_says_that_a_prompt_failed():
    assert [score.failed for score in batch()] == [False, False, False, True]
    assert "failed" not in bare().to_record()


def test_repr_names_what_is_there():
    assert repr(bare()) == "Score('bare', ok: c_sh=0.400)"
    assert repr(Scores([bare(), bare()])) == "Scores(2: 2 ok; median c_sh=0.400)"
    assert repr(batch()).startswith("Scores(4: 3 ok, 1 failed; median eics=")
    assert repr(Score(id=1, status="ok")) == "Score(1, ok: no numbers)"


def test_the_summary_counts_only_failures_as_failed():
    assert Scores([bare(), without_ei()]).summary() == []
    assert batch().summary()[0] == "1 of 4 prompts failed."
    longer = Scores(replace(bare(i), diagnostics={"length": i}) for i in range(9))
    assert longer.summary() == []


def test_notebooks():
    for score in (bare(), without_ei()):
        shown = score._repr_html_()
        assert "C_sh" in shown
        assert not any(word in shown for word in ("None", "failed", "dEI"))
    rows = batch()._repr_html_()
    assert "None" not in rows
    assert rows.count(">-</td>") == 6  # eics, dei_norm and dei of two prompts
    frame = batch().to_pandas()
    assert frame["eics"].notna().tolist() == [False, True, False, False]
    assert frame["c_sh"].notna().tolist() == [True, True, True, False]
    assert len(without_ei().to_pandas()) == len(without_ei().edges)
    assert len(bare().to_pandas()) == 0


def test_plots():
    without_ei().plot()
    without_ei().plot("edges")
    figure = bare().plot("nodes")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["m0", "a0.h1"]
    assert figure.axes[0].get_title() == "bare: C_sh 0.4"
    with pytest.raises(OptionError, match=r"must have edges .* Prompt bare has none: it has nodes only, .*'nodes'"):
        bare().plot()
    with pytest.raises(OptionError, match="Prompt plain has none: score it with curve=True"):
        without_ei().plot("curve")
    assert [axes.get_title() for axes in distributions([bare(), without_ei()]).axes] == [r"$C_{\mathrm{sh}}$"]
    assert len(batch().plot().axes) == 4
    scores_figure({"sheaf": [bare(), without_ei()], "both": batch()}).canvas.draw()


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_records_come_back_as_they_were(tmp_path, name):
    eics.write_records(batch(), tmp_path / name)
    back = eics.read_records(tmp_path / name)
    assert [score.to_record() for score in back] == [score.to_record() for score in batch()]


def test_cells_of_a_csv_are_empty(tmp_path):
    eics.write_records(batch(), tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["status"], bool(row["eics"]), bool(row["c_sh"])) for row in rows] == [
        ("ok", False, True), ("ok", True, True), ("ok", False, True), ("failed", False, False),
    ]  # fmt: skip


def test_the_terminal_shows_a_dash_and_drops_a_column_that_nobody_has():
    lines = {line.split()[0]: line for line in table_text(batch()).splitlines() if line.strip()}
    assert lines["plain"].split()[1] == "-"
    assert lines["bare"].split()[1:4] == ["-", "0.400", "-"]
    assert " - " not in lines["bad"]
    assert "m0:80.0%" in lines["bare"]
    alone = table_text([bare(), without_ei(), failed("bad", "too long")])
    assert "C_sh" in alone
    assert not any(head in alone for head in ("EICS ", "dEI", " - "))
    assert edge_bars(bare()) is None
    assert edge_bars(without_ei()) is not None


def test_the_page_counts_them_as_scored(tmp_path):
    data = report_data(batch())
    prompts = {value for run in data["runs"] for name, value in run["facts"] if name == "prompts"}
    assert sum(int(value.split("(")[1].split()[0]) for value in prompts) == 3
    assert [record["status"] for record in data["records"]].count("failed") == 1
    (run,) = report_data([without_ei("a"), without_ei("b", 3)])["runs"]
    assert run["exact"][1] == "EI was not computed."
    assert run["alphaHow"] == "Not needed: EI was not computed."
    assert not any("not scored" in warning["title"] for warning in run["warnings"])
    eics.write_records(batch(), tmp_path / "a.jsonl")
    read = read_readable(tmp_path / "a.jsonl")
    assert read.notes == ()
    assert [score.status for score in read.scores] == ["ok", "ok", "ok", "failed"]
    write_report(read.scores, tmp_path / "a.html")


def test_a_record_without_a_status_counts_as_scored_if_it_was_made_without_ei(tmp_path):
    record = without_ei().to_record()
    del record["status"]
    broken = record | {"eics": "high", "dei": 1.0}
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (record, broken)))
    assert [score.status for score in read_readable(tmp_path / "a.jsonl").scores] == ["ok", "failed"]


def test_exports_and_drawings(tmp_path):
    assert "eics" not in scored_graph(without_ei()).metadata["metadata"]["eics"]
    with pytest.raises(RecordError, match="Prompt bare has none: it was scored by node alone"):
        scored_graph(bare())
    eics.write_records([failed("bad", "too long"), without_ei()], tmp_path / "a.jsonl")
    assert choose_record(tmp_path / "a.jsonl", None).id == "plain"
    result = CliRunner().invoke(main, ["export", str(tmp_path / "a.jsonl"), str(tmp_path / "graph.json")])
    assert result.exit_code == 0, result.output


def test_percentiles_of_what_is_there():
    quantiles = {"eics": (0.0, 1.0), "c_sh": (0.0, 1.0)}
    calibration = Calibration(
        model="m", circuit=CIRCUIT.label(), options={}, alpha=1.0, prompts=2, quantiles=quantiles,
        means=Means({}, {}), chosen=None, answer=None, tokens=None,
    )  # fmt: skip
    placed = calibration.place(bare())
    assert placed.percentile is None
    assert placed.diagnostics["calibration"]["percentiles"] == {"c_sh": pytest.approx(40.0)}
    assert "calibration" not in calibration.place(failed("bad", "too long")).diagnostics
