"""Intervals, p-values and rank correlations; scipy, scikit-learn or a loop is the truth."""

import json

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from eics.studies.statistics import (
    CorrectedInterval,
    Interval,
    holm,
    partial_spearman,
    resampled_counts,
    resampled_indices,
    spearman,
    stratified_weights,
    two_sided,
    wins,
)


def test_an_interval_is_scipys_percentile_bootstrap():
    data = np.random.default_rng(0).normal(size=40)
    indices = resampled_indices(40, 2000, np.random.default_rng(7))
    ours = Interval.of(data.mean(), data[indices].mean(axis=1))
    theirs = scipy.stats.bootstrap(
        (data,), np.mean, n_resamples=2000, method="percentile", rng=np.random.default_rng(7)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert ours.value == data.mean()


def test_samples_without_a_value_are_left_out():
    samples = np.array([np.nan, *np.linspace(0, 1, 101), np.inf])
    found = Interval.of(0.5, samples)
    assert (found.low, found.high) == pytest.approx(np.quantile(np.linspace(0, 1, 101), [0.025, 0.975]))
    nothing = np.full(5, np.nan)
    assert Interval.of(0.5, nothing, without_samples=0.5) == Interval(0.5, 0.5, 0.5)
    undefined = Interval.of(0.5, nothing)
    assert (undefined.value, np.isnan(undefined.low), np.isnan(undefined.high)) == (0.5, True, True)


def test_how_an_interval_prints_and_which_side_it_is_on():
    interval = Interval(0.5, 0.25, 0.75)
    assert str(interval) == "0.500 (0.250 to 0.750)"
    assert f"{interval:.3g}" == "0.5 (0.25 to 0.75)"
    assert f"{interval:+.2f}" == "+0.50 (+0.25 to +0.75)"
    assert [Interval(0.0, *bounds).side() for bounds in ((0.1, 1), (-1, -0.1), (-1, 1), (0, 1))] == [1, -1, 0, 0]
    assert json.dumps(vars(interval)) == '{"value": 0.5, "low": 0.25, "high": 0.75}'


def test_corrected_intervals():
    samples = np.random.default_rng(0).normal(0.3, 0.1, size=4000)
    found = CorrectedInterval.corrected(0.3, samples, 5)
    assert found.low == pytest.approx(0.3 - 0.196, abs=0.02)
    assert (found.wide_low, found.wide_high) == pytest.approx(np.quantile(samples, [0.005, 0.995]))
    assert found.wide_low < found.low < found.high < found.wide_high
    assert found.side() == 1
    assert CorrectedInterval.corrected(-0.3, -samples, 5).side() == -1
    assert CorrectedInterval.corrected(0.1, samples - 0.2, 5).side() == 0
    for undefined in (
        CorrectedInterval.corrected(float("nan"), samples, 5),
        CorrectedInterval.corrected(0.3, np.where(np.arange(4000) < 1999, samples, np.nan), 5),
    ):
        assert not undefined.is_known
        assert undefined.side() == 0


@pytest.mark.parametrize("multinomial", [False, True])
def test_counts_are_those_of_n_draws_with_replacement(multinomial):
    counts = resampled_counts(8, 20_000, np.random.default_rng(0), multinomial=multinomial)
    assert set(counts.sum(axis=1)) == {8.0}
    observed = np.bincount(counts[:, 0].astype(int), minlength=9)[:5] / 20_000
    assert observed == pytest.approx(scipy.stats.binom.pmf(range(5), 8, 1 / 8), abs=0.01)


def test_counts_and_indices_are_the_same_draws():
    indices = resampled_indices(6, 50, np.random.default_rng(3))
    counts = resampled_counts(6, 50, np.random.default_rng(3))
    assert counts.tolist() == [np.bincount(row, minlength=6).tolist() for row in indices]


def test_published_random_streams_do_not_change():
    """Reports depend on these draws: another stream would change every published interval."""
    assert resampled_indices(5, 1, np.random.default_rng(0)).tolist() == [[4, 3, 2, 1, 1]]
    assert resampled_counts(5, 1, np.random.default_rng([0, 1]), multinomial=True).tolist() == [[2, 1, 1, 1, 0]]
    labels = np.array([True, True, False, False, False])
    [weights] = stratified_weights(labels, None, 1, 1)
    assert weights.tolist() == [[1, 1, 0, 2, 1]]
    [weights] = stratified_weights(labels, list("abbca"), 1, 1)
    assert weights.tolist() == [[0, 3, 3, 0, 0]]


def test_resamples_are_drawn_within_labels():
    labels = np.arange(50) % 5 == 0
    [whole] = list(stratified_weights(labels, None, 40, 7))
    assert whole[:, labels].sum(axis=1) == pytest.approx(10)
    assert whole[:, ~labels].sum(axis=1) == pytest.approx(40)
    assert len(np.unique(whole, axis=0)) == 40


def test_whole_clusters_are_drawn_in_blocks_of_bounded_size():
    labels = np.arange(60_000) % 2 == 0
    clusters = [str(index // 20_000) for index in range(60_000)]
    blocks = list(stratified_weights(labels, clusters, 70, 7))
    assert [len(block) for block in blocks] == [33, 33, 4]
    for weights in blocks:
        by_cluster = weights.reshape(len(weights), 3, 20_000)
        assert (by_cluster == by_cluster[:, :, :1]).all()
        assert by_cluster[:, :, 0].sum(axis=1) == pytest.approx(3)


def test_p_values():
    assert two_sided(np.linspace(-1, 1, 1001)) == pytest.approx(1.0, abs=0.01)
    assert two_sided(np.ones(999)) == pytest.approx(2 / 1000)
    assert two_sided(np.append(np.ones(990), -np.ones(9))) == pytest.approx(0.02)
    raw = {"a": 0.001, "b": 0.2, "c": 0.02, "d": 0.9}
    assert holm(raw) == pytest.approx({"a": 0.004, "b": 0.4, "c": 0.06, "d": 0.9})


@given(st.integers(0, 10_000), st.sampled_from([2, 5, 1000]))
def test_mean_wins_are_the_auroc(seed, distinct):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, distinct, 12).astype(float), rng.integers(0, distinct, 9).astype(float)
    truth = sk.roc_auc_score([1] * 12 + [0] * 9, np.concatenate([x, y]))
    assert wins(x[:, None], y[None, :]).mean() == pytest.approx(truth)


def test_a_missing_value_wins_nothing():
    assert np.isnan(wins(np.array([np.nan, 1.0]), np.array([0.0, np.nan]))).all()


def test_correlations_are_scipys_and_regression_by_hand():
    draw = np.random.default_rng(0)
    n = 40
    z, w, groups = draw.normal(size=n), draw.normal(size=n), draw.integers(0, 3, size=n)
    x = z + 0.5 * draw.normal(size=n) + groups
    y = np.round(z + w + 0.5 * draw.normal(size=n) - groups, 1)  # ties
    assert float(spearman(x, y)) == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    ranks = [scipy.stats.rankdata(v) for v in (x, y, z, w)]
    known = np.column_stack([np.ones(n), ranks[2], ranks[3], groups == 1, groups == 2])
    left = [r - known @ np.linalg.lstsq(known, r, rcond=None)[0] for r in ranks[:2]]
    by_hand = np.corrcoef(*left)[0, 1]
    assert partial_spearman(x[None], y[None], [z[None], w[None]], groups[None])[0] == pytest.approx(by_hand, abs=1e-9)
    one = scipy.stats.spearmanr(np.column_stack([x, y, z])).statistic
    closed = (one[0, 1] - one[0, 2] * one[1, 2]) / np.sqrt((1 - one[0, 2] ** 2) * (1 - one[1, 2] ** 2))
    assert partial_spearman(x[None], y[None], [z[None]])[0] == pytest.approx(closed, abs=1e-9)
    both = partial_spearman(np.stack([x[None], w[None]]), y[None], [z[None]])
    assert both[:, 0] == pytest.approx([closed, float(partial_spearman(w[None], y[None], [z[None]])[0])])
    draws = np.concatenate([np.arange(n)[None], resampled_indices(n, 50, np.random.default_rng([1, n]))])
    together = partial_spearman(x[draws], y[draws], [z[draws]], groups[draws])
    for row in (0, 7, 50):
        at = draws[row]
        assert together[row] == pytest.approx(
            partial_spearman(x[at][None], y[at][None], [z[at][None]], groups[at][None])[0]
        )
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert np.isnan(partial_spearman(x[None, :10], y[None, :10], [z[None, :10], w[None, :10]])[0])  # too few
    assert np.isnan(partial_spearman(z[None], y[None], [z[None]])[0])  # nothing is left of z given z
