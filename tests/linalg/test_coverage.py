"""Standard errors cover: at 2 of them, between 90% and 99% of the truth, on operators with known answers.

To add an estimator, give `measured` a function from a Gram operator and one stream of probes for each seed to something
with `ei(alpha)`, and a function from the squared singular values and alpha to the truth.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pytest
import torch
from torch import Tensor

from eics.linalg.hutchpp import SmallAlpha, hutchpp
from eics.linalg.lanczos import quadrature
from eics.linalg.moment_estimates import from_images
from eics.linalg.moments import Moments
from eics.linalg.operators import Dense
from eics.linalg.probes import generator
from eics.linalg.spectrum import Estimate, Gram, Spectrum
from eics.linalg.two_steps import two_steps

SIZE, SEEDS = 64, 300
ALPHAS = (0.01, 1.0, 100.0)
LEAST, MOST = 0.90, 0.99
SLACK = 0.03  # of one operator, measured on 300 seeds: less than two standard deviations of such a share
ROUNDING = 1e-9  # an estimate this near to the truth, relatively, is exact, and its standard error says nothing


class Estimated(Protocol):
    """EI for each seed, (seeds,), at every alpha."""

    def ei(self, alpha: float) -> Estimate: ...


Estimator = Callable[[Gram, list[torch.Generator]], Estimated]


def rotated(singular_values: np.ndarray, seed: int) -> np.ndarray:
    """A square map with these singular values between random bases."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(len(singular_values),) * 2))[0] for _ in range(2))
    return left * singular_values @ right.T


def operators() -> dict[str, np.ndarray]:
    """Maps whose spectra differ in all that matters: rank, tail, outliers, and the bases they are given in."""
    rng, i = np.random.default_rng(0), np.arange(1, SIZE + 1)
    return {
        "wishart": rng.normal(size=(SIZE, SIZE)) / SIZE**0.5,
        "low rank": rng.normal(size=(SIZE, 8)) @ rng.normal(size=(8, SIZE)) / SIZE**0.5,
        "power law 1": rotated(10 * i**-0.5, 1),
        "power law 2": rotated(30 / i, 2),
        "power law 4": rotated(30.0 * i**-2.0, 3),
        "exponential": rotated(10 * np.exp(-0.1 * i), 4),
        "log-normal": rotated(np.exp(1.5 * rng.normal(size=SIZE)), 5),
        "one outlier": rotated(np.r_[300.0, rng.random(SIZE - 1)], 6),
        "block diagonal": np.kron(np.diag(2.0 ** -np.arange(8)), np.ones((8, 8))) * rng.normal(size=(SIZE, SIZE)),
        "nearly the identity": rotated(1 + 0.1 * rng.random(SIZE), 7),
    }


@dataclass(frozen=True)
class Coverage:
    """Over seeds: the share of estimates within 2 standard errors; the median standard error over the root of the mean
    squared error; and the bias over the standard deviation."""

    share: float
    width: float
    bias: float


def coverage_of(value: Tensor, stderr: Tensor, truth: float) -> Coverage | None:
    """None where every estimate is exact to rounding."""
    error = value - truth
    if bool((error.abs() <= ROUNDING * abs(truth)).all()):
        assert bool((stderr <= 10 * ROUNDING * abs(truth)).all()), "an exact estimate must not claim an error"
        return None
    share, width = (error.abs() <= 2 * stderr).double().mean(), stderr.median() / error.square().mean().sqrt()
    return Coverage(float(share), float(width), float(error.mean() / error.std()))


def measured(
    estimator: Estimator, truth: Callable[[np.ndarray, float], float], name: str
) -> dict[tuple[str, float], Coverage]:
    """The coverage of an estimator on each operator, at each alpha, where it is not exact."""
    found = {}
    for label, dense in operators().items():
        gram = Gram(Dense(torch.from_numpy(dense).expand(SEEDS, -1, -1)))
        estimated = estimator(gram, [generator(seed, f"coverage of {name}") for seed in range(SEEDS)])
        squares = np.linalg.svd(dense, compute_uv=False) ** 2
        for alpha in ALPHAS:
            estimate = estimated.ei(alpha)
            coverage = coverage_of(estimate.value, estimate.stderr, truth(squares, alpha))
            if coverage is not None:
                found[label, alpha] = coverage
    return found


