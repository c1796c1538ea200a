"""The report's data and page without a browser; tests/browser tests the rendered page."""

import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import eics
from eics.cli import main
from eics.reporting.page import build_page, read_readable, report_data, write_report
from eics.reporting.page.packing import LETTERS, halves, pairs
from eics.reporting.page.runs import Origin
from eics.reporting.page.sentences import alpha_sentence, exactness, warnings
from eics.reporting.page.shell import embed
from eics.scoring.result import EdgeTerm, Scores, failed
from support.report_records import HOSTILE, detailed_scores, make_circuit, make_score, make_scores, usual_scores


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["report", *map(str, arguments)])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def data_of(page: str):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def unhalved(packed) -> list[float]:
    """Decodes `packing.halves` with numpy."""
    most, letters = packed
    return list(np.frombuffer(b64decode(letters), dtype="<f2").astype(float) / 32768 * most)


def unpaired(record) -> tuple[np.ndarray, np.ndarray]:
    """Decodes the shares and cosines of `packing.pairs`."""
    worth = np.array([LETTERS.index(letter) for letter in record["edges"]]).reshape(-1, 3) @ [91 * 91, 91, 1]
    level, cosine = worth // 202, worth % 202
    code = level.astype(float)
    fine = record.get("fine", "")
    large = [index for index in np.argsort(-level, kind="stable") if 0 < level[index] <= 3728][: len(fine)]
    code[large] += np.array([LETTERS.index(letter) for letter in fine]) / 90 - 0.5
    share = np.where(level == 0, 0.0, record["most"] * 10 ** (12 * ((code - 1) / 3727 - 1)))
    return np.where(level == 3729, np.nan, share), np.where(cosine == 201, np.nan, cosine / 100 - 1)


