"""Circuits as graphs: parsing, checks, order, equality and hashes."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from eics import Circuit, CircuitError, Edge, Node
from eics.circuits.graph import Kind
from support.circuits import random_edges


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (["x->y", "y->z", "z->x"], "no cycle. Got x->y->z->x"),
        (["a0.h0->a1.h0<z>"], "one of q, k, v. Got 'z' in edge a0.h0->a1.h0<z>"),
        (["input->m0<q>"], "Only attention heads"),
        (["x->y", "x->y"], "Edge x->y must be given once"),
        (["input->a0.h0<q>", ("input", "a0.h0", "q")], "input->a0.h0<q> must be given once"),
        (["x->x"], "self-loop x->x"),
        ([], "at least one edge"),
        (["m3->a1.h0"], "a1.h0 is not computed after m3. Got m3->a1.h0"),
        (["a3.h0->a3.h1"], "must run forwards"),
        (["logits->m0"], "must run forwards"),
        (["m0->input"], "must run forwards"),
        (["x-y"], "must read 'source->target'"),
        ([("x", "")], "non-empty string"),
        ([17], "must read"),
    ],
)
def test_a_bad_circuit_is_refused_by_name(edges, message):
    with pytest.raises(CircuitError) as error:
        Circuit(edges)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cycle_is_named_along_its_edges():
    with pytest.raises(CircuitError) as error:
        Circuit(["s->x", "x->y", "y->z", "z->x", "z->t"])
    cycle = str(error.value).split("Got ")[1].split(":")[0].split("->")
    assert cycle[0] == cycle[-1]
    assert {"x->y", "y->z", "z->x"} == {f"{u}->{v}" for u, v in pairwise(cycle)}


def test_names_are_parsed_and_ranked():
    assert Node.parse("a12.h0") == Node("a12.h0", Kind.HEAD, 12, 0)
    assert Node.parse("m0").kind is Kind.MLP
    assert Node.parse("a03.h1").kind is Kind.OTHER  # leading zeros are not in the convention
    assert Node.parse("input").rank < Node.parse("a0.h9").rank < Node.parse("m0").rank < Node.parse("logits").rank


@given(st.integers(0, 500), st.sampled_from([0.1, 0.5, 0.9]))
def test_order_sources_sinks_and_groups(seed, density):
    edges = [Edge.parse(e) for e in random_edges(default_rng(seed), density)]
    circuit = Circuit(edges)
    index = {node: i for i, node in enumerate(circuit.order)}
    assert set(index) == {n for e in edges for n in e[:2]}
    assert all(index[e.source] < index[e.target] for e in edges)
    assert set(circuit.sources) == set(index) - {e.target for e in edges}
    assert set(circuit.sinks) == set(index) - {e.source for e in edges}
    for node in index:
        assert circuit.parents[node] == tuple(e for e in edges if e.target == node)
        assert circuit.children[node] == tuple(e for e in edges if e.source == node)
    assert [Edge.parse(str(e)) for e in edges] == edges


def test_equality_ignores_the_order_of_edges():
    assert Circuit(["x->y", "y->z"]) == Circuit(["y->z", "x->y"])
    assert Circuit(["x->y"]) != Circuit(["x->y"], positions={"y": [1]})


@pytest.mark.parametrize("positions", [{"q": [0]}, {"y": []}, {"y": [0, 0]}, {"y": [-1]}, {"y": ["0"]}])
def test_bad_positions_are_refused(positions):
    with pytest.raises(CircuitError, match="ositions"):
        Circuit(["x->y"], positions=positions)


def test_thirty_thousand_edges():
    layers, heads = 15, 47
    edges = [
        f"a{layer}.h{h}->a{layer + 1}.h{g}<{port}>"
        for layer in range(layers)
        for h in range(heads)
        for g in range(heads)
        for port in "v"
    ]
    assert len(edges) > 30_000
    start = time.perf_counter()
    circuit = Circuit(edges)
    assert len(circuit.order) == (layers + 1) * heads
    assert len(circuit.sources) == len(circuit.sinks) == heads
    # Not a speed test: a quadratic algorithm would take minutes, this takes a fraction of a second.
    assert time.perf_counter() - start < 20


def test_equal_circuits_have_equal_hashes_and_others_do_not():
    edges, kept = ["input->m0", "m0->a1.h0<q>", "a1.h0->logits"], {"m0": [2, 1]}
    circuit = Circuit(edges, kept)
    assert Circuit(edges[::-1], {"m0": [1, 2]}, name="other").sha256 == circuit.sha256
    others = [Circuit(edges), Circuit(edges, {"m0": [1]}), Circuit(edges[:2], kept)]
    others.append(Circuit([*edges[:1], "m0->a1.h0", edges[2]], kept))
    assert len({circuit.sha256, *(other.sha256 for other in others)}) == 5
    assert Circuit(edges, name="x") == Circuit(edges, name="y")
    assert circuit.label()["name"] == "4 nodes, 3 edges"
    assert Circuit(edges, name="x").label() == {"name": "x", "sha256": others[0].sha256}
