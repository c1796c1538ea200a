"""Localisation, AUROC, false alarms and their intervals, against scikit-learn, simulations and loops."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score

from eics.scoring.calibration.sheaf.learned import Distances
from eics.scoring.calibration.sheaf.reference import Reference
from eics.studies.detection.summary import (
    LEVELS,
    TIMES,
    Resamples,
    Verdicts,
    auroc,
    by_node,
    calm,
    false_alarms,
    localisation,
    paired_auroc,
)

GROUPS = ["b", "a", "c", "a", "b", "d", "e", "e", "a", "c"]
PROMPTS = len(GROUPS)
NODES = 6


def verdicts(count: int, rng: np.random.Generator, *, digits: int = 0) -> Verdicts:
    """Random verdicts; z has few digits, so that there are ties."""
    z = rng.normal(size=(count, NODES)).round(digits)
    p_values = rng.integers(1, 21, size=(2, count)) / 20
    return Verdicts(z, p_values[0], p_values[1], rng.random((count, NODES)) < 0.2)


@dataclasses.dataclass(frozen=True)
class Runs:
    """Undamaged runs of every prompt, and damaged ones of some prompts, the damaged node often being the largest."""

    clean: Verdicts
    damaged: Verdicts
    node: np.ndarray
    prompt: np.ndarray

    @classmethod
    def drawn(cls, count: int = 40, seed: int = 0) -> "Runs":
        rng = np.random.default_rng(seed)
        clean, damaged = verdicts(PROMPTS, rng), verdicts(count, rng)
        node, prompt = rng.integers(0, NODES - 1, size=count), rng.integers(0, PROMPTS, size=count)
        damaged.z[np.arange(count), node] += 1.0
        return cls(clean, damaged, node, prompt)


def place_by_shuffling(z: np.ndarray, node: int, places: int, rng: np.random.Generator, times: int = 4000) -> float:
    """How often a node is among the first if ties are broken by lot."""
    lots = rng.random((times, len(z)))
    ranks = [np.lexsort((lot, -z)).tolist().index(node) for lot in lots]
    return float(np.mean(np.array(ranks) < places))


@pytest.mark.parametrize(
    ("z", "node"),
    [
        ([3.0, 1.0, 2.0, 0.0, -1.0], 0),
        ([3.0, 3.0, 2.0, 0.0, 3.0], 4),
        ([3.0, 3.0, 2.0, 2.0, 2.0], 2),
        ([0.0, 0.0, 0.0, 0.0, 0.0], 3),
        ([4.0, 3.0, 2.0, 1.0, 1.0], 3),
        ([4.0, 1.0, 1.0, -np.inf, -np.inf], 2),
    ],
)
def test_ties_are_broken_by_lot(z, node):
    z = np.array(z)
    one = Verdicts(z[None], np.ones(1), np.ones(1), np.zeros((1, 5), dtype=bool))
    found = localisation(one, one, np.array([node]), np.array([0]), Resamples(["only"]))
    rng = np.random.default_rng(0)
    for name, places in (("first", 1), ("three", 3)):
        assert found[name]["value"] == pytest.approx(place_by_shuffling(z, node, places, rng), abs=0.03)


def expected_places(z: np.ndarray, node: int, places: int) -> float:
    """The same by counting."""
    greater, equal = sum(z > z[node]), sum(z == z[node])
    return float(np.mean([greater + lot < places for lot in range(equal)]))


STATISTICS = {
    "first": lambda runs, row, _: expected_places(runs.damaged.z[row], runs.node[row], 1),
    "three": lambda runs, row, _: expected_places(runs.damaged.z[row], runs.node[row], 3),
    "caught": lambda runs, row, _: float(runs.damaged.p_value[row] <= 0.05),
    "named": lambda runs, row, _: float(runs.damaged.suspect[row, runs.node[row]]),
    "own": lambda runs, row, clean: auc_of_one(
        runs.damaged.z[row, runs.node[row]], [runs.clean.z[prompt, runs.node[row]] for prompt in clean]
    ),
    "prompt": lambda runs, row, clean: auc_of_one(
        runs.damaged.z[row].max(), [runs.clean.z[prompt].max() for prompt in clean]
    ),
}


def auc_of_one(value, others) -> float:
    return roc_auc_score([1] + [0] * len(others), [value, *others])


def by_loops(statistic, runs: Runs, counts: np.ndarray) -> float:
    """The mean over nodes of the mean over a node's runs, with every drawn prompt as often as it was drawn."""
    clean = [prompt for prompt, count in enumerate(counts) for _ in range(int(count))]
    of_node: dict[int, list[float]] = {}
    for row, prompt in enumerate(runs.prompt):
        for _ in range(int(counts[prompt])):
            of_node.setdefault(int(runs.node[row]), []).append(statistic(runs, row, clean))
    return float(np.mean([np.mean(values) for values in of_node.values()])) if of_node else np.nan