@pytest.mark.parametrize("name", ["scores.jsonl", "scores.parquet"])
def test_a_page_from_the_records_alone(tmp_path, name):
    scores = usual_scores()
    eics.write_records(scores, tmp_path / name)
    output = run(tmp_path / name, "--out", tmp_path / "report.html")
    assert f"{len(scores)} records" in output
    data = data_of((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert data == json.loads(json.dumps(report_data(scores, source=name)))
    assert data["notes"] == []


def test_no_torch_is_needed(tmp_path):
    eics.write_records(usual_scores(), tmp_path / "s.jsonl")
    program = (
        "import sys\nsys.modules['torch'] = sys.modules['transformers'] = sys.modules['matplotlib'] = None\n"
        "from eics.cli import main\nmain(['report', 's.jsonl', '--out', 'r.html'], standalone_mode=False)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "r.html").exists()


def test_the_page_loads_nothing():
    page = build_page(report_data(usual_scores()))
    code = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    code = re.sub(r'<script type="application/json".*?</script>', "", code, flags=re.S)
    assert not re.search(r"https?:|//[a-z]+\.|\bsrc=|@import|url\(", code)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", code)
    assert "default-src 'none'" in page


def test_text_is_escaped():
    score = replace(usual_scores()[0], id="</script><b>", prompt=HOSTILE, model="<i>", answer="<!--")
    page = build_page(report_data([score], notes=["<u>"], source="<s>"))
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "<i>" not in page
    assert "<!--" not in page
    assert "<title>EICS · &lt;i&gt;" in page
    assert data_of(page)["prompts"][0]["prompt"] == HOSTILE
    build_page(report_data([replace(score, prompt="half a pair: \ud83d")])).encode("utf-8")


def test_it_stays_small(tmp_path):
    """500 prompts in both presets on a complete circuit of 50 nodes, in which every node reads all upstream nodes."""
    circuit = make_circuit(16, 2)
    assert (len(circuit.nodes), len(circuit.edges)) == (50, 1209)
    few = make_scores(circuit, 2, ("paper", "well-posed"))
    words = {"tokens": [" word"] * 20, "prompt": " word" * 20}
    write_report((replace(few[i % 4], id=f"prompt {i // 2}", **words) for i in range(1000)), tmp_path / "big.html")
    assert (tmp_path / "big.html").stat().st_size < 5.1e6


def test_numbers_survive():
    scores = usual_scores()
    data = report_data(scores)
    circuit = data["circuits"][0]
    names = [node[0] for node in circuit["nodes"]]
    record, score = data["records"][0], scores[0]
    edges = [
        (names[source], names[target], port, attribution) for source, target, port, attribution, _ in circuit["edges"]
    ]
    terms = {(e.source, e.target, e.port): e for e in score.edges}
    share, cosine = unpaired(record)
    for (source, target, port, attribution), s, c in zip(edges, share, cosine, strict=True):
        edge = terms[source, target, port]
        assert s == pytest.approx(edge.share, rel=1e-4)
        assert s * record["total"] == pytest.approx(edge.residual, rel=1e-4)
        assert c == pytest.approx(edge.cosine, abs=0.005001)
        assert attribution == pytest.approx(edge.attribution, rel=1e-5)
    assert record["most"] == pytest.approx(max(edge.share for edge in score.edges), rel=1e-5)
    norms = dict(zip(names, unhalved(record["norm"]), strict=True))
    assert norms == pytest.approx(score.norms, rel=1e-3)
    assert record["values"][data["numbers"].index("c_sh")] == pytest.approx(score.c_sh, rel=1e-5)
    assert record["errors"][data["numbers"].index("dei")] == 0.1
    assert data["grids"][record["curve"]["grid"]] == pytest.approx(score.curve["alpha"], rel=1e-4)
    assert unhalved(record["curve"]["dei"]) == pytest.approx(score.curve["dei"], rel=1e-3)
    companion = next(r for r in data["records"] if r["run"] == 1)
    shares = dict(zip(names, unhalved(companion["nodeShare"]), strict=True))
    for node in scores[1].nodes:
        assert shares[node.node] == pytest.approx(node.share, rel=1e-3)
        assert shares[node.node] * companion["nodeTotal"] == pytest.approx(node.residual, rel=2e-3)


def test_shares_of_a_propagated_residual_keep_their_own_residuals_and_signs():
    score = make_score(make_circuit(1, 1), 0, 1, "well-posed", residual="propagated")
    first, *others = score.nodes
    score = replace(score, nodes=(replace(first, share=-0.25), *others))
    record = report_data([score])["records"][0]
    assert "nodeTotal" not in record
    assert min(unhalved(record["nodeShare"])[1:]) == pytest.approx(-0.25, rel=1e-3)
    assert first.residual in [pytest.approx(residual, rel=1e-3) for residual in unhalved(record["nodeResidual"])]


@given(st.lists(st.tuples(st.none() | st.floats(0, 1), st.none() | st.floats(-1, 1)), min_size=1))
def test_pairs_of_numbers_come_back(given_pairs):
    """The relative error of a share is the same for all: no bar is off by more than 0.4%."""
    shares, cosines = zip(*given_pairs, strict=True)
    most = max((share for share in shares if share is not None), default=0.0)
    letters, fine = pairs(shares, cosines, most)
    back = unpaired({"edges": letters, "fine": fine, "most": most})
    for (share, cosine), s, c in zip(given_pairs, *back, strict=True):
        assert np.isnan(s) if share is None else s == pytest.approx(share, rel=4e-3, abs=1e-12 * most)
        assert np.isnan(c) if cosine is None else c == pytest.approx(cosine, abs=0.005001)


def test_tiny_shares_are_as_exact_as_large_ones():
    """A residual bar was off by 4% at a ten-millionth of the largest share."""
    shares = [10.0 ** -(11 * i / 999) for i in range(1000)]
    letters, fine = pairs(shares, [None] * 1000, 1.0)
    back, _ = unpaired({"edges": letters, "fine": fine, "most": 1.0})
    assert np.abs(back / shares - 1).max() < 3.8e-3
    assert np.abs(back / shares - 1)[:60].max() < 5e-5
    assert len(letters + fine) == 3060


@given(st.lists(st.none() | st.floats(-1e300, 1e300), min_size=1))
def test_halves_come_back(numbers):
    most = max((abs(number) for number in numbers if number is not None), default=0.0)
    for number, back in zip(numbers, unhalved(halves(numbers)), strict=True):
        assert np.isnan(back) if number is None else back == pytest.approx(number, rel=1e-3, abs=1e-8 * most)


def test_a_prompt_of_two_presets_is_stored_once():
    data = report_data(usual_scores())
    assert len(data["prompts"]) == 8
    assert len(data["records"]) == 14
    first = data["prompts"][0]
    assert "prompt" not in first  # the tokens have it
    assert "".join(first["tokens"]) == usual_scores()[0].prompt
    indices = [record["promptIndex"] for record in data["records"]]
    assert sorted(indices.count(index) for index in range(8)) == [1, 1, 2, 2, 2, 2, 2, 2]


def test_runs_are_told_apart():
    data = report_data(usual_scores())
    assert [run["label"] for run in data["runs"]] == ["Literal (preset paper)", "Well-posed"]
    assert [run["byNode"] for run in data["runs"]] == [False, True]
    assert len(data["circuits"]) == 1
    other = report_data([*usual_scores(), make_score(make_circuit(2), "x", 1, model="folder/another")])
    labels = ["Literal (preset paper), made-up", "Well-posed", "Literal (preset paper), another"]
    assert [run["label"] for run in other["runs"]] == labels
    assert len(other["circuits"]) == 2


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"circuit": {"name": "b.json", "sha256": "b"}}, ["made-up.json", "b.json"]),
        ({"circuit": {"name": "made-up.json", "sha256": "b"}}, ["made-up.json 1", "made-up.json 2"]),
        ({"mode": "exact"}, ["lanczos", "exact"]),
        ({"seed": 5}, ["seed 0", "seed 5"]),
        ({"alpha": 2.5}, ["alpha 1", "alpha 2.5"]),
        ({"dtype": "float64"}, ["float32", "float64"]),
        ({"fingerprint": "0123456789"}, ["fingerprint not recorded", "fingerprint 01234567"]),
        (
            {"interventions": [{"kind": "ablate", "node": "m0", "norm": 3.0}]},
            ["interventions none", "interventions ablate m0"],
        ),
    ],
)
def test_runs_are_labelled_by_what_differs(changes, labels):
    score = make_score(make_circuit(1, 1), 0, 1)
    runs = report_data([score, replace(score, **changes)])["runs"]
    assert [run["label"] for run in runs] == [f"Literal (preset paper), {label}" for label in labels]


