"""EI exactly, and the estimators against it."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from linear_operator import settings as oracle_settings
from linear_operator import to_linear_operator

from eics.linalg.hutchpp import hutchpp, small_alpha
from eics.linalg.lanczos import quadrature, top_k
from eics.linalg.matrices import log_determinants, solve
from eics.linalg.memory import memory_limit
from eics.linalg.operators import Dense, Product
from eics.linalg.probes import generator
from eics.linalg.spectrum import Gram, exact, exact_at
from support import brute

ALPHAS = (1e-3, 0.5, 1.0, 40.0)


@pytest.fixture
def _threads():
    """Set while the process runs, as users do."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_threads")
def test_many_matrices_are_factorized_rightly_whatever_the_threads():
    matrices = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 256, 256)))
    want = np.linalg.slogdet(matrices.numpy())[1]
    np.testing.assert_allclose(log_determinants(matrices).numpy(), want, rtol=1e-10)
    right = matrices[..., :3].contiguous()
    np.testing.assert_allclose(solve(matrices, right).numpy(), np.eye(256)[None, :, :3].repeat(8, 0), atol=1e-9)


def matrix(seed, rows, cols, rank=None, decay=0.0):
    rng = np.random.default_rng(seed)
    inner = min(rows, cols) if rank is None else rank
    scales = np.exp(-decay * np.arange(inner))
    return torch.from_numpy(rng.normal(size=(rows, inner)) * scales @ rng.normal(size=(inner, cols)) / inner**0.5)


class Hidden(Product):
    """A map that shows no matrix and no closed form."""

    def __init__(self, dense):
        super().__init__(Dense(dense), Dense(torch.eye(dense.shape[-1], dtype=dense.dtype)))


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 6), st.sampled_from([None, 1, 2]))
def test_exact_ei_is_half_the_slogdet(seed, rows, cols, rank):
    dense = matrix(seed, rows, cols, rank)
    for alpha in ALPHAS:
        truth = brute.ei(dense.numpy(), alpha)
        for factorization in ("svd", "cholesky"):
            value = exact(Hidden(dense), factorization).ei(alpha)
            assert float(value.value) == pytest.approx(truth, rel=1e-10, abs=1e-12)
            assert float(value.stderr) == 0.0


@given(st.integers(0, 1000))
def test_ei_is_unchanged_by_rotations_and_by_transposition(seed):
    dense = matrix(seed, 4, 6)
    rng = np.random.default_rng(seed)
    left, right = (torch.from_numpy(np.linalg.qr(rng.normal(size=(n, n)))[0]) for n in (4, 6))
    plain = exact(Dense(dense)).ei(0.7).value
    torch.testing.assert_close(exact(Dense(left @ dense @ right)).ei(0.7).value, plain)
    torch.testing.assert_close(exact(Dense(dense.mT)).ei(0.7).value, plain)


def test_a_map_over_the_memory_bound_goes_through_its_gram_matrix():
    dense = matrix(3, 6, 9)
    plain = exact(Dense(dense)).ei(2.0).value
    with memory_limit(1e-4):
        for factorization, method in (("svd", "eigh"), ("cholesky", "cholesky")):
            found = exact(Hidden(dense), factorization)
            assert found.method == method
            torch.testing.assert_close(found.ei(2.0).value, plain)


def test_one_alpha_for_each_prompt():
    batch = torch.stack([matrix(1, 4, 3), matrix(2, 4, 3)])
    alphas = torch.tensor([0.1, 5.0], dtype=torch.float64)
    gram = Gram(Dense(batch))
    spectra = [
        exact(Dense(batch)),
        exact(Dense(batch), "cholesky"),
        quadrature(gram, probes=4, steps=3, stream=generator(0, "x")),
        small_alpha(Dense(batch), gram, torch.tensor([3, 3]), probes=4, stream=generator(0, "x")),
    ]
    for found in spectra:
        together = found.ei(alphas).value
        torch.testing.assert_close(together[0], found.ei(0.1).value[0])
        torch.testing.assert_close(together[1], found.ei(5.0).value[1])


@pytest.mark.parametrize(("rank", "decay"), [(None, 0.0), (4, 0.0), (None, 0.3)])
def test_lanczos_covers_the_truth_and_is_unbiased(rank, decay):
    """300 seeds at the spec's budget: the mean is right, three standard errors cover, bias is inside them."""
    dense = matrix(5, 30, 40, rank, decay)
    truth = brute.ei(dense.numpy(), 1.0)
    gram = Gram(Hidden(dense))
    found = [quadrature(gram, probes=8, steps=10, stream=generator(seed, "lanczos")).ei(1.0) for seed in range(300)]
    values = np.array([float(f.value) for f in found])
    errors = np.array([float(f.stderr) for f in found])
    assert abs(values.mean() - truth) < 4 * values.std() / 300**0.5
    inside = np.abs(values - truth) <= 3 * errors
    assert inside.mean() > 0.95  # Student's t with 7 degrees of freedom: 98%
    assert 0.7 < np.sqrt((errors**2).mean()) / values.std() < 1.5


