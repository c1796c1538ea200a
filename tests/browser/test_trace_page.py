"""The page of traced texts in a browser."""

import re
from io import BytesIO

import pytest
from PIL import Image

from eics.reporting.page import write_trace_page
from eics.reporting.page.trace import trace_page
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
from support.report_records import HOSTILE, make_circuit
from support.study_documents import parts, trace_header, trace_lines, traced_text

NODES = [node for node in make_circuit(5, 4).nodes if node != "input"]
LINES = trace_lines(NODES)
PATCHED, WRITTEN, USUAL, STRANGE, FAILED = LINES


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace")
    write_trace_page(trace_header(NODES), LINES, path / "trace.html", notes=["line 9 was cut off"])
    return path


@pytest.fixture
def page(open_page, folder):
    return open_page(folder / "trace.html")


def token(page, position):
    return page.locator(f'.tokens .token[data-token="{position}"]')


def z_of(line, node, position):
    return line["z"][NODES.index(node)][position]


def test_it_opens_at_the_most_unusual_token(page):
    first = PATCHED["suspects"][0]
    assert page.locator("#verdict").inner_text() == PATCHED["sentence"]
    assert page.locator(".tokens [aria-pressed=true]").get_attribute("data-token") == str(first["position"])
    assert page.locator(".names [aria-pressed=true]").inner_text() == first["node"]
    assert f"z {first['z']:.2f}" in page.locator("#token").inner_text()
    assert "line 9 was cut off" in page.locator("#notes").inner_text()
    found = page.locator("#found").inner_text()
    assert "3 texts of 5 have a suspect" in found
    assert "from z 4.10 on (level 0.05)" in found
    assert "1 text could not be traced" in found


def test_the_list_of_texts(page):
    rows = [row.split("\t") for row in page.locator("#texts tbody tr").all_inner_texts()]
    for line, row in zip(LINES, rows, strict=True):
        assert row[0].startswith(line["id"])
        if line["status"] == "failed":
            assert f"failed: {line['reason']}" in row[0]
            continue
        peak = max(value for value in line["largest"] if value is not None)
        assert float(row[1]) == pytest.approx(line["p_value"], rel=0.005)
        assert float(row[2]) == pytest.approx(peak, abs=0.00501)
        assert row[3].startswith(f"{line['at'][line['largest'].index(peak)]} at {line['largest'].index(peak)} ")
        assert row[4].split()[-1] == str(len(line["suspects"]))
    head(page, "#texts", "largest z").click()
    assert column(page, "#texts", 1)[-1].startswith("too short")
    page.select_option("#show", "failed")
    assert [text.split()[0] for text in column(page, "#texts", 1)] == ["too"]
    page.select_option("#show", "usual")
    page.locator("#texts tbody tr").click()
    assert page.locator("#verdict").inner_text() == USUAL["sentence"]
    assert page.locator(".tokens .suspect").count() == 0


def test_tokens_are_coloured_by_their_largest_z(page):
    drawn = page.locator(".tokens .token").evaluate_all(
        "tokens => tokens.map((one) => [one.textContent, one.dataset.z ?? null, one.style.background, one.className])"
    )
    assert [text for text, *_ in drawn] == PATCHED["tokens"]
    lights = []
    for (_, z, colour, names), largest in zip(drawn, PATCHED["largest"], strict=True):
        if largest is None:
            assert (z, colour) == (None, "")
            assert "out" in names
            continue
        assert float(z) == pytest.approx(largest, abs=0.00501)
        lights.append((min(largest, 4.1), sum(map(int, re.findall(r"\d+", colour)))))
    lights.sort()
    assert [light for _, light in lights] == sorted((light for _, light in lights), reverse=True)
    assert len({light for _, light in lights}) > 20
    assert lights[-1][1] < lights[0][1] - 200
    ringed = {position for position, (*_, names) in enumerate(drawn) if "suspect" in names}
    assert ringed == {suspect["position"] for suspect in PATCHED["suspects"]}


def test_a_token_shows_its_nodes_most_unusual_first(page):
    for position in (3, 20):
        token(page, position).hover()
        card = page.locator("#token")
        more = card.locator(".more")
        if more.inner_text().startswith("Show all"):
            more.click()
        token(page, position).hover()
        names = card.locator(".bars .link").all_inner_texts()
        shown = [float(z) for z in card.locator(".value").evaluate_all("cells => cells.map((one) => one.dataset.z)")]
        expected = {node: z_of(PATCHED, node, position) for node in NODES if z_of(PATCHED, node, position) is not None}
        assert set(names) == set(expected)
        assert shown == pytest.approx(sorted(expected.values(), reverse=True), abs=0.00501)
        assert [expected[name] for name in names] == pytest.approx(shown, abs=0.00501)
        suspects = {one["node"] for one in PATCHED["suspects"] if one["position"] == position}
        assert set(card.locator(".suspect-name").all_inner_texts()) == suspects
    page.mouse.move(5, 5)
    assert page.locator("#token h3").inner_text().startswith("Token 20")
    token(page, 0).hover()
    assert "The first token is not judged" in page.locator("#token").inner_text()


