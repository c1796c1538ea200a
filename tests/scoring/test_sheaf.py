import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eics import LinearCircuit
from eics.scoring.sheaf import sheaf_term, sheaf_terms
from support.brute import Brute
from support.circuits import build, circuits, rescale

FORMS = [(residual, metric) for residual in ("edge", "joint", "propagated") for metric in ("euclidean", "relative")]


@given(circuits())
@pytest.mark.parametrize(("residual", "metric"), FORMS)
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_c_sh_is_the_formula_written_out(residual, metric, linearization, circuit):
    linearized = circuit.linearize(linearization)
    found = sheaf_term(linearized.engine(), residual=residual, metric=metric)
    for prompt in range(circuit.batch):
        truth = Brute(circuit, prompt, frozen=linearization == "frozen").c_sh(residual, metric)
        assert float(found.c_sh[prompt]) == pytest.approx(truth, rel=1e-9, abs=1e-12)


@given(circuits(positions=3))
@pytest.mark.parametrize(("residual", "metric"), FORMS)
@pytest.mark.parametrize(("option", "kept"), [("no_sink", [1, 2]), ("last", [2])])
def test_restricted_positions_are_left_out(residual, metric, option, kept, circuit):
    found = sheaf_term(circuit.linearize("jacobian").restrict(option).engine(), residual=residual, metric=metric)
    rows = {n: kept for n, a in circuit.activations.items() if a.shape[1] == 3}
    truth = Brute(circuit, 0, keep=rows).c_sh(residual, metric)
    assert float(found.c_sh[0]) == pytest.approx(truth, rel=1e-9, abs=1e-12)


@given(circuits())
@pytest.mark.parametrize(("residual", "metric"), FORMS)
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_a_term_and_the_edges_beside_it_are_those_found_alone(residual, metric, linearization, circuit):
    linearized = circuit.linearize(linearization)
    both = sheaf_terms(linearized.engine(), residual=residual, metric=metric)
    for found, alone in zip(both, (residual, "edge"), strict=True):
        truth = sheaf_term(linearized.engine(), residual=alone, metric=metric)
        assert found.names == truth.names
        for name in ("c_sh", "residual", "share"):
            torch.testing.assert_close(getattr(found, name), getattr(truth, name), rtol=1e-9, atol=1e-12)


def test_nodes_restricted_by_the_circuit():
    plain = build(11, density=0.8, ports=False)
    kept = {"a1.h0": [0, 2], "m0": [1]}
    circuit = LinearCircuit(plain.maps, {n: plain.as_given(n, a) for n, a in plain.activations.items()}, positions=kept)
    found = sheaf_term(circuit.linearize("jacobian").restrict("all").engine())
    assert float(found.c_sh[0]) == pytest.approx(Brute(plain, keep=kept).c_sh("edge", "euclidean"), rel=1e-9)


@given(circuits())
@pytest.mark.parametrize(("residual", "metric"), FORMS)
def test_shares_add_up_to_one(residual, metric, circuit):
    found = sheaf_term(circuit.linearize("jacobian").engine(), residual=residual, metric=metric)
    torch.testing.assert_close(found.share.sum(dim=1), torch.ones(circuit.batch, dtype=torch.float64))
    if residual != "propagated":
        assert bool((found.share >= 0).all())


@given(circuits(batch=None, constants=True, scale=1.0), st.sampled_from(["euclidean", "relative"]))
def test_a_propagated_share_is_the_carried_residual_along_the_error(circuit, metric):
    """Against the definition: carry each node's joint residual to the sinks by enumerated paths."""
    found = sheaf_term(circuit.linearize("frozen").engine(), residual="propagated", metric=metric)
    brute = Brute(circuit, frozen=True)
    p = brute.propagate()
    observed = {n: brute.vec(n) for n in brute.a}
    error = {s: observed[s] - p[s] for s in brute.circuit.sinks}
    weight = {}
    for s in brute.circuit.sinks:
        shape, b = brute.a[s].shape, brute.b[s].reshape(-1)
        energy = np.sum(((observed[s] - b) ** 2 + (p[s] - b) ** 2).reshape(shape), axis=1)
        scale = np.where(energy > 0, 1 / np.where(energy > 0, energy, 1), 0) if metric == "relative" else energy * 0 + 1
        weight[s] = np.repeat(scale, shape[1])
    total = sum(np.sum(weight[s] * error[s] ** 2) for s in error)
    for column, node in enumerate(brute.circuit.inner):
        residual = observed[node] - brute.b[node].reshape(-1) - brute.carried(node, observed)
        carried = sum((brute.between(node, s) @ residual) @ (weight[s] * error[s]) for s in error)
        share = carried / total if total > 0 else 0.0
        assert float(found.share[0, column]) == pytest.approx(share, rel=1e-7, abs=1e-9)
        assert float(found.residual[0, column]) == pytest.approx(residual @ residual, rel=1e-9, abs=1e-12)


