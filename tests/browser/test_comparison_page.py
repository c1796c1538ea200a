"""The pages of two models and of two sets of prompts in a browser."""

import re

import pytest

from eics.reporting.page import write_comparison_page
from support.readers import (
    CLICKED,
    check_paper,
    check_phone,
    check_screen_reader,
    check_tab_order,
    column,
    head,
    least_contrast,
    link,
)
from support.report_records import HOSTILE
from support.study_documents import models_document, sets_document

MODELS = models_document()
WHOLE = models_document(12, 9, 30, circuit=False)
SETS = sets_document()
PAGES = ("models", "whole", "sets")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("comparison")
    for name, document in zip(PAGES, (MODELS, WHOLE, SETS), strict=True):
        write_comparison_page(document, path / f"{name}.html", notes=["made for a test"])
    return path


@pytest.fixture
def models(open_page, folder):
    return open_page(folder / "models.html")


@pytest.fixture
def sets(open_page, folder):
    return open_page(folder / "sets.html")


def number(text):
    """The first number of a cell."""
    shown = text.replace("\N{MINUS SIGN}", "-").split()
    return None if shown[0] == "\N{EN DASH}" else float(shown[0].rstrip("%"))


def node(page, name):
    return page.locator(f'#circuit .node[data-node="{name}"]')


def test_the_numbers_of_two_models_are_those_of_the_document(models):
    rows = {row.split("\t")[0]: row.split("\t") for row in models.locator("#parts tbody tr").all_inner_texts()}
    assert len(rows) == len(MODELS["nodes"])
    for given in MODELS["nodes"]:
        _, _, made, inherited, effect, restored, share = rows[given["node"]]
        assert number(made) == pytest.approx(given["made_here"], rel=0.005)
        assert number(inherited) == pytest.approx(given["inherited"], rel=0.005)
        assert number(effect) == pytest.approx(given["effect"]["value"], rel=0.005)
        ends = [float(end) for end in effect.replace("\N{MINUS SIGN}", "-").partition(" ")[2].split(" to ")]
        assert ends == pytest.approx([given["effect"]["low"], given["effect"]["high"]], rel=0.005)
        assert number(restored) == (
            None if given["restored"] is None else pytest.approx(given["restored"]["value"], rel=0.005)
        )
        assert number(share) / 100 == pytest.approx(
            given["effect"]["value"] / MODELS["total"]["value"], rel=0.06, abs=5e-4
        )
    assert float(models.locator("#total").inner_text()) == pytest.approx(MODELS["total"]["value"], rel=0.005)
    assert models.locator("#found .verdict").inner_text() == MODELS["sentences"][0]
    assert "made for a test" in models.locator("#notes").inner_text()


def test_both_models_stand_beside_the_circuit(models):
    places = [models.locator(name).bounding_box() for name in ("#model-a", "#circuit", "#model-b")]
    assert places[0]["x"] + places[0]["width"] <= places[1]["x"]
    assert places[1]["x"] + places[1]["width"] <= places[2]["x"]
    assert "people-0" in models.locator("#model-a").inner_text()
    answers = [models.locator(f"#model-{side} .answer-line b").all_inner_texts() for side in "ab"]
    touched = sum(prompt["touched"] for prompt in MODELS["prompts"])
    assert answers == [["Paris"] * 7, ["Rome"] * min(7, touched)]
    heights = [
        [line.bounding_box()["y"] for line in models.locator(f"#model-{side} .answer-line").all()] for side in "ab"
    ]
    assert heights[0] == pytest.approx(heights[1], abs=1)


