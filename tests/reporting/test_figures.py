"""The numbers of figures, read back from what is drawn: each must stand at its own label."""

import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from eics.reporting.plots import COLOURS, edges, scores_figure
from eics.scoring.result import EdgeTerm, NodeTerm, Score, Scores, failed

NODES = [f"m{layer}" for layer in range(5)]


def score(id, *, seed, status="ok", c_sh=None, negative=False):
    """A result with shares like no other's."""
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet(np.ones(len(NODES)))
    if negative:
        shares[1:] *= -0.2
    terms = sorted(zip(NODES, shares.tolist(), strict=True), key=lambda term: -term[1])
    return Score(
        id=id,
        status=status,
        eics=0.0 if status == "clipped" else float(rng.random()),
        c_sh=float(rng.random()) if c_sh is None else c_sh,
        nodes=tuple(NodeTerm(node, share, share) for node, share in terms),
        edges=tuple(EdgeTerm("input", node, None, share, share) for node, share in terms),
    )


def drawn(figure):
    """The figure laid out as it is when it is saved."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return figure


def heights(axes):
    """Where each label of the y axis stands on the page, in pixels from below."""
    ticks = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    return {label.get_text(): axes.transData.transform((0, tick))[1] for tick, label in ticks}


def map_row(axes, height):
    """The numbers of the heat map whose row is centred at a height of the page, by column label."""
    image = axes.images[0]
    left, right, bottom, top = image.get_extent()
    values = image.get_array()
    y = axes.transData.inverted().transform((0, height))[1]
    rows_down = (y - top) / (bottom - top) * values.shape[0]
    row = math.floor(rows_down)
    assert rows_down - row == pytest.approx(0.5, abs=0.01)
    cells = {}
    for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        column = math.floor((tick - left) / (right - left) * values.shape[1])
        cells[label.get_text()] = values[row, column]
    return cells


def dots(axes, height):
    """What is plotted at a height of the page, by colour: value and whether it is filled."""
    at = {}
    for line in axes.lines:
        ((x, y),) = line.get_xydata()
        if abs(axes.transData.transform((x, y))[1] - height) < 0.5:
            at[line.get_color()] = (x, line.get_markerfacecolor() != "none")
    return at


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_row_of_the_figure_is_that_of_its_label(count):
    paper = Scores(score(f"p{n}", seed=n, status="clipped" if n % 3 == 0 else "ok") for n in range(count))
    posed = Scores(score(f"p{n}", seed=100 + n) for n in range(count))
    left, middle, right, _ = drawn(scores_figure({"paper": paper, "well-posed": posed})).axes
    rows = heights(left)
    assert list(rows) == [s.id for s in posed]
    for first, last in zip(paper, posed, strict=True):
        height = rows[last.id]
        assert map_row(right, height) == pytest.approx({term.node: term.share for term in last.nodes})
        for axes, quantity in ((left, "c_sh"), (middle, "eics")):
            at = dots(axes, height)
            assert at[COLOURS[0]][0] == getattr(first, quantity)
            assert at[COLOURS[1]][0] == getattr(last, quantity)
        assert dots(middle, height)[COLOURS[0]][1] == (first.status != "clipped")


def test_a_prompt_that_failed_once_keeps_its_row():
    """In one configuration only; the rows of the others must not move up."""
    paper = Scores([failed("a", "too long"), score("b", seed=1), score("c", seed=2), failed("d", "too long")])
    posed = Scores([score("a", seed=3), failed("b", "not finite"), score("c", seed=4), failed("d", "too long")])
    figure = drawn(scores_figure({"paper": paper, "well-posed": posed}))
    left, middle, right, _ = figure.axes
    rows = heights(left)
    assert list(rows) == ["a", "b", "c"]
    assert figure.get_suptitle() == "3 of 4 prompts"
    assert {colour: x for colour, (x, _) in dots(left, rows["a"]).items()} == {COLOURS[1]: posed[0].c_sh}
    assert {colour: x for colour, (x, _) in dots(middle, rows["b"]).items()} == {COLOURS[0]: paper[1].eics}
    assert map_row(right, rows["c"]) == pytest.approx({term.node: term.share for term in posed[2].nodes})
    assert all(np.ma.is_masked(cell) for cell in map_row(right, rows["b"]).values())
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["paper", "well-posed"]


def test_ids_that_repeat_have_rows_of_their_own():
    scores = Scores([score("same", seed=1), score("same", seed=2)])
    left, _, right, _ = drawn(scores_figure({"paper": scores})).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["same", "same"]
    for tick, own in zip(left.get_yticks(), scores, strict=True):
        height = left.transData.transform((0, tick))[1]
        assert map_row(right, height) == pytest.approx({term.node: term.share for term in own.nodes})


def test_the_colours_of_the_map_reach_from_its_least_to_its_largest_number():
    image = scores_figure({"p": Scores([score("a", seed=1, negative=True)])}).axes[2].images[0]
    assert image.get_clim() == (pytest.approx(image.get_array().min()), pytest.approx(image.get_array().max()))
    assert image.get_clim()[0] < 0
    assert scores_figure({"p": Scores([score("a", seed=1)])}).axes[2].images[0].get_clim()[0] == 0.0


def test_a_consistent_prompt_blames_nobody():
    consistent = score("a", seed=1, c_sh=1e-15)
    left, _, right, _ = drawn(scores_figure({"p": Scores([consistent, score("b", seed=2)])})).axes
    assert all(np.ma.is_masked(cell) for cell in map_row(right, heights(left)["a"]).values())
    assert {bar.get_width() for bar in edges(consistent).axes[0].patches} == {0.0}


def test_nothing_was_scored():
    drawn(scores_figure({"paper": Scores([failed("a", "too long")])}))


def test_ids_and_names_are_not_formulas():
    odd = replace(score("$x_$", seed=1), nodes=(NodeTerm("$a^", 1.0, 1.0),))
    left, _, right, _ = drawn(scores_figure({"p": Scores([odd])})).axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["$x_$"]
    assert [label.get_text() for label in right.get_xticklabels()] == ["$a^"]


def test_every_bar_stands_at_the_label_of_its_edge():
    own = score("a", seed=5)
    axes = drawn(edges(own)).axes[0]
    by_height = {bar.get_y() + bar.get_height() / 2: bar.get_width() for bar in axes.patches}
    labels = dict(zip(axes.get_yticks(), (label.get_text() for label in axes.get_yticklabels()), strict=True))
    assert {labels[y]: width for y, width in by_height.items()} == pytest.approx(
        {str(edge): 100 * edge.share for edge in own.edges}
    )
    top = max(heights(axes), key=heights(axes).get)
    assert top == str(own.edges[0])
