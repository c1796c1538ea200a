"""Calibrated records on the page: sentence, suspects, nodes most unusual first, z compared; with and without edges."""

from dataclasses import replace

import pytest

from eics.reporting.page import write_report
from eics.scoring.verdict import verdict
from support.report_records import HOSTILE, judged_scores, make_circuit, make_details, make_scores

SIGMA = "\N{GREEK SMALL LETTER SIGMA}"
SHEAF = pytest.mark.parametrize("edges", [True, False], ids=["all", "sheaf"])


@pytest.fixture
def page_of(open_page, tmp_path):
    def go(scores, **options):
        write_report(scores, tmp_path / "a.html")
        return open_page(tmp_path / "a.html", **options)

    return go


def cells(page, selector, number):
    return [text.strip() for text in page.locator(f"{selector} tbody tr td:nth-child({number})").all_inner_texts()]


def heads(page, selector):
    return [text.strip() for text in page.locator(f"{selector} thead th").all_inner_texts()]


@SHEAF
def test_the_sentence_and_the_suspects(page_of, edges):
    scores = judged_scores(edges=edges)
    page = page_of(scores)
    assert page.locator("#verdict.alarm").inner_text() == verdict(scores[0])
    marked = page.locator("#circuit .node.suspect").evaluate_all(
        "all => all.map(n => n.querySelector('text').textContent)"
    )
    assert sorted(marked) == ["a2.h0", "m1"]
    assert page.locator("#circuit .ring").count() == 2
    assert "suspect" in page.locator("#circuit .node.suspect").first.get_attribute("aria-label")
    titles = heads(page, "#all")
    assert titles[:3] == ["prompt", "p", "suspects"] or titles[:4] == ["prompt", "answer", "p", "suspects"]
    at = titles.index("suspects") + 1
    assert cells(page, "#all", at - 1) == ["0.004", "0.5", "0.5"]
    assert [text.split() for text in cells(page, "#all", at)] == [["m1", "a2.h0"], ["none"], ["none"]]
    assert "C_ref" in titles
    assert "C_sh" not in titles
    assert "C_sh" not in page.locator(".tiles").inner_text() + page.locator(".distributions").inner_text()
    page.fill("#find", "a2.h0")
    assert len(cells(page, "#all", 1)) == 1
    page.fill("#find", "")
    page.locator("#all tbody tr", has_text="p1").click()
    assert page.locator("#verdict").inner_text() == "Every node wrote what is usual for what it read (p = 0.500)."
    assert page.locator("#verdict.alarm, #circuit .ring").count() == 0
    assert page.locator("#live").text_content().startswith("Prompt p1: p 0.5, C_ref ")


@SHEAF
def test_nodes_most_unusual_first(page_of, edges):
    scores = judged_scores(edges=edges)
    page = page_of(scores)
    terms = scores[0].nodes
    assert heads(page, "#terms")[:5] == ["node", "z", "p", "r²", "not judged because"]
    assert cells(page, "#terms", 1)[: len(terms) - 1] == [term.node for term in terms[:-1]]
    shown = [text.replace("\N{MINUS SIGN}", "-") for text in cells(page, "#terms", 2)]
    assert shown[: len(terms) - 1] == [f"{term.z:.1f}" for term in terms[:-1]]
    row = page.locator("#terms tbody tr", has_text="a0.h0")
    assert "not judged" in row.inner_text()
    assert "its write hardly varies" in row.inner_text()
    worst = page.locator("#detail li").all_inner_texts()
    assert [line.split()[0] for line in worst] == [term.node for term in terms[:5]]
    assert f"r² {terms[0].r2:.2f}" in worst[0]
    assert "p 0.004" in worst[0]


