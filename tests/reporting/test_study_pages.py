"""Pages of comparisons and traces without a browser: what is embedded, what is refused, how large a page is."""

import copy
import json
import math
import re
from base64 import b64encode
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics.errors import OptionError, RecordError
from eics.reporting.page.comparison import comparison_page
from eics.reporting.page.packing import LETTERS, codes, hundredths
from eics.reporting.page.sheet import draw_graph, draw_parts
from eics.reporting.page.shell import PAGES, script
from eics.reporting.page.trace import trace_page
from support.report_records import HOSTILE, make_circuit
from support.study_documents import (
    failed_text,
    models_document,
    parts,
    sets_document,
    trace_header,
    trace_lines,
    traced_text,
)

NODES = [node for node in make_circuit(4, 3).nodes if node != "input"]
DOCUMENTS = {"models": models_document(), "whole model": models_document(circuit=False), "sets": sets_document()}


def data_of(page: str):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def unpacked(letters: str, far: list[float]) -> list[float]:
    """Decodes `packing.hundredths` letter by letter."""
    numbers, rest = [], iter(far)
    for high, low in zip(letters[::2], letters[1::2], strict=True):
        code = LETTERS.index(high) * 91 + LETTERS.index(low)
        numbers.append({8280: math.nan}.get(code, next(rest) if code == 8279 else (code - 2000) / 100))
    return numbers


def page_of(name: str) -> str:
    return (
        comparison_page(DOCUMENTS[name]) if name in DOCUMENTS else trace_page(trace_header(NODES), trace_lines(NODES))
    )


@pytest.mark.parametrize("name", [*DOCUMENTS, "trace"])
def test_a_page_loads_nothing_and_runs_one_script(name):
    page = page_of(name)
    code = re.search(r"<script>(.*?)</script>", page, re.S)[1]
    allowed = re.search(r"script-src 'sha256-([^']+)'", page)[1]
    assert allowed == b64encode(sha256(code.encode()).digest()).decode()
    assert "default-src 'none'" in page
    assert not re.search(r"<(link|script|img|iframe)[^>]+(src|href)=(?![\"']data:,)", page)
    assert "http://www.w3.org/2000/svg" in page
    assert "https://" not in page
    assert "pwned" in page
    assert HOSTILE not in page
    assert page.count("</script>") == 2
    assert "/home/somebody" not in page


def test_every_number_of_two_models_is_on_the_page():
    document = models_document()
    data = data_of(comparison_page(document, ["a remark"]))
    for given_node, node in zip(document["nodes"], data["nodes"], strict=True):
        assert node["node"] == given_node["node"]
        assert node["made"] == pytest.approx(given_node["made_here"], rel=1e-5)
        assert node["inherited"] == pytest.approx(given_node["inherited"], rel=1e-5)
        assert node["effect"] == pytest.approx(list(given_node["effect"].values()), rel=1e-5)
        assert (node["restored"] is None) == (given_node["restored"] is None)
        assert node["share"] == pytest.approx(given_node["effect"]["value"] / document["total"]["value"], rel=1e-4)
    for given_prompt, prompt in zip(document["prompts"], data["prompts"], strict=True):
        assert [prompt[name] for name in ("id", "prompt", "touched", "before", "after")] == [
            given_prompt[name] for name in ("id", "prompt", "touched", "before", "after")
        ]
        assert dict(prompt["effects"]) == pytest.approx(dict(given_prompt["effects"]), rel=1e-5)
    assert data["notes"] == ["a remark"]
    assert data["sentences"] == document["sentences"]
    assert data["title"] == "EICS · people-0 against people-0-paris-is-in-rome"
    assert {node["kind"] for node in data["nodes"]} == {"input", "head", "mlp", "bias", "logits"}


def test_z_of_every_prompt_of_two_sets_is_on_the_page():
    document = sets_document()
    data = data_of(comparison_page(document))
    names = [node["node"] for node in data["nodes"]]
    for given_prompt, prompt in zip(document["prompts"], data["prompts"], strict=True):
        expected = [given_prompt["z"].get(name, math.nan) for name in names]
        np.testing.assert_allclose(unpacked(prompt["z"], prompt.get("far", [])), expected, atol=0.00501)
    assert [node["role"] for node in data["nodes"][:3]] == ["entry", "inherits", "inherits"]
    assert data["nodes"][0]["shift"] == [2.6, 2.3, 2.9]


