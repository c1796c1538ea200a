from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import gamma

from eics.linalg.kronecker_spectrum import PositionsTimesWeights, _peeled
from eics.linalg.moment_estimates import from_images, sampled_moments, shape_from_sketch
from eics.linalg.moments import Moments
from eics.linalg.operators import Dense
from eics.linalg.probes import generator
from eics.linalg.spectrum import Gram

ALPHAS = (0.01, 1.0, 100.0)


def of_squares(squares: torch.Tensor) -> Moments:
    """Exact moments of squared singular values (B, blocks, n)."""
    return Moments(squares.sum(dim=2).unsqueeze(1), squares.square().sum(dim=2).unsqueeze(1), squares.shape[2])


def truth(squares: torch.Tensor, alpha: float) -> torch.Tensor:
    return 0.5 * torch.log1p(alpha * squares).sum(dim=(1, 2))


@pytest.mark.parametrize(("mean", "shape"), [(0.2, 0.05), (3.0, 0.7), (40.0, 5.0), (1e-4, 0.3), (1e5, 0.02)])
def test_the_reading_is_the_expectation_over_a_gamma_distribution(mean, shape):
    rank = 100
    first = torch.tensor([[[rank * mean]]], dtype=torch.float64)
    second = torch.tensor([[[rank * mean**2 * (1 + 1 / shape)]]], dtype=torch.float64)
    law = gamma(shape, scale=mean / shape)
    points = law.ppf([1e-9, 0.1, 0.5, 0.9, 1 - 1e-12])
    pieces = [quad(lambda x: np.log1p(x) * law.pdf(x), a, b, limit=500)[0] for a, b in pairwise(points)]
    value = float(Moments(first, second, rank).ei(1.0).value)
    assert value == pytest.approx(0.5 * rank * sum(pieces), rel=1e-4)


