"""The transformer's engine against the definition: on random circuits both give every number alike.

Ports beside plain entries, several sources and sinks, prompts of mixed lengths, restricted positions, both
linearizations and metrics, every residual, in every family. A trick that changed a number would be seen here.
"""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from eics import Circuit
from eics.linearized.paths import branch_maps
from eics.linearized.sweep import PlainEngine
from eics.scoring.sheaf import sheaf_term, sheaf_terms
from support.operators import check_operator
from support.taken import taken
from support.tiny_models import FAMILIES, full_circuit, tiny_model

PORTS = ("", "<q>", "<k>", "<v>")


@st.composite
def cases(draw, family):
    """Edges of a tiny model, ports drawn for heads; positions of some nodes; prompts; what is kept of them."""
    every = [edge for edge in full_circuit(tiny_model(family)).edges if edge.port is None]
    chosen = draw(st.lists(st.sampled_from(every), min_size=4, max_size=14, unique=True))
    edges = []
    for edge in chosen:
        ports = draw(st.sets(st.sampled_from(PORTS), min_size=1, max_size=2)) if edge.target.startswith("a") else {""}
        edges += [f"{edge}{port}" for port in sorted(ports)]
    assume(any(not edge.endswith(("<q>", "<k>")) for edge in edges))
    nodes = sorted({node for edge in chosen for node in (edge.source, edge.target)} - {"logits"})
    kept = draw(st.lists(st.sampled_from(nodes), max_size=2, unique=True))
    length = draw(st.integers(3, 7))
    prompts = [list(range(7, 7 + length)), list(range(20, 20 + draw(st.integers(3, length))))]
    return Circuit(edges, positions={node: [1, 2] for node in kept}), prompts, draw(st.sampled_from(["all", "no_sink"]))


def close(ours, theirs, **how):
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9, **how)


@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=8)
@given(data=st.data())
def test_both_engines_agree(family, linearization, data):
    circuit, prompts, positions = data.draw(cases(family))
    linearized = taken(tiny_model(family), circuit, prompts).linearize(linearization).restrict(positions)
    engine, plain = linearized.engine(), PlainEngine(linearized)
    check_predictions(engine, plain)
    for metric in ("euclidean", "relative"):
        check_sheaf_terms(engine, plain, metric)
    check_sweeps(engine, plain)
    ours, theirs = engine.macro_map(), plain.macro_map()
    assert (ours.sources, ours.targets) == (theirs.sources, theirs.targets)
    close(ours.dense(), theirs.dense())
    check_operator(ours)
    for one, other in zip(branch_maps(engine).items(), branch_maps(plain).items(), strict=True):
        assert one[0] == other[0]
        close(one[1].dense(), other[1].dense())
    assert [node for node, _ in engine.node_maps()] == [node for node, _ in plain.node_maps()]


def check_predictions(engine, plain):
    """Norms, inner products and sums over parents, whatever basis the predictions are in."""
    ours, theirs = (by_edge(one) for one in (engine, plain))
    assert set(ours) == set(theirs) == set(engine.linearized.edges)
    for edge, numbers in ours.items():
        close(numbers, theirs[edge])
    sums = [{}, {}]
    for one, carried in zip((engine, plain), sums, strict=True):
        list(one.edge_predictions(carried))
    assert set(sums[0]) == set(sums[1])
    for node, carried in sums[0].items():
        close(carried, sums[1][node])


def by_edge(engine):
    """For each edge and position ||rho a_u||^2, ||a_v||^2 and their inner product, (3, B, T)."""
    found = {}
    for predictions in engine.edge_predictions():
        predicted, observed = predictions.predicted, predictions.observed.expand_as(predictions.predicted)
        for index, edge in enumerate(predictions.edges):
            p, a = predicted[:, index], observed[:, index]
            found[edge] = torch.stack([p.square().sum(-1), a.square().sum(-1), (p * a).sum(-1)])
    return found


def check_sheaf_terms(engine, plain, metric):
    for residual in ("edge", "joint", "propagated"):
        ours, theirs = (sheaf_term(one, residual=residual, metric=metric) for one in (engine, plain))
        order = [theirs.names.index(name) for name in ours.names]
        close(ours.c_sh, theirs.c_sh)
        close(ours.residual, theirs.residual[:, order])
        together = sheaf_terms(engine, residual=residual, metric=metric)
        close(together[0].c_sh, theirs.c_sh)
        close(together[1].c_sh, sheaf_term(plain, metric=metric).c_sh)


def check_sweeps(engine, plain):
    """One step from given values, the recursion, and the transposed sweep."""
    linearized, draw = engine.linearized, torch.Generator().manual_seed(0)
    values = {}
    for node, stalk in linearized.stalks.items():
        block = torch.randn(linearized.batch, stalk.dim, 2, generator=draw, dtype=torch.float64)
        values[node] = block * stalk.weights.unsqueeze(2)
    for (node, ours), (same, theirs) in zip(engine.carry(values), plain.carry(values), strict=True):
        assert node == same
        close(ours, theirs)
    backs = []
    for one in (engine, plain):
        cotangents = {node: values[node] for node in linearized.circuit.sinks}
        backs.append((dict(one.pull(cotangents)), cotangents))
    for ours, theirs in zip(*backs, strict=True):
        assert set(ours) == set(theirs)
        for node, block in ours.items():
            close(block, theirs[node])