def test_a_page_of_several_runs_names_what_differs():
    score = make_score(make_circuit(1, 1), 0, 1)
    other = replace(score, alpha=2.0, mode="exact", dtype="bfloat16", linearization="frozen", residual="joint")
    data = report_data([score, other], origins=[Origin("a.jsonl", 1), Origin("b.jsonl", 2)])
    assert {entry["name"]: entry["values"] for entry in data["differences"]} == {
        "file": ["a.jsonl", "b.jsonl"],
        "alpha": ["1", "2"],
        "mode": ["lanczos", "exact"],
        "linearization": ["jacobian", "frozen"],
        "residual": ["edge", "joint"],
        "dtype": ["float32", "bfloat16"],
        "record version": ["1", "2"],
    }
    circuits = [score, replace(score, model="b", circuit={"name": "made-up.json", "sha256": "other"})]
    values = {entry["name"]: entry["values"] for entry in report_data(circuits)["differences"]}
    assert values == {"model": ["made-up", "b"], "circuit": ["made-up.json 1", "made-up.json 2"]}
    assert report_data([score, replace(score, id=1)])["differences"] == []


def test_a_failed_prompt_joins_the_run_of_its_options():
    scores = [make_score(make_circuit(1, 1), i, i, alpha=alpha) for i, alpha in enumerate((1.0, 2.0, 1.0))]
    lost = replace(
        failed("lost", "too long"), **{n: getattr(scores[1], n) for n in ("model", "circuit", "mode", "seed")}
    )
    data = report_data([scores[0], lost, scores[1], scores[2], replace(lost, id="late", alpha=2.0)])
    ids = [(data["prompts"][r["promptIndex"]]["id"], r["run"]) for r in data["records"]]
    assert ids == [(0, 0), ("lost", 0), (2, 0), (1, 1), ("late", 1)]


def test_files_become_runs_of_one_page(tmp_path):
    score = make_score(make_circuit(1, 1), 0, 1)
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        eics.write_records([score], tmp_path / folder / "s.jsonl")
    (tmp_path / "old.jsonl").write_text(line(id="old", version=1, mode="fast") + "{", encoding="utf-8")
    files = [tmp_path / name for name in ("one/s.jsonl", "two/s.jsonl", "old.jsonl")]
    output = run(*files, "--out", tmp_path / "r.html")
    note = "old.jsonl: Line 2: cut off, perhaps by a killed run; left out."
    assert note in output
    data = data_of((tmp_path / "r.html").read_text(encoding="utf-8"))
    assert data["notes"] == [note]
    assert data["source"] == "s.jsonl, s.jsonl, old.jsonl"
    values = {entry["name"]: entry["values"] for entry in data["differences"]}
    assert values["file"] == ["s.jsonl 1", "s.jsonl 2", "old.jsonl"]
    assert values["record version"] == ["2", "2", "1"]
    assert values["mode"] == ["lanczos", "lanczos", "limit"]


