"""What a reader does with the picture: zoom, pan, prune, save it, and send the view to others as a link."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from eics.reporting.page import write_report
from support.report_records import make_circuit, make_score, make_scores, usual_scores

SCORES = usual_scores()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "report.html"
    write_report(SCORES, path, source="scores.jsonl")
    return path


@pytest.fixture
def page(open_page, report):
    return open_page(report)


def window(page, picture="#circuit"):
    return [float(number) for number in page.locator(picture).get_attribute("viewBox").split()]


def seen(page):
    """Everything that a link must restore."""
    return {
        "window": window(page),
        "numbers": page.locator(".lead").inner_text(),
        "run": page.locator("#runs [aria-checked=true]").inner_text(),
        "selected": page.locator("#terms tr[aria-selected=true]").all_inner_texts(),
        "tab": page.locator("#terms [aria-selected=true][role=tab]").inner_text(),
        "compared": page.locator("#against option:checked").inner_text(),
        "by": page.locator("#versus-by option:checked").inner_text(),
        "difference": page.locator("#versus-table tbody tr").all_inner_texts(),
        "edges": page.locator("#circuit .edge").count(),
        "left": page.locator("#left").inner_text(),
    }


def link(page):
    """The page's own address, once it has followed the last change."""
    page.wait_for_timeout(300)
    return page.evaluate("location.hash")


def test_a_link_restores_the_view_in_a_fresh_browser(page, open_page, report):
    page.locator("#runs button", has_text="Well-posed").click()
    page.locator("#all tbody tr", has_text="p3").click()
    page.select_option("#against", label="p1: The capital of p1 is")
    page.select_option("#versus-by", "residual")
    page.locator("#prune").fill("40")
    page.locator("#circuit .node", has_text="a2.h1").click()
    for _ in range(3):
        page.locator("#one [aria-label='Zoom in']").click()
    before = seen(page)
    assert before["selected"][0].startswith("a2.h1")
    assert before["window"][2] < 400
    assert before["edges"] < 52
    assert before["compared"].startswith("p1")
    fresh = open_page(report, link(page))
    assert seen(fresh) == before
    assert link(fresh) == link(page)
    fresh.evaluate("location.hash = '#run=Literal+%28preset+paper%29&prompt=p5&edge=m1->m2'")
    fresh.wait_for_function("document.querySelector('.prompt').textContent.includes('p5')")
    assert fresh.locator("#terms tr[aria-selected=true] td").first.inner_text() == "m1->m2"


@pytest.mark.parametrize(
    "after",
    [
        "#prompt=nobody&run=none",
        "#%",
        "#zoom=a,b&prune=x",
        "#run=Well-posed&prompt=p1&node=x&prune=9&zoom=1e9,-5,7&by=constructor",
    ],
)
def test_a_link_to_what_is_not_there_opens_the_page(open_page, report, after):
    page = open_page(report, after)
    assert page.locator("#circuit .node").count() == len(SCORES[0].norms)


def test_prompts_with_one_id_have_links_of_their_own(open_page, tmp_path):
    circuit = make_circuit(1, 1)
    write_report([make_score(circuit, "same", seed) for seed in (1, 2)], tmp_path / "same.html")
    page = open_page(tmp_path / "same.html")
    page.get_by_label("Next prompt").click()
    text = page.locator(".lead .tiles").inner_text()
    fresh = open_page(tmp_path / "same.html", link(page))
    assert fresh.locator(".lead .tiles").inner_text() == text


def test_zoom_and_pan(page):
    whole = window(page)
    page.locator("#one [aria-label='Zoom in']").click()
    assert window(page)[2] == pytest.approx(whole[2] / 1.4, rel=0.01)
    page.locator("#circuit .node").first.focus()
    page.keyboard.press("+")
    zoomed = window(page)
    assert zoomed[2] == pytest.approx(whole[2] / 1.96, rel=0.01)
    page.keyboard.press("Shift+ArrowRight")
    assert window(page)[0] > zoomed[0]
    page.keyboard.press("0")
    assert window(page) == whole
    box = page.locator("#circuit").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.wheel(0, -300)  # the picture has the focus
    assert window(page)[2] < whole[2]
    assert window(page)[0] < 5  # what is under the mouse stays there
    before = window(page)
    page.mouse.move(box["x"] + 200, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 100, box["y"] + 5, steps=4)
    page.mouse.up()
    assert window(page)[0] > before[0]
    assert page.locator("#terms tr[aria-selected=true]").count() == 0  # a drag selects nothing
    page.locator("#one .zoom button", has_text="fit").click()
    assert window(page) == whole


