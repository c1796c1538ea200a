import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from eics.linalg.memory import memory_limit
from eics.linalg.operators import Dense, HStack, Product, Sum, hstack
from eics.linalg.scaled import Scaled
from eics.linearized.paths import branch_maps
from eics.scoring.laplacian import Coboundary, operator_norm_weights
from support.circuits import circuits
from support.operators import check_operator, node_map


def random_dense(generator, rows, cols, batch):
    return Dense(torch.randn(batch, rows, cols, generator=generator, dtype=torch.float64))


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3]))
def test_combinations_agree_with_matrices(seed, rows, cols, batch):
    g = torch.Generator().manual_seed(seed)
    a, b = random_dense(g, rows, cols, batch), random_dense(g, rows, cols, 1)
    c = random_dense(g, cols, 2, batch)
    left = torch.randn(batch, rows, generator=g, dtype=torch.float64)
    right = torch.randn(1, cols, generator=g, dtype=torch.float64)
    A, B, C = a.dense(), b.dense(), c.dense()
    check_operator(a, A)
    check_operator(a @ c, A @ C)
    check_operator(a + b, A + B)
    check_operator(Sum([a, b, a]), 2 * A + B)
    check_operator(a.T, A.mT)
    check_operator(hstack([a, b]), torch.cat([A, B.expand_as(A)], dim=2))
    check_operator(hstack([a.T, b.T]).T, torch.cat([A, B.expand_as(A)], dim=1))
    check_operator(Scaled(a, left, right), left.unsqueeze(2) * A * right.unsqueeze(1))
    check_operator(Scaled(Scaled(b, left, right), left, right), left.square().unsqueeze(2) * B * right.square())
    assert a.T.T is a
    assert hstack([a]) is a


@given(circuits())
def test_every_operator_of_a_circuit_is_adjoint(circuit):
    for linearization in ("jacobian", "frozen"):
        linearized = circuit.linearize(linearization)
        assume(linearized.edges)
        check_operator(linearized.engine().macro_map())
        check_operator(Coboundary(linearized))
        check_operator(Coboundary(linearized, operator_norm_weights(linearized)))
        for edge in linearized.edges:
            check_operator(linearized.edge_map(edge))
        for node in linearized.circuit.inner:
            whole = node_map(linearized, node)
            if whole is not None:
                check_operator(whole)
            check_operator(linearized.engine().macro_map([node]))
        for branch in branch_maps(linearized.engine()).values():
            check_operator(branch)


@given(circuits(positions=3, density=0.4))
def test_restricted_operators_are_adjoint(circuit):
    linearized = circuit.linearize("jacobian").restrict("no_sink")
    check_operator(linearized.engine().macro_map())
    check_operator(Coboundary(linearized))
    for edge in linearized.edges:
        check_operator(linearized.edge_map(edge))


def test_shapes_that_do_not_fit_are_our_own_bug():
    a = Dense(torch.ones(2, 3))
    with pytest.raises(AssertionError, match="must agree"):
        Product(a, a)
    with pytest.raises(AssertionError, match="must agree"):
        HStack([a, a.T])


def test_dense_form_in_chunks_is_the_same():
    g = torch.Generator().manual_seed(0)
    product = random_dense(g, 5, 7, 2) @ random_dense(g, 7, 6, 2)
    whole = product.dense()
    with memory_limit(1e-6):
        assert len(list(product.unit_blocks(6))) == 6
        torch.testing.assert_close(product.dense(), whole)
        torch.testing.assert_close(product.T.dense(), whole.mT)


@given(st.integers(0, 1000), st.sampled_from([1, 3]))
def test_scales_for_neighbours_are_those_of_each(seed, batch):
    g = torch.Generator().manual_seed(seed)
    base = random_dense(g, 6, 8, batch)
    left, right = (torch.randn(batch, n, generator=g, dtype=torch.float64) for n in (3, 2))
    wide = Scaled(base, left.repeat_interleave(2, dim=1), right.repeat_interleave(4, dim=1))
    check_operator(Scaled(base, left, right), wide.dense())
    check_operator(Scaled(Scaled(base, left, right), wide.left, right), Scaled(wide, wide.left, wide.right).dense())
