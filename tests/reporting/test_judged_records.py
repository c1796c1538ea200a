"""The page's data of calibrated records: sentence, suspects, z, p and r2; and of records without edges."""

import json
import math
from dataclasses import replace

import pytest

from eics.reporting.drawing import place_names
from eics.reporting.page import read_readable, report_data
from eics.reporting.page.packing import halves
from eics.scoring.records import write_records
from eics.scoring.verdict import explanations, verdict
from support.report_records import judged_scores, make_circuit, make_scores


def names(data):
    return [node[0] for node in data["circuits"][0]["nodes"]]


@pytest.mark.parametrize("edges", [True, False])
def test_a_record_has_its_sentence_its_suspects_and_the_numbers_of_its_nodes(edges):
    scores = judged_scores(edges=edges)
    data = report_data(scores)
    for score, record in zip(scores, data["records"], strict=True):
        assert record["verdict"] == verdict(score)
        assert record["suspects"] == score.suspects
        assert dict(zip(data["numbers"], record["values"], strict=True))["p_value"] == score.p_value
        assert record["nodeReason"] == {"a0.h0": "its write hardly varies"}
        terms = {term.node: term for term in score.nodes}
        for field, name in (("nodeZ", "z"), ("nodeP", "p"), ("nodeR2", "r2")):
            expected = [getattr(terms[node], name) if node in terms else None for node in names(data)]
            assert record[field] == halves(expected)


def test_what_was_expected_of_a_node_is_packed():
    (score, *_) = judged_scores()
    packed = report_data([score])["records"][0]["details"]["expected"]
    assert packed.keys() == {term.node for term in score.nodes if term.z is not None}
    for node, entry in score.details["expected"].items():
        found = packed[node]
        for name, tops in zip(("wrote", "expected", "difference"), found["tops"], strict=True):
            assert tops == [[top["token"], pytest.approx(top["logit"], rel=1e-3)] for top in entry[name]]
        assert dict(found["parents"]) == pytest.approx(entry["parents"], rel=1e-3)
        others, less, off = found["shares"]
        assert others is None
        assert off == pytest.approx(entry["off_circuit"], rel=1e-3)
        assert sum(entry["parents"].values()) + less + off == pytest.approx(1, abs=1e-3)


def test_parents_beyond_those_listed_are_summed():
    (score, *_) = judged_scores()
    entry = score.details["expected"]["logits"]
    many = {f"a{i}.h0": 0.5 / (i + 1) for i in range(20)}
    whole = {"expected": {"logits": entry | {"parents": many, "other_parents": 0.25, "rest": 0.1}}}
    record = report_data([replace(score, details=score.details | whole)])["records"][0]
    found = record["details"]["expected"]["logits"]
    assert [name for name, _ in found["parents"]] == list(many)[:12]
    assert found["shares"][0] == pytest.approx(0.25 + sum(list(many.values())[12:]), rel=1e-3)


@pytest.mark.parametrize(
    "odd",
    [[], "x", {"wrote": 1}, {"wrote": [], "expected": []}, {"wrote": [{"token": "a", "logit": "b"}], "parents": 3}],
)
def test_expected_of_any_shape_is_survived(odd):
    (score, *_) = judged_scores()
    spoilt = {"expected": {**score.details["expected"], "m1": odd}}
    details = report_data([replace(score, details=score.details | spoilt)])["records"][0]["details"]
    assert "m1" not in details["expected"]
    assert "m0" in details["expected"]


def test_missing_shares_are_left_out():
    (score, *_) = judged_scores()
    bare = {"wrote": [{"token": "a", "logit": 1.0}], "parents": {"m0": math.nan}, "rest": None}
    details = report_data([replace(score, details={"expected": {"m1": bare}})])["records"][0]["details"]
    assert details["expected"]["m1"] == {"tops": [[["a", 1.0]], [], []], "parents": [], "shares": [None, None, None]}