def test_colour_is_what_was_made_and_the_ring_is_its_effect(models):
    drawn = models.locator("#circuit .node").evaluate_all(
        "nodes => nodes.map((one) => { const ring = one.querySelector('.effect'); const box = [...one.querySelectorAll('rect')].at(-1);"  # noqa: E501
        "return [one.dataset.node, box.style.fill, ring ? parseFloat(getComputedStyle(ring).strokeWidth) : 0, "
        "ring ? getComputedStyle(ring).strokeDasharray : null]; })"
    )
    given = {one["node"]: one for one in MODELS["nodes"]}
    assert {name for name, *_ in drawn} == set(given)
    light = [(given[name]["made_here"], sum(map(int, re.findall(r"\d+", fill)))) for name, fill, *_ in drawn if fill]
    above = sorted(one for one in light if one[0] > 0.31e-4)
    assert [dark for _, dark in above] == sorted((dark for _, dark in above), reverse=True)
    assert {name for name, fill, *_ in drawn if not fill} == {n for n, one in given.items() if not one["made_here"]}
    rings = sorted((abs(given[name]["effect"]["value"]), width) for name, _, width, _ in drawn if width)
    assert [width for _, width in rings] == sorted(width for _, width in rings)
    assert rings[-1][1] == pytest.approx(6, abs=0.1)
    least = 0.01 * max(abs(one["effect"]["value"]) for one in given.values())
    assert {name for name, _, width, _ in drawn if width} == {
        name for name, one in given.items() if abs(one["effect"]["value"]) >= least
    }
    for name, _, width, dash in drawn:
        if width:
            assert (dash != "none") == (given[name]["effect"]["value"] < 0)


def test_every_part_of_a_whole_model_is_in_the_picture(open_page, folder):
    page = open_page(folder / "whole.html")
    assert page.locator("#circuit .node").count() == len(WHOLE["nodes"])
    assert "a3.bias" in page.locator("#circuit .node").evaluate_all("nodes => nodes.map((one) => one.dataset.node)")
    assert page.locator("#circuit .row text").all_text_contents()[0] == "layer 0"
    inside = page.locator("#circuit .node").evaluate_all(
        "nodes => nodes.filter((one) => one.querySelector('text').getBBox().width > "
        "[...one.querySelectorAll('rect')].at(-1).getBBox().width).length"
    )
    assert inside == 0  # labels fit their boxes


def test_a_chosen_part_is_marked_everywhere(models):
    node(models, "a1.h2").click()
    assert node(models, "a1.h2").get_attribute("aria-pressed") == "true"
    assert models.locator("#parts tr[aria-selected=true] td").first.inner_text() == "a1.h2"
    given = next(one for one in MODELS["nodes"] if one["node"] == "a1.h2")
    detail = models.locator("#part").inner_text().replace("\N{MINUS SIGN}", "-")
    for value in (given["made_here"], given["inherited"], given["effect"]["value"], given["restored"]["value"]):
        assert f"{value:.3g}" in detail
    effects = {prompt["id"]: dict(prompt["effects"])["a1.h2"] for prompt in MODELS["prompts"]}
    head(models, "#texts", "effect of a1.h2").click()
    shown = [
        (text.split()[0], number(value))
        for text, value in zip(column(models, "#texts", 1), column(models, "#texts", 3), strict=True)
    ]
    assert len(shown) == len(effects)
    for prompt, value in shown:
        assert value == pytest.approx(effects[prompt], rel=0.006)
    assert [value for _, value in shown] == sorted((value for _, value in shown), reverse=True)
    assert models.locator("#texts .chip.lit").count() == len(effects)
    models.locator("#parts tbody tr", has_text="m2").click()
    assert node(models, "m2").get_attribute("aria-pressed") == "true"
    node(models, "m2").press("Escape")
    assert models.locator("#circuit [aria-pressed=true]").count() == 0


def test_sorting_and_filtering_parts(models):
    made = {one["node"]: one["made_here"] for one in MODELS["nodes"]}
    head(models, "#parts", "made here").click()
    names = column(models, "#parts", 1)
    assert [made[name] for name in names] == sorted(made.values(), reverse=True)
    assert models.locator("#parts th[aria-sort=descending]").inner_text().strip() == "made here"
    models.check("#made")
    assert set(column(models, "#parts", 1)) == {name for name, size in made.items() if size > 0}
    models.select_option("#kind", "bias")
    assert set(column(models, "#parts", 1)) == {n for n, size in made.items() if size > 0 and n.endswith("bias")}
    models.fill("#find", "nothing like it")
    assert models.locator("#parts .empty").inner_text() == "No part fits these filters."
    assert "0 of 26 parts" in models.locator("#parts .count").inner_text()


