"""Every number of a picture, read back from its bars, points and cells, against the records."""

import math

import pytest

from eics.reporting.page import write_report
from support.report_records import detailed_scores, make_circuit, make_scores

LARGE = make_scores(make_circuit(16, 2, 756), 2)
DETAILED = detailed_scores(9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("numbers")
    write_report(LARGE, path / "large.html")
    write_report(DETAILED, path / "detailed.html")
    return path


@pytest.fixture
def page(open_page, folder):
    return open_page(folder / "detailed.html")


def numbers(locator, attribute):
    return [float(value) for value in locator.evaluate_all(f"all => all.map(one => one.getAttribute('{attribute}'))")]


def widths(locator):
    """Painted widths of bars, as parts of their tracks."""
    return locator.evaluate_all(
        "bars => bars.map(bar => bar.getBoundingClientRect().width / bar.parentElement.getBoundingClientRect().width)"
    )


def test_every_residual_bar_of_a_large_circuit(open_page, folder):
    """The smallest bars were off by 4%."""
    page = open_page(folder / "large.html")
    while page.locator("#terms .more").is_visible():
        page.locator("#terms .more").click()
    names = page.locator("#terms tbody td:first-child").all_inner_texts()
    shares = dict(zip(names, numbers(page.locator("#terms .bar i"), "data-share"), strict=True))
    terms = {str(edge): edge for edge in LARGE[0].edges}
    assert set(shares) == set(terms)
    most = max(edge.share for edge in terms.values())
    for name, share in shares.items():
        assert share == pytest.approx(terms[name].share, rel=4e-3, abs=1e-12 * most)
    for edge in LARGE[0].edges[:60]:
        assert shares[str(edge)] == pytest.approx(edge.share, rel=1e-4)
    parts = dict(zip(names, widths(page.locator("#terms .bar i")), strict=True))
    for name, part in parts.items():
        assert part == pytest.approx(terms[name].share / most, abs=0.02 / 36)  # browsers lay out in 1/64 pixel
    shown = page.locator("#terms tbody td:nth-child(3)").all_inner_texts()
    for name, text in list(zip(names, shown, strict=True))[:60]:
        residual = float(text.replace("\N{MINUS SIGN}", "-").replace(",", ""))
        assert residual == pytest.approx(terms[name].residual, rel=6e-3)  # three digits


def test_a_clipped_number_has_no_error(open_page, tmp_path):
    """An error of 3.8 beside a score between 0 and 1 would mislead; that of dEI says what there is to say."""
    errors = {"eics": 3.8, "dei_norm": 5.7, "dei": 100.0}
    scores = make_scores(
        make_circuit(), 1, ("paper",), status="clipped", dei=-271.0, eics=0.0, dei_norm=0.0, stderr=errors
    )
    write_report(scores, tmp_path / "clipped.html")
    page = open_page(tmp_path / "clipped.html")
    assert "±" not in page.locator(".tile[data-name=eics]").inner_text()
    assert "±" not in page.locator(".tile[data-name=dei_norm]").inner_text()
    assert "± 100" in page.locator(".tile[data-name=dei]").inner_text()


def test_a_shallow_circuit_fills_its_place(open_page, tmp_path):
    """Three layers of eight heads were a strip with type of nine pixels."""
    write_report(make_scores(make_circuit(3, 8, 120), 1), tmp_path / "shallow.html")
    page = open_page(tmp_path / "shallow.html")
    box = page.locator("#one svg.circuit").bounding_box()
    assert box["height"] > 0.4 * box["width"]
    heights = page.locator("#one .node > text:not(.note, .at)").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect().height)"
    )
    assert min(heights) > 12
    fits = """all => all.every(node => {
        const [inner, outer] = ["text", "rect"].map(kind => node.querySelector(kind).getBoundingClientRect());
        return inner.left >= outer.left && inner.right <= outer.right && inner.height <= outer.height + 2;
    })"""
    assert page.locator("#one .node").evaluate_all(fits)


def test_edges_of_the_picture(open_page, folder):
    page = open_page(folder / "large.html")
    shares = numbers(page.locator("#circuit .edge"), "data-share")
    assert sorted(shares) == pytest.approx(sorted(edge.share for edge in LARGE[0].edges[:60]), rel=1e-4)