def check_coverage(found: Mapping[tuple[str, float], Coverage]) -> None:
    """All operators together within the limits, and each one but for the chance of few seeds.

    A bias that outweighs the chance of the probes is covered always or never: there the standard error may cover more,
    and must still be of the size of the error.
    """
    assert LEAST <= np.mean([coverage.share for coverage in found.values()]) <= MOST, found
    low = {case: coverage for case, coverage in found.items() if coverage.share < LEAST - SLACK}
    assert not low, low
    high = {case: c for case, c in found.items() if c.share > MOST + SLACK / 3 and abs(c.bias) < 0.5}
    assert not high, high
    size = {case: coverage for case, coverage in found.items() if not 0.75 < coverage.width < 2.0}
    assert not size, size


def ei(squares: np.ndarray, alpha: float) -> float:
    return 0.5 * float(np.log1p(alpha * squares).sum())


@pytest.mark.parametrize("probes", [8, 12])
def test_standard_errors_of_lanczos_cover(probes):
    """At the default numbers of probes for a node and for the macro map, and ten steps."""

    def lanczos(gram, streams):
        return quadrature(gram, probes=probes, steps=10, stream=streams)

    check_coverage(measured(lanczos, ei, f"lanczos {probes}"))


def check_shares(found: Mapping[tuple[str, float], Coverage]) -> None:
    """As `check_coverage`, but shares alone: for estimators whose errors come from what is assumed, or rarely."""
    assert LEAST <= np.mean([coverage.share for coverage in found.values()]) <= MOST, found
    low = {case: coverage for case, coverage in found.items() if coverage.share < LEAST - 1.5 * SLACK}
    assert not low, low


@pytest.mark.parametrize("probes", [8, 12])
def test_standard_errors_of_hutchpp_cover(probes):
    def limit(gram, streams):
        norm, stderr = hutchpp(gram, probes=probes, stream=streams)
        return SmallAlpha(norm, stderr, SIZE, method="hutch++", exact=False)

    check_shares(measured(limit, lambda squares, alpha: 0.5 * alpha * float(squares.sum()), f"limit {probes}"))


@dataclass(frozen=True)
class WithReading:
    """A spectrum whose standard error includes that of the reading, as records have it."""

    moments: Spectrum

    def ei(self, alpha: float) -> Estimate:
        estimate = self.moments.ei(alpha)
        return replace(estimate, stderr=torch.hypot(estimate.stderr, estimate.reading))


@pytest.mark.parametrize("probes", [8, 10])
def test_standard_errors_of_fast_cover(probes):
    """Neither moment known: the errors of probes and of reading a spectrum as a Gamma distribution together."""

    def fast(gram, streams):
        images = gram.half(gram.probes(probes, streams)).unsqueeze(1)
        return WithReading(Moments(*from_images(images), rank=SIZE))

    check_shares(measured(fast, ei, f"fast {probes}"))


@pytest.mark.parametrize("probes", [5, 8])
def test_standard_errors_of_two_steps_cover(probes):
    """The macro map in `fast`: the errors of probes and of the mean of two rules together."""

    def fast(gram, streams):
        return WithReading(two_steps(gram, SIZE, probes=probes, stream=streams))

    check_shares(measured(fast, ei, f"two steps {probes}"))


def test_few_steps_do_not_hide_a_bias():
    """One, two and three steps on a steep spectrum: the error is nearly all bias, and 2 standard errors cover it."""
    dense = torch.from_numpy(operators()["power law 2"]).expand(SEEDS, -1, -1)
    truth = ei(np.linalg.svd(dense[0].numpy(), compute_uv=False) ** 2, 1.0)
    for steps in (1, 2, 3):
        streams = [generator(seed, "few steps") for seed in range(SEEDS)]
        found = quadrature(Gram(Dense(dense)), probes=8, steps=steps, stream=streams).ei(1.0)
        assert float(((found.value - truth).abs() <= 2 * found.stderr).double().mean()) > LEAST
