"""Under `frozen` the circuit is the given one without its `<q>` and `<k>` edges: they change no number of a record."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eics
from eics import Circuit, CircuitError, LinearCircuit
from eics.circuits.graph import Edge
from eics.models.prompts import as_prompts
from eics.scoring.batch import score_prompts
from support import brute as twin
from support.brute import Brute, brute_parts
from support.circuits import NAMES, circuits
from support.tiny_models import some_circuit, tiny_model

CONFIGURATIONS = [
    {"residual": residual, "metric": metric, "parts": parts, "emergence": emergence}
    for residual, metric, parts, emergence in [
        ("edge", "euclidean", "nodes", "difference"),
        ("joint", "relative", "nodes", "intensive"),
        ("propagated", "relative", "branches", "intensive"),
        ("joint", "euclidean", "branches", "difference"),
    ]
]
MODES = ("exact", "lanczos", "fast", "limit")
PROMPTS = [[3, 5, 7, 11, 13], [1, 2, 3]]


def held_edges(draw, circuit: Circuit, names) -> list[Edge]:
    """Some `<q>` and `<k>` edges that the circuit lacks, also of heads that it does not have."""
    heads = [name for name in names if name.startswith("a")]
    order = {name: eics.Node.parse(name).rank for name in names}
    possible = [
        Edge(source, head, port) for head in heads for source in names for port in "qk" if order[source] < order[head]
    ]
    missing = [edge for edge in possible if edge not in circuit.edges]
    return draw(st.lists(st.sampled_from(missing), min_size=1, max_size=4, unique=True)) if missing else []


def numbers(score) -> dict:
    """The record without what may differ: the circuit's hash, and how many edges were left out."""
    record = score.to_record()
    del record["circuit"]
    left_out = record["diagnostics"].pop("edges_left_out")
    return left_out, flat(record)


def flat(value, path="") -> dict:
    """Nested records as one dictionary, so that numbers can be compared approximately."""
    if isinstance(value, dict):
        return {key: leaf for name, inner in value.items() for key, leaf in flat(inner, f"{path}.{name}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for i, inner in enumerate(value) for key, leaf in flat(inner, f"{path}[{i}]").items()}
    return {path: value}


def check_equal(plain, more, added):
    (left_out, ours), (left_out_of_more, theirs) = numbers(plain), numbers(more)
    assert left_out_of_more == left_out + added
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        assert theirs[name] == (pytest.approx(value, rel=1e-8, abs=1e-10) if isinstance(value, float) else value), name


@settings(max_examples=15)
@given(circuits(batch=None, positions=3), st.data(), st.integers(0, 1000))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: "-".join(c.values()))
def test_an_edge_that_carries_nothing_changes_no_number_of_an_explicit_circuit(
    configuration, mode, circuit, data, seed
):
    added = held_edges(data.draw, circuit.circuit, NAMES)
    rng = np.random.default_rng(seed)
    given_as = {node: circuit.as_given(node, a).numpy() for node, a in circuit.activations.items()}
    for edge in added:
        for node in edge[:2]:
            given_as.setdefault(node, rng.normal(size=(3, 2)))
    size = {node: a.size for node, a in given_as.items()}
    maps = circuit.maps | {edge: rng.normal(size=(size[edge.target], size[edge.source])) for edge in added}
    constants = {node: circuit.as_given(node, b) for node, b in circuit.constants.items()}
    more = LinearCircuit(maps, given_as, constants=constants)
    options = configuration | {"mode": mode, "linearization": "frozen", "laplacian": mode == "exact"}
    check_equal(eics.score(circuit, **options), eics.score(more, **options), len(added))


@settings(max_examples=4)
@given(data=st.data())
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_an_edge_that_carries_nothing_changes_no_number_of_a_model(family, mode, data):
    model = tiny_model(family)
    plain = some_circuit(model)
    names = ["input", *(f"a{layer}.h{head}" for layer in range(3) for head in range(4)), "m0", "m1"]
    added = held_edges(data.draw, plain, names)
    more = Circuit([*plain.edges, *added])
    options = data.draw(st.sampled_from(CONFIGURATIONS)) | {"mode": mode, "linearization": "frozen"}
    for ours, theirs in zip(
        eics.score(model, plain, PROMPTS, **options), eics.score(model, more, PROMPTS, **options), strict=True
    ):
        check_equal(ours, theirs, len(added))


@given(circuits(batch=None, constants=True))
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda c: "-".join(c.values()))
def test_frozen_scores_are_the_formulas_written_out(configuration, circuit):
    """Against dense matrices and enumerated paths of what is left of the circuit."""
    found = eics.score(circuit, linearization="frozen", **configuration)
    residual, metric, parts, _ = configuration.values()
    truth = brute_parts(circuit, parts, metric == "relative", frozen=True)
    eis = {name: twin.ei(matrix, 1.0) for name, (matrix, _) in truth.items()}
    whole = eis.pop("J_M")
    assert found.c_sh == pytest.approx(Brute(circuit, frozen=True).c_sh(residual, metric), rel=1e-8, abs=1e-11)
    assert found.ei_macro == pytest.approx(whole, rel=1e-8, abs=1e-11)
    assert found.ei_parts == pytest.approx(eis, rel=1e-8, abs=1e-11)
    if found.emergence_ratio is not None:
        mean = np.mean([eis[name] / truth[name][1] for name in eis])
        assert found.emergence_ratio == pytest.approx(whole / truth["J_M"][1] / mean, rel=1e-7)