def test_the_page_scrolls_past_a_picture_without_focus(page):
    page.locator("#circuit").scroll_into_view_if_needed()
    whole = window(page)
    page.locator("#circuit").hover(position={"x": 3, "y": 3})
    page.mouse.wheel(0, 100)
    assert window(page) == whole
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_function("before => document.querySelector('#circuit').viewBox.baseVal.width < before", arg=whole[2])


def test_two_fingers_zoom(page):
    whole = window(page)
    page.evaluate("""() => {
      const picture = document.querySelector("#circuit");
      const box = picture.getBoundingClientRect();
      const send = (type, id, x) => picture.dispatchEvent(new PointerEvent(type, { pointerId: id, clientX: box.left + x, clientY: box.top + 50, bubbles: true }));
      send("pointerdown", 1, 100); send("pointerdown", 2, 140); send("pointermove", 2, 180); send("pointerup", 1, 100); send("pointerup", 2, 180);
    }""")  # noqa: E501
    assert window(page)[2] == pytest.approx(whole[2] / 2, rel=0.02)


def test_pruning_by_share(page):
    score = SCORES[0]
    most = max(edge.share for edge in score.edges)
    assert page.locator("#left").inner_text() == f"{len(score.edges)} of {len(score.edges)} edges left"
    page.locator("#prune").fill("50")
    kept = [edge for edge in score.edges if edge.share >= most * 0.5**3]
    assert page.locator("#circuit .edge").count() == len(kept)
    assert page.locator("#left").inner_text().startswith(f"{len(kept)} of {len(score.edges)} edges left")
    assert f"{sum(edge.share for edge in kept):.1%} of the inconsistency" in page.locator("#left").inner_text()
    ends = {end for edge in kept for end in (edge.source, edge.target)}
    faded = page.locator("#circuit .node.faded").all_text_contents()
    assert {name.split("@")[0] for name in faded} == set(score.norms) - ends
    page.locator("#prune").focus()
    page.keyboard.press("End")
    assert page.locator("#circuit .edge").count() == 1
    assert page.evaluate("document.activeElement.id") == "prune"
    assert "1 of" in page.locator("#live").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_can_be_saved(open_page, tmp_path, scheme):
    hostile = "../../<b>é:\\ name</b>"
    write_report([replace(make_scores(make_circuit(), 1)[0], id=hostile)], tmp_path / "r.html")
    page = open_page(tmp_path / "r.html", color_scheme=scheme)
    with page.expect_download() as saved:
        page.locator("#one .export button", has_text="SVG").click()
    assert saved.value.suggested_filename == "literal-preset-paper-b-e-name-b-circuit.svg"
    drawing = ET.parse(saved.value.path()).getroot()
    named = "{http://www.w3.org/2000/svg}"
    labels = [element.text for element in drawing.iter(f"{named}text")]
    assert {"input", "a0.h0", "logits"} <= set(labels)
    assert hostile in labels[-1]
    strokes = {stroke for path in drawing.iter(f"{named}path") if (stroke := path.get("stroke"))}
    on_page = page.locator("#circuit .line").evaluate_all("lines => lines.map(line => line.getAttribute('stroke'))")
    assert strokes == set(on_page)
    assert not re.search(r"var\(|href|class=", saved.value.path().read_text(encoding="utf-8"))
    with page.expect_download() as saved:
        page.locator("#one .export button", has_text="PNG").click()
    assert saved.value.suggested_filename == "literal-preset-paper-b-e-name-b-circuit.png"
    content = saved.value.path().read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(content) > 20_000  # it is not empty