def test_filtering_prompts(models):
    models.check("#touched")
    touched = [prompt for prompt in MODELS["prompts"] if prompt["touched"]]
    assert [text.split()[0] for text in column(models, "#texts", 1)] == [
        prompt["id"] for prompt in sorted(touched, key=lambda prompt: -prompt["total"])
    ]
    models.fill("#find-prompt", "known-12")
    models.locator("#texts tbody tr").first.click()
    card = models.locator("#one-prompt")
    given = next(prompt for prompt in MODELS["prompts"] if prompt["id"] == "known-12")
    assert card.locator(".bars .link").all_inner_texts() == [name for name, _ in given["effects"]]
    bars = card.locator(".bars i").evaluate_all(
        "bars => bars.map((bar) => [Number(bar.dataset.effect), bar.offsetWidth])"
    )
    widest = max(width for _, width in bars)
    for (_, effect), (shown, width) in zip(given["effects"], bars, strict=True):
        assert shown == pytest.approx(effect, rel=1e-4)
        assert width / widest == pytest.approx(abs(effect / given["effects"][0][1]), abs=0.03)


def seen(page):
    """Everything that a link must restore."""
    return {
        "selected": page.locator("tr[aria-selected=true]").all_inner_texts(),
        "pressed": page.locator("#circuit [aria-pressed=true]").evaluate_all(
            "nodes => nodes.map((n) => n.dataset.node)"
        ),
        "window": page.locator("#circuit").get_attribute("viewBox"),
        "rows": page.locator("tbody tr").all_inner_texts(),
        "sorted": page.locator("th:not([aria-sort=none]) button").all_inner_texts(),
        "detail": page.locator("#part").inner_text(),
    }


def test_a_link_restores_two_models(models, open_page, folder):
    node(models, "m2").click()
    head(models, "#parts", "inherited").click()
    models.check("#made")
    models.select_option("#kind", "mlp")
    models.locator("#texts tbody tr", has_text="known-3").click()
    models.check("#touched")
    models.get_by_label("Zoom in").click()
    fresh = open_page(folder / "models.html", link(models))
    assert seen(fresh) == seen(models)
    assert fresh.is_checked("#made")
    assert fresh.locator("#kind option:checked").inner_text() == "MLP"
    assert "known-3" in fresh.locator("#one-prompt").inner_text()
    assert "theme" not in link(models)
    fresh.evaluate("location.hash = '#node=a1.h2'")
    fresh.wait_for_function("document.querySelector('#part').textContent.includes('a1.h2')")


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    "after", ["#node=nobody&prompt=none&sort=-x&kind=y&role=z&set=q&zoom=a", "#%", "#zoom=1e9,-5,7"]
)
def test_a_link_to_what_is_not_there_opens_the_page(open_page, folder, name, after):
    page = open_page(folder / f"{name}.html", after)
    assert page.locator("#circuit .node").count() > 15
    assert page.locator("tbody tr").count() > 20


def test_the_numbers_of_two_sets_are_those_of_the_document(sets):
    rows = {row.split("\t")[0]: row.split("\t") for row in sets.locator("#parts tbody tr").all_inner_texts()}
    for given in SETS["nodes"]:
        _, role, shift, p, q, write, write_q, r2, reason = rows[given["node"]]
        assert role == (given["role"] or ("no role" if given["shift"] else "not judged"))
        assert number(shift) == (pytest.approx(given["shift"]["value"], abs=0.006) if given["shift"] else None)
        assert number(write) == (
            pytest.approx(given["write_shift"]["value"], abs=0.006) if given["write_shift"] else None
        )
        for shown, value in ((p, given["p"]), (q, given["q"]), (write_q, given["write_q"])):
            assert number(shown) == (None if value is None else pytest.approx(value, rel=0.006))
        assert number(r2) == (None if given["r2"] is None else pytest.approx(given["r2"], abs=0.006))
        assert reason == (given["reason"] or "")
    assert sets.locator(".sets tbody tr").all_inner_texts() == [
        f"{side.upper()} {SETS['sets'][side]['name']}\t42\t40\t20\t2" for side in "ab"
    ]


