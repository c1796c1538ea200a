"""Each way of judging nodes against a twin in numpy and scikit-learn that starts from the writes themselves."""

import functools

import numpy as np
import pytest
import torch
from sklearn.covariance import OAS
from sklearn.linear_model import Ridge

import eics
from eics.scoring.calibration.sheaf.assign import FOLDS, assign
from eics.scoring.calibration.sheaf.bases import Bases
from eics.studies.detection.fitted import Fitted, Prompts
from eics.studies.detection.measure import without_distributions
from eics.studies.detection.observations import Observations, layout_of
from eics.studies.detection.ways import PLAIN_WAYS, SHEAF_WAYS, WAYS, LayersWay, SheafWay
from support.detection import fitted, halves, people, trial
from support.learned import random_prompts, small

TWINS = ("a0.h1", "a0.h3", "m0", "a1.h1", "a1.h4", "m1", "a2.h7", "m2", "logits")  # e of a0.h3 does not vary
ROUNDING = 1e-5  # of float32 weights
PENALTIES = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5)


def the_parts(seed: int = 0) -> tuple[Observations, np.ndarray]:
    """The runs of the reference that fit, and their folds."""
    reference = halves()[0]
    places = [assign(f"group:{group}", seed) for group in reference.groups]
    fits = torch.tensor([place.fits for place in places])
    return reference.runs.rows(fits), np.array([place.fold for place in places if place.fits])


@functools.cache
def runs() -> Observations:
    """Undamaged and damaged runs to judge."""
    undamaged = without_distributions(halves()[1].runs)
    return Observations.cat([undamaged, trial().runs.rows(torch.arange(0, len(trial().runs), 7))])


def principal(rows: np.ndarray, most: int, noise: float) -> np.ndarray:
    """Directions of centred rows in which they vary by more than the noise."""
    _, values, vectors = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    count = int((values > max(1e-6 * values[0], noise * np.sqrt(len(rows)))).sum())
    return vectors[: min(count, most)]


def rms(rows: np.ndarray) -> float:
    return float(np.sqrt(np.mean(rows**2)))


def computed_before(node: str) -> list[str]:
    """By the names of nodes: a head does not read its own layer, an MLP reads the heads of it."""

    def step(name):
        if name in ("input", "logits"):
            return -1.0 if name == "input" else 99.0
        return int(name[1:].split(".")[0]) + (0.5 if name[0] == "m" else 0.0)

    return [name for name in people()[1].order if step(name) < step(node)]


