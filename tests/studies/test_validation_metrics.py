"""Every metric against scikit-learn or a loop; intervals against what they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from eics.studies.validation.compare import thresholds
from eics.studies.validation.metrics import (
    Judged,
    auroc,
    cumulated,
    ece,
    holm,
    interval,
    log_loss,
    measure,
    plain,
    prr,
    resamples,
    two_sided,
)


def some(seed, count=40, ties=6):
    """Scores with ties, labels of both kinds, whole weights of which some are 0."""
    rng = np.random.default_rng(seed)
    labels = rng.random(count) < 0.4
    labels[:2] = [True, False]
    weights = rng.integers(0, 4, count).astype(float)
    weights[:2] = 1
    return rng.integers(0, ties, count) / ties, labels, weights


@given(st.integers(0, 10_000), st.sampled_from([2, 6, 1000]))
def test_metrics_are_those_of_scikit_learn(seed, ties):
    values, labels, weights = some(seed, ties=ties)
    judged = Judged(values, threshold=0.5, youden=0.25, probabilities=values)
    found = {name: value[0] for name, value in measure(judged, labels, weights[None]).items()}
    assert found["auroc"] == pytest.approx(sk.roc_auc_score(labels, values, sample_weight=weights))
    assert found["auprc"] == pytest.approx(sk.average_precision_score(labels, values, sample_weight=weights))
    for name, threshold in (("f1", 0.5), ("f1_youden", 0.25)):
        truth = sk.f1_score(labels, values >= threshold, sample_weight=weights, zero_division=0.0)
        assert found[name] == pytest.approx(truth)
    probabilities = 0.05 + 0.9 * values
    loss = sk.log_loss(labels, probabilities, sample_weight=weights)
    assert log_loss(probabilities, labels, weights[None])[0] == pytest.approx(loss)


@given(st.integers(0, 10_000))
def test_a_weight_is_a_repeated_prompt(seed):
    values, labels, weights = some(seed)
    judged = Judged(values, 0.5, 0.25, values)
    times = weights.astype(int)
    again = Judged(np.repeat(values, times), 0.5, 0.25, np.repeat(values, times))
    weighted = measure(judged, labels, weights[None])
    repeated = measure(again, np.repeat(labels, times), np.ones((1, times.sum())))
    for name, value in weighted.items():
        assert value[0] == pytest.approx(repeated[name][0]), name


def mean_accuracy_kept(values, labels, rng, orders):
    """By loop: keep the k best for every k, ties in random order; prompts cut into 50, so that sums are integrals."""
    areas = []
    for _ in range(orders):
        order = sorted(rng.permutation(len(values)), key=lambda at: -values[at])
        right = np.repeat(labels[order], 50)
        areas.append((np.cumsum(right) / np.arange(1, len(right) + 1)).mean())
    return np.mean(areas)


def test_prr_is_between_chance_and_an_oracle():
    rng = np.random.default_rng(0)
    values, labels, _ = some(3, count=30)
    area = mean_accuracy_kept(values, labels, rng, 400)
    oracle = mean_accuracy_kept(labels.astype(float), labels, rng, 1)
    truth = (area - labels.mean()) / (oracle - labels.mean())
    ones = np.ones((1, len(labels)))
    assert prr(*cumulated(values, labels, ones))[0] == pytest.approx(truth, abs=0.02)
    assert prr(*cumulated(labels.astype(float), labels, ones))[0] == pytest.approx(1.0)
    assert prr(*cumulated(np.zeros(len(labels)), labels, ones))[0] == pytest.approx(0.0)


def test_ece_by_bins():
    probabilities = np.array([0.05, 0.05, 0.95, 1.0, 0.55])
    labels = np.array([False, True, True, True, False])
    truth = (abs(1 - 0.1) + abs(2 - 1.95) + abs(0 - 0.55)) / 5
    assert ece(probabilities, labels, np.ones((1, 5)))[0] == pytest.approx(truth)


@given(st.integers(0, 10_000))
def test_thresholds_are_the_best_there_are(seed):
    values, labels, _ = some(seed)
    cuts = np.append(np.unique(values), np.inf)
    best, youden = thresholds(values, labels)
    quality = [sk.f1_score(labels, values >= cut, zero_division=0.0) for cut in cuts]
    assert sk.f1_score(labels, values >= best) == pytest.approx(max(quality))
    rates = [(values[labels] >= cut).mean() - (values[~labels] >= cut).mean() for cut in cuts]
    assert (values[labels] >= youden).mean() - (values[~labels] >= youden).mean() == pytest.approx(max(rates))


def samples(values, labels, clusters=None, count=400, seed=0):
    blocks = [auroc(*cumulated(values, labels, w)) for w in resamples(labels, clusters, count, seed)]
    return np.concatenate(blocks)


def test_a_null_score_has_intervals_that_hold_chance():
    """About 95% of them; direction from another split, as in the protocol."""
    held = 0
    for repeat in range(200):
        rng = np.random.default_rng(repeat)
        labels, values = rng.random(120) < 0.4, rng.normal(size=120)
        sign = 1 if plain(rng.normal(size=120), labels) >= 0.5 else -1
        low, high = interval(samples(sign * values, labels, count=300, seed=repeat))
        held += low <= 0.5 <= high
    assert 0.90 <= held / 200 <= 0.985


def test_whole_clusters_are_drawn():
    """Ten copies of 12 prompts say no more than the 12: drawn by cluster the interval knows, by prompt it does not."""
    rng = np.random.default_rng(1)
    labels = np.arange(12) % 2 == 0
    values = labels + rng.normal(size=12)
    names = [str(at) for at in range(12)] * 10
    many, again = np.tile(values, 10), np.tile(labels, 10)
    low, high = interval(samples(many, again, names))
    naive = interval(samples(many, again))
    honest = interval(samples(values, labels, [str(at) for at in range(12)]))
    assert (low, high) == pytest.approx(honest, abs=1e-12)
    assert high - low > 2 * (naive[1] - naive[0])


def test_resamples_are_drawn_within_labels_and_do_not_depend_on_blocks(monkeypatch):
    labels = np.arange(50) % 5 == 0
    [whole] = list(resamples(labels, None, 40, 7))
    assert whole[:, labels].sum(axis=1) == pytest.approx(10)
    assert whole[:, ~labels].sum(axis=1) == pytest.approx(40)
    assert len(np.unique(whole, axis=0)) == 40


def test_p_values():
    assert two_sided(np.linspace(-1, 1, 1001)) == pytest.approx(1.0, abs=0.01)
    assert two_sided(np.ones(999)) == pytest.approx(2 / 1000)
    assert two_sided(np.append(np.ones(990), -np.ones(9))) == pytest.approx(0.02)
    raw = {"a": 0.001, "b": 0.2, "c": 0.02, "d": 0.9}
    assert holm(raw) == pytest.approx({"a": 0.004, "b": 0.4, "c": 0.06, "d": 0.9})
