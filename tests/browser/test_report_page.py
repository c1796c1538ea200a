"""The report in a browser: it loads without requests, and its controls work."""

import json
import re
from itertools import accumulate

import pytest

from eics.reporting.drawing.routes import smooth
from eics.reporting.page import write_report
from support.report_records import HOSTILE, make_circuit, make_scores, usual_scores

SCORES = usual_scores()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(SCORES, path, source="scores.jsonl")
    return path


@pytest.fixture
def page(open_page, report):
    return open_page(report)


def column(page, table, index):
    return [text.strip() for text in page.locator(f"{table} tbody td:nth-child({index})").all_inner_texts()]


def head(page, table, name):
    return page.locator(f"{table} thead button", has_text=name)


def literal():
    return [score for score in SCORES if score.residual in ("edge", None)]


def chosen(page):
    return page.locator("#terms tr[aria-selected=true] td:first-child").all_inner_texts()


def test_it_opens_on_the_run_all_prompts_and_one(page):
    assert page.locator("main h2").all_inner_texts() == ["The run", "All prompts", "One prompt", "Which nodes differ"]
    run = page.locator("#run").inner_text()
    for expected in (
        "made-up",
        "lanczos",
        "The paper's prior.",
        "exact up to rounding",
        "clipped",
        "Norm layers inflate C_sh",
    ):
        assert expected in run
    assert page.locator("#all tbody tr").count() == len(literal())
    assert page.locator("#circuit .edge").count() == len(SCORES[0].edges)
    assert page.locator("#circuit .node").count() == len(SCORES[0].norms)


def test_sorting(page):
    eics = head(page, "#all", "EICS")
    eics.click()
    order = sorted((s for s in literal() if s.eics is not None), key=lambda s: -s.eics)
    names = column(page, "#all", 1)
    assert names[0].startswith(order[0].id)
    assert names[-1].startswith("too long")  # records without a number come last
    assert page.locator("#all th[aria-sort=descending]").count() == 1
    eics.click()
    names = column(page, "#all", 1)
    assert names[-2].startswith(order[0].id)
    assert names[-1].startswith("too long")


def test_filtering(page):
    page.fill("#find", "p3")
    assert [name.split()[0] for name in column(page, "#all", 1)] == ["p3"]
    assert "1 of 8 prompts" in page.locator("#all [role=status]").inner_text()
    page.fill("#find", "")
    page.select_option("#filter-status", "failed")
    assert column(page, "#all", 1) == ["too long"]
    page.select_option("#filter-status", "")
    page.select_option("#filter-label", "invented")
    assert [name.split()[0] for name in column(page, "#all", 1)] == ["p1", "p3", "p5"]
    assert page.locator(".distributions .dot").count() > 0


def test_an_edge_chosen_in_the_table_lights_up_in_the_picture(page):
    score = SCORES[0]
    page.locator("#terms tbody tr").nth(2).click()
    assert page.locator("#circuit .edge.lit").count() == 1
    detail = page.locator("#detail").inner_text()
    assert str(score.edges[2]) in detail
    assert f"{score.edges[2].share:.1%}" in detail
    cosine = detail.split(" a_u and a_v\n")[1].split()[0]
    assert float(cosine.replace("\N{MINUS SIGN}", "-")) == pytest.approx(score.edges[2].cosine, abs=0.01)
    assert f"{score.edges[2].residual:.3g}" in detail


def test_an_edge_chosen_in_the_picture_is_marked_in_the_table(page):
    index = page.locator("#circuit .edge").last.get_attribute("data-edge")
    page.locator(f"#circuit .edge[data-edge='{index}'] .hit").dispatch_event("click")
    assert chosen(page) == [str(SCORES[0].edges[0])]  # the worst edge is drawn last
    page.locator("#circuit .node", has_text="m1").first.click()
    assert chosen(page) == ["m1"]
    detail = page.locator("#detail").inner_text()
    assert f"{SCORES[0].ei_parts['m1']:.3g} nats" in detail
    assert f"{SCORES[0].norms['m1']:.3g}" in detail
    assert page.locator("#circuit .edge.lit").count() == sum("m1" in (e.source, e.target) for e in SCORES[0].edges)


