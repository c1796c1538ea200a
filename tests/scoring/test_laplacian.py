import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eics import LinearCircuit, OptionError
from eics.linalg import smallest_singular
from eics.linalg.operators import Dense
from eics.linalg.smallest_singular import by_inversion
from eics.scoring import coboundary, laplacian
from eics.scoring.laplacian import (
    Coboundary,
    laplacian_spectrum,
    operator_norm,
    operator_norm_weights,
    project,
    stability_bound,
)
from support.brute import Brute, brute_eigenvalues
from support.circuits import build, circuits


@given(circuits())
def test_coboundary_is_equation_one(circuit):
    linearized = circuit.linearize("jacobian")
    dense = Coboundary(linearized).dense()
    for prompt in range(circuit.batch):
        truth = Brute(circuit, prompt).coboundary(linearized.edges)
        np.testing.assert_allclose(dense[prompt].numpy(), truth, atol=1e-12)


@given(circuits(batch=None, scale=1.0), st.sampled_from(["none", "operator_norm"]))
def test_dense_numbers_are_those_of_the_eigenvalues(circuit, weights):
    eigenvalues, delta = brute_eigenvalues(circuit, weights)
    spectrum = laplacian_spectrum(circuit.linearize("jacobian"), weights=weights, method="dense")[0]
    rank = np.linalg.matrix_rank(delta)
    assert spectrum.dim == delta.shape[1]
    assert spectrum.kernel_dim == delta.shape[1] - rank
    assert spectrum.spectral_gap == pytest.approx(eigenvalues[spectrum.kernel_dim], rel=1e-6)
    assert spectrum.lambda2 == pytest.approx(max(eigenvalues[1], 0.0), rel=1e-6, abs=1e-12)


