"""The page for every reader: phone, paper, slide, dark, keyboard, screen reader; and runs that differ, said aloud."""

from dataclasses import replace

import pytest

from eics.reporting.page import write_report
from support.report_records import detailed_scores, make_circuit, make_scores, usual_scores

SCORES = usual_scores()
DETAILED = detailed_scores(4, ("paper", "well-posed"))
CIRCUIT = make_circuit()
MIXED = [
    *make_scores(CIRCUIT, 2),
    *make_scores(CIRCUIT, 3, alpha=2.0, dtype="bfloat16", mode="exact"),
    *(replace(score, seed=4, model="another") for score in make_scores(make_circuit(2), 2)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readers")
    write_report(SCORES, path / "usual.html", source="scores.jsonl")
    write_report(DETAILED, path / "detailed.html")
    write_report(MIXED, path / "mixed.html")
    return path


@pytest.fixture
def page(open_page, folder):
    return open_page(folder / "usual.html")


def smallest_type(page, selector):
    """The smallest type in pixels of the screen, the scale of pictures included."""
    return page.evaluate(
        """selector => Math.min(...[...document.querySelectorAll(selector)].flatMap((root) => [root, ...root.querySelectorAll("*")])
          .filter((one) => one.checkVisibility({ opacityProperty: true }) && [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
          .map((one) => parseFloat(getComputedStyle(one).fontSize) * (one.getScreenCTM ? one.getScreenCTM().a : 1)))""",  # noqa: E501
        selector,
    )


def test_runs_that_differ_are_named(open_page, folder):
    page = open_page(folder / "mixed.html")
    notice = page.locator("#mixed")
    assert notice.is_visible()
    title = notice.locator("h3").inner_text()
    assert title == "This page has 3 runs that differ in model, circuit, alpha, mode, seed, dtype"
    rows = [row.split("\t") for row in notice.locator("tbody tr").all_inner_texts()]
    assert ["alpha", "1", "2", "1"] in rows
    assert ["dtype", "float32", "bfloat16", "float32"] in rows
    assert page.locator(".across").count() == 0
    page.select_option("#versus-b", label="p1: The capital of p1 is", timeout=1000)
    assert page.locator(".across").count() == 0  # the same run
    other = page.locator("#versus-b optgroup").nth(2).locator("option").first.get_attribute("value")
    page.select_option("#versus-b", value=other)
    for marked in page.locator(".across").all_inner_texts():
        assert "alpha 1 against 2" in marked
        assert "dtype float32 against bfloat16" in marked
    assert page.locator("#one .across").count() == 2
    assert page.locator("#versus .across").count() == 1


def test_runs_of_different_circuits_are_compared_by_node(open_page, folder):
    page = open_page(folder / "mixed.html")
    page.select_option("#versus-a", value="run0")
    page.select_option("#versus-b", value="run2")
    assert "circuit" in page.locator("#versus .across").inner_text()
    texts = dict(row.split("\t")[::3] for row in page.locator("#versus-table tbody tr").all_inner_texts())
    assert texts["a2.h0"] == "only in A"
    assert texts["a1.h0"][0] in "▲▼"
    assert page.locator("#versus-circuit .node.absent").count() == 3
    page.select_option("#versus-b", value="run1")
    assert "2 prompts in common, of 2 and 3" in page.locator("#versus").inner_text()


def test_one_run_has_no_notice(open_page, tmp_path):
    write_report(make_scores(CIRCUIT, 2), tmp_path / "one.html")
    page = open_page(tmp_path / "one.html")
    assert page.locator("#mixed").is_hidden()
    assert "Score with --details to keep them." in page.locator("#no-details").inner_text()
    assert page.locator("#strip, #pattern").count() == 0


def test_warnings_and_predictions_of_a_prompt(open_page, folder):
    page = open_page(folder / "detailed.html")
    assert DETAILED[0].warnings[0]["text"] in page.locator(".warning.record").inner_text()
    assert page.locator(".prediction").all_inner_texts()[1].split() == ["<b>", "20.0%"]
    assert page.locator("#all .flag").count() == 4
    assert page.locator(".lead b b, .lead i i").count() == 0


def test_a_phone(open_page, folder):
    for name in ("usual", "detailed", "mixed"):
        page = open_page(folder / f"{name}.html", viewport={"width": 390, "height": 844}, has_touch=True)
        page.locator("#versus-b").select_option(index=1)
        page.locator("#circuit .node", has_text="a1.h0").click()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert smallest_type(page, "main") >= 8
        assert smallest_type(page, "#circuit .node > text:first-of-type") >= 10
        hidden = page.evaluate(
            "[...document.querySelectorAll('main button, main select')].filter((one) => one.checkVisibility() && "
            "!one.closest('.frame') && (one.getBoundingClientRect().right > 390 || one.offsetHeight < 24)).length"
        )
        assert hidden == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper(open_page, folder, scheme):
    page = open_page(folder / "detailed.html", color_scheme=scheme, viewport={"width": 794, "height": 1123})
    page.locator("#runs button", has_text="Well-posed").click()
    page.locator("#circuit .node", has_text="a1.h0").click()
    page.emulate_media(media="print", color_scheme=scheme)
    page.wait_for_timeout(100)
    for control in (".tools", "#theme", "#present", "#keys", ".tabs", ".more", ".hint"):
        assert not any(part.is_visible() for part in page.locator(control).all()), control
    style = "getComputedStyle(document.body)"
    assert page.evaluate(f"[{style}.backgroundColor, {style}.color]") == ["rgb(255, 255, 255)", "rgb(0, 0, 0)"]
    cells = page.locator("#strip td").evaluate_all("cells => cells.map((cell) => cell.style.background)")
    sums = [sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(","))) for colour in cells]
    assert min(sums) < 120  # the largest share is the darkest, as on white
    clipped = page.evaluate(
        "[...document.querySelectorAll('.frame')].filter((one) => one.scrollHeight > one.clientHeight + 1).length"
    )
    assert clipped == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 794
    assert len(page.pdf(format="A4")) > 50_000