@pytest.mark.parametrize("name", STATISTICS)
def test_localisation_and_its_interval_by_loops(name):
    runs, times = Runs.drawn(), 60
    resamples = Resamples(GROUPS, seed=3, times=times)
    found = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, resamples)[name]
    assert found["value"] == pytest.approx(by_loops(STATISTICS[name], runs, np.ones(PROMPTS)))
    drawn = [by_loops(STATISTICS[name], runs, resamples.weights[:, time]) for time in range(times)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (found["low"], found["high"]) == (pytest.approx(low), pytest.approx(high))
    assert found["low"] < found["value"] < found["high"]


def test_own_is_the_mean_over_nodes_of_scikit_learns_auroc():
    runs = Runs.drawn(seed=1)
    found = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, Resamples(GROUPS))
    areas = []
    for node in np.unique(runs.node):
        damaged = runs.damaged.z[runs.node == node, node]
        labels = np.r_[np.ones(len(damaged)), np.zeros(PROMPTS)]
        areas.append(roc_auc_score(labels, np.r_[damaged, runs.clean.z[:, node]]))
    assert found["own"]["value"] == pytest.approx(np.mean(areas))


def test_wrong_suspects_are_a_share_of_the_suspects():
    runs = Runs.drawn(seed=2)
    found = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, Resamples(GROUPS))
    named = [(row, node) for row, flags in enumerate(runs.damaged.suspect) for node in np.flatnonzero(flags)]
    wrong = [node != runs.node[row] for row, node in named]
    assert found["wrong_suspects"] == pytest.approx(np.mean(wrong))
    assert (found["runs"], found["nodes"]) == (40, 5)
    nobody = dataclasses.replace(runs.damaged, suspect=np.zeros_like(runs.damaged.suspect))
    assert localisation(nobody, runs.clean, runs.node, runs.prompt, Resamples(GROUPS))["wrong_suspects"] == 0


def test_a_level_moves_what_is_caught():
    runs = Runs.drawn(seed=3)
    for level in (0.05, 0.5, 1.0):
        found = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, Resamples(GROUPS), level)
        by_level = [np.mean(runs.damaged.p_value[runs.node == node] <= level) for node in np.unique(runs.node)]
        assert found["caught"]["value"] == pytest.approx(np.mean(by_level))
    assert found["caught"]["value"] == 1


def test_each_node_has_its_own_rate():
    runs = Runs.drawn(seed=4)
    names = [f"n{node}" for node in range(NODES)]
    found = by_node(runs.damaged, runs.node, names)
    assert list(found) == names[: NODES - 1]
    for node, name in enumerate(found):
        rows = np.flatnonzero(runs.node == node)
        assert found[name] == pytest.approx(np.mean([expected_places(runs.damaged.z[row], node, 1) for row in rows]))
    whole = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, Resamples(GROUPS))["first"]["value"]
    assert whole == pytest.approx(np.mean(list(found.values())))


@pytest.mark.filterwarnings("error")
def test_resamples_without_any_damaged_run_are_left_out():
    """Damaged runs of a single group: many resamples have none of them."""
    runs = Runs.drawn()
    only = np.full_like(runs.prompt, GROUPS.index("d"))
    resamples = Resamples(GROUPS)
    assert (resamples.weights[GROUPS.index("d")] == 0).mean() > 0.2
    found = localisation(runs.damaged, runs.clean, runs.node, only, resamples)
    first = found["first"]
    assert first["low"] == pytest.approx(first["value"]) == pytest.approx(first["high"])
    assert found["prompt"]["low"] < found["prompt"]["value"] < found["prompt"]["high"]  # undamaged prompts vary
    mean = resamples.mean(runs.damaged.z[:, 0], only)
    assert mean.low == pytest.approx(mean.value) == pytest.approx(mean.high)


@pytest.mark.filterwarnings("error")
def test_a_node_that_another_calibration_does_not_judge_is_never_first_and_tells_nothing():
    runs = Runs.drawn()
    for side in (runs.clean, runs.damaged):
        side.z[:, 2] = -np.inf
    found = localisation(runs.damaged, runs.clean, runs.node, runs.prompt, Resamples(GROUPS))
    assert by_node(runs.damaged, runs.node, list("abcdef"))["c"] == 0
    judged = runs.node != 2
    only = dataclasses.replace(runs, node=runs.node[judged], prompt=runs.prompt[judged])
    kept = Verdicts(*(getattr(runs.damaged, field.name)[judged] for field in dataclasses.fields(Verdicts)))
    others = localisation(kept, runs.clean, only.node, only.prompt, Resamples(GROUPS))
    assert found["own"]["value"] == pytest.approx((4 * others["own"]["value"] + 0.5) / 5)
    assert 0 < found["own"]["low"] < found["own"]["high"] < 1