spectra = st.integers(0, 10**6).map(
    lambda seed: torch.exp(
        np.random.default_rng(seed).uniform(0.01, 4)
        * torch.randn(2, 3, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )
)


@given(spectra, st.sampled_from(ALPHAS))
def test_estimate_and_truth_lie_inside_the_bounds(squares, alpha):
    estimate = of_squares(squares).ei(alpha)
    for value in (estimate.value, truth(squares, alpha)):
        assert (estimate.lower <= value * (1 + 1e-9)).all()
        assert (value <= estimate.upper * (1 + 1e-9)).all()
    assert not estimate.stderr.any()


def test_flat_spectra_single_values_and_zeros_are_exact():
    flat = torch.full((1, 2, 5), 3.0, dtype=torch.float64)
    torch.testing.assert_close(of_squares(flat).ei(2.0).value, truth(flat, 2.0), rtol=1e-5, atol=0)
    single = torch.tensor([[[4.0]]], dtype=torch.float64)
    torch.testing.assert_close(of_squares(single).ei(1.0).value, truth(single, 1.0), rtol=1e-5, atol=0)
    assert float(of_squares(torch.zeros(1, 1, 4, dtype=torch.float64)).ei(1.0).value) == 0.0


def test_small_alpha_is_the_limit_of_the_reading():
    squares = torch.rand(2, 1, 9, dtype=torch.float64)
    value = of_squares(squares).ei(1e-9).value
    torch.testing.assert_close(value, 0.5e-9 * squares.sum(dim=(1, 2)), rtol=1e-6, atol=0)


def test_moments_from_images_are_unbiased_and_their_jackknife_covers():
    matrix = torch.randn(20, 30, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    squares = torch.linalg.svdvals(matrix).square()
    signs = 2.0 * torch.randint(0, 2, (4000, 20, 6), generator=torch.Generator().manual_seed(2)).double() - 1
    first, second = from_images((matrix.T @ signs).unsqueeze(1))
    for estimate, exact in ((first, squares.sum()), (second, squares.square().sum())):
        mean, spread = estimate[:, 0].mean(), estimate[:, 0].std()
        assert abs(mean - exact) < 4 * spread / 4000**0.5
        left_out = estimate[:, 1:, 0].mean(dim=1)
        torch.testing.assert_close(left_out, estimate[:, 0, 0], rtol=1e-9, atol=1e-9)  # a mean of pairs, either way


def test_the_shape_of_a_sketch_is_nearly_unbiased():
    matrix = torch.diag(torch.tensor([9.0] + [1.0] * 39, dtype=torch.float64))  # a spike: told apart from noise
    squares = matrix.diagonal().square()
    drawn = torch.Generator().manual_seed(3)
    left, right = (2.0 * torch.randint(0, 2, (2000, 40, 32), generator=drawn).double() - 1 for _ in range(2))
    shapes = shape_from_sketch((left.mT @ matrix @ right).unsqueeze(1))
    assert shapes.shape == (2000, 5, 1)
    exact = float(squares.square().sum() / squares.sum() ** 2)
    assert float(shapes[:, 0].mean()) == pytest.approx(exact, rel=0.05)


def test_blocks_that_are_noise_share_their_mean():
    drawn = torch.Generator().manual_seed(4)
    sketch = torch.randn(1, 6, 32, 32, generator=drawn, dtype=torch.float64)  # a flat spectrum of infinite rank
    own = shape_from_sketch(sketch)[0, 0]
    assert len(own.unique()) == 1
    sketch[0, 2] += 30 * torch.ones(32, 1, dtype=torch.float64) @ torch.ones(1, 32, dtype=torch.float64)
    own = shape_from_sketch(sketch)[0, 0]
    assert own[2] > 0.9
    assert len(own[[0, 1, 3, 4, 5]].unique()) == 1


def test_sampled_moments_read_the_gram_matrix_of_either_side():
    matrix = torch.randn(3, 12, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    operator = Dense(matrix)
    moments = sampled_moments(operator, Gram(operator), 8, probes=8, stream=generator(0, "x"))
    torch.testing.assert_close(moments.first[:, 0, 0], matrix.square().sum(dim=(1, 2)))  # its norm is known
    assert moments.second.shape == (3, 5, 1)  # four probes, each left out once
    assert moments.rank == 8


@pytest.mark.parametrize("length", [5, 16, 40])
def test_peeled_eigenvalues_are_the_largest(length):
    root = torch.randn(4, length, length, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
    gram = root @ torch.diag(torch.linspace(3, 0.1, length, dtype=torch.float64)) @ root.mT
    values, rest = _peeled(gram, 4)
    exact = torch.linalg.eigvalsh(gram).flip(1)
    torch.testing.assert_close(values.sort(dim=1, descending=True).values, exact[:, :4], rtol=2e-2, atol=0)
    total = values.sum(dim=1) + rest.diagonal(dim1=1, dim2=2).sum(dim=1)
    torch.testing.assert_close(total, gram.diagonal(dim1=1, dim2=2).sum(dim=1))


def test_a_kronecker_spectrum_with_peeled_eigenvalues_is_near_the_exact_one(monkeypatch):
    drawn = torch.Generator().manual_seed(6)
    scores = 2.0 * torch.randn(3, 20, 20, generator=drawn, dtype=torch.float64).tril() - 1e9 * torch.ones(20, 20).triu(
        1
    )
    pattern = torch.softmax(scores, dim=2) * torch.rand(3, 1, 20, generator=drawn, dtype=torch.float64)
    weights = torch.rand(3, 6, generator=drawn, dtype=torch.float64)
    gram = pattern @ pattern.mT
    exact = PositionsTimesWeights(gram, weights)
    dense = torch.linalg.svdvals(
        torch.stack([torch.kron(p, torch.diag(w.sqrt())) for p, w in zip(pattern, weights, strict=True)])
    )
    monkeypatch.setattr("eics.linalg.kronecker_spectrum._EXACT_LENGTH", 1)
    peeled = PositionsTimesWeights(gram, weights)
    assert peeled.sampled
    for alpha in ALPHAS:
        true = 0.5 * torch.log1p(alpha * dense.square()).sum(dim=1)
        estimate = peeled.ei(alpha)
        assert (estimate.lower <= true * (1 + 1e-6)).all()
        assert (true <= estimate.upper * (1 + 1e-6)).all()
        torch.testing.assert_close(estimate.value, true, rtol=0.1, atol=0)
    monkeypatch.undo()
    torch.testing.assert_close(exact.ei(1.0).value, 0.5 * torch.log1p(dense.square()).sum(dim=1))