def test_what_loses_its_parents_is_a_source_and_what_loses_every_edge_is_gone():
    edges = ["input->m0", "m0->a1.h0<q>", "a1.h0->logits", "input->a1.h1<k>", "input->logits"]
    circuit = Circuit(edges, positions={"a1.h1": [0], "m0": [1]}, scores={Edge.parse("input->m0"): 2.0}, name="mine")
    assert circuit.carrying("jacobian") is circuit
    left = circuit.carrying("frozen")
    assert (left.sources, left.sinks) == (("input", "a1.h0"), ("m0", "logits"))
    assert left.positions == {"m0": (1,)}
    assert (left.scores, left.name) == (circuit.scores, "mine")
    assert left is circuit.carrying("frozen")  # made once
    assert left.carrying("frozen") is left


def test_a_circuit_of_which_nothing_remains_is_refused_by_name():
    model, held = tiny_model("gpt2"), Circuit(["input->a0.h0<q>", "input->a1.h2<k>"])
    message = "At least one edge must carry something under linearization 'frozen'"
    for refused in (
        lambda: eics.score(model, held, PROMPTS, preset="well-posed"),
        lambda: eics.calibrate(model, held, PROMPTS, preset="well-posed"),
        lambda: eics.damage(model, held, PROMPTS, nodes=1),
        lambda: eics.score(
            LinearCircuit({"input->a0.h0<q>": [[1.0]]}, {"input": [1.0], "a0.h0": [1.0]}), linearization="frozen"
        ),
    ):
        with pytest.raises(CircuitError, match=message):
            refused()
    with pytest.raises(CircuitError, match="All 2 edges"):
        eics.score(model, held, PROMPTS, preset="well-posed")


@pytest.mark.parametrize("alpha", [1.0, "auto"])
def test_where_another_configuration_can_be_scored_the_record_says_so(alpha):
    model, held = tiny_model("gpt2"), Circuit(["input->a0.h0<q>", "input->a1.h2<k>"])
    both = [preset.with_(alpha=alpha) for preset in (eics.PAPER, eics.WELL_POSED)]
    rows = list(score_prompts(model, held, as_prompts(PROMPTS), both))
    assert len(rows) == len(PROMPTS)
    for paper, well_posed in rows:
        assert paper.status in ("ok", "clipped")
        assert well_posed.status == "failed"
        assert "must carry something under linearization 'frozen'" in well_posed.reason
        assert well_posed.tokens == paper.tokens