@given(circuits(batch=None, scale=1.0), st.sampled_from(["none", "operator_norm"]), st.sampled_from([0.0, 0.25]))
def test_matrix_free_agrees_with_dense(circuit, weights, beta):
    linearized = circuit.linearize("jacobian")
    dense, free = (
        laplacian_spectrum(linearized, weights=weights, beta=beta, method=method)[0]
        for method in ("dense", "matrix_free")
    )
    assert free.kernel_dim == dense.kernel_dim
    assert free.dim == dense.dim
    assert free.spectral_gap == pytest.approx(dense.spectral_gap, rel=1e-7)
    assert free.lambda2 == pytest.approx(dense.lambda2, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("weights", ["none", "operator_norm"])
def test_matrix_free_agrees_on_a_large_circuit_of_low_rank_maps(weights):
    """Head-like maps: a kernel of dozens, and hundreds of distinct eigenvalues."""
    rng = np.random.default_rng(0)
    maps = {}
    for j in range(8):
        for i in range(j):
            if i == j - 1 or rng.random() < 0.3:
                maps[f"n{i}->n{j}"] = rng.normal(size=(60, 6)) @ rng.normal(size=(6, 60)) / 60
    circuit = LinearCircuit(maps, {f"n{i}": rng.normal(size=60) for i in range(8)})
    linearized = circuit.linearize("jacobian")
    dense, free = (laplacian_spectrum(linearized, weights=weights, method=m)[0] for m in ("dense", "matrix_free"))
    assert dense.kernel_dim > 10
    assert free.kernel_dim == dense.kernel_dim
    assert free.spectral_gap == pytest.approx(dense.spectral_gap, rel=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_inversion_agrees_with_dense(seed):
    linearized = build(seed, density=0.2, positions=2).linearize("jacobian")
    delta = Coboundary(linearized)
    true = torch.linalg.svdvals(delta.dense()[0])
    nonzero = sorted(float(s) for s in true if s > 1e-10 * true[0])
    start = np.random.default_rng(0).normal(size=delta.rows)
    smallest = by_inversion(coboundary.scipy_operator(delta), start, 2)
    np.testing.assert_allclose(smallest, nonzero[:2], rtol=1e-6)


def test_equal_smallest_eigenvalues_count_twice():
    """Two unconnected copies of one circuit without global sections: every eigenvalue is double."""
    rng = np.random.default_rng(1)
    one = {"x->y": rng.normal(size=(3, 2)), "x->z": rng.normal(size=(3, 2)), "y->z": rng.normal(size=(3, 3))}
    maps = {f"{s}{c}->{t}{c}": m for c in "12" for (s, t), m in ((e.split("->"), m) for e, m in one.items())}
    linearized = LinearCircuit(maps, {f"{n}{c}": np.ones(2 if n == "x" else 3) for n in "xyz" for c in "12"}).linearize(
        "jacobian"
    )
    for method in ("dense", "matrix_free"):
        spectrum = laplacian_spectrum(linearized, method=method)[0]
        assert spectrum.kernel_dim == 0
        assert spectrum.lambda2 == pytest.approx(spectrum.spectral_gap, rel=1e-9)


def test_too_wide_to_count_the_kernel_still_tells_zero_one_and_more(monkeypatch):
    linearized = build(4, edges=["input->a0.h0", "input->m0", "a0.h0->m0"], positions=2).linearize("jacobian")
    chain = LinearCircuit({"x->y": [[2.0]]}, {"x": [1.0], "y": [1.0]}).linearize("jacobian")
    wide = build(5, edges=["input->a0.h0"], positions=3).linearize("jacobian")
    exact = [laplacian_spectrum(c, method="dense")[0] for c in (linearized, chain, wide)]
    monkeypatch.setattr(laplacian, "DENSE_LIMIT", 0)
    spectra = [laplacian_spectrum(c, method="matrix_free")[0] for c in (linearized, chain, wide)]
    assert exact[1].kernel_dim == spectra[1].kernel_dim == 1
    assert exact[2].kernel_dim >= 2
    assert spectra[2].kernel_dim is None
    for a, b in zip(exact, spectra, strict=True):
        assert b.lambda2 == pytest.approx(a.lambda2, rel=1e-7, abs=1e-12)
        assert b.spectral_gap == pytest.approx(a.spectral_gap, rel=1e-7)


def test_falling_into_the_kernel_is_noticed(monkeypatch):
    """Without its early stop, bidiagonalization falls into the kernel; inversion then gives the right result."""
    rng = np.random.default_rng(3)
    maps = {f"n{i}->n{j}": rng.normal(size=(20, 3)) @ rng.normal(size=(3, 20)) / 10 for j in range(6) for i in range(j)}
    linearized = LinearCircuit(maps, {f"n{i}": rng.normal(size=20) for i in range(6)}).linearize("jacobian")
    truth = laplacian_spectrum(linearized, method="dense")[0].spectral_gap
    monkeypatch.setattr(smallest_singular, "RESIDUAL", 0.0)
    monkeypatch.setattr(smallest_singular, "_EXHAUSTED", 0.0)
    forward = coboundary.scipy_operator(Coboundary(linearized))
    starts = coboundary.start_vectors(forward.shape[0], "test")
    assert smallest_singular.bidiagonalize(forward, starts[:, 0]) is None
    assert smallest_singular.smallest_nonzero(forward, starts, 1)[0] ** 2 == pytest.approx(truth, rel=1e-6)


def test_beta_moves_the_spectrum_and_not_the_sections():
    linearized = build(2).linearize("jacobian")
    plain, moved = (laplacian_spectrum(linearized, beta=beta)[0] for beta in (0.0, 0.5))
    assert moved.kernel_dim == plain.kernel_dim
    assert moved.lambda2 == pytest.approx(plain.lambda2 + 0.5)
    assert moved.spectral_gap == pytest.approx(plain.spectral_gap + 0.5)


@given(circuits(batch=None, scale=1.0))
def test_projection_is_the_nearest_global_section(circuit):
    linearized = circuit.linearize("jacobian")
    brute = Brute(circuit)
    delta = brute.coboundary(linearized.edges)
    a = np.concatenate([brute.vec(n) for n in circuit.circuit.order])
    nearest = a - np.linalg.pinv(delta, rcond=1e-12) @ (delta @ a)
    for method in ("dense", "matrix_free"):
        projection = project(linearized, method=method)[0]
        section = np.concatenate([projection.section[n].numpy().reshape(-1) for n in circuit.circuit.order])
        np.testing.assert_allclose(section, nearest, atol=1e-6)
        np.testing.assert_allclose(delta @ section, 0.0, atol=1e-6)  # a section
        assert projection.distance == pytest.approx(np.linalg.norm(a - nearest) / np.linalg.norm(a), abs=1e-6)


def test_a_global_section_is_its_own_projection():
    rng = np.random.default_rng(0)
    w1, w2, a = rng.normal(size=(3, 3)), rng.normal(size=(2, 3)), rng.normal(size=3)
    chain = LinearCircuit({"x->y": w1, "y->z": w2}, {"x": a, "y": w1 @ a, "z": w2 @ w1 @ a})
    projection = project(chain.linearize("jacobian"))[0]
    assert projection.distance < 1e-12
    np.testing.assert_allclose(projection.section["x"].numpy()[0], a, atol=1e-12)


def test_masked_positions_are_no_sections():
    circuit = build(6, positions=3, density=0.4)
    rows = {n: [1, 2] for n, a in circuit.activations.items() if a.shape[1] == 3}
    eigenvalues, delta = brute_eigenvalues(circuit, keep=rows)
    linearized = circuit.linearize("jacobian").restrict("no_sink")
    for method in ("dense", "matrix_free"):
        spectrum = laplacian_spectrum(linearized, method=method)[0]
        assert spectrum.dim == delta.shape[1]
        assert spectrum.kernel_dim == delta.shape[1] - np.linalg.matrix_rank(delta)
        assert spectrum.spectral_gap == pytest.approx(eigenvalues[spectrum.kernel_dim], rel=1e-7)


def test_each_prompt_of_a_batch_has_its_own_sheaf():
    batch = build(7, batch=2)
    together = laplacian_spectrum(batch.linearize("jacobian"))
    alone = [laplacian_spectrum(batch.linearize("jacobian").prompt(i))[0] for i in range(2)]
    assert together == alone
    assert together[0] != together[1]


def test_operator_norms_dense_and_matrix_free(monkeypatch):
    matrices = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 7)))
    truth = torch.linalg.matrix_norm(matrices, ord=2)
    torch.testing.assert_close(operator_norm(Dense(matrices)), truth)
    monkeypatch.setattr(coboundary, "DENSE_LIMIT", 1)
    torch.testing.assert_close(operator_norm(Dense(matrices)), truth)


