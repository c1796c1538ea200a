"""The toy against a plain transcription of the paper's definition, seed by seed."""

import json

import numpy as np
import pytest

import eics
from eics import OptionError
from eics.linearized.explicit_file import load_linear
from eics.scoring.numbers import number
from eics.studies.toy.circuit import EDGES, TAUS, draw
from eics.studies.toy.curves import Curves, paper_point, toy_circuit
from eics.studies.toy.experiment import STEPS, run_toy
from eics.studies.toy.protocol import NOISY, Protocol


def naive(seed: int, tau: float) -> tuple[float, float, float]:
    """C_sh, dEI_norm and EICS of one seed, by loops and singular values, with draws in the order of the paper."""
    rng = np.random.default_rng(seed)

    def gauss(scale, source=rng):
        return scale * source.normal(size=(32, 32)) / np.sqrt(32)

    w13, w34, w46 = gauss(0.8), gauss(0.9), gauss(0.9)
    w23, w35, w56 = 0.1 * gauss(0.8) + 0.9 * w13, 0.1 * gauss(0.9) + 0.9 * w34, 0.1 * gauss(0.9) + 0.9 * w46
    h = min(1.0, tau / 2)
    other = np.random.default_rng(rng.integers(10**9))
    w56 = (1 - h) * w56 + h * gauss(0.9, other)
    w35 = (1 - h) * w35 + h * gauss(0.9, other)
    one, two = w46 @ w34 @ w13, w56 @ w35 @ w23

    def ei(matrix):
        return 0.5 * np.sum(np.log1p(np.linalg.svd(matrix, compute_uv=False) ** 2))

    dei_norm = max(0.0, ei(one + two) - ei(one) - ei(two)) / (1e-8 + ei(one + two))
    a1, a2 = rng.normal(size=32), rng.normal(size=32)
    a3 = w13 @ a1 + w23 @ a2
    a4, a5 = w34 @ a3, w35 @ a3
    clean = [a1, a2, a3, a4, a5, w46 @ a4 + w56 @ a5]
    a = [value + tau * rng.normal(size=32) for value in clean]
    edges = [(0, 2, w13), (1, 2, w23), (2, 3, w34), (2, 4, w35), (3, 5, w46), (4, 5, w56)]
    numerator = sum(np.sum((w @ a[u] - a[v]) ** 2) for u, v, w in edges)
    denominator = sum(np.sum(a[u] ** 2) + np.sum(a[v] ** 2) for u, v, _ in edges)
    c_sh = np.sqrt(numerator) / (1e-8 + np.sqrt(denominator))
    return c_sh, dei_norm, dei_norm / (1 + c_sh)


@pytest.fixture(scope="module")
def toy():
    ticks = []
    result = run_toy(seeds=100, tick=lambda: ticks.append(1))
    assert len(ticks) == STEPS
    return result


def test_batched_numbers_equal_the_naive_ones():
    seeds = range(1000, 1008)
    draws = draw(seeds)
    for tau in TAUS:
        point = paper_point(draws, tau)
        truth = np.array([naive(seed, tau) for seed in seeds])
        for column, name in enumerate(("c_sh", "dei_norm", "eics")):
            np.testing.assert_allclose(point[name].numpy(), truth[:, column], atol=1e-10)


def test_the_papers_figure(toy):
    """The numbers that its script prints for 100 seeds."""
    assert toy.paper.mean("c_sh")[0] == pytest.approx(0.40565373, abs=1e-6)
    assert toy.paper.mean("eics")[1] == pytest.approx(0.13529010, abs=1e-6)
    assert toy.paper.mean("dei_norm")[6] == pytest.approx(0.01286253, abs=1e-6)


def test_trends(toy):
    c_sh, eics_curve = toy.paper.mean("c_sh"), toy.paper.mean("eics")
    assert all(np.diff(c_sh) > 0)
    assert eics_curve.index(max(eics_curve)) == 1  # the bump
    assert all(np.diff(eics_curve[1:8]) < 0)
    assert eics_curve[7:] == [0.0] * 4
    assert all(np.diff(toy.protocol.mean("c_sh")) > 0)
    assert all(np.diff(toy.protocol.mean("ear")) > 0)
    assert all(np.diff(toy.protocol.mean("eics")) < 0)
    assert np.ptp(toy.protocol.mean("dei_exact")) < 1e-9
    assert toy.general.mean("well_posed.c_sh")[0] < 1e-12
    assert all(np.diff(toy.general.mean("well_posed.c_sh")) > 0)
    # equation (2) is the same in the script and in the general code
    np.testing.assert_allclose(toy.general.mean("nodes.c_sh"), c_sh, rtol=1e-12)


def test_files_and_words(toy, tmp_path):
    written = toy.save(tmp_path)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    assert all(path.stat().st_size > 500 for path in written)
    numbers = json.loads((tmp_path / "toy.json").read_text())
    assert list(numbers) == ["tau", "c_sh", "dei_norm", "eics", "seeds"]
    assert numbers["seeds"] == 100
    assert numbers["tau"] == pytest.approx(np.linspace(0, 2, 11))
    assert numbers["eics"] == toy.paper.mean("eics")
    protocol = json.loads((tmp_path / "toy-protocol.json").read_text())
    assert protocol["noisy_edges"] == list(NOISY)
    assert len(protocol["stderr"]["ear"]) == len(TAUS)
    words = " ".join(sentence for sentences in toy.sentences().values() for sentence in sentences)
    assert "rises from 0.129 at tau = 0 to 0.135 at tau = 0.2" in words
    assert "C_sh is 0.406, not 0" in words


def test_the_saved_circuit_scores_like_the_toy(toy, tmp_path):
    toy.save(tmp_path)
    scores = eics.score(load_linear(tmp_path / "toy-circuit.safetensors"))
    assert [s.c_sh for s in scores] == pytest.approx(toy.paper.values["c_sh"][1, :5].tolist())


def test_sentences_follow_the_numbers():
    """With fewer seeds and other edges, the words quote other numbers."""
    small = run_toy(seeds=4, noisy=["n1->n3"])
    words = " ".join(sentence for sentences in small.sentences().values() for sentence in sentences)
    assert "Noise on n1->n3" in words
    assert number(small.paper.mean("eics")[0]) in words


def test_the_share_of_the_noisy_edge_grows_with_noise():
    draws = draw(range(1000, 1003))
    last = Protocol(draws, ["n5->n6"])
    shares = [last.point(tau)["noisy_share"] for tau in (0.0, 50.0)]
    assert bool((shares[1] > shares[0]).all())
    assert float(shares[1].mean()) == pytest.approx(0.5, abs=0.02)  # n4->n6 sees the same noise in a_6


def test_general_circuit_has_the_six_nodes():
    circuit = toy_circuit(draw(range(2)), 0.2)
    assert [str(edge) for edge in circuit.circuit.edges] == list(EDGES)
    assert circuit.circuit.sources == ("n1", "n2")
    assert circuit.circuit.sinks == ("n6",)


def test_bad_options():
    with pytest.raises(OptionError, match="'noisy-edge' option must be one of n1->n3"):
        run_toy(seeds=2, noisy=["n1->n6"])
    with pytest.raises(OptionError, match="'seeds'"):
        run_toy(seeds=1)


def test_curves_of_seeds():
    import torch

    curves = Curves((0.0, 1.0), {"x": torch.tensor([[1.0, 3.0], [2.0, 2.0]])})
    assert curves.mean("x") == [2.0, 2.0]
    assert curves.stderr("x") == pytest.approx([1.0, 0.0])