def cell(page, node, position):
    """Where a cell of the heat map is, after scrolling to it."""
    page.locator(".cells").scroll_into_view_if_needed()
    box = page.locator(".cells").bounding_box()
    names = page.locator(".names button").all_inner_texts()
    wide, tall = box["width"] / len(PATCHED["tokens"]), box["height"] / len(names)
    return box["x"] + (position + 0.5) * wide, box["y"] + (names.index(node) + 0.5) * tall


def test_the_heat_map_has_every_z(page):
    names = page.locator(".names button").all_inner_texts()
    peaks = {node: max(z for z in row if z is not None) for node, row in zip(NODES, PATCHED["z"], strict=True)}
    assert [peaks[name] for name in names] == pytest.approx(sorted(peaks.values(), reverse=True), abs=0.01)
    page.select_option("#order", "circuit")
    assert page.locator(".names button").all_inner_texts() == NODES
    page.locator("#map").evaluate("one => one.scrollIntoView()")
    for node, position in (("a0.h1", 7), ("m2", 21), (NODES[0], 39), ("m4", 1)):
        page.mouse.move(*cell(page, node, position))
        says = page.locator("#tip").inner_text()
        assert says.startswith(
            f"{node} at token {position}, \N{LEFT DOUBLE QUOTATION MARK}{PATCHED['tokens'][position].strip()}"
        )
        z = float(says.rpartition(" ")[2].replace("\N{MINUS SIGN}", "-"))
        assert z == pytest.approx(z_of(PATCHED, node, position), abs=0.00501)
    assert page.locator(".cells .ring").count() == len(PATCHED["suspects"])


def test_the_colours_of_the_heat_map(page):
    """Pixels of the picture: the more unusual, the darker; nothing below usual is darker than usual."""
    page.select_option("#order", "circuit")
    page.locator(".cells").scroll_into_view_if_needed()
    page.mouse.move(5, 5)
    picture = Image.open(BytesIO(page.locator(".cells").screenshot())).convert("RGB")
    wide, tall = picture.width / len(PATCHED["tokens"]), picture.height / len(NODES)
    lights = []
    for row, node in enumerate(NODES[:-1]):
        for position in range(1, len(PATCHED["tokens"])):
            at = (round((position + 0.5) * wide), round((row + 0.3) * tall))
            lights.append((min(4.1, max(0.0, z_of(PATCHED, node, position))), sum(picture.getpixel(at))))
    usual = max(light for _, light in lights)
    assert all(light >= usual - 30 for z, light in lights if z == 0)
    strong = sorted((z, light) for z, light in lights if z > 0)
    for (z, light), (other, dark) in zip(strong, strong[40:], strict=False):
        assert dark <= light + 12, (z, other)


def test_a_cell_chooses_its_node_and_token(page):
    page.locator("#map").evaluate("one => one.scrollIntoView()")
    page.mouse.click(*cell(page, "a1.h1", 12))
    assert page.locator(".names [aria-pressed=true]").inner_text() == "a1.h1"
    assert page.locator(".tokens [aria-pressed=true]").get_attribute("data-token") == "12"
    page.keyboard.press("ArrowRight")
    assert page.locator(".tokens [aria-pressed=true]").get_attribute("data-token") == "13"
    said = page.locator("#live").inner_text()
    assert said.startswith("a1.h1 at token 13")
    assert f"{z_of(PATCHED, 'a1.h1', 13):.2f}".replace("-", "\N{MINUS SIGN}") in said


def test_the_line_of_a_node(page):
    page.locator('.names [data-node="a1.h2"]').click()
    assert page.locator("#line h3").inner_text() == "z of a1.h2 over the tokens"
    points = page.locator("#line .point").evaluate_all(
        "points => points.map((one) => [Number(one.dataset.z), Number(one.getAttribute('cy'))])"
    )
    expected = [value for value in PATCHED["z"][NODES.index("a1.h2")] if value is not None]
    assert [z for z, _ in points] == pytest.approx(expected, abs=0.00501)
    (low, bottom), (high, top) = min(points), max(points)
    for z, y in points:  # heights are linear in z
        assert y == pytest.approx(bottom + (z - low) / (high - low) * (top - bottom), abs=0.5)
    limit = float(page.locator("#line .threshold").get_attribute("y1"))
    assert limit == pytest.approx(bottom + (4.1 - low) / (high - low) * (top - bottom), abs=0.5)


def test_generated_tokens_are_marked(page):
    page.locator("#texts tbody tr", has_text="written").click()
    marked = page.locator(".tokens .written").evaluate_all("tokens => tokens.map((one) => Number(one.dataset.token))")
    assert marked == list(range(12, 30))
    assert page.locator(".from-here").inner_text().endswith("generated")
    assert "generated" in token(page, 12).get_attribute("aria-label")
    assert page.locator(".cells .cut").count() == 1


def test_a_failed_text_says_why(page):
    page.locator("#texts tbody tr", has_text="too short").click()
    assert FAILED["reason"] in page.locator("#view").inner_text()
    assert HOSTILE[:30] in page.locator("#view").inner_text()
    assert page.locator(".cells").count() == 0
    assert page.locator("main img, main script").count() == 0