def test_a_slide(open_page, folder):
    page = open_page(folder / "detailed.html", viewport={"width": 1920, "height": 1080})
    page.keyboard.press("p")
    assert page.locator("#run").is_hidden()
    assert page.locator("#circuit").is_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= 1080
    for selector, least in ((".prompt .token", 36), (".tile b", 48), (".detail", 22), ("#circuit .node > text", 18)):
        assert smallest_type(page, selector) >= least, selector
    page.keyboard.press("ArrowRight")
    assert "p1" in page.locator(".prompt").inner_text()
    page.wait_for_timeout(300)
    fresh = open_page(folder / "detailed.html", page.evaluate("location.hash"))
    assert fresh.locator("#run").is_hidden()
    page.keyboard.press("Escape")
    assert page.locator("#run").is_visible()
    assert open_page(folder / "detailed.html", "?present").locator("#run").is_hidden()


def test_a_large_circuit_on_a_slide_names_its_worst_nodes(open_page, tmp_path):
    scores = make_scores(make_circuit(16, 2, 300), 1, ("well-posed",))
    write_report(scores, tmp_path / "large.html")
    page = open_page(tmp_path / "large.html", "#slides=1", viewport={"width": 1920, "height": 1080})
    named = page.locator("#circuit .node.named > text:first-of-type")
    assert 2 <= named.count() <= 5
    assert set(named.all_text_contents()) <= {term.node for term in scores[0].nodes[:5]}
    assert smallest_type(page, "#circuit .node.named > text:first-of-type") >= 24