def test_a_zero_map_has_no_norm_to_divide_by():
    circuit = LinearCircuit({"x->y": [[0.0]], "y->z": [[2.0]]}, {"x": [1.0], "y": [1.0], "z": [1.0]})
    assert operator_norm_weights(circuit.linearize("jacobian")).tolist() == [[1.0, 0.25]]


@given(circuits(batch=None, scale=1.0, density=0.4), st.sampled_from(["none", "operator_norm"]), st.integers(0, 99))
def test_proposition_two_holds_for_off_circuit_perturbations(circuit, weights, seed):
    """An off-circuit node adds M_v eta to what every edge into v should carry; the best section and the sinks move
    less than the bound."""
    linearized = circuit.linearize("jacobian")
    delta = brute_eigenvalues(circuit, weights)[1]
    brute, rng = Brute(circuit), np.random.default_rng(seed)
    into = {n: rng.normal(size=(brute.a[n].size, 3)) for n in circuit.circuit.inner}
    scale = operator_norm_weights(linearized)[0].sqrt().tolist() if weights == "operator_norm" else None
    coupling = np.vstack([(scale[i] if scale else 1.0) * into[e.target] for i, e in enumerate(linearized.edges)])
    spectrum = laplacian_spectrum(linearized, weights=weights)[0]
    gamma, eta = np.linalg.norm(delta.T @ coupling, 2), rng.normal(size=3)
    offsets = rng.normal(size=len(delta))  # any offsets will do
    before, after = (np.linalg.lstsq(delta, g, rcond=1e-12)[0] for g in (offsets, offsets + coupling @ eta))
    bound = stability_bound(spectrum.spectral_gap, gamma, np.linalg.norm(eta))
    moved = after - before
    assert np.linalg.norm(moved) <= bound.section * (1 + 1e-9)
    sizes = np.cumsum([0] + [brute.a[n].size for n in circuit.circuit.order])
    at_sinks = [
        moved[sizes[i] : sizes[i + 1]] for i, n in enumerate(circuit.circuit.order) if n in circuit.circuit.sinks
    ]
    assert np.linalg.norm(np.concatenate(at_sinks)) <= bound.output * (1 + 1e-9)