def test_hover_shows_the_numbers(page):
    page.locator("#circuit .edge").last.locator(".hit").dispatch_event("mousemove", {"clientX": 300, "clientY": 300})
    tip = page.locator("#tip").inner_text()
    for expected in (
        str(SCORES[0].edges[0]),
        "squared residual",
        "cosine",
        f"{abs(SCORES[0].edges[0].attribution):.4g}",
    ):
        assert expected in tip
    page.locator("#circuit .edge").last.locator(".hit").dispatch_event("mouseleave")
    assert page.locator("#tip").is_hidden()


def test_the_keyboard_reaches_edges_and_nodes(page):
    page.locator("#circuit").focus()
    for key, name in (("ArrowDown", str(SCORES[0].edges[0])), ("ArrowDown", str(SCORES[0].edges[1]))):
        page.keyboard.press(key)
        assert chosen(page) == [name]
    page.keyboard.press("ArrowRight")
    assert chosen(page) == ["input"]
    page.keyboard.press("ArrowRight")
    assert chosen(page) == ["a0.h0"]
    page.keyboard.press("Escape")
    assert chosen(page) == []
    page.locator("#all tbody tr[tabindex='0']").focus()
    page.keyboard.press("ArrowDown")
    assert page.locator("#all tr[aria-selected=true]").inner_text().startswith("p1")
    assert "p1" in page.locator("#one .prompt").inner_text()


def test_switching_prompts_changes_everything_about_one(page):
    page.locator("#all tbody tr").nth(3).click()
    score = literal()[3]
    assert score.tokens[3].strip() in page.locator("#one .prompt").inner_text()
    assert column(page, "#terms", 1)[:3] == [str(edge) for edge in score.edges[:3]]
    page.get_by_label("Previous prompt").click()
    assert column(page, "#terms", 1)[0] == str(literal()[2].edges[0])
    page.select_option("#pick", label="too long")
    assert "at most 32 tokens" in page.locator("#one").inner_text()
    assert page.locator("#circuit").count() == 0


def test_two_prompts_edge_by_edge(page):
    page.select_option("#against", index=2)
    other = literal()[2]
    assert page.locator("#compare .point").count() == len(other.edges)
    theirs = {str(edge): edge.share for edge in other.edges}
    first = SCORES[0].edges[0]
    cells = page.locator("#terms tbody tr").first.locator("td").all_inner_texts()
    assert cells[0] == str(first)
    assert f"{theirs[str(first)]:.1%}" in cells[2] or theirs[str(first)] < 0.01
    head(page, "#terms", "difference").click()
    largest = max(SCORES[0].edges, key=lambda edge: abs(theirs[str(edge)] - edge.share))
    assert column(page, "#terms", 1)[0] == str(largest)
    page.locator("#compare .point").first.dispatch_event("click")
    assert len(chosen(page)) == 1


def test_the_curve_has_its_alpha_and_its_zero(page):
    text = page.locator("#curve").text_content()
    assert "alpha 1:" in text
    assert f"0 at {SCORES[0].curve['zeros'][0]:.3g}" in text


def test_the_other_configuration(page):
    page.locator("#runs button", has_text="Well-posed").click()
    for buttons in ("#runs", ".twins"):
        assert page.locator(f"{buttons} [aria-checked=true]").inner_text().startswith("Well-posed")
    assert "Norm layers inflate C_sh" not in page.locator("#run").inner_text()
    companion = SCORES[1]
    assert column(page, "#terms", 1)[0] == companion.nodes[0].node
    page.locator("#tab-edge").click()
    assert column(page, "#terms", 1)[0] == str(companion.edges[0])
    assert page.locator(".token.out").count() == 1  # no_sink leaves out the first