def test_a_link_restores_text_token_and_node(page, open_page, folder):
    page.locator("#texts tbody tr", has_text="written").click()
    token(page, 5).click()
    page.locator('.names [data-node="m3"]').click()
    page.select_option("#order", "circuit")
    page.select_option("#show", "suspects")
    head(page, "#texts", "text").click()
    fresh = open_page(folder / "trace.html", link(page))
    for selector in ("#texts tbody", "#view", "#token", "#line", ".names"):
        assert fresh.locator(selector).inner_text() == page.locator(selector).inner_text(), selector
    assert fresh.locator(".names [aria-pressed=true]").inner_text() == "m3"
    assert fresh.locator(".tokens [aria-pressed=true]").get_attribute("data-token") == "5"
    fresh.evaluate("location.hash = '#text=usual&token=99&node=none&show=x'")
    fresh.wait_for_function("document.querySelector('#verdict').textContent.startsWith('Every node')")
    assert open_page(folder / "trace.html", "#text=nobody&token=-1").locator(".cells").count() == 1


def test_the_keyboard_walks_through_the_text(page):
    token(page, 20).focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.token") == "19"
    assert page.locator("#token h3").inner_text().startswith("Token 19")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.dataset.token") == "39"
    assert page.locator(".tokens .token[tabindex='0']").count() == 1
    first = page.locator(".names button").first
    first.focus()
    page.keyboard.press("ArrowDown")
    assert page.locator(".names [aria-pressed=true]").inner_text() == page.locator(".names button").nth(1).inner_text()


def test_everything_is_reached_by_tab(page):
    check_tab_order(page, ("theme", "keys", "find", "show", "texts", "view", "token", "order", "map"))


def test_a_screen_reader_hears_what_is_drawn(page):
    check_screen_reader(page)
    first = PATCHED["suspects"][0]
    label = token(page, first["position"]).get_attribute("aria-label")
    assert label == (
        f"token {first['position']}, {first['token'].strip()}, largest z {first['z']:.2f} at {first['node']}, suspect"
    )


def test_a_phone(open_page, folder):
    page = open_page(folder / "trace.html", viewport={"width": 390, "height": 844}, has_touch=True)
    check_phone(page)
    page.locator("#texts tbody tr", has_text="too short").click()
    check_phone(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_and_contrast(open_page, folder, scheme):
    page = open_page(folder / "trace.html", color_scheme=scheme, viewport={"width": 794, "height": 1123})
    assert least_contrast(page)[0] >= 4.5, least_contrast(page)
    check_paper(page, scheme)
    page.emulate_media(media="screen")
    page.wait_for_timeout(100)
    assert page.locator(".cells").count() == 1


def test_a_long_text_is_cut_into_blocks_on_paper(open_page, tmp_path):
    nodes = parts(5, 10)[1:]
    write_trace_page(trace_header(nodes), [traced_text("long", nodes, 200)], tmp_path / "long.html")
    page = open_page(tmp_path / "long.html", viewport={"width": 794, "height": 1123})
    check_paper(page, "light")
    assert page.locator(".cells").count() == 5


def test_sixty_nodes_and_two_hundred_tokens_stay_fluid(open_page, tmp_path):
    nodes = parts(30, 8)[1:]
    write_trace_page(trace_header(nodes), [traced_text("long", nodes, 200) for _ in range(3)], tmp_path / "long.html")
    page = open_page(tmp_path / "long.html")
    assert page.locator(".names button").count() == 60
    tokens = [page.evaluate(CLICKED, f".tokens [data-token='{position}']") for position in (150, 20, 150)]
    texts = [page.evaluate(CLICKED, f"#texts tbody tr:nth-child({row})") for row in (2, 3, 1)]
    assert min(tokens) < 150, tokens  # milliseconds; a machine that runs other tests too has slow moments
    assert min(texts) < 500, texts
    page.locator("#map button", has_text="Show all").click()
    assert page.locator(".names button").count() == len(nodes)


def test_a_page_that_keeps_a_part_says_so(open_page, tmp_path):
    (tmp_path / "part.html").write_text(trace_page(trace_header(NODES), LINES, budget=7 * 100), encoding="utf-8")
    page = open_page(tmp_path / "part.html")
    assert f"the 7 most unusual of {len(NODES)} nodes" in page.locator("#map .count").inner_text()
    assert page.locator(".names button").count() == 7
    page.evaluate("location.hash = '#text=patched&node=logits'")
    page.wait_for_function("document.querySelector('#line').textContent.includes('keeps only the most unusual')")


def test_traces_without_texts_or_thresholds(open_page, tmp_path):
    write_trace_page(trace_header([]), [], tmp_path / "none.html")
    assert "The trace has no texts." in open_page(tmp_path / "none.html").locator("#view").inner_text()
    write_trace_page(trace_header(NODES, threshold=None), [USUAL], tmp_path / "low.html")
    page = open_page(tmp_path / "low.html")
    assert "At level 0.05 there is no threshold" in page.locator("#found").inner_text()
    assert page.locator("#line .threshold").count() == 0