def test_bars_of_nodes_and_predictions(page):
    score = DETAILED[0]
    assert page.locator("#tab-node[aria-selected=true]").count() == 1
    names = page.locator("#terms tbody td:first-child").all_inner_texts()[: len(score.nodes)]
    most = max(term.share for term in score.nodes)
    shares = {term.node: term.share for term in score.nodes}
    for name, part in zip(names, widths(page.locator("#terms .bar i")), strict=True):
        assert part == pytest.approx(shares[name] / most, rel=2e-3, abs=0.02 / 36)
    given = [entry["probability"] for entry in score.predictions]
    assert widths(page.locator(".prediction .bar i")) == pytest.approx(given, abs=0.02 / 46)
    page.locator("#present").click()
    assert widths(page.locator(".prediction .bar i")) == pytest.approx(given, abs=0.02 / 46)


def test_shares_by_token(page):
    score = DETAILED[0]
    rows = page.locator("#strip tbody tr")
    most = max(share for shares in score.details["positions"].values() for share in shares)
    assert page.locator("#strip thead th").all_inner_texts()[1:] == [token.strip() for token in score.tokens]
    for row in rows.all():
        node = row.locator("th").inner_text()
        expected = score.details["positions"][node]
        assert numbers(row.locator("td"), "data-value") == pytest.approx(expected, rel=2e-3)
        whole = next(term.share for term in score.nodes if term.node == node)
        assert sum(numbers(row.locator("td"), "data-value")) == pytest.approx(whole, rel=2e-3)
        texts = row.locator("td").all_inner_texts()
        digits = 2 if most < 0.01 else 1 if most < 0.1 else 0
        hundredths = [f"{100 * share:.{digits}f}" for share in expected]
        assert texts == [text if float(text) else "·" for text in hundredths]
    totals = [sum(numbers(row.locator("td"), "data-value")) for row in rows.all()]
    assert totals == sorted(totals, reverse=True)
    assert rows.count() == len(score.nodes)


def test_the_attention_pattern_and_the_top_tokens_of_a_head(page):
    score = DETAILED[0]
    assert "Select a node" in page.locator("#head").inner_text()
    page.locator("#circuit .node", has_text="a2.h1").click()
    pattern = score.details["patterns"]["a2.h1"]
    rows = page.locator("#pattern tbody tr").all()
    assert len(rows) == len(pattern["queries"])
    for row, weights in zip(rows, pattern["rows"], strict=True):
        assert numbers(row.locator("td"), "data-value") == pytest.approx(weights, rel=1e-3, abs=1e-6)
    tops = score.details["top_tokens"]["a2.h1"]
    assert [name.strip() for name in page.locator("#tops tbody th").all_inner_texts()] == [
        entry["token"].strip() for entry in tops
    ]
    expected = [entry["logit"] / tops[0]["logit"] for entry in tops]
    assert widths(page.locator("#tops .bar i")) == pytest.approx(expected, abs=0.02 / 120 + 1e-3)
    page.locator("#strip tbody button", has_text="m1").click()
    assert "Only heads have one." in page.locator("#head").inner_text()
    assert page.locator("#circuit .node.lit").get_attribute("aria-label").startswith("m1,")
    assert page.locator("#strip tr[aria-selected=true] th").inner_text() == "m1"


def test_nodes_compared_with_usual(page):
    values = {
        node.get_attribute("aria-label").split(",")[0]: float(node.get_attribute("data-value"))
        for node in page.locator("#circuit .node[data-value]").all()
    }
    assert values == pytest.approx({term.node: term.z for term in DETAILED[0].nodes}, rel=2e-3, abs=1e-4)
    key = page.locator("#one .key").inner_text()
    assert "compared with usual" in key
    assert "3\N{GREEK SMALL LETTER SIGMA} below" in key
    far = max(DETAILED[0].nodes, key=lambda term: abs(term.z))
    sign = "▲" if far.z > 0 else "▼"
    assert f"{sign} {abs(far.z):.1f}\N{GREEK SMALL LETTER SIGMA}" in page.locator("#circuit").text_content()
    page.select_option("#colour", "share")
    assert "share of C_sh" in page.locator("#one .key").inner_text()
    page.select_option("#colour", "run")
    shares = sorted(term.share for score in DETAILED for term in score.nodes if term.node == "m1")
    middle = shares[4]
    width = 1.4826 * sorted(abs(share - middle) for share in shares)[4]
    ours = next(term.share for term in DETAILED[0].nodes if term.node == "m1")
    shown = page.locator("#circuit .node[aria-label^='m1,']").get_attribute("data-value")
    assert float(shown) == pytest.approx((ours - middle) / width, rel=0.01)