@SHEAF
def test_the_colour_is_z_and_the_legend_says_what_is_usual(page_of, edges):
    scores = judged_scores(edges=edges)
    page = page_of(scores)
    legend = page.locator("#one .key").inner_text()
    for words in ("node colour: z", "0 or less: usual", f"3{SIGMA} or more: unusual", "calibration prompts", "suspect"):
        assert words in legend
    values = page.locator("#circuit .node").evaluate_all(
        "all => Object.fromEntries(all.map(n => [n.querySelector('text').textContent, n.dataset.value]))"
    )
    for term in scores[0].nodes:
        if term.z is not None:
            assert float(values[term.node]) == pytest.approx(term.z, rel=1e-3)
    colour = "all => all.map(n => getComputedStyle(n.querySelector('rect:not(.ring)')).fill)"
    below = [term.node for term in scores[0].nodes if term.z is not None and term.z < 0]
    pale = {page.locator("#circuit .node", has_text=node).evaluate_all(colour)[0] for node in below}
    assert pale == {"rgb(247, 247, 247)"}
    assert page.locator("#circuit .node", has_text="m1").evaluate_all(colour) == ["rgb(179, 88, 6)"]


def test_a_selected_node_says_why_and_what_it_writes(page_of):
    scores = judged_scores()
    page = page_of(scores)
    page.locator("#circuit .node", has_text="m1").click()
    detail = page.locator("#detail").inner_text()
    first = scores[0].nodes[0]
    for words in ("m1", "suspect", f"9.0{SIGMA}", "0.004", f"{first.r2:.2f}", "share of C_ref"):
        assert words in detail
    page.locator("#circuit .node", has_text="a0.h0").click()
    assert "Not judged: its write hardly varies." in page.locator("#detail").inner_text()
    assert "suspect" not in page.locator("#detail").inner_text()


def shown_shares(page):
    """Names and shares of what carried the selected node."""
    names = [name.strip() for name in page.locator("#carried tbody th").all_inner_texts()]
    shares = page.locator("#carried i").evaluate_all("all => all.map(bar => Number(bar.dataset.share))")
    return dict(zip(names, shares, strict=True))


def test_a_selected_node_shows_what_was_expected_and_what_carried_it(page_of):
    scores = judged_scores()
    page = page_of(scores)
    page.locator("#circuit .node", has_text="m1").click()
    entry = scores[0].details["expected"]["m1"]
    assert [text.strip() for text in page.locator("#writes thead th").all_inner_texts()] == [
        "wrote", "expected", "difference",
    ]  # fmt: skip
    for column, name in enumerate(("wrote", "expected", "difference")):
        tokens = page.locator(f"#writes tbody td:nth-child({column + 1}) .token").all_inner_texts()
        assert [token.strip() for token in tokens] == [top["token"].strip() for top in entry[name]]
    shown = shown_shares(page)
    expected = entry["parents"] | {
        "less what was expected": entry["rest"] - entry["off_circuit"], "from off the circuit": entry["off_circuit"],
    }  # fmt: skip
    assert shown == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert sum(shown.values()) == pytest.approx(1, abs=2e-3)
    widths = page.locator("#carried i").evaluate_all("all => all.map(bar => bar.getBoundingClientRect().width)")
    most = max(map(abs, shown.values()))
    assert widths == pytest.approx([120 * abs(share) / most for share in shown.values()], abs=0.6)
    negative = page.locator("#carried i").evaluate_all("all => all.map(bar => bar.classList.contains('negative'))")
    assert negative == [share < 0 for share in shown.values()]
    parent = next(iter(entry["parents"]))
    page.locator("#carried button", has_text=parent).click()  # and on to the parent
    assert page.locator("#detail b").first.inner_text() == parent


def test_a_node_of_which_nothing_was_expected_still_says_what_it_writes(page_of):
    scores = judged_scores()
    page = page_of([replace(score, details=make_details(score)) for score in scores])
    page.locator("#circuit .node", has_text="m1").click()
    assert page.locator("#writes, #carried").count() == 0
    for words in ("m1 top 0", "m1 top 4"):
        assert words in page.locator("#detail").inner_text()


