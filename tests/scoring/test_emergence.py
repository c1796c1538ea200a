import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eics import PAPER, WELL_POSED, LinearCircuit, OptionError
from eics.scoring.alpha import calibrate_alpha, dei_curve
from eics.scoring.emergence import emergence_spectra
from support import brute as twin
from support.brute import brute_parts
from support.circuits import build, circuits, rescale

EXACT = PAPER
ALPHAS = (1e-3, 1.0, 20.0)


def spectra_of(circuit, options=PAPER):
    """Spectra for any alpha."""
    options = options.with_(factorization="svd") if options.mode == "exact" else options
    return emergence_spectra(circuit.linearize(options.linearization).restrict(options.positions).engine(), options)


@given(circuits(scale=1.0))
@pytest.mark.parametrize("parts", ["nodes", "branches"])
@pytest.mark.parametrize("metric", ["euclidean", "relative"])
def test_emergence_is_the_formula_written_out(parts, metric, circuit):
    spectra = spectra_of(circuit, PAPER.with_(parts=parts, metric=metric))
    for prompt in range(circuit.batch):
        truth = brute_parts(circuit, parts, metric == "relative", prompt)
        for alpha in ALPHAS:
            eis = {name: twin.ei(matrix, alpha) for name, (matrix, _) in truth.items()}
            whole = eis.pop("J_M")
            plain, intensive = (spectra.at(alpha, form) for form in ("difference", "intensive"))
            found = dict(zip(spectra.parts, plain.ei_parts.value[prompt].tolist(), strict=True))
            assert found == pytest.approx(eis, rel=1e-8, abs=1e-11)
            dei = whole - sum(eis.values())
            assert float(plain.dei.value[prompt]) == pytest.approx(dei, rel=1e-8, abs=1e-9)
            assert float(plain.term.value[prompt]) == pytest.approx(max(0, dei) / (1e-8 + whole), rel=1e-6, abs=1e-9)
            efficiency = np.mean([eis[name] / truth[name][1] for name in eis])
            r = whole / truth["J_M"][1] / efficiency
            assert float(intensive.ratio.value[prompt]) == pytest.approx(r, rel=1e-7)
            assert float(intensive.term.value[prompt]) == pytest.approx(r / (1 + r), rel=1e-7)


@given(circuits(batch=None, positions=3, scale=1.0))
@pytest.mark.parametrize(("option", "kept"), [("no_sink", [1, 2]), ("last", [2])])
def test_restricted_positions_leave_every_count_and_map(option, kept, circuit):
    options = WELL_POSED.with_(positions=option, linearization="jacobian")
    found = spectra_of(circuit, options).at(1.0, "intensive")
    rows = {n: kept for n, a in circuit.activations.items() if a.shape[1] == 3}
    truth = brute_parts(circuit, "nodes", True, keep=rows)
    whole = twin.ei(*truth["J_M"][:1], 1.0) / truth["J_M"][1]
    mean = np.mean([twin.ei(matrix, 1.0) / channels for name, (matrix, channels) in truth.items() if name != "J_M"])
    assert float(found.ratio.value) == pytest.approx(whole / mean, rel=1e-7)


