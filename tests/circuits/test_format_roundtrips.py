"""Writing and reading back gives the same graph; cuts and pruning match their definitions."""

import itertools
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eics import Circuit, CircuitError, Edge, EICSError, OptionError, load_circuit
from eics.circuits.formats import CircuitGraph, ModelShape, cut, prune, read_graph, write_graph
from eics.circuits.load import save_circuit
from support.circuit_files import all_edges, eap, write_json

MODEL = [Edge.parse(name) for name in all_edges(3, 2)]
# valid names: quotes, commas and accents allowed, but no arrows, angle brackets or outer blanks
WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="<>"), min_size=1, max_size=6
)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
# text that a table could mistake for something else
LIKE_NUMBERS = st.sampled_from(["1", "true", "null", '"x"', "NaN", "-0"])
VALUES = st.one_of(st.booleans(), st.integers(-9, 9), NUMBERS, WORDS, LIKE_NUMBERS)
ATTRIBUTES = st.dictionaries(WORDS.map("x{}".format), VALUES, max_size=2)


@st.composite
def graphs(draw, transformer: bool):
    """Graphs with scores, flags, attributes and positions, each on a random subset of edges or nodes."""
    if transformer:
        edges = draw(st.lists(st.sampled_from(MODEL), min_size=1, max_size=12, unique=True))
    else:
        names = draw(st.lists(WORDS.map("n{}".format), min_size=2, max_size=6, unique=True))
        pairs = [Edge(*pair) for pair in itertools.combinations(names, 2)]
        edges = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    subset = st.sets(st.sampled_from(edges))
    nodes = sorted({name for edge in edges for name in edge[:2]} - {"logits"})
    return CircuitGraph(
        tuple(edges),
        scores={edge: draw(NUMBERS) for edge in draw(subset)},
        kept=draw(st.none() | st.sets(st.sampled_from(edges), min_size=1).map(frozenset)),
        shape=ModelShape(3, 2, False, 4) if transformer and draw(st.booleans()) else None,
        positions=dict.fromkeys(draw(st.sets(st.sampled_from(nodes))), (1, 4)),
        node_attributes={
            name: values for name in draw(st.sets(st.sampled_from(nodes))) if (values := draw(ATTRIBUTES))
        },
        edge_attributes={edge: values for edge in draw(subset) if (values := draw(ATTRIBUTES))},
        metadata=draw(ATTRIBUTES),
    )


def written_and_read(graph: CircuitGraph, folder, format: str) -> CircuitGraph:
    path = folder / "circuit"
    write_graph(graph, path, format)
    read = read_graph(path)
    tuples = {name: tuple(kept) for name, kept in read.positions.items()}
    return replace(read, format=graph.format, notes=(), positions=tuples)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("formats")


@pytest.mark.parametrize("format", ["eics-circuit", "graphml"])
@pytest.mark.parametrize("transformer", [True, False])
@given(data=st.data())
def test_a_whole_graph_survives_a_round_trip(folder, format, transformer, data):
    graph = data.draw(graphs(transformer))
    assert written_and_read(graph, folder, format) == graph


@pytest.mark.parametrize("transformer", [True, False])
@given(data=st.data())
def test_a_csv_keeps_everything_about_edges(folder, transformer, data):
    graph = data.draw(graphs(transformer))
    bare = replace(graph, shape=None, positions={}, node_attributes={}, metadata={})
    assert written_and_read(graph, folder, "csv") == bare


@given(graph=graphs(True))
def test_eap_json_survives_a_round_trip(folder, graph):
    """Every edge gets a score and every node a flag, which follows from the edges."""
    read = written_and_read(graph, folder, "eap-json")
    flags = {name for name, values in read.node_attributes.items() if values["in_graph"]}
    assert flags == {name for edge in graph.kept_edges for name in edge[:2]}
    assert read.edges == graph.edges
    assert read.kept_edges == graph.kept_edges
    assert read.scores == ({edge: graph.scores.get(edge, 0.0) for edge in graph.edges} if graph.scores else {})
    assert read.shape == graph.shape or graph.shape is None
    assert (read.positions, read.edge_attributes, read.metadata) == (
        graph.positions, graph.edge_attributes, graph.metadata
    )  # fmt: skip
    for name, values in graph.node_attributes.items():
        assert values.items() <= read.node_attributes[name].items()


