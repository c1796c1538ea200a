"""The tables of docs/validation-calibrated.md and docs/calibrate.md are the numbers of the runs."""

import re
import shutil

import pytest

from proof.report import PAGES, TABLES, filled, read_results, write
from support.doc_pages import ROOT

PAGE = ROOT / "docs" / "validation-calibrated.md"
FOLDER = ROOT / "docs" / "validation" / "calibrated"


@pytest.fixture(scope="module")
def results():
    return read_results(FOLDER)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_holds_what_the_runs_wrote(results, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert filled(text, results) == text, "run: python scripts/calibrated_proof.py report"


def test_every_table_is_on_the_page_once():
    names = re.findall(r"<!-- table: ([\w-]+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(names) == sorted(TABLES)


def test_other_numbers_make_another_page(results):
    text = PAGE.read_text(encoding="utf-8")
    found = results["facts"]["kinds"]["write"]["calibrated"]["first"]
    value, found["value"] = found["value"], 0.123
    try:
        assert "| `facts` | write patched | 0.123 [" in filled(text, results)
    finally:
        found["value"] = value


def test_report_fills_a_page_and_draws_its_figures(tmp_path):
    for path in FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- table: sizes -->\nold\n<!-- end -->\n\nafter\n", encoding="utf-8")
    write(tmp_path, [page])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n\n<!-- table: sizes -->\n| prompts | write: first |")
    assert text.endswith("<!-- end -->\n\nafter\n")
    assert "old" not in text
    assert {path.name for path in tmp_path.glob("*.png")} == {"localisation.png", "reference.png"}