def test_entries_have_a_ring_and_inheriting_nodes_a_dashed_one(sets):
    rings = dict(
        sets.locator("#circuit .node:has(.role)").evaluate_all(
            "nodes => nodes.map((one) => [one.dataset.node, "
            "getComputedStyle(one.querySelector('.role')).strokeDasharray])"
        )
    )
    assert rings.pop("m1") == "none"
    assert set(rings) == {"m2", "a3.h0"}
    assert "none" not in rings.values()
    sides = sets.evaluate(
        "[...document.querySelectorAll('#circuit .node')].map((one) => [one.dataset.node, "
        "[...one.querySelectorAll('rect')].at(-1).style.fill.match(/\\d+/g)?.map(Number)])"
    )
    shifts = {one["node"]: one["shift"]["value"] for one in SETS["nodes"] if one["shift"]}
    for name, colour in sides:
        if name in shifts and abs(shifts[name]) > 0.05:
            assert (colour[0] > colour[2]) == (shifts[name] > 0)  # orange above, blue below
    assert node(sets, "a0.h0").get_attribute("class") == "node head absent"


def test_the_distribution_of_the_chosen_node(sets):
    assert node(sets, "m1").get_attribute("aria-pressed") == "true"  # the most shifted node, to begin with
    node(sets, "a1.h0").click()
    drawn = sets.locator("#distribution .dot").evaluate_all(
        "dots => dots.map((dot) => [Number(dot.dataset.z), dot.cx.baseVal.value])"
    )
    dots = [z for z, _ in drawn]
    (low, left), (high, right) = min(drawn), max(drawn)
    assert right - left > 300
    for z, x in drawn:
        assert x == pytest.approx(left + (z - low) / (high - low) * (right - left), abs=0.1)
    expected = [prompt["z"]["a1.h0"] for prompt in SETS["prompts"]]
    assert sorted(dots) == pytest.approx(sorted(expected), abs=0.00501)
    head(sets, "#texts", "z of a1.h0").click()
    shown = [number(text) for text in column(sets, "#texts", 4)]
    assert shown == pytest.approx(sorted(expected, reverse=True), abs=0.00501)
    sets.locator("#distribution .dot").nth(5).click()
    assert sets.locator("#distribution .dot.lit").count() == 1
    assert sets.locator("#texts tr[aria-selected=true]").count() == 1
    node(sets, "a0.h0").click()
    assert "Not judged: its write hardly varies" in sets.locator("#part").inner_text()
    assert sets.locator("#distribution .dot").count() == 0


def test_many_prompts_become_bars(open_page, tmp_path):
    document = sets_document(prompts=250)
    write_comparison_page(document, tmp_path / "many.html")
    page = open_page(tmp_path / "many.html")
    assert page.locator("#distribution .dot").count() == 0
    counts = page.locator("#distribution rect").evaluate_all("bars => bars.map((bar) => Number(bar.dataset.count))")
    assert sum(counts) == 500


def test_filtering_nodes_by_role(sets):
    sets.select_option("#role", "inherits")
    assert set(column(sets, "#parts", 1)) == {"m2", "a3.h0"}
    sets.select_option("#role", "unjudged")
    assert column(sets, "#parts", 1) == ["a0.h0"]
    sets.select_option("#set", "b")
    assert set(column(sets, "#texts", 1)) == {"B"}


def test_a_link_restores_two_sets(sets, open_page, folder):
    node(sets, "m2").click()
    sets.select_option("#role", "inherits")
    head(sets, "#parts", "q").first.click()
    sets.select_option("#set", "b")
    sets.locator("#texts tbody tr").nth(3).click()
    fresh = open_page(folder / "sets.html", link(sets))
    assert seen(fresh) == seen(sets)
    assert fresh.locator("#distribution .dot.lit").get_attribute("data-z") == (
        sets.locator("#distribution .dot.lit").get_attribute("data-z")
    )


def test_the_keyboard_walks_through_the_nodes(models):
    node(models, "input").focus()
    models.keyboard.press("ArrowRight")
    first = models.evaluate("document.activeElement.dataset.node")
    assert first.startswith("a0.")
    models.keyboard.press("ArrowUp")
    above = models.evaluate("document.activeElement.dataset.node")
    assert models.locator("#circuit .node[aria-pressed=true]").get_attribute("data-node") == above
    assert node(models, above).bounding_box()["y"] < node(models, first).bounding_box()["y"]
    assert above in models.locator("#live").inner_text()
    models.locator("#parts tbody tr[tabindex='0']").focus()
    models.keyboard.press("ArrowUp")
    assert models.locator("#parts tr[aria-selected=true] td").first.inner_text() != above
    models.locator("#theme").focus()
    models.keyboard.press("?")
    assert models.locator("#help").is_visible()
    models.keyboard.press("Escape")