def test_the_terminal_says_what_carried_a_suspect():
    (score, *_) = judged_scores()
    entry = score.details["expected"]["m1"] | {"parents": {"m0": -0.4, "a0.h1": 0.3}, "rest": 1.1, "off_circuit": 0.8}
    lines = explanations(replace(score, details={"expected": {"m1": entry}}))
    assert lines == [
        "m1 wrote towards ' wrote 0', ' wrote 1', ' wrote 2'; "
        "expected was ' expected 0', ' expected 1', ' expected 2'. "
        "It was carried there from off the circuit (80.0%), by a0.h1 (30.0%)."
    ]
    without_text = {"wrote": [{"token": None, "id": 7, "logit": 1.0}], "expected": [], "parents": {}, "off_circuit": 0}
    (line,) = explanations(replace(score, details={"expected": {"m1": without_text}}))
    assert line.startswith("m1 wrote towards token 7")
    assert "carried" not in line
    assert explanations(judged_scores()[1]) == []  # nothing is suspected
    assert explanations(judged_scores(edges=False)[0]) == []  # nothing was kept


def test_other_records_have_nothing_of_it():
    data = report_data(make_scores(make_circuit(), 2, ("well-posed",)))
    assert not {"verdict", "suspects", "nodeP", "nodeR2", "nodeReason"} & set(data["records"][0])
    (run,) = data["runs"]
    assert not run["judged"]
    assert "compared with" not in dict(run["facts"])
    assert not any("p-values" in line for line in [*run["exact"], *(w["title"] for w in run["warnings"])])


def test_a_record_without_edges_shows_its_nodes_layer_by_layer():
    scores = judged_scores(edges=False)
    data = report_data(scores)
    (circuit,) = data["circuits"]
    assert circuit["edges"] == []
    assert names(data) == [node for node in make_circuit().order if node in {term.node for term in scores[0].nodes}]
    height = {node[0]: node[2] for node in circuit["nodes"]}
    assert height["a0.h0"] == height["a0.h1"] > height["m0"] > height["a1.h0"] > height["a2.h0"] > height["logits"]
    assert len({(x, y) for _, x, y, *_ in circuit["nodes"]}) == len(circuit["nodes"])
    assert [row[0] for row in circuit["rows"]] == ["layer 0", "layer 1", "layer 2"]
    assert dict(data["runs"][0]["facts"])["circuit"].endswith("(10 nodes, edges not in the records)")


def test_records_with_and_without_edges_share_their_circuit():
    data = report_data([*judged_scores(), *judged_scores(edges=False)])
    assert len(data["circuits"]) == 1
    assert len(data["circuits"][0]["edges"]) == len(make_circuit().edges)
    assert [record["nodeP"] for record in data["records"][3:]] == [record["nodeP"] for record in data["records"][:3]]


def test_nodes_that_are_not_of_a_transformer_stand_in_rows():
    places = place_names([f"n{i:02}" for i in range(20)]).places
    assert len(set(places.values())) == 20
    assert places["n07"] == (7.0, 0.0)
    assert places["n08"] == (0.0, 1.0)


@pytest.mark.parametrize("edges", [True, False])
def test_the_run_says_what_p_values_rest_on(edges):
    (run,) = report_data(judged_scores(edges=edges))["runs"]
    assert run["judged"]
    assert dict(run["facts"])["compared with"] == "249 calibration prompts"
    assert "249 calibration prompts, so that no p is below 0.004" in run["exact"][0]
    assert "C_sh" not in run["exact"][0]
    assert ("EI was not computed." in run["exact"]) is not edges
    warning = run["warnings"][0]
    assert warning["title"] == "p-values hold for prompts of the same kind as the reference"
    assert "what the 249 calibration prompts did" in warning["text"]
    assert "up to 5% have a suspect by chance" in warning["text"]


def test_everything_is_read_back_from_a_file(tmp_path):
    scores = judged_scores(edges=False)
    write_records(scores, tmp_path / "a.jsonl")
    read = read_readable(tmp_path / "a.jsonl")
    assert read.notes == ()
    data = report_data(read.scores)
    assert data == report_data(scores)
    assert {"verdict", "suspects", "nodeP", "nodeR2", "nodeReason"} <= set(data["records"][0])


def test_suspects_that_cannot_be_read_are_named(tmp_path):
    record = judged_scores()[0].to_record() | {"suspects": "m1"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    read = read_readable(tmp_path / "a.jsonl")
    assert read.notes == ("Line 1: suspects cannot be read.",)
    assert "verdict" not in report_data(read.scores)["records"][0]
