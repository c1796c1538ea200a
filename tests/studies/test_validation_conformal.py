"""Conformal sets against MAPIE, and their coverage."""

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin

from eics import OptionError
from eics.studies.validation.conformal import calibrate, least_prompts, set_sizes


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are its inputs."""

    def fit(self, features, _):
        self.classes_ = np.arange(features.shape[1])
        return self

    def predict_proba(self, features):
        return features

    def predict(self, features):
        return features.argmax(axis=1)


def softmaxes(rng, count, width=6):
    logits = rng.normal(size=(count, width)) * 2
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(width, p=row) for row in probabilities])
    return probabilities, labels


def conformity(probabilities, labels):
    own = probabilities[np.arange(len(labels)), labels]
    return own, np.array([row[row >= p].sum() for row, p in zip(probabilities, own, strict=True)])


@pytest.mark.parametrize("coverage", [0.6, 0.9])
def test_sets_are_those_of_mapie(coverage):
    rng = np.random.default_rng(0)
    (known, labels), (new, _) = softmaxes(rng, 60), softmaxes(rng, 200)
    ours = set_sizes(torch.from_numpy(new), calibrate(*conformity(known, labels), coverage, seed=5))
    for name, sizes in zip(("lac", "aps"), ours, strict=True):
        oracle = SplitConformalClassifier(
            Given().fit(known, labels), coverage, conformity_score=name, prefit=True, random_state=5
        ).conformalize(known, labels)
        _, sets = oracle.predict_set(new, conformity_score_params={"include_last_label": True})
        assert sizes.tolist() == sets[:, :, 0].sum(axis=1).tolist()


def test_sets_cover_what_they_promise():
    rng = np.random.default_rng(1)
    caught = []
    for _ in range(60):
        (known, labels), (new, truth) = softmaxes(rng, 40), softmaxes(rng, 50)
        found = calibrate(*conformity(known, labels), 0.8, seed=0)
        own, mass = conformity(new, truth)
        inside = mass - own < found.aps  # mass above the answer: the set has not been closed before it
        caught.append([(1 - own <= found.lac).mean(), inside.mean()])
    lac, aps = np.mean(caught, axis=0)
    assert lac == pytest.approx(0.805, abs=0.02)  # ceil(41 * 0.8) / 41
    assert aps >= 0.79


def test_too_few_prompts_are_refused_with_their_number():
    assert [least_prompts(c) for c in (0.5, 0.8, 0.9, 0.99)] == [1, 4, 9, 99]
    with pytest.raises(OptionError, match=r"at least 9 development prompts with an answer\. Got 8"):
        calibrate(np.full(8, 0.5), np.full(8, 0.5), 0.9, 0)
    assert calibrate(np.linspace(0.1, 0.9, 9), np.full(9, 0.5), 0.9, 0).lac == pytest.approx(0.9)