def test_every_z_of_a_trace_is_on_the_page():
    lines = trace_lines(NODES)
    data = data_of(trace_page(trace_header(NODES), lines))
    for line, text in zip(lines, data["texts"], strict=True):
        assert text["id"] == line["id"]
        if line["status"] == "failed":
            assert text["reason"] == line["reason"]
            continue
        flat = [math.nan if value is None else value for row in line["z"] for value in row]
        np.testing.assert_allclose(unpacked(text["z"], text.get("far", [])), flat, atol=0.00501)
        assert text["suspects"] == [
            [NODES.index(one["node"]), one["position"], round(one["z"], 2)] for one in line["suspects"]
        ]
        assert text["p"] == line["p_value"]
        assert (text["text"] is None) == (line["text"] == "".join(line["tokens"]))
    assert "rows" not in data["texts"][0]


def test_a_long_trace_keeps_its_most_unusual_nodes():
    lines = [traced_text(f"t{number}", NODES, 30) for number in range(4)]
    data = data_of(trace_page(trace_header(NODES), lines, budget=5 * 4 * 30))
    for line, text in zip(lines, data["texts"], strict=True):
        assert len(text["rows"]) == 5
        peaks = sorted((max(value for value in row if value is not None) for row in line["z"]), reverse=True)
        kept = [max(value for value in line["z"][row] if value is not None) for row in text["rows"]]
        assert sorted(kept, reverse=True) == peaks[:5]


def test_pages_stay_below_five_megabytes():
    wide = comparison_page(models_document(30, 8, 500, circuit=False))
    assert len(data_of(wide)["nodes"]) == 302
    sets = comparison_page(sets_document(30, 9, 250, nodes=300))
    assert len(data_of(sets)["prompts"]) == 500
    nodes = parts(6, 8)[1:]
    line = traced_text("t", nodes, 200)  # 500 x 200 x 59 values of z
    traced = trace_page(trace_header(nodes), [line | {"id": str(number)} for number in range(500)])
    for page in (wide, sets, traced):
        assert len(page.encode()) < 5e6
    assert len(sets) > 300 * 500 * 2


def test_parts_outside_the_circuit_are_drawn():
    data = data_of(comparison_page(models_document()))
    names = [node[0] for node in data["graph"]["nodes"]]
    assert {node["node"] for node in data["nodes"]} == set(names)
    assert "other parts" in [row[0] for row in data["graph"]["rows"]]


@pytest.mark.parametrize("names", [parts(3, 4), parts(30, 9), ["m0"], ["x", "y", *map(str, range(30))], ["a2.bias"]])
def test_a_grid_of_parts_has_a_row_for_each_layer_and_no_overlap(names):
    drawn = draw_parts(names)
    wide, tall = drawn["box"]
    places = [(x, y) for _, x, y, *_ in drawn["nodes"]]
    assert [node[0] for node in drawn["nodes"]] == list(names)
    for index, (x, y) in enumerate(places):
        assert wide / 2 <= x <= drawn["width"] - wide / 2
        assert tall / 2 <= y <= drawn["height"] - tall / 2
        assert all(abs(x - u) > wide or abs(y - v) > tall for u, v in places[:index])
    heights = {name: y for name, _, y, *_ in drawn["nodes"]}
    if "m2" in heights:
        assert heights["a2.h0"] == heights["a2.bias"] == heights["m2"] < heights["m1"]
        assert heights["logits"] < heights["m2"]


def test_other_parts_move_no_edge_onto_a_node():
    circuit = make_circuit()
    plain, more = (draw_graph(circuit.edges, {}, {}, others) for others in ([], ["a0.bias", "a1.bias"]))
    assert [edge[:3] for edge in plain["edges"]] == [edge[:3] for edge in more["edges"]]
    assert [node[1] for node in plain["nodes"]] == [node[1] for node in more["nodes"][:-2]]
    assert min(node[2] for node in more["nodes"][-2:]) > max(node[2] for node in more["nodes"][:-2])