def test_a_prompt_stays_when_its_configuration_changes(page):
    page.locator("#all tbody tr").nth(3).click()
    page.select_option("#against", label="p1: The capital of p1 is")
    literal_score, companion = (next(s for s in SCORES if s.id == "p3" and s.residual == r) for r in ("edge", "joint"))
    strip = page.locator(".twins button").all_inner_texts()
    assert strip[0].split("\n")[0] == "Literal (preset paper)"
    assert f"C_sh {literal_score.c_sh:.4g}" in strip[0]
    assert f"C_sh {companion.c_sh:.4g}" in strip[1]
    page.locator(".twins button", has_text="Well-posed").click()
    assert " p3" in page.locator("#one .prompt").inner_text()
    assert page.locator("#against option:checked").inner_text().startswith("p1: ")
    assert page.locator("#all tr[aria-selected=true]").inner_text().startswith("p3")
    assert f"{companion.c_sh:.4g}" in page.locator(".tiles").inner_text()
    page.locator("#all tbody tr", has_text="p3").click()
    page.locator("#pick").select_option(label="p3: The capital of p3 is")
    assert page.locator(".twins").count() == 1
    page.locator(".twins button", has_text="Literal").click()
    page.locator("#all tbody tr", has_text="too long").click()
    assert page.locator(".twins").count() == 0  # it has only one record


def test_the_other_configuration_of_a_prompt_can_be_compared_with(page):
    page.select_option("#against", label="p0 (Well-posed): The capital of p0 is")
    heads = page.locator("#terms thead button").all_inner_texts()
    assert [name.strip() for name in heads] == ["edge", "Literal …", "Well-pos…", "difference"]


def test_circuits_of_two_kinds_in_one_file(open_page, tmp_path):
    large, small = make_circuit(), make_circuit(1, 1)
    write_report([*make_scores(large, 2), *make_scores(small, 2)], tmp_path / "two.html")
    page = open_page(tmp_path / "two.html")
    page.locator("#terms tbody tr").nth(40).click()
    page.select_option("#against", index=1)
    page.locator("#runs button").nth(1).click()
    assert page.locator("#circuit .edge").count() == len(small.edges)
    assert chosen(page) == []
    # "nothing", the other prompt of the same circuit, and the mean of the run
    assert page.locator("#against option").count() == 3


def test_filtering_keeps_the_colours_of_labels(page):
    colours = "dots => [...new Set(dots.map(dot => dot.getAttribute('stroke')))].filter(c => c !== 'currentColor')"
    both = page.locator(".distributions .dot").evaluate_all(colours)
    page.select_option("#filter-label", "known")
    only = page.locator(".distributions .dot").evaluate_all(colours)
    mark = page.locator(".legend .label i").evaluate("i => i.style.background")
    assert len(only) == 1
    assert only[0] in both
    as_hex = "#" + "".join(f"{int(part):02x}" for part in mark.removeprefix("rgb(").rstrip(")").split(","))
    assert as_hex == only[0]


def test_every_number_has_its_distribution(page):
    names = page.locator(".distribution figcaption").all_inner_texts()
    assert names == ["EICS", "C_sh", "dEI (nats)", "emergence term", "macro EI (nats) 10 on every prompt"]


def test_the_table_stays_sorted_from_prompt_to_prompt(page):
    head(page, "#terms", "cosine").click()
    page.get_by_label("Next prompt").click()
    assert page.locator("#terms th[aria-sort=descending]").inner_text() == "cosine"
    cosines = {str(edge): edge.cosine for edge in literal()[1].edges}
    assert cosines[column(page, "#terms", 1)[0]] > max(cosines.values()) - 0.01


def test_positions_of_a_node_are_marked_in_the_prompt(page):
    page.locator("#circuit .node", has_text="a1.h0").first.click()
    assert page.locator(".token.lit").all_inner_texts() == [" capital", " of"]
    assert "@1,2" in page.locator("#circuit").text_content()


def test_text_of_a_prompt_is_text(page):
    page.locator("#all tbody tr", has_text="bold").click()
    assert page.title() == "EICS · made-up · made-up.json"
    assert page.locator("b b, img").count() == 0
    assert "<script>" in page.locator("#one .prompt").inner_text()
    assert HOSTILE[:30] in page.locator("#all").inner_text()


def test_light_and_dark(open_page, report):
    light, dark = (open_page(report, color_scheme=scheme) for scheme in ("light", "dark"))
    colour = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(colour) != dark.evaluate(colour)
    before = light.locator("#circuit .edge .line").last.get_attribute("stroke")
    light.locator("#theme").click()
    assert light.evaluate(colour) == dark.evaluate(colour)
    assert light.locator("#circuit .edge .line").last.get_attribute("stroke") != before


