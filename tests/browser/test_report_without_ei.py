"""Records without the EI term on the page: scored, with what they have, and without a word of what they lack."""

from dataclasses import replace

from eics.reporting.page import write_report
from eics.scoring.result import NodeTerm, Score, failed
from support.report_records import make_circuit, make_score

ABSENT = dict.fromkeys(("eics", "dei", "dei_norm", "ei_macro", "emergence_ratio", "alpha", "curve"))


def make_report(path):
    circuit = make_circuit(2, 2)
    scores = [make_score(circuit, f"p{i}", i, "well-posed", **ABSENT, ei_parts={}, stderr={}) for i in range(9)]
    write_report([*(replace(score, status="ok") for score in scores), failed("bad", "too long")], path)
    return path


def test_they_are_shown_as_scored(open_page, tmp_path):
    page = open_page(make_report(tmp_path / "a.html"))
    assert page.locator("#circuit .edge").count() > 0
    assert page.locator(".tile[data-name=c_sh]").count() == 1
    assert page.locator(".tile[data-name=eics]").count() == 0
    assert "EICS" not in page.locator("#all thead").inner_text()
    assert "EI was not computed" in page.locator("#run").inner_text()
    page.locator("#all tbody tr", has_text="p3").click()
    assert page.locator("#live").text_content().startswith("Prompt p3: C_sh ")
    page.locator("#all tbody tr", has_text="bad").click()
    assert "too long" in page.locator("#one").inner_text()
    page.locator("#all tbody tr", has_text="p1").click()
    page.select_option("#against", index=1)
    assert "NaN" not in page.locator("body").inner_text()
    assert "undefined" not in page.locator("body").inner_text()


def test_nodes_without_edges_are_drawn_and_listed(open_page, tmp_path):
    nodes = (NodeTerm("m0", 2.0, 0.8), NodeTerm("a0.h1", 0.5, 0.2))
    write_report([Score(id=i, status="ok", c_sh=0.4 + i, nodes=nodes) for i in range(3)], tmp_path / "a.html")
    page = open_page(tmp_path / "a.html")
    assert "the records have no edges" in page.locator("#one").inner_text()
    assert page.locator("#circuit .node").count() == 2
    assert page.locator("#circuit .edge").count() == 0
    assert page.locator("#terms tbody tr td:first-child").all_inner_texts() == ["m0", "a0.h1"]
    assert page.locator(".tile[data-name=c_sh] b").inner_text() == "0.4"