def test_a_circuit_of_too_many_edges_is_a_grid():
    circuit = make_circuit(9, 9)
    assert len(circuit.edges) > 3000
    data = data_of(comparison_page(models_document(edges=[str(edge) for edge in circuit.edges])))
    assert data["graph"]["grid"]
    assert data["notes"] == [
        f"The circuit has {len(circuit.edges)} edges, too many to draw: the picture shows its parts alone."
    ]


def test_edges_that_make_no_circuit_are_noted():
    data = data_of(comparison_page(models_document(edges=["m2->m1"])))
    assert data["graph"]["grid"]
    assert data["notes"][0].startswith("The circuit cannot be drawn, only its parts: An edge must run forwards")


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6))))
def test_hundredths_come_back(numbers):
    values = np.array([math.nan if number is None else number for number in numbers], dtype=float)
    letters, far = hundredths(values)
    np.testing.assert_allclose(unpacked(letters, far), values, atol=0.00501, rtol=1e-12)
    assert not {'"', "<", "\\"} & set(letters)


def test_codes_of_two_letters():
    assert codes([0, 1, 8278, None]) == "!!!#~|~~"


REFUSED = [
    ("models", ["format"], "eics-trace", "'eics-comparison' in 'format'. Got 'eics-trace'"),
    ("models", ["version"], 2, "the number 1 (update eics, or run eics compare again) in 'version'. Got 2"),
    ("models", ["kind"], "both", "'models' or 'prompts' in 'kind'. Got 'both'"),
    ("models", ["metric"], "loss", "in 'metric'. Got 'loss'"),
    ("models", ["nodes", 3, "effect", "value"], "big", "a finite number or null in 'nodes[3].effect.value'. Got 'big'"),
    ("models", ["nodes", 3, "made_here"], math.nan, "a finite number or null in 'nodes[3].made_here'. Got nan"),
    ("models", ["nodes", 3, "made_here"], math.inf, "a finite number or null in 'nodes[3].made_here'. Got inf"),
    ("models", ["nodes", 3, "made_here"], 10**400, "a finite number or null in 'nodes[3].made_here'"),
    ("models", ["nodes", 3, "made_here"], True, "a finite number or null in 'nodes[3].made_here'. Got True"),
    ("models", ["nodes", 3, "made_here"], -1.0, "a number of at least 0 in 'nodes[3].made_here'. Got -1.0"),
    ("models", ["nodes", 3, "node"], "a->b", "the name of a node in 'nodes[3].node'. Got 'a->b'"),
    ("models", ["nodes", 3, "node"], "input", "a name that no other node has in 'nodes[3].node'. Got 'input'"),
    ("models", ["nodes"], {}, "a list in 'nodes'. Got {}"),
    ("models", ["nodes", 2], None, "an object in 'nodes[2]'. Got None"),
    ("models", ["edges", 1], 7, "a text in 'edges[1]'. Got 7"),
    ("models", ["prompts", 0, "touched"], "yes", "true or false in 'prompts[0].touched'. Got 'yes'"),
    ("models", ["prompts", 0, "effects", 1], ["m2"], "a pair of a node and a number in 'prompts[0].effects[1]'"),
    ("models", ["prompts", 0, "effects", 1], ["m2", math.nan], "in 'prompts[0].effects[1].number'. Got nan"),
    ("models", ["sentences"], "all is well", "a list in 'sentences'"),
    ("models", ["total"], 0.3, "an object in 'total'. Got 0.3"),
    ("sets", ["nodes", 0, "role"], "origin", "'entry' or 'inherits' or null in 'nodes[0].role'. Got 'origin'"),
    ("sets", ["nodes", 1, "shift", "low"], math.nan, "in 'nodes[1].shift.low'. Got nan"),
    ("sets", ["sets", "b", "compared"], -3, "an integer of at least 0 in 'sets.b.compared'. Got -3"),
    ("sets", ["prompts", 4, "z", "m1"], "2", "a finite number or null in 'prompts[4].z.m1'. Got '2'"),
    ("sets", ["prompts", 4, "set"], "c", "'a' or 'b' in 'prompts[4].set'. Got 'c'"),
    ("sets", ["paired"], None, "true or false in 'paired'. Got None"),
]


def changed(document, where, value):
    document = copy.deepcopy(document)
    inner = document
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    return document