def test_details_come_back():
    score = detailed_scores(1)[0]
    details = report_data([score])["records"][0]["details"]
    for node, shares in score.details["positions"].items():
        assert unhalved(details["positions"][node]) == pytest.approx(shares, rel=1e-3)
    for head, pattern in score.details["patterns"].items():
        packed = details["patterns"][head]
        weights = iter(unhalved(packed["weights"]))
        for length, row in zip(packed["lengths"], pattern["rows"], strict=True):
            back = [next(weights) for _ in range(length)] + [0.0] * (packed["keys"] - length)
            assert back == pytest.approx(row, rel=1e-3, abs=1e-8)
        assert sum(packed["lengths"]) == 15  # not 25: a causal pattern is half empty
    first = score.details["top_tokens"]["m0"][0]
    assert details["tops"]["m0"][0] == [first["token"], pytest.approx(first["logit"], rel=1e-3)]


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
GOOD = make_score(make_circuit(1, 1), "good", 3).to_record()
NODES = st.dictionaries(st.sampled_from(["m0", "a0.h0"]), ANY)
PATTERNS = st.fixed_dictionaries({"queries": ANY, "rows": ANY})


@settings(max_examples=200, derandomize=True)
@given(
    ANY | st.dictionaries(st.sampled_from(["positions", "patterns", "top_tokens"]), NODES | ANY),
    st.dictionaries(st.sampled_from(["m0", "a0.h0"]), PATTERNS),
    ANY,
    ANY,
)
def test_details_of_any_shape_are_survived(details, patterns, predictions, notes):
    fields = {"predictions": predictions, "warnings": notes, "interventions": notes}
    with TemporaryDirectory() as folder:
        texts = (json.dumps(GOOD | fields | {"details": d}) + "\n" for d in (details, {"patterns": patterns}))
        readable = read_readable(lines(Path(folder), *texts))
    assert len(readable.scores) == 2
    embed(report_data(readable.scores, notes=readable.notes, origins=readable.origins))


def test_parts_of_details_that_cannot_be_read_are_noted(tmp_path):
    details = {
        "positions": {"m0": [0.5, "x"], "a0.h0": [0.5]},
        "patterns": {"a0.h0": {"queries": [0], "rows": [[1], [1]]}},
    }
    readable = read_readable(lines(tmp_path, line(details=details), line(warnings=["x"])))
    assert readable.scores[0].details == {"positions": {"a0.h0": [0.5]}}
    assert readable.notes == (
        "Line 1: a part of details cannot be read.",
        "Line 2: a part of warnings cannot be read.",
    )


def test_incomplete_records_join_the_run_that_fits_best():
    scores = [replace(score, circuit=None) for score in usual_scores()]
    lost = failed("old", "too long", metric="relative", emergence="intensive")
    data = report_data([*scores, lost, failed("older", "empty")])
    assert len(data["runs"]) == 2
    runs = {data["prompts"][record["promptIndex"]]["id"]: record["run"] for record in data["records"]}
    assert (runs["old"], runs["older"]) == (1, 0)
    alone = report_data([failed("a", "too long"), failed("b", "too long")])
    assert [record["run"] for record in alone["records"]] == [0, 0]
    build_page(alone)


def test_edges_left_out_of_one_run_are_kept_from_the_other():
    circuit = eics.Circuit(["input->a0.h0<q>", "input->a0.h0<v>", "a0.h0->logits"])
    both = [make_score(circuit, 0, 1, preset) for preset in ("well-posed", "paper")]
    data = report_data(both)
    assert len(data["circuits"][0]["edges"]) == 3
    shares = [unpaired(record)[0] for record in data["records"]]
    assert [np.isnan(share).sum() for share in shares] == [1, 0]