class Twin:
    """One node: everything from the writes of the fit part, in plain arrays."""

    def __init__(self, node: str) -> None:
        self.nodes = layout_of(*people()).nodes
        self.node, self.judged = node, layout_of(*people()).judged.index(node)
        fit, self.folds = the_parts()
        self.fit = self.arrays(fit)
        self.fit_layers = fit.layers.double().numpy()

    def arrays(self, some: Observations) -> dict[str, np.ndarray]:
        found = {name: some.samples.writes[row].double().numpy() for row, name in enumerate(self.nodes)}
        return found | {"explained": some.samples.explained[self.judged].double().numpy()}

    def given(self, here: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Components of what is explained, and its energy outside them."""
        explained = self.fit["explained"]
        directions = principal(explained, len(explained) // 8, ROUNDING * rms(explained))
        centred = here["explained"] - explained.mean(axis=0)
        return centred @ directions.T, ((centred - centred @ directions.T @ directions) ** 2).sum(axis=1)

    def context(self, here: dict[str, np.ndarray]) -> np.ndarray:
        """Components of what the nodes before wrote."""
        sides = []
        for of in (self.fit, here):
            parts, noise = [], 0.0
            for name in self.nodes:
                own = self.fit[name]
                unit = 1 / rms(own - own.mean(axis=0))
                noise = max(noise, unit * rms(own))
                if name in computed_before(self.node):
                    directions = principal(own, 24, ROUNDING * rms(own))
                    parts.append((of[name] - own.mean(axis=0)) @ directions.T * unit)
            sides.append(np.hstack(parts))
        return sides[1] @ principal(sides[0], len(self.folds) // 8, ROUNDING * noise).T

    def write(self, here: dict[str, np.ndarray], joint: bool) -> tuple[np.ndarray, np.ndarray]:
        """Components of the write, or of the joint residual, in the directions of the write; energy outside."""
        own = self.fit[self.node]
        directions = principal(own, min(32, len(own) // 4), ROUNDING * rms(own))
        centred = here[self.node] - own.mean(axis=0)
        if joint:
            centred = centred - (here["explained"] - self.fit["explained"].mean(axis=0))
        return centred @ directions.T, ((centred - centred @ directions.T @ directions) ** 2).sum(axis=1)

    def regressors(self, here: dict[str, np.ndarray], explained: bool, context: bool) -> np.ndarray:
        parts = [self.given(here)[0]] if explained else []
        parts += [self.context(here)] if context else []
        return np.hstack([np.zeros((len(here[self.node]), 0)), *parts])

    def distances(self, some: Observations, *, explained=True, context=True, leverage=True, metric=True, joint=False):
        """D^2, u and d^2."""
        here = self.arrays(some)
        x, x_here = (self.regressors(side, explained, context) for side in (self.fit, here))
        (y, outside), (y_here, outside_here) = (self.write(side, joint) for side in (self.fit, here))
        mean, spread = x.mean(axis=0), x.std(axis=0)
        x, x_here = (x - mean) / spread, (x_here - mean) / spread
        penalty, left = self.cross_fitted(x, y)
        covariance = OAS(assume_centered=True).fit(left - left.mean(axis=0)).covariance_
        covariance = covariance + np.eye(len(covariance)) * (ROUNDING * rms(self.fit[self.node])) ** 2
        if not metric:
            covariance = np.eye(len(covariance)) * np.trace(covariance) / len(covariance)
        residual = y_here - (Ridge(alpha=penalty).fit(x, y).predict(x_here) if x.shape[1] else y.mean(axis=0))
        whole = np.einsum("ri,ij,rj->r", residual, np.linalg.inv(covariance), residual) / y.shape[1]
        whole = whole + 0.03 * self.relative(outside_here, outside, self.fit[self.node])
        beyond, usual = (self.given(side)[1] * explained for side in (here, self.fit))
        beyond = self.relative(beyond, usual, self.fit["explained"])
        unusual = (self.leverage(x, x_here, penalty) + 0.1 * beyond) / 1.1
        return whole, unusual, whole / ((1 + 30 * unusual) / 31) if leverage else whole

    def cross_fitted(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """The penalty with the smallest held-out error, and its residuals."""
        found = {}
        for penalty in PENALTIES if x.shape[1] else PENALTIES[:1]:
            left = np.zeros_like(y)
            for fold in range(FOLDS):
                held = self.folds == fold
                expected = y[~held].mean(axis=0)
                if x.shape[1]:
                    expected = Ridge(alpha=penalty).fit(x[~held], y[~held]).predict(x[held])
                left[held] = y[held] - expected
            found[penalty] = left
        best = min(found, key=lambda penalty: (found[penalty] ** 2).sum())
        return best, found[best]

    @staticmethod
    def leverage(x: np.ndarray, here: np.ndarray, penalty: float) -> np.ndarray:
        """Over its mean; as usual as ever where nothing was given."""
        if not x.shape[1]:
            return np.ones(len(here))
        inverse = np.linalg.inv(x.T @ x + penalty * np.eye(x.shape[1]))
        of_fit, of_here = (np.einsum("ri,ij,rj->r", side, inverse, side) for side in (x, here))
        return of_here / of_fit.mean()

    @staticmethod
    def relative(energy: np.ndarray, usual: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Energy over its mean; as usual as ever where nothing varies."""
        if np.ptp(rows, axis=0).max() == 0:
            return np.ones(len(energy))
        return energy / (usual.mean() + 1e-9 * ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean())


@functools.cache
def twin(node: str) -> Twin:
    return Twin(node)


LEFT_OUT = {
    "calibrated": {},
    "no-context": {"context": False},
    "no-explained": {"explained": False},
    "no-leverage": {"leverage": False},
    "no-metric": {"metric": False},
    "joint": {"explained": False, "context": False, "leverage": False, "joint": True},
    "activations": {"explained": False, "context": False, "leverage": False},
}


@pytest.mark.parametrize("way", LEFT_OUT)
@pytest.mark.parametrize("node", TWINS)
def test_a_way_is_its_twin_in_numpy(way, node):
    found = fitted().ways[way].distances(runs())
    whole, unusual, allowed = twin(node).distances(runs(), **LEFT_OUT[way])
    row = fitted().nodes.index(node)
    for ours, theirs in ((found.whole, whole), (found.unusual_input, unusual), (found.allowed, allowed)):
        np.testing.assert_allclose(ours[row].numpy(), theirs, rtol=1e-3, atol=1e-5)


def test_layers_are_mahalanobis_distances_of_what_layers_added():
    fit, _ = the_parts()
    found = fitted().ways["layers"].distances(runs())
    for row, node in enumerate(fitted().nodes):
        layer = 2 if node == "logits" else int(node[1])
        rows, here = (some.layers[:, layer].double().numpy() for some in (fit, runs()))
        directions = principal(rows, 32, 0.0)
        assert len(directions) == 32
        inverse = np.linalg.inv(OAS().fit(rows @ directions.T).covariance_)
        centred = (here - rows.mean(axis=0)) @ directions.T
        expected = np.einsum("ri,ij,rj->r", centred, inverse, centred) / 32
        np.testing.assert_allclose(found.whole[row].numpy(), expected, rtol=1e-6)
    assert torch.equal(found.allowed, found.whole)
    assert bool((found.unusual_input == 1).all())


def test_norms_are_standardised_logarithms():
    fit, _ = the_parts()
    found = fitted().ways["norms"].distances(runs())
    nodes = layout_of(*people()).nodes
    for row, node in enumerate(fitted().nodes):
        sides = (some.samples.writes[nodes.index(node)].double().numpy() for some in (fit, runs()))
        usual, here = (np.log(np.sqrt((side**2).sum(axis=1))) for side in sides)
        expected = ((here - usual.mean()) / usual.std(ddof=1)) ** 2
        np.testing.assert_allclose(found.whole[row].numpy(), expected, rtol=1e-6, atol=1e-12)


def test_recomputing_counts_nothing_below_rounding():
    found = fitted().ways["recomputed"].distances(runs())
    relative = runs().recomputed.double().numpy().T
    np.testing.assert_array_equal(found.whole.numpy(), np.where(relative > 1e-4, relative, 0.0) ** 2)
    assert relative[relative < 1e-4].max() > 0  # there is rounding to be left out
    assert bool((found.whole > 0).any())


def test_what_calibrate_and_score_say():
    (model, circuit), (reference, test) = people(), halves()
    usual = eics.calibrate(model, circuit, reference.tokens, group=reference.groups, terms="sheaf", seed=0)
    some = test.pick(range(0, len(test), 2))
    scores = eics.score(model, circuit, some.tokens, preset="calibrated", terms="sheaf", calibration=usual)
    judgement = fitted().judge(some.runs)
    step = 1 / (1 + len(usual.learned.ids))
    for row, score in enumerate(scores):
        by_name = {term.node: term for term in score.nodes}
        assert by_name.keys() == set(fitted().nodes)
        for column, name in enumerate(fitted().nodes):
            assert float(judgement.z[row, column]) == pytest.approx(by_name[name].z, abs=2e-3)
        assert float(judgement.c_ref[row]) == pytest.approx(score.c_ref, rel=1e-3)
        for ours, theirs in ((judgement.p_value, score.p_value), (judgement.p_value_mean, score.p_value_mean)):
            assert float(ours[row]) == pytest.approx(theirs, abs=1.5 * step)  # near ties may fall to either side
    assert len({round(score.p_value, 6) for score in scores}) > 10


def rows_of(way: str, nodes=None) -> tuple[torch.Tensor, ...]:
    found = fitted().ways[way].distances(runs())
    places = [fitted().nodes.index(name) for name in nodes or fitted().nodes]
    return found.whole[places], found.unusual_input[places], found.allowed[places]


def test_without_leverage_only_the_allowance_is_missing():
    whole, unusual, allowed = rows_of("no-leverage")
    torch.testing.assert_close(allowed, whole, rtol=0, atol=0)
    theirs = rows_of("calibrated")
    torch.testing.assert_close(whole, theirs[0], rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(unusual, theirs[1], rtol=1e-3, atol=1e-5)
    assert not torch.allclose(allowed, theirs[2], rtol=0.1)


def test_an_explained_part_that_does_not_vary_is_not_missed():
    """Only `<q>` and `<k>` edges enter a0.h3, so that what is explained of it is a constant."""
    for ours, theirs in zip(rows_of("no-explained", ["a0.h3"]), rows_of("calibrated", ["a0.h3"]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    assert not torch.allclose(rows_of("no-explained", ["a0.h1"])[0], rows_of("calibrated", ["a0.h1"])[0], rtol=0.1)


def test_the_joint_residual_of_a_constant_explanation_is_the_write():
    torch.testing.assert_close(rows_of("joint", ["a0.h3"])[0], rows_of("activations", ["a0.h3"])[0])
    assert not torch.allclose(rows_of("joint", ["m1"])[0], rows_of("activations", ["m1"])[0], rtol=0.1)


@functools.cache
def ending_alike() -> tuple[Prompts, Fitted]:
    """Prompts of a tiny model that end in the same token, so that the input is the same at the answer."""
    model, circuit = small()
    tokens = [(*tokens, 7) for tokens in random_prompts(160)]
    prompts = Prompts.observed(model, circuit, tokens, list(map(str, range(160))))
    return prompts, Fitted.of(model, circuit, prompts, 0, WAYS)


def test_a_context_that_does_not_vary_is_not_missed():
    prompts, all_ways = ending_alike()
    row = all_ways.nodes.index("a0.h1")
    assert int(all_ways.learned.sheaf.bases.by_context[row]) == 0
    one, other = (all_ways.ways[way].distances(prompts.runs) for way in ("calibrated", "no-context"))
    for ours, theirs in zip(one.parts, other.parts, strict=True):
        torch.testing.assert_close(ours[row], theirs[row], rtol=1e-4, atol=1e-7)
        assert not torch.allclose(ours, theirs, rtol=0.1)


def test_a_metric_of_one_number_is_not_missed():
    """Where a single component is predicted, its variance is the whole metric."""
    (model, circuit), (fit, folds) = people(), the_parts()
    layout = layout_of(model, circuit)
    bases = Bases.of(fit.samples, layout, 7, ROUNDING)  # bases for 7 samples have one output and no regressor
    assert set(bases.outputs.tolist()) == {1}
    one, other = (
        SheafWay.fit(SHEAF_WAYS[way], bases, fit.samples, torch.from_numpy(folds), layout.width, torch.float32)
        for way in ("calibrated", "no-metric")
    )
    ours, theirs = (way.distances(runs()) for way in (one, other))
    for mine, other_part in zip(ours.parts, theirs.parts, strict=True):
        torch.testing.assert_close(mine, other_part, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_runs_are_judged_one_by_one(way, monkeypatch):
    """In chunks, in another order, and alone, a run has the same distances."""
    whole = fitted().ways[way].distances(runs()).allowed
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(runs())))
    monkeypatch.setattr("eics.studies.detection.ways._CHUNK", 10)
    torch.testing.assert_close(fitted().ways[way].distances(runs().rows(order)).allowed, whole[:, order])
    one = runs().rows(torch.tensor([5]))
    torch.testing.assert_close(fitted().ways[way].distances(one).allowed, whole[:, [5]])


@pytest.mark.parametrize("way", WAYS)
def test_z_is_standardised_over_the_calibration_part(way):
    """So that ways of any unit can be compared."""
    reference = fitted().references[way]
    usual = halves()[0]
    calibrates = torch.tensor([not assign(f"group:{group}", 0).fits for group in usual.groups])
    z = fitted().judge(usual.runs.rows(calibrates), way).z
    assert len(z) == len(reference) == len(fitted().learned.ids)
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(z.shape[1]).double(), rtol=0, atol=1e-9)
    spread = torch.zeros(z.shape[1]) if way == "recomputed" else torch.ones(z.shape[1])
    torch.testing.assert_close(z.std(dim=0), spread.double(), rtol=1e-6, atol=1e-9)


def test_the_read_out_has_the_last_layer():
    fit, _ = the_parts()
    way = LayersWay.fit(fit.layers, ("m0", "a1.h3", "logits"))
    assert way.layer.tolist() == [0, 1, 2]


def test_every_way_has_a_name():
    assert set(LEFT_OUT) == set(SHEAF_WAYS)
    assert set(fitted().ways) == set(WAYS) == {*SHEAF_WAYS, *PLAIN_WAYS}