def test_too_few_lanczos_steps_are_paid_for_in_the_standard_error():
    dense = matrix(6, 40, 40, decay=0.25) * 30
    truth = brute.ei(dense.numpy(), 1.0)
    found = quadrature(Gram(Hidden(dense)), probes=40, steps=3, stream=generator(0, "few")).ei(1.0)
    enough = quadrature(Gram(Hidden(dense)), probes=40, steps=40, stream=generator(0, "few")).ei(1.0)
    assert float(found.stderr) > 2 * float(enough.stderr)
    assert abs(float(found.value) - truth) < 3 * float(found.stderr)


@given(st.integers(0, 200), st.integers(1, 6))
def test_gauss_is_above_and_radau_below_the_quadratic_form(seed, steps):
    dense = matrix(seed, 8, 8, decay=0.4) * 3
    gram = Gram(Dense(dense))
    found = quadrature(gram, probes=4, steps=steps, stream=generator(seed, "x"))
    full = quadrature(gram, probes=4, steps=8, stream=generator(seed, "x"))  # the whole space: exact
    form = full._by_probe(full.gauss, 2.0)
    slack = 1e-9 * form
    assert bool((found._by_probe(found.gauss, 2.0) >= form - slack).all())
    assert bool((found._by_probe(found.radau, 2.0) <= form + slack).all())


def test_lanczos_agrees_with_another_library():
    dense = matrix(9, 60, 60)
    gram = torch.eye(60, dtype=torch.float64) + dense @ dense.mT
    with oracle_settings.max_cholesky_size(10_000):
        oracle = 0.5 * float(to_linear_operator(gram).logdet())
    assert float(exact(Dense(dense)).ei(1.0).value) == pytest.approx(oracle, rel=1e-10)
    found = quadrature(Gram(Hidden(dense)), probes=500, steps=20, stream=generator(1, "oracle")).ei(1.0)
    assert abs(float(found.value) - oracle) < 4 * float(found.stderr)
    torch.manual_seed(0)
    settings = oracle_settings
    with settings.max_cholesky_size(0), settings.num_trace_samples(500), settings.max_lanczos_quadrature_iterations(20):
        sampled = 0.5 * float(to_linear_operator(gram).logdet())  # stochastic Lanczos quadrature too
    assert abs(float(found.value) - sampled) < 6 * float(found.stderr)


def test_lanczos_survives_an_exhausted_space_and_a_zero_map():
    gram = Gram(Hidden(matrix(0, 10, 10, rank=1)))
    found = quadrature(gram, probes=4, steps=10, stream=generator(0, "x")).ei(1.0)
    assert bool(found.value.isfinite())
    zero = quadrature(Gram(Dense(torch.zeros(5, 5))), probes=4, steps=3, stream=generator(0, "x")).ei(1.0)
    assert float(zero.value) == 0.0
    assert float(zero.stderr) == 0.0


@given(st.integers(0, 200), st.sampled_from([1, 2, 5]))
def test_top_k_finds_the_largest_singular_values_from_below(seed, k):
    dense = matrix(seed, 12, 15, decay=0.5)
    true = torch.linalg.svdvals(dense).square()[:k]
    found = top_k(Gram(Hidden(dense)), k=k, steps=10, stream=generator(seed, "x"))
    assert bool((found.squares[0] <= true * (1 + 1e-9)).all())
    torch.testing.assert_close(found.squares[0], true, rtol=1e-6, atol=1e-9)
    assert not found.exact


@pytest.mark.parametrize("decay", [0.0, 0.4])
def test_hutchpp_covers_the_truth_and_is_unbiased(decay):
    dense = matrix(5, 30, 40, decay=decay)
    truth = float(dense.square().sum())
    found = [hutchpp(Gram(Hidden(dense)), probes=12, stream=generator(seed, "hutch++")) for seed in range(300)]
    values = np.array([float(value) for value, _ in found])
    errors = np.array([float(error) for _, error in found])
    assert abs(values.mean() - truth) < 4 * values.std() / 300**0.5
    # Eight samples of a skewed form (one eigenvalue rules the rest): fewer than Student's 97%.
    assert (np.abs(values - truth) <= 3 * errors).mean() > 0.9
    assert 0.6 < np.sqrt((errors**2).mean()) / values.std() < 2.0


def test_hutchpp_is_exact_where_the_sketch_has_it_all():
    dense = matrix(5, 30, 40, rank=3)
    value, error = hutchpp(Gram(Hidden(dense)), probes=12, stream=generator(0, "hutch++"))
    assert float(value) == pytest.approx(float(dense.square().sum()), rel=1e-9)
    assert float(error) < 1e-9 * float(value)


