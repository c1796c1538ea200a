"""Pictures of circuits: where nodes stand, how edges run, which edges are shown, and the files."""

import re
from itertools import combinations, pairwise

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from eics.circuits.graph import Circuit, Edge, Kind, Node
from eics.circuits.load import load_circuit, save_circuit
from eics.cli import main
from eics.errors import CircuitError, OptionError
from eics.linearized.explicit_file import save_linear
from eics.reporting.drawing import draw_circuit, place_nodes, route_edges, thin_out
from eics.reporting.drawing.ink import DASHED, Ink
from eics.reporting.drawing.layout import NODE_HEIGHT, NODE_WIDTH, spread
from eics.reporting.drawing.routes import PORT_AT, smooth
from eics.reporting.plots import save
from eics.scoring.api import score
from eics.scoring.records import write_records
from eics.scoring.result import EdgeTerm, NodeTerm, Score, failed
from support.circuits import build

NAMES = ["input", *(f"a{layer}.h{head}" for layer in (0, 3, 4, 11) for head in range(5)), "m0", "m3", "m7", "logits"]
PAIRS = [(u, v) for u in NAMES for v in NAMES if Node.parse(u).rank < Node.parse(v).rank]
DIAMOND = Circuit(["s->left", "s->right", "left->t", "right->t", "s->t"])


@st.composite
def transformer_circuits(draw):
    pairs = draw(st.lists(st.sampled_from(PAIRS), min_size=1, max_size=60, unique=True))
    edges = []
    for source, target in pairs:
        is_head = Node.parse(target).kind is Kind.HEAD
        ports = draw(st.sets(st.sampled_from([None, "q", "k", "v"]), min_size=1)) if is_head else [None]
        edges += [Edge(source, target, port) for port in sorted(ports, key=str)]
    return Circuit(edges)


@st.composite
def explicit_circuits(draw):
    size = draw(st.integers(2, 12))
    pairs = [(f"n{i}", f"n{j}") for i, j in combinations(range(size), 2)]
    return Circuit(draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True)))


any_circuit = transformer_circuits() | explicit_circuits()


@given(any_circuit)
def test_every_node_has_its_own_place_and_edges_point_upwards(circuit):
    places = place_nodes(circuit).places
    assert set(places) == set(circuit.nodes)
    for edge in circuit.edges:
        assert places[edge.source][1] + NODE_HEIGHT < places[edge.target][1]
    for (x, y), (other_x, other_y) in combinations(places.values(), 2):
        assert abs(x - other_x) > NODE_WIDTH or abs(y - other_y) > NODE_HEIGHT


@given(any_circuit, st.randoms(use_true_random=False))
def test_the_layout_does_not_depend_on_the_order_of_the_edges(circuit, random):
    edges = list(circuit.edges)
    random.shuffle(edges)
    layout, again = place_nodes(circuit), place_nodes(Circuit(edges))
    assert layout == again
    assert route_edges(layout, circuit.edges) == route_edges(again, edges)


@given(transformer_circuits())
def test_layers_go_up_and_mlps_stand_right_of_and_above_their_heads(circuit):
    layout = place_nodes(circuit)
    layers = sorted({n.layer for n in map(Node.parse, circuit.nodes) if n.layer is not None})
    assert [row.label for row in layout.rows] == [f"layer {layer}" for layer in layers]
    assert all(below.high <= above.low + 1e-9 for below, above in pairwise(layout.rows))
    bands = {row.label: row for row in layout.rows}
    for name, (x, y) in layout.places.items():
        node = Node.parse(name)
        if node.layer is None:
            continue
        band = bands[f"layer {node.layer}"]
        assert band.low < y - NODE_HEIGHT / 2
        assert y + NODE_HEIGHT / 2 < band.high
        if node.kind is Kind.HEAD and (mlp := f"m{node.layer}") in layout.places:
            assert layout.places[mlp][0] > x + NODE_WIDTH
            assert layout.places[mlp][1] > y + NODE_HEIGHT


@given(any_circuit)
def test_edges_run_upwards_and_never_behind_a_node(circuit):
    layout = place_nodes(circuit)
    for edge, points in route_edges(layout, circuit.edges).items():
        heights = [y for _, y in points]
        assert heights == sorted(set(heights))
        for piece in smooth(points):
            for step in range(11):
                x, y = bezier(piece, step / 10)
                for node, (at, height) in layout.places.items():
                    inside = abs(x - at) < NODE_WIDTH / 2 - 1e-6 and abs(y - height) < NODE_HEIGHT / 2 - 1e-6
                    assert not inside, (str(edge), node)