@pytest.mark.parametrize(("name", "where", "value", "message"), REFUSED)
def test_a_damaged_comparison_is_refused_by_its_field(tmp_path, name, where, value, message):
    with pytest.raises(RecordError) as refused:
        eics.report.write_comparison_page(changed(DOCUMENTS[name], where, value), tmp_path / "page.html")
    assert str(refused.value).startswith("The comparison must have ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def without(document, where):
    document = copy.deepcopy(document)
    inner = document
    for step in where[:-1]:
        inner = inner[step]
    del inner[where[-1]]
    return document


@pytest.mark.parametrize("name", ["models", "sets"])
def test_every_field_that_is_missing_is_named(name):
    optional = {"eics", "fingerprint", "calibration"}
    for field in set(DOCUMENTS[name]) - optional:
        with pytest.raises(RecordError, match=rf"'{field}'\. The field is missing"):
            comparison_page(without(DOCUMENTS[name], [field]))
    for field in DOCUMENTS[name]["nodes"][0]:
        if field != "reason":
            with pytest.raises(RecordError, match=rf"'nodes\[0\]\.{field}'\. The field is missing"):
                comparison_page(without(DOCUMENTS[name], ["nodes", 0, field]))


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (["status"], "done", "'ok' or 'failed' in 'line 2.status'. Got 'done'"),
        (["z", 3, 5], math.nan, "a finite number or null in 'line 2.z[3][5]'. Got nan"),
        (["z", 3, 5], "1.0", "a finite number or null in 'line 2.z[3][5]'. Got '1.0'"),
        (["z", 3, 5], 10**400, "a finite number or null in 'line 2.z[3][5]'"),
        (["z", 3], [1.0], "40 values, one for each token in 'line 2.z[3]'. Got '1 values'"),
        (["z"], [], "rows, one for each node in 'line 2.z'. Got '0 rows'"),
        (["largest", 2], math.inf, "a finite number or null in 'line 2.largest[2]'. Got inf"),
        (["at"], [], "40 values, one for each token in 'line 2.at'. Got '0 values'"),
        (["tokens", 0], 3, "a text in 'line 2.tokens[0]'. Got 3"),
        (["generated"], 99, "a position of at most 40 in 'line 2.generated'. Got 99"),
        (["suspects", 0, "node"], "m99", "one of the judged nodes in 'line 2.suspects[0].node'. Got 'm99'"),
        (["suspects", 0, "position"], 40, "a position below 40 in 'line 2.suspects[0].position'. Got 40"),
    ],
)
def test_a_damaged_line_of_a_trace_is_refused_by_its_field(tmp_path, where, value, message):
    lines = trace_lines(NODES)
    with pytest.raises(RecordError) as refused:
        eics.report.write_trace_page(
            trace_header(NODES), [changed(lines[0], where, value), *lines[1:]], tmp_path / "page.html"
        )
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_trace_of_another_version_is_refused():
    with pytest.raises(RecordError, match=r"the number 1 .update eics, or run eics trace again. in 'version'. Got 3"):
        trace_page(trace_header(NODES, version=3), [])
    with pytest.raises(RecordError, match="'eics-trace' in 'format'"):
        trace_page({"format": "eics-comparison"}, [])
    with pytest.raises(RecordError, match=r"must have an object\. Got \[\] instead"):
        trace_page([], [])


def test_empty_documents_make_pages(tmp_path):
    eics.report.write_trace_page(trace_header([]), [], tmp_path / "trace.html")
    eics.report.write_trace_page(trace_header(NODES), [failed_text("a"), failed_text("a")], tmp_path / "failed.html")
    assert [one["id"] for one in data_of((tmp_path / "failed.html").read_text())["texts"]] == ["a", "a (2)"]
    nothing = {"nodes": [], "edges": [], "circuit": None, "sentences": [], "total": None, "residue": None}
    empty = models_document(prompts=0) | nothing
    eics.report.write_comparison_page(empty, tmp_path / "empty.html")


def test_the_path_must_be_a_page(tmp_path):
    with pytest.raises(OptionError, match=r"'report' option must be an \.html file"):
        eics.report.write_comparison_page(models_document(), tmp_path / "page.txt")


@pytest.mark.parametrize("page", PAGES)
def test_a_script_has_no_request_and_no_html(page):
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "fetch(", "XMLHttpRequest"):
        assert forbidden not in script(page)