def test_hutchpp_beats_plain_sampling_on_a_low_effective_rank():
    dense = matrix(8, 60, 60, decay=0.5)
    truth = float(dense.square().sum())
    gram = Gram(Hidden(dense))
    # 6 vectors sketch and 12 sample: 24 products, those of 12 probes where the sketch is of J J^T
    spread = np.std([float(hutchpp(gram, probes=18, stream=generator(s, "h"))[0]) for s in range(100)])
    plain = []
    for seed in range(100):
        z = torch.randint(0, 2, (1, 60, 24), generator=generator(seed, "p")).double() * 2 - 1  # as many products
        plain.append(float(gram.half(z).square().sum(dim=1).mean()))
    assert spread < 0.25 * np.std(plain)
    assert spread < 0.05 * truth


@given(st.integers(0, 500), st.integers(1, 6), st.integers(1, 6), st.sampled_from([1e-4, 0.1, 1.0, 30.0]))
def test_small_alpha_form_and_its_bounds(seed, rows, cols, alpha):
    dense = matrix(seed, rows, cols)
    rank = torch.tensor([min(rows, cols)])
    found = small_alpha(Dense(dense), Gram(Dense(dense)), rank, probes=4, stream=generator(0, "x"))
    assert found.exact
    assert found.method == "closed form"
    form, truth = found.ei(alpha), brute.ei(dense.numpy(), alpha)
    x = alpha * float(dense.square().sum())
    assert float(form.value) == pytest.approx(x / 2)
    assert 0.5 * (x - x**2 / 2) <= float(form.lower) + 1e-12  # the spec's bound is looser
    rounding = 1e-14 + 1e-12 * truth
    assert float(form.lower) <= truth + rounding
    assert truth <= float(form.upper) + rounding
    assert float(form.upper) <= float(form.value) + rounding


def test_small_alpha_is_the_limit():
    dense = matrix(4, 5, 5)
    ratio = exact(Dense(dense)).ei(1e-9).value / (0.5e-9 * dense.square().sum())
    assert float(ratio) == pytest.approx(1.0, rel=1e-7)


def test_probes_are_reproducible_and_streams_are_apart():
    gram = Gram(Hidden(matrix(0, 20, 20)))

    def run(seed, purpose):
        return float(quadrature(gram, probes=4, steps=5, stream=generator(seed, purpose)).ei(1.0).value)

    assert run(0, "a1.h2") == run(0, "a1.h2")
    assert len({run(0, "a1.h2"), run(1, "a1.h2"), run(0, "m1")}) == 3
    state = torch.random.get_rng_state()
    run(0, "x")
    assert bool((torch.random.get_rng_state() == state).all())  # nobody else's stream was touched


def test_float32_lanczos_does_not_stop_early():
    """A few large singular values must not make the rest look exhausted: the bias must stay in the error."""
    rng = np.random.default_rng(0)
    sigma = 3 * np.abs(rng.normal(size=4000))
    sigma[0] = 300
    diagonal = Diagonal(torch.tensor(sigma, dtype=torch.float32))
    truth = 0.5 * np.log1p(sigma**2).sum()
    found = quadrature(Gram(diagonal), probes=8, steps=10, stream=generator(0, "float32")).ei(1.0)
    assert abs(float(found.value) - truth) < 3 * float(found.stderr)


def test_float32_gram_matrices_keep_their_digits():
    dense = (matrix(0, 40, 40, rank=3) * 1e3).float()
    truth = brute.ei(dense.double().numpy(), 1.0)
    for factorization in ("svd", "cholesky"):
        assert float(exact(Dense(dense), factorization).ei(1.0).value) == pytest.approx(truth, rel=1e-4)
        with memory_limit(1e-4):
            assert float(exact(Hidden(dense), factorization).ei(1.0).value) == pytest.approx(truth, rel=1e-4)


class Diagonal(Dense):
    """A diagonal map that is never formed."""

    def __init__(self, values):
        self.values = values
        self.batch, self.rows, self.cols = 1, len(values), len(values)
        self.dtype, self.device = values.dtype, values.device

    def mv(self, x):
        return self.values.unsqueeze(1) * x

    rmv = mv


def test_one_alpha_by_cholesky_is_the_spectrum_there():
    batch = torch.stack([matrix(1, 140, 150), matrix(2, 140, 150)])
    plain = exact(Dense(batch), "svd").ei(0.7).value
    for factorization, method in (("auto", "cholesky"), ("cholesky", "cholesky"), ("svd", "eigh")):
        found = exact_at(Hidden(batch), 0.7, factorization)
        assert found.method == method
        torch.testing.assert_close(found.ei(0.7).value, plain)
    assert exact_at(Dense(batch[:, :5]), 0.7).method == "svd"