def test_width_and_colour_are_two_channels(page):
    """Widths order the edges by attribution regardless of share; colours order them by share alone."""
    lines = page.locator("#circuit .edge .line").evaluate_all(
        "lines => lines.map(l => [Number(l.parentNode.dataset.edge), Number(l.getAttribute('stroke-width')), "
        "l.getAttribute('stroke').match(/\\d+/g).reduce((sum, part) => sum + Number(part), 0)])"
    )
    circuit = json.loads(page.locator("#data").text_content())["circuits"][0]
    names = [node[0] for node in circuit["nodes"]]
    terms = {(edge.source, edge.target): edge for edge in SCORES[0].edges}
    drawn = [(terms[names[circuit["edges"][i][0]], names[circuit["edges"][i][1]]], w, light) for i, w, light in lines]
    by_width = [abs(edge.attribution) for edge, width, _ in sorted(drawn, key=lambda drawn_edge: drawn_edge[1])]
    assert by_width == sorted(by_width)
    darkest_last = [
        edge.share for edge, _, light in sorted(drawn, key=lambda drawn_edge: (-drawn_edge[2], drawn_edge[0].share))
    ]
    assert darkest_last == sorted(darkest_last)
    assert len({light for *_, light in drawn}) > 20


def test_edges_run_as_the_drawing_says(page):
    """The page smooths routes itself; its curves must equal those of `eics.drawing`."""
    edges = json.loads(page.locator("#data").text_content())["circuits"][0]["edges"]
    for index, *_, steps in ((index, *edge) for index, edge in enumerate(edges)):
        points = list(accumulate(batched_pairs(steps), lambda a, b: (a[0] + b[0], a[1] + b[1])))
        curve = [point for piece in smooth(points) for point in piece[1:]]
        path = page.locator(f"#circuit .edge[data-edge='{index}'] .line").get_attribute("d")
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
        assert batched_pairs(numbers) == [pytest.approx(point, abs=0.06) for point in [points[0], *curve]]


def batched_pairs(numbers):
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_large_circuits_are_thinned_and_stay_fluid(open_page, tmp_path):
    circuit = make_circuit(16, 2, 756)
    assert len(circuit.edges) == 756
    write_report(make_scores(circuit, 3), tmp_path / "big.html")
    page = open_page(tmp_path / "big.html")
    assert page.locator("#circuit .edge").count() == 60
    assert "Showing the 60 worst of 756 edges" in page.locator("#thin").inner_text()
    page.locator("#thin button", has_text="60 more").click()
    assert page.locator("#circuit .edge").count() == 120
    assert page.locator("#terms tbody tr").count() == 200
    page.locator("#terms .more").click()
    page.locator("#terms tbody tr").nth(300).click()
    assert page.locator("#circuit .edge").count() == 121  # including the selected one
    assert page.locator("#circuit .revealed .edge.lit").count() == 1
    page.locator("#circuit .node", has_text="logits").click()
    assert page.locator("#circuit .edge.lit").count() == sum(edge.target == "logits" for edge in circuit.edges)
    page.locator("#thin button", has_text="all").click()
    assert page.locator("#circuit .edge").count() == 756
    took = page.evaluate("""() => {
      const start = performance.now();
      const edges = document.querySelectorAll("#circuit .edge");
      for (let i = 0; i < 20; i++) edges[i * 30].dispatchEvent(new MouseEvent("mousemove"));
      return (performance.now() - start) / 20;
    }""")
    assert took < 50, f"{took} ms per mouse move"
    took = page.evaluate("""() => [1, 2, 0].map((row) => {
      const start = performance.now();
      document.querySelectorAll("#all tbody tr")[row].click();
      document.body.getBoundingClientRect();  // forces the layout
      return performance.now() - start;
    })""")
    assert min(took) < 2000, f"{took} ms to switch prompts"


def test_notes_are_shown(open_page, tmp_path):
    write_report([], tmp_path / "none.html", notes=["Line 3: <i>cut off</i>."])
    page = open_page(tmp_path / "none.html")
    assert page.locator("#notes").is_visible()
    assert "<i>cut off</i>" in page.locator("#notes").inner_text()
    assert "no record that can be read" in page.locator("#run").inner_text()