def test_prompts_of_a_group_are_drawn_together():
    weights = Resamples(GROUPS, seed=1, times=4000).weights
    assert weights.shape == (PROMPTS, 4000)
    assert Resamples(GROUPS).weights.shape == (PROMPTS, TIMES)
    names = sorted(set(GROUPS))
    by_group = np.array([weights[GROUPS.index(name)] for name in names])
    for prompt, name in enumerate(GROUPS):
        np.testing.assert_array_equal(weights[prompt], by_group[names.index(name)])
    np.testing.assert_array_equal(by_group.sum(axis=0), len(names))
    np.testing.assert_allclose(by_group.mean(axis=1), 1, atol=0.06)
    np.testing.assert_allclose(by_group.var(axis=1), 1 - 1 / len(names), atol=0.08)  # binomial
    np.testing.assert_array_equal(Resamples(GROUPS, seed=1, times=4000).weights, weights)
    assert not np.array_equal(Resamples(GROUPS, seed=2, times=4000).weights, weights)


def test_the_interval_of_a_mean_by_loops():
    rng = np.random.default_rng(5)
    values, prompt = rng.normal(size=30), rng.integers(0, PROMPTS, size=30)
    resamples = Resamples(GROUPS, times=80)
    found = resamples.mean(values, prompt)
    drawn = []
    for time in range(80):
        chosen = [row for row in range(30) for _ in range(int(resamples.weights[prompt[row], time]))]
        drawn.append(values[chosen].mean())
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == tuple(map(pytest.approx, np.quantile(drawn, [0.025, 0.975])))


def test_wins_against_drawn_prompts_by_loops():
    rng = np.random.default_rng(6)
    resamples = Resamples(GROUPS, times=20)
    damaged, shared, apart = (
        rng.integers(0, 4, 7) * 1.0,
        rng.integers(0, 4, PROMPTS) * 1.0,
        rng.normal(size=(7, PROMPTS)),
    )
    for clean in (shared, apart):
        found = resamples.against(damaged, clean)
        assert found.shape == (7, 21)
        for row, value in enumerate(damaged):
            against = np.broadcast_to(clean, (7, PROMPTS))[row]
            assert found[row, 0] == pytest.approx(auc_of_one(value, against.tolist()))
            for time in range(20):
                repeated = np.repeat(against, resamples.weights[:, time].astype(int))
                assert found[row, 1 + time] == pytest.approx(auc_of_one(value, repeated.tolist()))


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20), st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_auroc_is_scikit_learns(positive, negative):
    labels = [1] * len(positive) + [0] * len(negative)
    found = auroc(np.array(positive, dtype=float), np.array(negative, dtype=float))
    assert found == pytest.approx(roc_auc_score(labels, positive + negative))


def test_paired_auroc_by_loops():
    rng = np.random.default_rng(7)
    positive, negative = rng.normal(0.5, size=14).round(1), rng.normal(size=11).round(1)
    groups = np.array(list("abcdefgh"))
    of_positive, of_negative = groups[rng.integers(0, 8, 14)], groups[rng.integers(0, 7, 11)]
    found = paired_auroc(positive, negative, list(of_positive), list(of_negative), seed=2)
    whole = roc_auc_score([1] * 14 + [0] * 11, np.r_[positive, negative])
    assert found.value == pytest.approx(whole)
    names = np.unique(np.r_[of_positive, of_negative])
    drawn = []
    for chosen in rng.integers(0, len(names), size=(3000, len(names))):
        first = np.concatenate([positive[of_positive == names[index]] for index in chosen])
        second = np.concatenate([negative[of_negative == names[index]] for index in chosen])
        if len(first) and len(second):
            drawn.append((first[:, None] > second).mean() + 0.5 * (first[:, None] == second).mean())
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.low == pytest.approx(low, abs=0.03)
    assert found.high == pytest.approx(high, abs=0.03)
    assert paired_auroc(positive, negative, list(of_positive), list(of_negative), seed=2) == found


def test_groups_make_intervals_honest():
    """Copies of the same few prompts are no further evidence."""
    rng = np.random.default_rng(8)
    positive, negative = rng.normal(1, size=12), rng.normal(size=12)
    names = [str(index) for index in range(12)]
    few = paired_auroc(positive, negative, names, names)
    many = paired_auroc(np.tile(positive, 10), np.tile(negative, 10), names * 10, names * 10)
    assert (many.value, many.low, many.high) == tuple(map(pytest.approx, (few.value, few.low, few.high)))
    alone = [str(index) for index in range(120)]
    careless = paired_auroc(np.tile(positive, 10), np.tile(negative, 10), alone, alone)
    assert careless.high - careless.low < 0.6 * (few.high - few.low)