@pytest.mark.parametrize(("name", "needed"), [
    ("models", ("theme", "keys", "model-a", "circuit", "find", "kind", "made", "parts", "find-prompt", "touched")),
    ("sets", ("theme", "keys", "circuit", "find", "role", "parts", "find-prompt", "set")),
])  # fmt: skip
def test_everything_is_reached_by_tab(open_page, folder, name, needed):
    names = check_tab_order(open_page(folder / f"{name}.html"), needed)
    assert names.count("circuit") == 1  # one stop; arrows go on from there


@pytest.mark.parametrize("name", PAGES)
def test_a_screen_reader_hears_what_is_drawn(open_page, folder, name):
    page = open_page(folder / f"{name}.html")
    check_screen_reader(page)
    label = node(page, "m2").get_attribute("aria-label")
    assert label.startswith("m2, MLP, made here 0.31" if name != "sets" else "m2, MLP, inherits, shift 0.20")


@pytest.mark.parametrize("name", PAGES)
def test_a_phone(open_page, folder, name):
    page = open_page(folder / f"{name}.html", viewport={"width": 390, "height": 844}, has_touch=True)
    check_phone(page)
    node(page, "m2").click()
    page.locator("#texts tbody tr").first.click()
    check_phone(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_paper_and_contrast(open_page, folder, name, scheme):
    page = open_page(folder / f"{name}.html", color_scheme=scheme, viewport={"width": 794, "height": 1123})
    node(page, "m2").click()
    assert least_contrast(page)[0] >= 4.5, least_contrast(page)
    check_paper(page, scheme)


def test_the_theme_button(models):
    colour = "getComputedStyle(document.body).backgroundColor"
    before = models.evaluate(colour)
    models.locator("#theme").click()
    assert models.evaluate(colour) != before
    assert "theme" not in link(models)


@pytest.mark.parametrize("name", PAGES)
def test_text_of_a_prompt_is_text(open_page, folder, name):
    page = open_page(folder / f"{name}.html")
    assert "pwned" not in page.title()
    assert page.locator("main img, main script").count() == 0
    if name != "whole":
        assert HOSTILE[:30] in page.locator("#texts").inner_text()


def test_the_picture_is_saved_with_its_rings(models):
    with models.expect_download() as saved:
        models.locator(".export button", has_text="SVG").click()
    drawing = saved.value.path().read_text(encoding="utf-8")
    assert "stroke-dasharray" in drawing
    assert not re.search(r"var\(|href|class=", drawing)


@pytest.mark.parametrize(("document", "name"), [
    (models_document(30, 8, 500, circuit=False), "m2"), (sets_document(30, 9, 250, nodes=300), "m1"),
], ids=["models", "sets"])  # fmt: skip
def test_three_hundred_nodes_and_five_hundred_prompts_stay_fluid(open_page, tmp_path, document, name):
    write_comparison_page(document, tmp_path / "large.html")
    page = open_page(tmp_path / "large.html")
    assert page.locator("#circuit .node").count() >= 300
    took = [page.evaluate(CLICKED, f"#circuit [data-node='{one}']") for one in (name, "m7", name, "m7")]
    assert min(took) < 300, took  # milliseconds; a machine that runs other tests too has slow moments


def test_an_empty_comparison_says_so(open_page, tmp_path):
    nothing = {"nodes": [], "edges": [], "circuit": None, "sentences": [], "total": None, "residue": None}
    write_comparison_page(models_document(prompts=0) | nothing, tmp_path / "empty.html")
    page = open_page(tmp_path / "empty.html")
    assert "The document has no nodes." in page.locator("#view").inner_text()
    assert "The document has no prompts." in page.locator("#texts").inner_text()
    write_comparison_page(sets_document() | {"nodes": [], "edges": [], "prompts": []}, tmp_path / "empty-sets.html")
    assert "The document has no nodes." in open_page(tmp_path / "empty-sets.html").locator("#view").inner_text()