def bezier(piece, t):
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    return tuple(sum(w * point[axis] for w, point in zip(weights, piece, strict=True)) for axis in (0, 1))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9).map(sorted), st.floats(0.01, 1.0))
def test_spread_keeps_order_distance_and_bounds_and_moves_only_what_it_must(wishes, step):
    points = spread(wishes, step, -20.0, 20.0)
    assert all(b - a >= step - 1e-9 for a, b in pairwise(points))
    assert sum(points) == pytest.approx(sum(wishes), abs=1e-6)  # least squares keeps the mean
    assert spread(points, step * (1 - 1e-6), -20.0, 20.0) == pytest.approx(points)
    tight = spread(wishes, step, 0.0, 0.5)
    assert all(-1e-9 <= x <= 0.5 + 1e-9 for x in tight)
    assert tight == sorted(tight)


def test_ports_are_side_by_side_and_an_edge_into_the_whole_head_is_apart():
    circuit = Circuit(["input->a0.h0", *(f"input->a0.h0<{port}>" for port in "qkv"), "a0.h0->logits"])
    ends = {e.port: points[-1][0] for e, points in route_edges(place_nodes(circuit), circuit.edges[:4]).items()}
    x = place_nodes(circuit).places["a0.h0"][0]
    assert {port: ends[port] - x for port in "qkv"} == pytest.approx(PORT_AT)
    assert ends["q"] < ends[None] < ends["k"] < ends["v"]


def test_an_explicit_circuit_goes_up_by_depth():
    layout = place_nodes(DIAMOND)
    height = {node: y for node, (_, y) in layout.places.items()}
    assert height["s"] < height["left"] == height["right"] < height["t"]
    assert [row.label for row in layout.rows] == ["depth 0", "depth 1", "depth 2"]


def test_avoidable_crossings_are_avoided():
    crossed = Circuit(["a0.h0->a1.h1", "a0.h1->a1.h0", "a1.h1->logits", "a1.h0->logits"])
    at = {node: x for node, (x, _) in place_nodes(crossed).places.items()}
    assert (at["a0.h0"] < at["a0.h1"]) == (at["a1.h1"] < at["a1.h0"])


CHAIN = Circuit(["input->m0", "m0->m1", "m1->m2", "m2->logits", "m0->logits"])
SCORES = dict(zip(CHAIN.edges, [5.0, -4.0, 0.5, 0.5, 0.0], strict=True))
SHARES = dict(zip(CHAIN.edges, [0.0, 0.1, 0.2, 0.3, 0.4], strict=True))


@pytest.mark.parametrize(
    ("given", "kept", "sentence"),
    [
        ({"scores": SCORES}, (0, 1), "which carry 90% of the attribution"),
        ({"shares": SHARES}, (3, 4), "which carry 70% of the inconsistency"),
        ({"shares": SHARES, "scores": SCORES}, (3, 4), "70% of the inconsistency and 5% of the attribution"),
        ({"shares": dict.fromkeys(SHARES, 0.0), "scores": SCORES}, (0, 1), "which carry 90% of the attribution"),
        ({}, (1, 2), "those of the best-connected nodes"),
    ],
)
def test_thinning_keeps_what_matters_and_says_what_it_kept(given, kept, sentence):
    thinned = thin_out(CHAIN, 2, **given)
    assert thinned.shown == tuple(CHAIN.edges[index] for index in kept)
    assert thinned.sentence.startswith("Showing 2 of 5 edges, ")
    assert sentence in thinned.sentence


def test_a_complete_picture_has_no_sentence():
    assert thin_out(CHAIN, 5, scores=SCORES) == thin_out(CHAIN, 500)
    assert thin_out(CHAIN, 5).sentence is None
    with pytest.raises(OptionError, match=r"max_edges.*>= 1"):
        thin_out(CHAIN, 0)


def test_almost_all_is_not_all():
    scores = dict(zip(CHAIN.edges, [1e6, 1.0, 0.0, 0.0, 0.0], strict=True))
    assert "99% of" in thin_out(CHAIN, 1, scores=scores).sentence
    assert "100% of" in thin_out(CHAIN, 2, scores=scores).sentence


