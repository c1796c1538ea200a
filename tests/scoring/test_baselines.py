import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics import CircuitError, EICSError, LinearCircuit, OptionError
from eics.scoring.baselines import BASELINES, Baseline, EdgeActivationCorrelation, EdgeAlignmentResidual
from eics.scoring.baselines.ear import ridge_factors
from support.circuits import build


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_every_baseline_conforms(name):
    """A number for each prompt, the same alone and in a batch, and a class that says which direction is coherent."""
    batch = build(2, batch=6, density=0.6).linearize("jacobian")
    baseline = BASELINES[name]()
    assert isinstance(baseline, Baseline)
    assert baseline.name == name
    assert isinstance(baseline.higher_is_coherent, bool)
    assert baseline.fit(batch) is baseline
    values = baseline.measure(batch)
    assert values.shape == (6,)
    assert bool(values.isfinite().all())
    for prompt in range(6):
        torch.testing.assert_close(baseline.measure(batch.prompt(prompt)), values[prompt : prompt + 1])


def test_eac_is_the_mean_pearson_correlation_over_edges():
    rng = np.random.default_rng(0)
    a = {node: rng.normal(size=5) for node in "xyz"}
    circuit = LinearCircuit({"x->y": np.eye(5), "x->z": np.eye(5), "y->z": np.eye(5)}, a)
    truth = np.mean([np.corrcoef(a[u], a[v])[0, 1] for u, v in ("xy", "xz", "yz")])
    assert float(EdgeActivationCorrelation().measure(circuit.linearize("jacobian"))) == pytest.approx(truth)


def test_eac_over_restricted_positions_and_unlike_stalks():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    maps = {"x->y": np.eye(12), "y->logits": np.ones((2, 12))}
    circuit = LinearCircuit(maps, {"x": x, "y": y, "logits": [1.0, 2.0]})
    value = EdgeActivationCorrelation().measure(circuit.linearize("jacobian").restrict("no_sink"))
    assert float(value) == pytest.approx(np.corrcoef(x[1:].ravel(), y[1:].ravel())[0, 1])
    unlike = LinearCircuit({"x->y": np.ones((2, 3))}, {"x": np.ones(3), "y": np.ones(2)})
    with pytest.raises(CircuitError, match="same length"):
        EdgeActivationCorrelation().measure(unlike.linearize("jacobian"))


def test_a_constant_stalk_correlates_with_nothing():
    circuit = LinearCircuit({"x->y": np.eye(2)}, {"x": [3.0, 3.0], "y": [1.0, 2.0]})
    assert float(EdgeActivationCorrelation().measure(circuit.linearize("jacobian"))) == 0.0


@given(st.integers(0, 100), st.sampled_from([3, 20]), st.sampled_from([1e-3, 1.0]))
def test_ridge_is_the_argmin(seed, count, ridge):
    """Primal and dual both: the gradient of the penalized squares is zero."""
    rng = np.random.default_rng(seed)
    inputs, outputs = (torch.from_numpy(rng.normal(size=(count, width))) for width in (8, 5))
    left, right = ridge_factors(inputs, outputs, ridge)
    rho = (right @ left).mT
    strength = ridge * float(inputs.square().sum()) / count
    gradient = (rho @ inputs.mT - outputs.mT) @ inputs + strength * rho
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)


def test_ear_is_small_on_linear_edges_and_grows_with_noise():
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 6))
    x = rng.normal(size=(200, 6))

    def circuit(noise):
        y = x @ w.T + noise * rng.normal(size=(200, 4))
        return LinearCircuit({"x->y": w}, {"x": x, "y": y}, batched=True).linearize("jacobian")

    fitted = EdgeAlignmentResidual(ridge=1e-9).fit(circuit(0.0))
    quiet, noisy = (float(fitted.measure(circuit(noise)).mean()) for noise in (0.0, 1.0))
    assert quiet < 1e-6
    assert noisy == pytest.approx(np.sqrt(4), rel=0.15)


def test_ear_needs_a_fit_and_a_ridge():
    with pytest.raises(EICSError, match="must be fitted"):
        EdgeAlignmentResidual().measure(build(0).linearize("jacobian"))
    with pytest.raises(OptionError, match="'ridge'"):
        EdgeAlignmentResidual(ridge=0.0)


def test_ablations_are_the_factors_of_the_score():
    circuit = build(3, batch=4, density=0.8)
    scores = eics.score(circuit, parts="branches")
    options = eics.PAPER.with_(parts="branches")
    linearized = circuit.linearize("jacobian")
    assert BASELINES["a1"](options).measure(linearized).tolist() == pytest.approx([s.consistency for s in scores])
    assert BASELINES["a2"](options).measure(linearized).tolist() == pytest.approx([s.dei_norm for s in scores])
    with pytest.raises(OptionError, match="alpha"):
        BASELINES["a2"](eics.PAPER.with_(alpha="auto"))