def test_hostile_tokens_of_what_was_expected_are_text(page_of):
    scores = judged_scores()
    entry = scores[0].details["expected"]["m1"]
    top = [{"token": HOSTILE, "id": 0, "logit": 1.0}]
    spoilt = {"expected": {"m1": entry | {"wrote": top, "parents": {HOSTILE: 0.5}}}}
    page = page_of([replace(scores[0], details=scores[0].details | spoilt), *scores[1:]])
    page.locator("#circuit .node", has_text="m1").click()
    assert HOSTILE.split("\u2028")[0].strip() in page.locator("#writes").inner_text()
    assert "pwned" not in page.title()
    assert page.locator("#writes img, #carried script").count() == 0


def test_without_edges_nothing_is_said_of_edges(page_of):
    scores = judged_scores(edges=False)
    page = page_of(scores)
    assert page.locator("#circuit .node").count() == len(scores[0].nodes)
    assert page.locator("#circuit .edge").count() == 0
    shown = page.locator("#one").inner_text()
    for words in ("edge colour", "edge width", "edge by edge", "dEI over alpha"):
        assert words not in shown
    assert page.locator("#tab-edge").count() == 0
    page.locator("#circuit").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.locator("#terms tr[aria-selected=true]").count() == 1
    assert "edges not in the records" in page.locator("#run").inner_text()


@SHEAF
def test_the_run_says_what_p_values_rest_on(page_of, edges):
    run = page_of(judged_scores(edges=edges)).locator("#run").inner_text()
    assert "p-values hold for prompts of the same kind as the reference" in run
    assert "249 calibration prompts" in run
    assert "does not say whether the answer is wrong" in run


@SHEAF
def test_two_prompts_differ_in_z(page_of, edges):
    scores = judged_scores(edges=edges)
    page = page_of(scores)
    page.select_option("#against", index=1)
    assert heads(page, "#terms")[:4] == ["node", "z, p0", "z, p1", "difference"]
    assert page.locator("#versus-by option:checked").inner_text() == "z"
    ours, theirs = ({t.node: t.z for t in score.nodes if t.z is not None} for score in scores[:2])
    shown = page.locator("#versus-table [data-difference]").evaluate_all(
        "all => Object.fromEntries(all.map(n => [n.closest('tr').dataset.key, Number(n.dataset.difference)]))"
    )
    for node in ours:
        assert shown[node] == pytest.approx(theirs[node] - ours[node], abs=0.02)
    largest = max(ours, key=lambda node: abs(theirs[node] - ours[node]))
    assert cells(page, "#versus-table", 1)[0] == largest
    page.select_option("#versus-b", label="Calibrated, mean of 3 prompts")
    mean = sum(t.z for score in scores for t in score.nodes if t.node == "m1") / 3
    row = page.locator("#versus-table tbody tr", has_text="m1")
    assert float(row.locator("[data-difference]").get_attribute("data-difference")) == pytest.approx(
        mean - ours["m1"], abs=0.02
    )
    assert "NaN" not in page.locator("body").inner_text()


def test_a_prompt_with_edges_against_one_without(page_of):
    page = page_of([*judged_scores(), *judged_scores(edges=False)])
    page.select_option("#versus-b", "4")
    assert "has no edges" in page.locator(".columns.half").inner_text()
    assert page.locator("#compare").count() == 0
    assert heads(page, "#terms")[3] == "difference"
    assert page.locator("#versus-by option:checked").inner_text() == "z"


def test_a_run_without_z_is_compared_by_share(page_of):
    page = page_of([*judged_scores(), *make_scores(make_circuit(), 2, ("well-posed",))])
    assert "z" in page.locator("#versus-by option").all_inner_texts()
    page.select_option("#versus-b", "3")
    assert page.locator("#versus-by option:checked").inner_text() == "share"
    assert "z" not in page.locator("#versus-by option").all_inner_texts()
    page.locator("#runs button", has_text="Well-posed").click()
    assert page.locator("#verdict, #circuit .ring").count() == 0
    assert "suspects" not in heads(page, "#all")
    assert "C_sh" in heads(page, "#all")


def test_a_phone_does_not_scroll_sideways(page_of):
    page = page_of(judged_scores(edges=False), viewport={"width": 390, "height": 800})
    assert page.locator("#circuit .suspect").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