def test_attribution_sets_width_and_dashes_and_inconsistency_colour_alone():
    ink, even = Ink(SCORES, SHARES, None), Ink(SCORES, dict.fromkeys(SHARES, 0.5), None)
    widths = [ink.edge_width(edge) for edge in CHAIN.edges]
    assert widths == [even.edge_width(edge) for edge in CHAIN.edges]
    assert widths[0] > widths[1] > widths[2] == widths[3] > widths[4] > 0
    assert [edge for edge in CHAIN.edges if ink.edge_style(edge) == DASHED] == [CHAIN.edges[1]]
    flat = Ink(None, SHARES, None)
    assert [flat.edge_colour(edge) for edge in CHAIN.edges] == [ink.edge_colour(edge) for edge in CHAIN.edges]
    brightness = [sum(ink.edge_colour(edge)[:3]) for edge in CHAIN.edges]
    assert brightness == sorted(brightness, reverse=True)
    assert brightness[0] < 2.6  # the lightest is visible on white


def test_the_name_of_a_filled_node_can_be_read_where_its_edges_are_faint():
    shares = dict(zip(CHAIN.nodes, [0.0, 0.9, 0.1, 0.0, 0.0], strict=True))
    figure = draw_circuit(CHAIN, scores=dict.fromkeys(CHAIN.edges, 1.0), node_shares=shares, max_edges=1)
    colours = {text.get_text(): text.get_color() for text in figure.axes[0].texts}
    assert {colours[node] for node in CHAIN.nodes} <= {"white", "#222222"}


def test_numbers_must_belong_to_the_circuit():
    with pytest.raises(CircuitError, match=r"Attributions.*x->y"):
        draw_circuit(CHAIN, scores={Edge("x", "y"): 1.0})
    with pytest.raises(CircuitError, match=r"Node shares.*m9"):
        draw_circuit(CHAIN, node_shares={"m9": 1.0})
    with pytest.raises(CircuitError, match=r"finite.*nan"):
        draw_circuit(CHAIN, shares={CHAIN.edges[0]: float("nan")})


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))


def test_the_svg_has_its_words_as_text(tmp_path):
    path = tmp_path / "c.svg"
    title = "A title with $dollars$ that is longer than this small picture is wide, and then some\nsecond line"
    save(draw_circuit(CHAIN, scores=SCORES, max_edges=4, title=title), path)
    words = texts(path)
    assert set(CHAIN.nodes) <= set(words)
    assert {"layer 0", "layer 1", "layer 2", "negative", "second line"} <= set(words)
    assert title.splitlines()[0] in " ".join(words)
    assert "Showing 4 of 5 edges, which carry 100% of the attribution; the others are faint." in " ".join(words)


def test_no_text_leaves_the_page_or_lies_on_another():
    ported = Circuit(["input->a0.h0<q>", "input->a0.h0<k>", "a0.h0->m0", "a0.h0->logits", "m0->logits"])
    edge, other = ported.edges[0], ported.edges[2]
    for circuit, numbers in [
        (ported, {"scores": {edge: 1.0, other: -2.0}}),
        (ported, {"scores": {edge: 1.0}, "shares": {edge: 1.0}, "node_shares": {"m0": 0.3, "logits": 0.7}}),
        (Circuit(["a very long name of a node->b"]), {}),
        (load_circuit("facts-by-hand"), {}),
    ]:
        figure = draw_circuit(circuit, title="word " * 40, max_edges=4, **numbers)
        renderer = FigureCanvasAgg(figure).get_renderer()
        boxes = [text.get_window_extent(renderer) for text in figure.axes[0].texts]
        width, height = figure.bbox.size
        assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
        assert not [pair for pair in combinations(boxes, 2) if overlap(*pair)]


def overlap(a, b):
    """Whether two boxes overlap by more than the rounding of a glyph."""
    across = min(a.x1, b.x1) - max(a.x0, b.x0)
    up = min(a.y1, b.y1) - max(a.y0, b.y0)
    return across > 2 and up > 4


def run(*arguments):
    return CliRunner().invoke(main, ["circuit", "draw", *map(str, arguments)])