@given(circuits(batch=None, constants=True), st.integers(0, 50), st.sampled_from([1e-3, 0.2, 7.0, 1e4]))
@pytest.mark.parametrize("parts", ["nodes", "branches"])
def test_relative_ei_ignores_units(parts, circuit, pick, factor):
    node = circuit.circuit.order[pick % len(circuit.circuit.order)]
    options = PAPER.with_(metric="relative", parts=parts)
    plain, other = (spectra_of(c, options).at(1.0, "difference") for c in (circuit, rescale(circuit, node, factor)))
    torch.testing.assert_close(other.ei_macro.value, plain.ei_macro.value, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(other.ei_parts.value, plain.ei_parts.value, rtol=1e-8, atol=1e-10)


def duplicate(circuit: LinearCircuit) -> LinearCircuit:
    """Two copies side by side, their nodes renamed."""

    def name(node, copy):
        return f"{node} copy {copy}"

    maps = {
        f"{name(e.source, c)}{'.' + e.port if e.port else ''}->{name(e.target, c)}": m
        for c in (1, 2)
        for e, m in circuit.maps.items()
    }
    given_as = {name(n, c): circuit.as_given(n, a) for c in (1, 2) for n, a in circuit.activations.items()}
    return LinearCircuit(maps, given_as, batched=circuit.batched)


@given(st.integers(0, 300), st.sampled_from(["nodes", "branches"]), st.sampled_from(["euclidean", "relative"]))
def test_the_intensive_term_is_unmoved_when_a_circuit_stands_twice(seed, parts, metric):
    circuit = build(seed, ports=False, positions=None)
    options = PAPER.with_(parts=parts, metric=metric, emergence="intensive")
    one, two = (spectra_of(c, options).at(1.0, "intensive").term.value for c in (circuit, duplicate(circuit)))
    torch.testing.assert_close(one, two)


def test_two_aligned_branches_by_hand():
    """Singular values s in each branch, 2s together: 1 + 4 s^2 against (1 + s^2)^2."""
    for s in (0.3, 1.0, 2.0):
        eye = torch.eye(3)
        circuit = LinearCircuit(
            {"x->a": eye, "x->b": eye, "a->y": s * eye, "b->y": s * eye}, {n: [1.0, 0, 0] for n in "xaby"}
        )
        found = spectra_of(circuit, PAPER.with_(parts="branches")).at(1.0, "difference")
        assert float(found.dei.value) == pytest.approx(1.5 * np.log((1 + 4 * s**2) / (1 + s**2) ** 2))
        assert float(found.ei_macro.value) == pytest.approx(1.5 * np.log(1 + 4 * s**2))


@given(st.floats(0.01, 10), st.floats(0.01, 10), st.floats(1, 100))
def test_a_chain_never_emerges_at_alpha_of_one_or_more(s1, s2, alpha):
    """1 + a s1^2 s2^2 against (1 + a s1^2)(1 + a s2^2)."""
    circuit = LinearCircuit({"x->y": [[s1]], "y->z": [[s2]]}, {n: [1.0] for n in "xyz"})
    dei = float(spectra_of(circuit).dei(alpha))
    by_hand = 0.5 * np.log((1 + alpha * (s1 * s2) ** 2) / ((1 + alpha * s1**2) * (1 + alpha * s2**2)))
    assert dei == pytest.approx(by_hand, rel=1e-6, abs=1e-12)
    assert dei <= 0


@given(circuits(batch=None, scale=1.0))
def test_the_small_alpha_limit(circuit):
    spectra = spectra_of(circuit)
    truth = {name: (matrix**2).sum() for name, (matrix, _) in brute_parts(circuit, "nodes", False).items()}
    whole = truth.pop("J_M")
    if whole > 1e-6:
        limit = max(0.0, 1 - sum(truth.values()) / whole)
        value = float(spectra.at(1e-12, "difference").dei.value) / float(spectra.at(1e-12, "difference").ei_macro.value)
        assert max(0.0, value) == pytest.approx(limit, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("mode", ["lanczos", "fast"])
@pytest.mark.parametrize("emergence", ["difference", "intensive"])
def test_estimated_terms_cover_the_exact_ones(mode, emergence):
    """200 seeds: dEI and the ratio are unbiased and inside three of their standard errors."""
    rng = np.random.default_rng(21)
    maps = {f"{e}": rng.normal(size=(24, 24)) / 24**0.5 for e in ("x->a", "x->b", "a->y", "b->y", "x->y")}
    circuit = LinearCircuit(maps, {node: rng.normal(size=24) for node in "xaby"})
    alpha = 1.0 if mode == "lanczos" else 1e-9  # so small that the exact EI is its small-alpha form
    options = PAPER.with_(mode=mode, parts="branches")
    truth = spectra_of(circuit, PAPER.with_(parts="branches")).at(alpha, emergence)
    found = [spectra_of(circuit, options.with_(seed=seed)).at(alpha, emergence) for seed in range(200)]
    pairs = {"dei": (truth.dei, [f.dei for f in found])}
    if emergence == "intensive":
        pairs["ratio"] = (truth.ratio, [f.ratio for f in found])
    for true, estimates in pairs.values():
        values = np.array([float(e.value) for e in estimates])
        errors = np.array([float(e.stderr) for e in estimates])
        assert errors.min() > 0
        assert (np.abs(values - float(true.value)) <= 3 * errors).mean() > 0.9
        assert abs(values.mean() - float(true.value)) < 4 * values.std() / 200**0.5 + 1e-5 * abs(float(true.value))


def test_fast_parts_of_explicit_circuits_are_closed_forms():
    spectra = spectra_of(build(1, density=0.8), WELL_POSED.with_(mode="fast"))
    assert {part.method for part in spectra.parts.values()} == {"moments in closed form", "moments"}
    assert spectra.macro.method == "two Lanczos steps"
    limit = spectra_of(build(1, density=0.8), WELL_POSED.with_(mode="limit"))
    assert {part.method for part in limit.parts.values()} == {"closed form"}
    assert limit.macro.method == "hutch++"
    assert spectra.sampled


@given(circuits(scale=1.0), st.sampled_from(["exact", "lanczos"]))
def test_the_curve_is_its_points_and_its_zeros_are_zeros(circuit, mode):
    spectra = spectra_of(circuit, PAPER.with_(mode=mode, parts="branches"))
    curve = dei_curve(spectra, alphas=(0.01, 0.1, 1.0, 10.0, 1000.0))
    for column, alpha in enumerate(curve.alphas.tolist()):
        torch.testing.assert_close(curve.dei[:, column], spectra.dei(alpha))
    signs = curve.dei.sign()
    for prompt, zeros in enumerate(curve.zeros):
        changes = int((signs[prompt, 1:] * signs[prompt, :-1] < 0).sum())
        assert len(zeros) == changes
        for alpha in zeros:
            scale = float(spectra.at(alpha, "difference").ei_macro.value[prompt])
            assert abs(float(spectra.dei(alpha)[prompt])) < 1e-9 * (1 + scale)


def test_the_zero_by_hand():
    """1 + 4 s^2 a = (1 + s^2 a)^2 at a = 2 / s^2."""
    s, eye = 0.5, torch.eye(2)
    maps = {"x->a": eye, "x->b": eye, "a->y": s * eye, "b->y": s * eye}
    circuit = LinearCircuit(maps, {n: [1.0, 0] for n in "xaby"})
    curve = dei_curve(spectra_of(circuit, PAPER.with_(parts="branches")))
    assert curve.zeros == [[pytest.approx(2 / s**2)]]


@pytest.mark.parametrize("mode", ["exact", "lanczos", "fast"])
def test_calibrated_alpha_reaches_its_target(mode):
    circuit = build(5, batch=7)
    spectra = spectra_of(circuit, PAPER.with_(mode=mode))
    found = calibrate_alpha(spectra.macro_per_dimension, 0.3)
    reached = spectra.macro_per_dimension(found.alpha)
    rows = sum(circuit.activations[n][0].numel() for n in circuit.circuit.sinks)
    torch.testing.assert_close(reached, spectra.at(found.alpha, "difference").ei_macro.value / rows)
    assert found.median == pytest.approx(float(np.median(reached.numpy())))
    assert found.median == pytest.approx(0.3, rel=1e-9)
    assert found.quartiles == pytest.approx(tuple(np.quantile(reached.numpy(), [0.25, 0.75])))
    assert found.prompts == 7


def test_calibration_of_zero_maps_is_refused():
    circuit = LinearCircuit({"x->y": [[0.0]]}, {"x": [1.0], "y": [1.0]})
    with pytest.raises(OptionError, match="alpha='auto' must reach"):
        calibrate_alpha(spectra_of(circuit).macro_per_dimension, 0.3)


def test_calibration_of_enormous_maps_is_refused():
    circuit = LinearCircuit({"x->y": [[1e10]]}, {"x": [1.0], "y": [1.0]})
    with pytest.raises(OptionError, match="enormous"):
        calibrate_alpha(spectra_of(circuit).macro_per_dimension, 0.3)


def test_no_zeros_in_the_last_digits():
    """Unconnected edges: the macro map is exactly its parts, dEI is 0 at every alpha and crosses nothing."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        maps = {"a->b": rng.normal(size=(3, 3)), "c->d": rng.normal(size=(3, 3))}
        spectra = spectra_of(LinearCircuit(maps, {n: rng.normal(size=3) for n in "abcd"}))
        assert dei_curve(spectra).zeros == [[]]
        assert float(spectra.dei(1.0)) == 0.0


def test_clipped_for_good_has_no_error_left():
    rng = np.random.default_rng(0)
    maps = {edge: rng.normal(size=(30, 30)) / 30**0.5 for edge in ("x->y", "y->z")}
    spectra = spectra_of(LinearCircuit(maps, {n: rng.normal(size=30) for n in "xyz"}), PAPER.with_(mode="lanczos"))
    found = spectra.at(1.0, "difference")
    assert float(found.dei.value) < -5 * float(found.dei.stderr)
    assert float(found.term.stderr) == 0.0


def test_calibration_ignores_a_prompt_without_a_number():
    maps = {"x->y": np.array([[[1.0]], [[1e200]], [[2.0]]])}
    circuit = LinearCircuit(maps, {"x": np.ones((3, 1)), "y": np.ones((3, 1))}, batched=True)
    pair = LinearCircuit({"x->y": maps["x->y"][[0, 2]]}, {"x": np.ones((2, 1)), "y": np.ones((2, 1))}, batched=True)
    assert calibrate_alpha(spectra_of(circuit).macro_per_dimension, 0.3).alpha == pytest.approx(
        calibrate_alpha(spectra_of(pair).macro_per_dimension, 0.3).alpha
    )


def test_standard_errors_of_derived_numbers_cover():
    """dEI, dEI_norm, r and r / (1 + r) by the delta method: at 2 standard errors between 90% and 99% of 600 circuits.

    All meet the same probes, but in bases of their own.
    """
    rng = np.random.default_rng(3)
    first, second = (rng.normal(size=(600, 20, 20)) * rng.exponential(size=20) / 20**0.5 for _ in range(2))
    maps = {"x->a": first, "x->b": first, "a->y": second, "b->y": second}  # aligned: the whole carries more
    circuit = LinearCircuit(maps, {node: rng.normal(size=(600, 20)) for node in "xaby"}, batched=True)
    options = PAPER.with_(parts="branches")
    exact, sampled = (spectra_of(circuit, options.with_(mode=mode)) for mode in ("exact", "lanczos"))
    for emergence, names in {"difference": ("dei", "term"), "intensive": ("ratio", "term")}.items():
        truth, found = (spectra.at(0.005, emergence) for spectra in (exact, sampled))
        assert bool((truth.dei.value > 0).all())
        for name in names:
            ours, true = getattr(found, name), getattr(truth, name)
            share = float(((ours.value - true.value).abs() <= 2 * ours.stderr).double().mean())
            assert 0.9 <= share <= 0.99, (emergence, name, share)