def test_percentiles_of_a_calibration(page):
    given = DETAILED[0].diagnostics["calibration"]["percentiles"]
    shown = numbers(page.locator(".lead .chip"), "data-percentile")
    assert shown == pytest.approx([given["eics"], given["c_sh"], given["dei"]], rel=5e-3)
    assert page.locator("#all .chip").count() == len(DETAILED)


def test_differences_of_nodes(page):
    page.select_option("#versus-b", label="p3: The capital of p3 is")
    ours, theirs = (dict.fromkeys(s.norms, math.nan) | {t.node: t for t in s.nodes} for s in (DETAILED[0], DETAILED[3]))
    for measure in ("share", "residual"):
        page.select_option("#versus-by", measure)
        expected = {n: getattr(theirs[n], measure) - getattr(ours[n], measure) for n in ours if n != "input"}
        check_differences(page, expected)
    page.select_option("#versus-by", "norm")
    check_differences(page, {n: DETAILED[3].norms[n] - norm for n, norm in DETAILED[0].norms.items()})


def check_differences(page, expected):
    names = page.locator("#versus-table tbody td:first-child").all_inner_texts()
    values = dict(zip(names, numbers(page.locator("[data-difference]"), "data-difference"), strict=True))
    size = max(map(abs, expected.values()))
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    assert known == pytest.approx(expected, rel=5e-3, abs=2e-3 * size)
    order = [abs(expected[name]) for name in names if name in expected]
    assert order == sorted(order, reverse=True)
    drawn = {
        node.get_attribute("aria-label").split(",")[0]: float(node.get_attribute("data-value"))
        for node in page.locator("#versus-circuit .node[data-value]").all()
    }
    assert drawn == pytest.approx(expected, rel=5e-3, abs=2e-3 * size)
    largest = max(expected, key=lambda name: abs(expected[name]))
    sign = "▲" if expected[largest] > 0 else "▼"
    assert sign in page.locator(f"#versus-circuit .node[aria-label^='{largest},'] .note").text_content()


def test_a_whole_run_is_the_mean_of_its_prompts(page):
    page.select_option("#versus-b", label="Well-posed, mean of 9 prompts")
    means = {
        term.node: sum(next(t.share for t in s.nodes if t.node == term.node) for s in DETAILED) / len(DETAILED)
        for term in DETAILED[0].nodes
    }
    ours = {term.node: term.share for term in DETAILED[0].nodes}
    check_differences(page, {node: mean - ours[node] for node, mean in means.items()})


def test_points_of_the_plots(page):
    """The dots of the distributions lie linearly between the ends of the axis, the curve on its alphas."""
    values = [score.c_sh for score in DETAILED]
    low, high = min(values), max(values)
    dots = page.locator(".distribution", has_text="C_sh").locator(".dot")
    shown = sorted((at - 12) / (330 - 24) for at in numbers(dots, "cx"))
    assert shown == pytest.approx(sorted((value - low) / (high - low) for value in values), abs=1e-4)
    curve = DETAILED[0].curve
    path = page.locator("#curve .graph").get_attribute("d").replace("M", "L").split("L")[1:]
    xs, ys = zip(*([float(at) for at in point.split()] for point in path), strict=True)
    assert len(xs) == len(curve["alpha"])
    logs = [math.log10(alpha) for alpha in curve["alpha"]]
    assert xs == pytest.approx([62 + (at - logs[0]) / (logs[-1] - logs[0]) * (620 - 76) for at in logs], abs=0.06)
    unit = max(map(abs, curve["dei"])) / 1000
    bent = [math.asinh(nats / unit) for nats in curve["dei"]]
    top, bottom = max(0, *bent), min(0, *bent)
    assert ys == pytest.approx([16 + (top - at) / (top - bottom) * (240 - 56) for at in bent], abs=0.2)
    page.select_option("#against", index=1)
    ours, theirs = ({str(edge): edge.share for edge in score.edges} for score in DETAILED[:2])
    most = max(*ours.values(), *theirs.values())
    points = sorted((math.sqrt(ours[e] / most), math.sqrt(theirs[e] / most)) for e in ours)
    dots = page.locator("#compare .point")
    drawn = sorted(
        ((x - 38) / 250, (262 - y) / 250) for x, y in zip(numbers(dots, "cx"), numbers(dots, "cy"), strict=True)
    )
    assert [x for x, _ in drawn] == pytest.approx([x for x, _ in points], abs=1e-3)
    assert sorted(y for _, y in drawn) == pytest.approx(sorted(y for _, y in points), abs=1e-3)