def test_arrow_keys_step_through_prompts(page):
    page.keyboard.press("ArrowRight")
    assert " p1" in page.locator(".prompt").inner_text()
    assert page.locator("#live").inner_text().startswith("Prompt p1: EICS ")
    page.keyboard.press("ArrowLeft")
    assert " p0" in page.locator(".prompt").inner_text()
    page.locator("#find").focus()
    page.keyboard.press("ArrowRight")
    assert " p0" in page.locator(".prompt").inner_text()
    page.locator("#one").focus()
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()


def test_everything_is_reached_by_tab_in_the_order_of_the_page(page):
    names = []
    for _ in range(80):
        page.keyboard.press("Tab")
        stop = page.evaluate("document.activeElement.closest('[id]')?.id")
        ring = page.evaluate(
            "(() => { const one = document.activeElement; const rect = one.querySelector?.('rect');"
            "const outline = getComputedStyle(one).outlineStyle !== 'none';"
            "return outline || (rect && parseFloat(getComputedStyle(rect).strokeWidth) > 2); })()"
        )
        if stop is None or (stop == "skip" and names):
            break
        assert ring, stop
        names.append(stop)
    for needed in ("theme", "present", "keys", "find", "pick", "against", "prune", "circuit", "versus-a", "versus-b"):
        assert needed in names
    assert names.count("circuit") == 1  # one stop; arrows go on from there
    order = [names.index(name) for name in ("theme", "find", "pick", "prune", "circuit", "versus-a")]
    assert order == sorted(order)


def test_a_screen_reader_hears_what_is_drawn(page):
    share = next(e for e in SCORES[0].edges if str(e) == "m1->m2").share
    node = page.get_by_role("button", name="a1.h0, attention head", exact=False).first
    node.click()
    assert node.get_attribute("aria-pressed") == "true"
    assert page.locator("#circuit .node[tabindex='0']").count() == 1
    label = page.locator("#circuit .edge[aria-label^='edge m1->m2,']").get_attribute("aria-label")
    assert f"{share:.1%}" in label or share < 0.01
    node.focus()
    page.keyboard.press("ArrowRight")
    focused = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused.startswith(page.locator("#terms tr[aria-selected=true] td").first.inner_text())
    page.select_option("#versus-b", index=2)
    tables = page.locator("table")
    assert tables.count() >= 4
    for table in tables.all():
        assert table.locator("caption").text_content()
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, select, input, svg[role], [role=region], [role=group]')]"
        ".filter((one) => !(one.getAttribute('aria-label') || one.textContent.trim() || one.title || "
        "one.closest('label'))).length"
    )
    assert nameless == 0


def test_dark_and_light_have_contrast(open_page, folder):
    ratio = """() => {
      const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => { const c = part / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      const nodes = [...document.querySelectorAll("#circuit .node, #versus-circuit .node")].map((node) => [getComputedStyle(node.querySelector("text")).fill, getComputedStyle(node.querySelector("rect")).fill]);
      const cells = [...document.querySelectorAll(".chip, .matrix td:not(.void)")].map((cell) => [getComputedStyle(cell).color, getComputedStyle(cell).backgroundColor]);
      return Math.min(...[...nodes, ...cells].map(([a, b]) => contrast(a, b)));
    }"""  # noqa: E501
    for scheme in ("light", "dark"):
        page = open_page(folder / "detailed.html", color_scheme=scheme)
        page.locator("#runs button", has_text="Well-posed").click()
        page.select_option("#versus-b", index=2)
        assert page.evaluate(ratio) >= 4.5


def test_interventions_and_versions_make_runs_of_their_own(open_page, tmp_path):
    clean = make_scores(CIRCUIT, 2)
    noisy = [replace(s, interventions=[{"kind": "noise", "node": "m1", "strength": 0.5, "at": "all"}]) for s in clean]
    write_report([*clean, *noisy], tmp_path / "noise.html")
    page = open_page(tmp_path / "noise.html")
    rows = [row.split("\t") for row in page.locator("#mixed tbody tr").all_inner_texts()]
    assert rows == [["interventions", "none", "noise m1 0.5 all"]]
