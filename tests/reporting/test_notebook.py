"""Results in notebooks: HTML, data frames, figures, and the example notebooks themselves."""

import re
import runpy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import eics
from eics.errors import OptionError
from eics.scoring.numbers import number, percent
from eics.scoring.result import failed
from support.report_records import HOSTILE, make_circuit, make_score, make_scores, usual_scores

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


class Checked(HTMLParser):
    """Collects the text, and fails if tags are not closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], set(), ""

    def handle_starttag(self, tag, _attributes):
        self.tags.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(shown):
    checked = Checked()
    checked.feed(shown._repr_html_())
    checked.close()
    assert checked.open == []
    return checked


def test_a_result_as_html():
    score = make_score(make_circuit(), "<b>id</b>", 1, prompt=HOSTILE, reason="<i>why</i>")
    checked = parsed(score)
    assert not checked.tags & {"script", "img", "i"}
    for expected in (
        "<b>id</b>",
        HOSTILE,
        "<i>why</i>",
        number(score.c_sh),
        str(score.edges[0]),
        percent(score.edges[0].share),
    ):
        assert expected in checked.text
    assert str(score.edges[8]) not in checked.text
    widths = [int(width) for width in re.findall(r"width:(\d+)%", score._repr_html_())]
    assert widths == sorted(widths, reverse=True)
    assert widths[0] == 100


def test_a_clipped_number_has_no_error():
    """Neither in a notebook nor in the repr: its error is that of dEI."""
    errors = {"eics": 3.8, "dei_norm": 5.7, "dei": 123.0}
    score = make_score(make_circuit(), "a", 1, status="clipped", eics=0.0, dei_norm=0.0, dei=-271.0, stderr=errors)
    for shown in (score._repr_html_(), repr(score)):
        assert "3.8" not in shown
        assert "5.7" not in shown
    assert "123" in score._repr_html_()
    assert "3.8" in replace(score, status="ok")._repr_html_()


def test_nodes_are_listed_if_the_residual_is_per_node():
    score = make_score(make_circuit(), 0, 1, "well-posed")
    assert "worst nodes" in parsed(score).text
    assert score.nodes[0].node in parsed(score).text


def test_results_as_html():
    scores = usual_scores()
    checked = parsed(scores)
    assert not checked.tags & {"script", "img"}
    for expected in ("<b>bold</b>", "known", "failed", "1 of 14 prompts failed."):
        assert expected in checked.text
    many = make_scores(make_circuit(1, 1), 70)
    assert "... and 10 more." in parsed(many).text
    assert "too long" in parsed(failed("x", "too long")).text
    parsed(eics.Scores())


def test_a_consistent_result_blames_no_edge():
    chain = eics.LinearCircuit({"x->y": [[2.0]], "y->z": [[3.0]]}, {"x": [1.0], "y": [2.0], "z": [6.0]})
    score = eics.score(chain)
    assert "no edge is to blame" in parsed(score).text
    assert "worst edges" not in parsed(score).text
    assert score.plot()._repr_png_()


def test_data_frames():
    scores = usual_scores()
    frame = scores[0].to_pandas()
    assert list(frame["edge"]) == [str(edge) for edge in scores[0].edges]
    assert frame["share"].sum() == pytest.approx(1.0)
    assert list(frame.columns) == ["edge", "source", "target", "port", "residual", "share", "cosine", "attribution"]
    table = scores.to_pandas()
    assert len(table) == len(scores)
    assert table["eics"].isna().sum() == 1
    assert set(table["circuit"]) == {"made-up.json"}
    assert {"id", "status", "label", "answer", "length", "c_sh"} <= set(table.columns)
    assert not {"edges", "curve", "diagnostics"} & set(table.columns)


def test_without_pandas_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(OptionError, match="pip install pandas"):
        usual_scores().to_pandas()


@pytest.mark.parametrize("what", ["circuit", "edges", "curve"])
@pytest.mark.parametrize("preset", ["paper", "well-posed"])
def test_figures_of_one_result(what, preset):
    figure = make_score(make_circuit(), "$x_", 1, preset).plot(what)
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_the_curve_marks_alpha_and_zero():
    score = make_score(make_circuit(), 0, 1)
    labels = [text.get_text() for text in score.plot("curve").axes[0].get_legend().get_texts()]
    assert labels == ["alpha 1", f"dEI = 0 at {score.curve['zeros'][0]:.3g}"]


def test_edge_bars_are_the_worst():
    score = make_score(make_circuit(), 0, 1)
    axes = score.plot("edges").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(edge) for edge in score.edges[:20]]
    assert "32 smaller ones not shown" in axes.get_xlabel()


def test_distributions_are_split_by_label():
    axes = usual_scores().plot().axes
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["invented", "known", "no label"]
    assert len(axes) == 4
    assert eics.Scores().plot().axes[0].get_legend() is None
    assert eics.plots.distributions([make_score(make_circuit(), 0, 1)])._repr_png_()


def test_errors_of_figures_are_clear():
    score = make_score(make_circuit(), 0, 1, curve=None)
    with pytest.raises(OptionError, match="curve=True"):
        score.plot("curve")
    with pytest.raises(OptionError, match="one of circuit, edges, nodes, curve"):
        score.plot("map")
    with pytest.raises(OptionError, match="too long"):
        failed("x", "too long").plot()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path.read_text(encoding="utf-8").startswith("# %%")
    names = runpy.run_path(str(path))
    medians = names["scores"].to_pandas().groupby("label")["c_sh"].median()
    assert medians["intact"] < 1e-9 < medians["damaged"]
    assert (tmp_path / "look_at_scores.html").stat().st_size > 10_000


def test_there_is_an_example_notebook():
    assert EXAMPLES