def simulated_alarms(calibration: int, prompts: int, level: float, rng: np.random.Generator, times: int) -> np.ndarray:
    """Rates of conformal alarms on exchangeable numbers, over draws of the calibration part too."""
    usual, here = rng.normal(size=(times, calibration)), rng.normal(size=(times, prompts))
    at_least = calibration - np.array(
        [np.searchsorted(np.sort(row), new) for row, new in zip(usual, here, strict=True)]
    )
    return ((1 + at_least) / (1 + calibration) <= level).mean(axis=1)


@pytest.mark.parametrize(("calibration", "prompts"), [(67, 75), (239, 120), (99, 40), (19, 200)])
def test_false_alarms_are_as_many_as_simulated(calibration, prompts):
    rng = np.random.default_rng(9)
    found = false_alarms(np.linspace(0, 1, prompts), calibration)
    assert set(found) == {f"{level:g}" for level in LEVELS}
    for level in LEVELS:
        rates, entry = simulated_alarms(calibration, prompts, level, rng, 6000), found[f"{level:g}"]
        assert entry["expected"] == pytest.approx(rates.mean(), abs=0.004)
        if entry["expected"] == 0:
            assert rates.max() == 0
            assert "low" not in entry
            continue
        assert (rates < entry["low"]).mean() <= 0.035
        assert (rates > entry["high"]).mean() <= 0.035
        step = 1 / prompts  # not one alarm wider than it must be
        assert (rates <= entry["low"]).mean() > 0.015
        assert (rates > entry["high"] - step / 2).mean() > 0.015


def test_a_level_that_is_a_multiple_of_the_step_counts():
    """With 19 calibration prompts the smallest p-value is 1/20, which is an alarm at 0.05."""
    found = false_alarms(np.array([1 / 20, 2 / 20, 3 / 20, 1.0]), 19)
    assert found["0.05"]["rate"] == 0.25
    assert found["0.05"]["expected"] == pytest.approx(0.05)
    assert found["0.1"]["rate"] == 0.5
    assert "low" not in found["0.01"]


def test_too_many_and_too_few_alarms_are_not_within():
    p_values = np.linspace(0.005, 1, 200)
    assert false_alarms(p_values, 239)["0.1"]["within"]
    assert not false_alarms(p_values / 4, 239)["0.1"]["within"]
    assert not false_alarms(0.5 + p_values / 2, 239)["0.1"]["within"]


def test_calm_counts_alarms_on_undamaged_prompts():
    rng = np.random.default_rng(10)
    judged = torch.tensor([True, True, False, True, True, True])

    def drawn(count):
        return Distances(*(torch.from_numpy(rng.lognormal(size=(6, count))) for _ in range(3)))

    reference = Reference.of(drawn(60), judged)
    judgement = reference.judge(drawn(80), 0.05)
    found = calm(Verdicts.of(judgement), reference)
    assert (found["prompts"], found["calibration"], found["judged"]) == (80, 60, 5)
    assert found["largest"]["0.1"]["rate"] == pytest.approx((judgement.p_value <= 0.1).double().mean().item())
    assert found["mean"]["0.1"]["rate"] == pytest.approx((judgement.p_value_mean <= 0.1).double().mean().item())
    assert found["largest"]["0.1"]["expected"] == pytest.approx(6 / 61)
    assert found["any_suspect"] == pytest.approx((judgement.suspect.sum(dim=1) > 0).double().mean().item())
    assert found["any_suspect"] > 0
    largest = judgement.z[:, judged].amax(dim=1).numpy()
    usual = reference.z[:, judged].amax(dim=1).numpy()
    assert found["ks_largest"] == pytest.approx(ks_2samp(largest, usual).pvalue)


def test_verdicts_put_nodes_that_are_not_judged_last():
    judged = torch.tensor([True, False, True])
    distances = Distances(*(torch.rand(3, 9, dtype=torch.float64) for _ in range(3)))
    judgement = Reference.of(distances, judged).judge(distances, 0.1)
    found = Verdicts.of(judgement)
    assert np.isneginf(found.z[:, 1]).all()
    np.testing.assert_array_equal(found.z[:, [0, 2]], judgement.z[:, [0, 2]].numpy())
    np.testing.assert_array_equal(found.largest, np.nanmax(judgement.z.numpy(), axis=1))
    np.testing.assert_array_equal(found.p_value, judgement.p_value.numpy())
    np.testing.assert_array_equal(found.p_value_mean, judgement.p_value_mean.numpy())
    np.testing.assert_array_equal(found.suspect, judgement.suspect.numpy())
