"""Shifts, p, q and roles, against scipy and loops; equal sets, against the level."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from eics.studies.comparison.set_result import NodeShift
from eics.studies.comparison.set_statistics import (
    Sample,
    least_p,
    rank_sums,
    role,
    shifts,
    signed_ranks,
    standardised,
)
from eics.studies.statistics import Interval


def numbers(rows=40, nodes=5, seed=0, add=0.0):
    return np.random.default_rng(seed).normal(size=(rows, nodes)) + add


def alone(values):
    return Sample.of(values, [str(row) for row in range(len(values))])


def means_by_group(values, groups):
    by_group = defaultdict(list)
    for row, group in zip(values, groups, strict=True):
        by_group[group].append(row)
    return np.array([np.mean(rows, axis=0) for rows in by_group.values()])


def test_mann_whitney_on_prompts_as_in_scipy():
    a, b = numbers(40), numbers(30, seed=1, add=0.4)
    found = shifts(alone(a), alone(b))
    for node in range(5):
        assert found.p[node] == pytest.approx(stats.mannwhitneyu(a[:, node], b[:, node]).pvalue)
        assert found.value[node] == pytest.approx(b[:, node].mean() - a[:, node].mean())


def test_mann_whitney_on_the_means_of_groups():
    a, b = numbers(40), numbers(36, seed=1, add=0.5)
    groups_a, groups_b = [f"g{row % 13}" for row in range(40)], [f"h{row % 12}" for row in range(36)]
    found = shifts(Sample.of(a, groups_a), Sample.of(b, groups_b))
    means_a, means_b = means_by_group(a, groups_a), means_by_group(b, groups_b)
    for node in range(5):
        assert found.p[node] == pytest.approx(stats.mannwhitneyu(means_a[:, node], means_b[:, node]).pvalue)
    assert found.value == pytest.approx(b.mean(axis=0) - a.mean(axis=0))


@pytest.mark.parametrize("grouped", [False, True])
def test_signed_ranks_of_pairs(grouped):
    a, noise = numbers(36), numbers(36, seed=1)
    b = a + 0.3 + 0.5 * noise
    groups = [str(row // 3 if grouped else row) for row in range(36)]
    found = shifts(Sample.of(a, groups), Sample.of(b, groups), paired=True)
    differences = means_by_group(b - a, groups)
    for node in range(5):
        assert found.p[node] == pytest.approx(stats.wilcoxon(differences[:, node]).pvalue)


def test_benjamini_hochberg_by_hand():
    a, b = numbers(40), numbers(40, seed=1, add=np.linspace(0, 1, 5))
    found = shifts(alone(a), alone(b))
    order = np.argsort(found.p)
    expected, least = np.empty(5), 1.0
    for rank in range(5, 0, -1):
        node = order[rank - 1]
        least = min(least, found.p[node] * 5 / rank)
        expected[node] = least
    assert found.q == pytest.approx(expected)


def test_nothing_varies():
    same = np.ones((20, 2))
    assert rank_sums(same, same).tolist() == [1.0, 1.0]
    assert signed_ranks(np.zeros((20, 2))).tolist() == [1.0, 1.0]
    assert shifts(alone(same), alone(same)).q.tolist() == [1.0, 1.0]
    assert standardised(same, same).tolist() == np.zeros((20, 2)).tolist()


def test_the_interval_resamples_groups():
    """Equal prompts of a group carry no more than one: the interval is that of the groups alone."""
    a, b = numbers(30), numbers(30, seed=1)
    groups = [str(row) for row in range(30)]
    often = [np.repeat(one, 5, axis=0) for one in (a, b)]
    thrice = np.repeat(groups, 5).tolist()
    once = shifts(alone(a), alone(b), resamples=400)
    repeated = shifts(*(Sample.of(one, thrice) for one in often), resamples=400)
    assert repeated.low == pytest.approx(once.low)
    assert repeated.high == pytest.approx(once.high)
    assert repeated.p == pytest.approx(once.p)


def test_the_interval_covers_the_truth():
    draw, covered = np.random.default_rng(0), 0
    for repetition in range(300):
        a, b = (alone(draw.normal(size=(40, 1)) + mean) for mean in (0.0, 0.7))
        found = shifts(a, b, resamples=200, seed=repetition)
        covered += bool(found.low[0] <= 0.7 <= found.high[0])
    assert 0.90 <= covered / 300 <= 0.98


def test_the_order_of_prompts_changes_nothing():
    a, b = numbers(30), numbers(30, seed=1)
    groups = [str(row % 11) for row in range(30)]
    turned = np.random.default_rng(2).permutation(30)
    one = shifts(Sample.of(a, groups), Sample.of(b, groups))
    other = shifts(Sample.of(a[turned], [groups[row] for row in turned]), Sample.of(b, groups))
    for name in ("value", "low", "high", "p", "q"):
        assert getattr(one, name) == pytest.approx(getattr(other, name))


@pytest.mark.parametrize("units", [(2, 2), (3, 4), (5, 5)])
def test_the_least_p_is_reached_by_sets_apart(units):
    a, b = np.arange(units[0], dtype=float)[:, None], 100.0 + np.arange(units[1])[:, None]
    assert rank_sums(a, b)[0] == pytest.approx(least_p(*units, paired=False))
    assert signed_ranks(b)[0] == pytest.approx(least_p(units[1], units[1], paired=True))


def test_roles_and_their_order():
    assert [role(*qs, 0.05) for qs in ((0.01, 0.9), (0.9, 0.01), (0.01, 0.01), (0.05, 0.05))] == [
        "entry", "inherits", "entry", None,
    ]  # fmt: skip

    def node(name, shift, p, role, write_p=0.5, reason=None):
        return NodeShift(name, Interval(shift, 0, 0), p, p, Interval(0, 0, 0), write_p, write_p, role, 0.5, reason)

    expected = [
        node("largest", -3.0, 1e-4, "entry"), node("smaller", 2.0, 1e-9, "entry"),
        node("inherits", 0.0, 0.9, "inherits", 1e-9), node("inherits less", 0.0, 0.1, "inherits", 1e-3),
        node("none", 0.0, 0.2, None), node("even less", 0.0, 0.8, None), NodeShift.unjudged("odd", 0.1, "still"),
    ]  # fmt: skip
    for first, second in pairwise(expected):
        assert first.order < second.order or second.reason is not None
    turned = [expected[place] for place in (3, 6, 0, 5, 2, 4, 1)]
    assert sorted(turned, key=lambda one: one.order) == expected


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_equal_sets_have_entries_no_more_often_than_the_level_says(paired, grouped):
    """Twelve nodes that hang together, skewed as `log d_v^2` is; prompts of a group share half of their noise."""
    draw, level, repetitions = np.random.default_rng(7), 0.1, 200
    mix = np.eye(12) + 0.2

    def drawn(groups):
        own, shared = (np.log(draw.chisquare(6, size=(60, 12)) @ mix) for _ in range(2))
        return own + shared[groups] if grouped else own

    often = np.zeros(12)
    any_node = 0
    for _ in range(repetitions):
        groups = np.arange(60) // 4 if grouped else np.arange(60)
        names = [str(group) for group in groups]
        found = shifts(Sample.of(drawn(groups), names), Sample.of(drawn(groups), names), paired=paired, resamples=2)
        often += found.q < level
        any_node += bool((found.q < level).any())
    limit = level + 3 * np.sqrt(level * (1 - level) / repetitions)
    assert any_node / repetitions < limit
    assert (often / repetitions < level).all()


def test_standardising_each_set_in_its_own_way_would_not_be_exact():
    """Why A is not standardised over its other prompts, as its own z in a calibration is: see the module."""
    draw = np.random.default_rng(3)
    a = np.sort(draw.normal(size=25) ** 3)
    others = np.array([(a[i] - np.delete(a, i).mean()) / np.delete(a, i).std(ddof=1) for i in range(25)])
    together = standardised(a[:, None], a[:, None])[:, 0]
    assert (np.abs(others) >= np.abs(together)).all()
    assert others.std() > 1.1 * together.std()