@pytest.mark.parametrize("transformer", [True, False])
@given(data=st.data())
def test_neuronpedia_keeps_the_circuit(folder, transformer, data):
    graph = data.draw(graphs(transformer))
    read = written_and_read(graph, folder, "neuronpedia")
    assert read.edges == graph.kept_edges
    kept = set(graph.kept_edges)
    assert read.scores == ({edge: graph.scores.get(edge, 0.0) for edge in kept} if graph.scores else {})


def test_a_model_sized_file_loads_quickly_and_comes_back_unchanged(tmp_path):
    """The shape of a published circuit: 12 layers, 12 heads, 32,491 edges of which 756 are kept."""
    names = all_edges(12, 12)
    assert len(names) == 32_491
    kept = {name for index, name in enumerate(names) if index % 43 == 0}
    content = eap(12, 12, kept, score=lambda index: (index * 7919 % 10007 - 5000) / 3e4)
    path = write_json(tmp_path / "c.json", content)
    start = time.perf_counter()
    circuit = load_circuit(path)
    # Not a speed test: this takes half a second, a quadratic algorithm would take minutes.
    assert time.perf_counter() - start < 20
    assert len(circuit.edges) == 756
    write_graph(read_graph(path), tmp_path / "d.json", "eap-json")
    assert (tmp_path / "d.json").read_text() == json.dumps(content)
    write_graph(read_graph(path), tmp_path / "e.json")
    write_graph(read_graph(tmp_path / "e.json"), tmp_path / "f.json", "eap-json")
    assert (tmp_path / "f.json").read_text() == json.dumps(content)


def test_saved_circuits_keep_their_scores(tmp_path):
    circuit = Circuit(["x->y", "y->z"], scores={Edge("x", "y"): 0.5})
    save_circuit(circuit, tmp_path / "c")
    assert load_circuit(tmp_path / "c") == circuit
    assert load_circuit(tmp_path / "c").scores == circuit.scores


FIVE = CircuitGraph(
    tuple(map(Edge.parse, ["input->m0", "m0->m1", "m1->logits", "input->logits", "m0->logits"])),
    scores=dict(
        zip(map(Edge.parse, ["input->m0", "m0->m1", "m1->logits", "input->logits"]), [3, -4, 2, -2], strict=True)
    ),
    kept=frozenset([Edge("m0", "logits")]),
    node_attributes={"m0": {"in_graph": True, "score": 1}},
)


@pytest.mark.parametrize(
    ("criteria", "kept"),
    [
        ({"top_edges": 1}, ["m0->m1"]),
        ({"top_edges": 3}, ["input->m0", "m0->m1", "m1->logits"]),  # a tie goes to the earlier edge
        ({"top_edges": 99}, ["input->m0", "m0->m1", "m1->logits", "input->logits"]),  # never an edge without a score
        ({"top_edges": 2, "signed": True}, ["input->m0", "m1->logits"]),
        ({"share": 0.4}, ["input->m0", "m0->m1"]),
        ({"share": 0.59}, ["input->m0", "m0->m1"]),
        ({"share": 0.01}, ["m0->m1"]),
        ({"min_score": 3}, ["input->m0", "m0->m1"]),
        ({"min_score": 2, "signed": True}, ["input->m0", "m1->logits"]),
        ({"min_score": -3, "signed": True}, ["input->m0", "m1->logits", "input->logits"]),
    ],
)
def test_cuts(criteria, kept):
    assert [str(edge) for edge in cut(FIVE, **criteria).kept_edges] == kept