def test_a_consistent_prompt_blames_no_edge():
    chain = eics.LinearCircuit({"x->y": [[2.0]], "y->z": [[3.0]]}, {"x": [1.0], "y": [2.0], "z": [6.0]})
    record = report_data([eics.score(chain)])["records"][0]
    assert record["consistent"] is True
    assert list(unpaired(record)[0]) == [0.0, 0.0]


def lines(tmp_path, *texts):
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(texts), encoding="utf-8")
    return path


def edge(target, share):
    return {"source": "input", "target": target, "port": None, "residual": 1.0, "share": share}


def line(**changes):
    record = make_score(make_circuit(1, 1), "good", 3).to_record() | changes
    return json.dumps({key: value for key, value in record.items() if value != "DROP"}) + "\n"


@pytest.mark.parametrize(
    ("text", "note", "kept"),
    [
        (line()[:300], "Line 2: cut off, perhaps by a killed run; left out.", 0),
        ("not json\n", "Line 2: not JSON; left out.", 0),
        ("[1, 2]\n", "Line 2: not a record; left out.", 0),
        ("1" + "0" * 5000 + "\n", "Line 2: not JSON; left out.", 0),
        (line(id="DROP"), "Line 2: the field 'id' is missing; the line number is used instead.", 1),
        (line(status="DROP"), "Line 2: the field 'status' is missing.", 1),
        (line(status="fine"), "Line 2: unknown status 'fine'.", 1),
        (line(version=3), "Line 2: version 3, not 2; read as far as possible: update eics.", 1),
        (line(version="DROP"), "Line 2: no version; read as far as possible.", 1),
        (line(c_sh="DROP", dei="many"), "Line 2: the numbers c_sh, dei cannot be read.", 1),
        (line(eics=float("nan")), "Line 2: the number eics cannot be read.", 1),
        (line(alpha=[1]), "Line 2: alpha is not a finite number.", 1),
        (line(edges="DROP"), "Line 2: the field 'edges' is missing.", 1),
        (line(alpha="DROP", mode="DROP"), "Line 2: the fields 'alpha', 'mode' are missing.", 1),
        (
            line(edges=[{"source": "input"}, 3]),
            "Line 2: 2 of 2 edges lack a field or have an impossible number; left out.",
            1,
        ),
        (
            line(edges=[{"residual": 1.0, "share": 1.0}]),
            "Line 2: 1 of 1 edges lack a field or have an impossible number; left out.",
            1,
        ),
        (
            line(edges=[edge("m0", 1.0), edge("m1", -0.5)]),
            "Line 2: 1 of 2 edges lack a field or have an impossible number; left out.",
            1,
        ),
        (line(edges="none"), "Line 2: edges cannot be read.", 1),
        (line(norms={"m0": "big"}), "Line 2: a part of norms cannot be read.", 1),
        (line(curve={"alpha": [1, 2], "dei": [1]}), "Line 2: the curve cannot be read.", 1),
    ],
)
def test_what_cannot_be_read_is_noted(tmp_path, text, note, kept):
    path = lines(tmp_path, line(), text)
    readable = read_readable(path)
    assert list(readable.notes) == [note]
    assert len(readable.scores) == 1 + kept
    assert readable.scores[0] == make_score(make_circuit(1, 1), "good", 3)
    assert note in run(path, "--out", tmp_path / "r.html")
    assert note in data_of((tmp_path / "r.html").read_text(encoding="utf-8"))["notes"]