@pytest.mark.parametrize(("ending", "magic"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_each_format_is_written_and_the_same_each_time(tmp_path, ending, magic):
    files = [tmp_path / f"{name}.{ending}" for name in ("one", "two")]
    for file in files:
        result = run("facts-by-hand", file)
        assert result.exit_code == 0, result.output
    assert files[0].read_bytes().startswith(magic)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("name", ["c.gif", "no/such/folder/c.svg"])
def test_a_file_that_cannot_be_written_is_refused(tmp_path, name):
    result = run("facts-by-hand", tmp_path / name)
    assert result.exit_code == 2
    assert ".png, .pdf or .svg file in a folder that exists" in result.output


def record(name, shares, **more):
    edges = tuple(EdgeTerm(*edge, residual=share, share=share) for edge, share in shares.items())
    numbers = {"eics": 0.25, "c_sh": 1.5, "residual": "edge", "diagnostics": {"edges_left_out": 0}}
    return Score(**({"id": name, "status": "ok", "edges": edges} | numbers | more))


@pytest.fixture
def chain(tmp_path):
    save_circuit(CHAIN, tmp_path / "chain.json")
    return tmp_path / "chain.json"


def test_the_record_shown_is_the_one_asked_for_and_named(chain, tmp_path):
    out, records = tmp_path / "c.svg", tmp_path / "r.jsonl"
    nodes = (NodeTerm("m0", 1.0, 1.0),)
    write_records(
        [failed(0, "too long"), record(1, SHARES), record("b", SHARES, c_sh=0.75, nodes=nodes, residual="joint")],
        records,
    )
    result = run(chain, out, "--record", records)
    assert result.exit_code == 0, result.output
    assert "Prompt 1, preset paper: EICS 0.250, C_sh 1.50" in result.output
    assert "Prompt 1, preset paper: EICS 0.250, C_sh 1.50" in " ".join(texts(out))
    assert not [word for word in texts(out) if word.startswith("nodes:")]
    assert "chain" in texts(out)
    result = run(chain, out, "--record", records, "--prompt-id", "b", "--title", "Mine", "--overwrite")
    assert "Prompt b, preset well-posed: EICS 0.250, C_sh 0.750" in " ".join(texts(out))
    assert "Mine" in texts(out)
    assert (
        "Prompt b, preset well-posed"
        in run(chain, tmp_path / "b.svg", "--record", records, "--preset", "well-posed").output
    )
    assert run(chain, out, "--record", records, "--quiet", "--overwrite").output == ""
    assert [word for word in texts(out) if word.startswith("edges: share")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--record", "r.jsonl", "--prompt-id", "0"], "Prompt 0 failed: too long"),
        (["--record", "r.jsonl", "--prompt-id", "9"], "record of prompt '9'"),
        (["--record", "r.jsonl", "--preset", "well-posed"], "of preset well-posed. It has: preset paper."),
        (["--prompt-id", "0"], "--record"),
        (["--preset", "paper"], "--record"),
        (["--record", "other.jsonl"], "it has x->y, which the circuit lacks"),
        (["--record", "fewer.jsonl"], "it lacks input->m0"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(chain, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_records([failed(0, "too long"), record(1, SHARES)], "r.jsonl")
    write_records(record(1, SHARES | {Edge("x", "y"): 0.0}), "other.jsonl")
    write_records(record(1, dict(list(SHARES.items())[1:])), "fewer.jsonl")
    result = run(chain, "c.svg", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "c.svg").exists()


def test_edges_that_the_linearization_holds_fixed_have_no_share_and_the_legend_says_so(tmp_path):
    linear = build(5, density=0.8)
    save_linear(linear, tmp_path / "c.safetensors")
    frozen = score(linear, linearization="frozen")
    assert frozen.diagnostics["edges_left_out"] > 0
    write_records(frozen, tmp_path / "r.jsonl")
    result = run(tmp_path / "c.safetensors", tmp_path / "c.svg", "--record", tmp_path / "r.jsonl")
    assert result.exit_code == 0, result.output
    assert "left out of C_sh" in texts(tmp_path / "c.svg")


def test_shares_of_rounding_errors_are_not_drawn(chain, tmp_path):
    write_records(record(1, SHARES, c_sh=1e-15), tmp_path / "r.jsonl")
    result = run(chain, tmp_path / "c.svg", "--record", tmp_path / "r.jsonl")
    assert "Consistent to rounding" in result.output
    assert "Consistent to rounding: no edge is to blame." in " ".join(texts(tmp_path / "c.svg"))