def test_a_cut_forgets_the_flags_of_nodes():
    assert cut(FIVE, top_edges=1).node_attributes == {"m0": {"score": 1}}


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({}, "exactly one"),
        ({"top_edges": 1, "share": 0.5}, "Got top_edges, share"),
        ({"top_edges": 0}, "'top_edges'"),
        ({"top_edges": True}, "'top_edges'"),
        ({"share": 0.0}, "'share'"),
        ({"share": 1.5}, "'share'"),
        ({"share": float("nan")}, "'share'"),
        ({"min_score": float("nan")}, "'min_score'"),
        ({"min_score": 5}, "largest score is 4"),
    ],
)
def test_bad_cuts(criteria, message):
    with pytest.raises(EICSError, match=message):
        cut(FIVE, **criteria)
    with pytest.raises(CircuitError, match="has none"):
        cut(CircuitGraph(FIVE.edges), top_edges=1)


@given(graph=graphs(True), top=st.integers(1, 9), signed=st.booleans())
def test_a_cut_keeps_the_largest(graph, top, signed):
    if not graph.scores:
        return
    size = (lambda e: graph.scores[e]) if signed else (lambda e: abs(graph.scores[e]))
    kept = cut(graph, top_edges=top, signed=signed).kept
    assert len(kept) == min(top, len(graph.scores))
    assert min(map(size, kept)) >= max((size(edge) for edge in graph.scores.keys() - kept), default=float("-inf"))


def paths(edges, node, sinks):
    """Every path from a node to a sink, as tuples of edges."""
    if node in sinks:
        yield ()
    for edge in edges:
        if edge.source == node:
            yield from ((edge, *rest) for rest in paths(edges, edge.target, sinks))


@given(graph=graphs(True))
def test_pruning_keeps_what_lies_on_a_path(graph):
    circuit = graph.circuit()
    sources = {"input"} if "input" in circuit.nodes else set(circuit.sources)
    sinks = {"logits"} if "logits" in circuit.nodes else set(circuit.sinks)
    on_path = {edge for node in sources for path in paths(circuit.edges, node, sinks) for edge in path}
    if not on_path:
        with pytest.raises(CircuitError, match="must have a path"):
            prune(graph)
        return
    pruned, dropped = prune(graph)
    assert set(pruned.kept_edges) == on_path
    assert pruned.edges == graph.edges
    assert dropped.edges == len(circuit.edges) - len(on_path)
    assert dropped.nodes == len(circuit.nodes) - len(pruned.circuit().nodes)
    assert prune(circuit)[0] == pruned.circuit()


def test_load_circuit_cuts_then_prunes(tmp_path):
    write_graph(FIVE, tmp_path / "c.json")
    assert load_circuit(tmp_path / "c.json") == Circuit(["m0->logits"])
    assert load_circuit(tmp_path / "c.json", top_edges=3) == Circuit(["input->m0", "m0->m1", "m1->logits"])
    with pytest.raises(CircuitError, match="must have a path"):
        load_circuit(tmp_path / "c.json", top_edges=2, signed=True)
    write_graph(replace(FIVE, kept=frozenset()), tmp_path / "c.json")
    with pytest.raises(CircuitError, match="None of the 5 edges is marked"):
        load_circuit(tmp_path / "c.json")


def test_scores_of_a_whole_model_are_kept_and_noted(tmp_path):
    content = eap(5, 8)
    for entry in content["edges"].values():
        del entry["in_graph"]
    graph = read_graph(write_json(tmp_path / "c", content))
    assert graph.kept is None
    assert [note for note in graph.notes if "all are, until you cut them" in note]


def test_formats_to_write(tmp_path):
    for name, start in {
        "c.json": "{",
        "c.csv": "source",
        "c.graphml": "<?xml",
        "c.dot": "digraph",
        "c.gv": "d",
    }.items():
        write_graph(FIVE, tmp_path / name)
        assert (tmp_path / name).read_text().startswith(start)
    with pytest.raises(OptionError, match=r"must end in \.json"):
        write_graph(FIVE, tmp_path / "c.xlsx")
    with pytest.raises(OptionError, match="'format'"):
        write_graph(FIVE, tmp_path / "c.json", "pickle")
