"""The whitened write, against numpy and the covariance of the fit."""

import numpy as np
import pytest
import torch

import eics
from eics.scoring.calibration.sheaf.bases import OUTPUTS, Coordinates
from eics.scoring.calibration.sheaf.samples import sample
from eics.studies.comparison.set_writes import WhitenedWrites, implied_covariance
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.learned import random_prompts
from support.prompt_sets import people, people_lines, table, usual
from support.tiny_models import some_circuit, tiny_model


@pytest.fixture(scope="module", params=["answer", "all"])
def kept(request):
    """A calibration with the moments of its fit."""
    lines = people_lines(0)[:400]
    return eics.calibrate(
        *people(), [line["prompt"] for line in lines], terms="sheaf", keep_moments=True, at=request.param, batch_size=32
    ).learned


def covariance_of_the_fit(moments):
    """Of y, from what the fit kept."""
    count = moments.total[:, None]
    mean = (moments.first.sum(dim=1) / count).numpy()
    second = (moments.second.sum(dim=1) / count[:, :, None]).numpy()
    return (second - mean[:, :, None] * mean[:, None, :])[:, :OUTPUTS, :OUTPUTS]


def test_the_implied_covariance_is_near_that_of_the_fit(kept):
    """It is a little larger: cross-fitted residuals are. In its inner product, a write of the fit has a mean of 1."""
    implied, true = implied_covariance(kept.sheaf.regressions).numpy(), covariance_of_the_fit(kept.kept.moments)
    errors, means = [], []
    for node, k in enumerate(kept.sheaf.regressions.outputs.tolist()):
        ours, theirs = implied[node, :k, :k], true[node, :k, :k]
        errors.append(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
        means.append(np.trace(np.linalg.solve(ours, theirs)) / k)
    assert np.median(errors) < 0.03
    assert max(errors) < 0.15
    assert 0.85 < np.median(means) <= 1.01
    assert 0.5 < min(means) <= max(means) < 1.1


def brute_covariance(regressions, node, samples):
    """C_v by loops and inverses in numpy."""
    whitener, gram_whitener = (getattr(regressions, name)[node].numpy() for name in ("whitener", "leverage_whitener"))
    residual = np.linalg.inv(whitener) @ np.linalg.inv(whitener).T
    gram = np.linalg.inv(gram_whitener) @ np.linalg.inv(gram_whitener).T
    weight = regressions.weight[node].numpy()
    return weight.T @ (gram - float(regressions.penalty[node]) * np.eye(len(gram))) @ weight / samples + residual


def test_whitened_writes_by_brute_force():
    """From the passes themselves, one prompt at a time."""
    (model, circuit), learned = people(), usual().learned
    lines = people_lines(1)[:6]
    _, writes = table(lines, batch_size=6)
    regressions, bases, layout = learned.sheaf.regressions, learned.sheaf.bases, learned.sheaf.layout
    for row, line in enumerate(lines):
        tokens = model.tokenizer(line["prompt"])["input_ids"]
        written = sample(TransformerRun(run(model, [tokens], circuit), circuit), layout, "answer").writes
        for node, name in enumerate(layout.judged):
            place, k = layout.nodes.index(name), int(regressions.outputs[node])
            centred = written[place, 0].double().numpy() - bases.write_mean[place].numpy()
            y = bases.write[place, :k].numpy() @ centred - regressions.intercept[node, :k].numpy()
            covariance = brute_covariance(regressions, node, learned.fitted)[:k, :k]
            expected = y @ np.linalg.solve(covariance, y) / k
            assert writes[row, node] == pytest.approx(np.log(expected + 1e-9), abs=2e-3), name


def test_every_position_is_a_mean_over_those_that_count():
    model = tiny_model("llama")
    circuit = some_circuit(model)
    learned = eics.calibrate(model, circuit, random_prompts(120), at="all", terms="sheaf").learned
    sheaf, prompts = learned.sheaf, random_prompts(3, seed=4)
    with torch.no_grad():
        samples = sample(TransformerRun(run(model, prompts, circuit), circuit), sheaf.layout, "all")
    at, writes = sheaf.coordinates(samples), WhitenedWrites.of(sheaf.regressions)
    found = writes.by_prompt(at, samples.prompt, 3).numpy()
    rows = torch.arange(len(samples.prompt))
    each = writes.by_prompt(counted(at), rows, len(rows)).numpy()
    counts = samples.counts.numpy()
    for node in range(len(found)):
        for prompt in range(3):
            own = samples.prompt.numpy() == prompt
            expected = (each[node, own] * counts[node, own]).sum() / counts[node, own].sum()
            assert found[node, prompt] == pytest.approx(expected)


def counted(at: Coordinates) -> Coordinates:
    """Every row counts for every node."""
    parts = vars(at) | {"counts": torch.ones_like(at.counts)}
    return Coordinates(**parts)
