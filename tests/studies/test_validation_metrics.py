"""Every metric against scikit-learn or a loop; intervals against their nominal coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from eics.studies.statistics import Interval, stratified_weights
from eics.studies.validation.compare import thresholds
from eics.studies.validation.metrics import Judged, auroc, cumulative, ece, log_loss, measure, plain_auroc, prr


def some(seed, count=40, ties=6):
    """Scores with ties, both labels, integer weights of which some are 0."""
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
    """By a loop: keep the k best for every k, ties in random order; 50 copies of a prompt approximate the integral."""
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
    assert prr(*cumulative(values, labels, ones))[0] == pytest.approx(truth, abs=0.02)
    assert prr(*cumulative(labels.astype(float), labels, ones))[0] == pytest.approx(1.0)
    assert prr(*cumulative(np.zeros(len(labels)), labels, ones))[0] == pytest.approx(0.0)


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
    blocks = [auroc(*cumulative(values, labels, w)) for w in stratified_weights(labels, clusters, count, seed)]
    return np.concatenate(blocks)


def test_a_null_score_has_intervals_that_hold_chance():
    """About 95% of the intervals; the direction comes from another split, as in the protocol."""
    held = 0
    for repeat in range(200):
        rng = np.random.default_rng(repeat)
        labels, values = rng.random(120) < 0.4, rng.normal(size=120)
        sign = 1 if plain_auroc(rng.normal(size=120), labels) >= 0.5 else -1
        interval = Interval.of(0.5, samples(sign * values, labels, count=300, seed=repeat))
        held += interval.low <= 0.5 <= interval.high
    assert 0.90 <= held / 200 <= 0.985


def test_whole_clusters_are_drawn():
    """Ten copies of 12 prompts carry no more information than the 12: only cluster resampling accounts for that."""
    rng = np.random.default_rng(1)
    labels = np.arange(12) % 2 == 0
    values = labels + rng.normal(size=12)
    names = [str(at) for at in range(12)] * 10
    many, again = np.tile(values, 10), np.tile(labels, 10)
    clustered = Interval.of(0.5, samples(many, again, names))
    naive = Interval.of(0.5, samples(many, again))
    honest = Interval.of(0.5, samples(values, labels, [str(at) for at in range(12)]))
    assert (clustered.low, clustered.high) == pytest.approx((honest.low, honest.high), abs=1e-12)
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)