@given(circuits(batch=None))
@pytest.mark.parametrize("residual", ["joint", "propagated"])
@pytest.mark.parametrize("metric", ["euclidean", "relative"])
def test_a_circuit_that_explains_itself_is_consistent(residual, metric, circuit):
    """Run the affine circuit forwards: every node is its parents' sum plus its constant, so C_sh is 0."""
    brute = Brute(circuit, frozen=True)
    values = {n: v.reshape(brute.a[n].shape) for n, v in brute.propagate().items()}
    values = {n: a[:1].numpy() for n, a in circuit.activations.items()} | {n: v[None] for n, v in values.items()}
    given_as = {n: circuit.as_given(n, torch.from_numpy(v)) for n, v in values.items()}
    constants = {n: circuit.as_given(n, b) for n, b in circuit.constants.items()}
    maps = {edge: matrix[0] if matrix.ndim == 3 else matrix for edge, matrix in circuit.maps.items()}
    exact = LinearCircuit(maps, given_as, constants=constants)
    c_sh = float(sheaf_term(exact.linearize("frozen").engine(), residual=residual, metric=metric).c_sh)
    assert c_sh < 1e-7


def test_a_node_with_two_parents_is_never_an_edgewise_section():
    eye = torch.eye(2)
    circuit = LinearCircuit({"x->z": eye, "y->z": eye}, {"x": [1.0, 0.0], "y": [0.0, 1.0], "z": [1.0, 1.0]})
    linearized = circuit.linearize("jacobian")
    assert float(sheaf_term(linearized.engine()).c_sh) == pytest.approx((2 / 6) ** 0.5)
    assert float(sheaf_term(linearized.engine(), residual="joint").c_sh) == 0.0


@given(circuits(batch=None, constants=True), st.integers(0, 50), st.sampled_from([1e-3, 0.2, 7.0, 1e4]))
@pytest.mark.parametrize("residual", ["edge", "joint", "propagated"])
def test_the_relative_metric_ignores_units(residual, circuit, pick, factor):
    """Rescaling a stalk, with the maps into and out of it, changes nothing."""
    node = circuit.circuit.order[pick % len(circuit.circuit.order)]
    scaled = rescale(circuit, node, factor)
    for linearization in ("jacobian", "frozen"):
        plain, other = (
            sheaf_term(c.linearize(linearization).engine(), residual=residual, metric="relative")
            for c in (circuit, scaled)
        )
        torch.testing.assert_close(other.c_sh, plain.c_sh, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(other.share, plain.share, rtol=1e-6, atol=1e-8)


def test_the_share_of_the_first_position():
    """One edge, two positions: all the disagreement sits at position 0."""
    circuit = LinearCircuit({"x->y": torch.eye(4)}, {"x": [[1, 1], [1, 1]], "y": [[5, 5], [1, 1]]})
    linearized = circuit.linearize("jacobian")
    for residual, metric in FORMS:
        found = sheaf_term(linearized.engine(), residual=residual, metric=metric)
        assert float(found.first_position) == 1.0
    assert sheaf_term(build(0, positions=None).linearize("jacobian").engine()).first_position is None


def test_queries_and_keys_carry_nothing_when_patterns_are_held():
    circuit = build(3, edges=["input->a0.h0<q>", "input->a0.h0<k>", "input->a0.h0<v>", "a0.h0->logits"])
    frozen, true = circuit.linearize("frozen"), circuit.linearize("jacobian")
    assert frozen.edges_left_out == 2
    assert true.edges_left_out == 0
    assert [str(e) for e in frozen.edges] == ["input->a0.h0<v>", "a0.h0->logits"]
    with pytest.raises(KeyError, match="is not in the circuit"):
        frozen.edge_map(circuit.circuit.edges[0])