def test_proposition_two_is_tight():
    """A perturbation along the gap's eigenvector moves the section by exactly the bound."""
    circuit = build(8, density=0.4)
    delta = brute_eigenvalues(circuit)[1]
    spectrum = laplacian_spectrum(circuit.linearize("jacobian"))[0]
    vector = np.linalg.eigh(delta.T @ delta)[1][:, spectrum.kernel_dim]
    coupling = (delta @ vector)[:, None]
    gamma = np.linalg.norm(delta.T @ coupling, 2)
    moved = np.linalg.lstsq(delta, coupling[:, 0], rcond=1e-12)[0]
    assert np.linalg.norm(moved) == pytest.approx(stability_bound(spectrum.spectral_gap, gamma, 1.0).section, rel=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: stability_bound(0.0, 1.0, 1.0),
        lambda: stability_bound(1.0, -1.0, 1.0),
        lambda: stability_bound(1.0, 1.0, float("nan")),
        lambda: laplacian_spectrum(build(0).linearize("jacobian"), weights="spectral"),
        lambda: laplacian_spectrum(build(0).linearize("jacobian"), beta=-1.0),
        lambda: laplacian_spectrum(build(0).linearize("jacobian"), method="magic"),
        lambda: project(build(0).linearize("jacobian"), method="magic"),
    ],
)
def test_bad_options(call):
    with pytest.raises(OptionError, match="option must be"):
        call()


def test_single_precision_circuits_are_widened():
    plain = build(0, density=0.4)
    single = LinearCircuit(
        plain.maps, {n: plain.as_given(n, a) for n, a in plain.activations.items()}, dtype=torch.float32
    )
    for method in ("dense", "matrix_free"):
        one, two = (laplacian_spectrum(c.linearize("jacobian"), method=method)[0] for c in (plain, single))
        assert two.kernel_dim == one.kernel_dim
        assert two.spectral_gap == pytest.approx(one.spectral_gap, rel=1e-4)
        near, far = (project(c.linearize("jacobian"), method=method)[0].distance for c in (plain, single))
        assert far == pytest.approx(near, rel=1e-4)


def test_edges_of_a_shared_entry_are_weighted_by_their_own_columns():
    """Two parents share a map but are restricted to different positions: each edge has the norm of its own columns."""
    rng = np.random.default_rng(0)
    maps = {"x->z": rng.normal(size=(4, 4)), "y->z": rng.normal(size=(4, 4))}
    activations = {n: rng.normal(size=(2, 2)) for n in "xyz"}
    linearized = LinearCircuit(maps, activations, positions={"x": [0], "y": [1]}).linearize("jacobian")
    first, second = linearized.entries["z"]
    shared = dataclasses.replace(first, edges=(*first.edges, *second.edges))
    joined = dataclasses.replace(linearized, entries={"z": (shared,)}).restrict("all")
    matrix = maps["x->z"]
    norms = [np.linalg.norm(matrix[:, :2], 2), np.linalg.norm(matrix[:, 2:], 2)]
    weights = operator_norm_weights(joined)[0].tolist()
    assert weights == pytest.approx([1 / n**2 for n in norms])