def test_a_repeated_problem_is_noted_once(tmp_path):
    readable = read_readable(lines(tmp_path, line(), *["{\n"] * 9))
    assert readable.notes == ("Lines 2, 3, 4, 5, 6, 7 and 3 more: not JSON; left out.",)


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", bytes(range(128, 256)), b"\n\n"])
def test_a_file_without_records_is_refused(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(content)
    result = CliRunner().invoke(main, ["report", str(tmp_path / "x.jsonl"), "--out", str(tmp_path / "r.html")])
    assert result.exit_code == 2
    assert "A page must have a record that can be read" in result.output
    assert not (tmp_path / "r.html").exists()


def test_fields_of_any_type_are_survived(tmp_path):
    odd = {
        "version": 9,
        "id": {"a": 1},
        "status": None,
        "edges": {},
        "nodes": 3,
        "tokens": "abc",
        "circuit": [],
        "seed": {},
    }
    odd |= {
        "curve": {"alpha": "x"},
        "diagnostics": 7,
        "label": [1],
        "prompt": 5,
        "stderr": [1],
        "node_positions": {"a": 1},
    }
    readable = read_readable(lines(tmp_path, json.dumps(odd) + "\n"))
    assert readable.scores[0].status == "failed"
    build_page(report_data(readable.scores, notes=readable.notes))


def test_edges_that_make_no_circuit_are_listed(tmp_path):
    score = make_score(make_circuit(1, 1), 0, 1)
    cycle = replace(score, edges=(EdgeTerm("x", "y", None, 1.0, 0.5), EdgeTerm("y", "x", None, 1.0, 0.5)), circuit=None)
    data = report_data([cycle])
    assert "cannot be drawn: A circuit must have no cycle" in data["notes"][0]
    assert [edge[:2] for edge in data["circuits"][0]["edges"]] == [["x", "y"], ["y", "x"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl", "--out", "r.html"], "No such file"),
        (["{good}", "--out", "r.pdf"], "an .html file in a folder that exists"),
        (["{good}", "--out", "none/r.html"], "an .html file in a folder that exists"),
    ],
)
def test_errors_are_clear(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    good = lines(tmp_path, line())
    assert message in run(*(argument.format(good=good) for argument in arguments), code=2)


def test_quiet(tmp_path):
    assert run(lines(tmp_path, line(), "{\n"), "--out", tmp_path / "r.html", "--quiet") == ""


def test_how_alpha_was_chosen():
    score = make_score(make_circuit(1, 1), 0, 1)
    calibrated = {"target": 0.35, "median": 0.35, "quartiles": [0.3, 0.4], "prompts": 9}
    assert alpha_sentence([score]) == "The paper's prior."
    assert alpha_sentence([replace(score, alpha=2.0)]) == "Set by the user."
    assert "from 1 to 2" in alpha_sentence([score, replace(score, alpha=2.0)])
    auto = replace(score, diagnostics={"alpha_calibration": calibrated})
    assert "Calibrated on 9 prompts" in alpha_sentence([auto])
    odd = replace(score, diagnostics={"alpha_calibration": {"prompts": 9}})
    assert alpha_sentence([odd]) == "Calibrated on the prompts; the details could not be read."
    assert alpha_sentence([]) == "Not recorded."


def test_what_is_exact_and_what_is_estimated():
    score = make_score(make_circuit(1, 1), 0, 1)
    assert "without sampling" in exactness([replace(score, mode="exact")])[1]
    assert "standard error of dEI is 0.1 nats" in exactness([score])[1]
    assert "upper bound" in exactness([replace(score, mode="limit", stderr={})])[1]
    assert exactness([replace(score, mode=None)]) == ["The records do not say how EI was computed."]


def titles(*scores):
    return [warning["title"] for warning in warnings(Scores(scores))]


def test_warnings_are_plain_words():
    score = make_score(make_circuit(1, 1), 0, 1)
    calm = replace(score, status="ok", linearization="frozen", diagnostics={})
    clipped = replace(calm, status="clipped", eics=0.0)
    assert titles(calm) == []
    assert titles(clipped) == ["Every score is 0"]
    assert titles(calm, clipped) == ["1 of 2 scores were clipped"]
    assert titles(failed(0, "too long"), calm) == ["1 of 2 prompts were not scored"]
    assert titles(replace(calm, linearization="jacobian")) == ["Norm layers inflate C_sh"]
    assert titles(replace(calm, linearization="jacobian", model=None)) == []
    for name, value, title in (
        ("spectral_gap", 1e-7, "Tiny spectral gap"),
        ("share_position_0", 0.9, "One token dominates C_sh"),
        ("share_top_edge", 0.8, "One edge dominates"),
        ("share_largest_part", 0.7, "One part dominates EI"),
        ("edges_left_out", 3, "3 edges are left out"),
    ):
        assert titles(replace(calm, diagnostics={name: value})) == [title]
    noisy = [replace(calm, eics=0.1 + i / 1000, stderr={"eics": 0.5}) for i in range(8)]
    assert titles(*noisy) == ["Sampling noise"]
    longer = [replace(calm, eics=i / 10, stderr={}, diagnostics={"length": i}) for i in range(8)]
    assert titles(*longer) == ["The score follows prompt length"]
