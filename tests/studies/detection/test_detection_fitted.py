"""Reference sets: groups stay together, draws follow from seeds, and stored runs teach what `calibrate` learns."""

import pytest
import torch

import eics
from eics.studies.detection.fitted import Fitted, learn_from, places_of
from support.detection import halves, people, people_prompts


@pytest.mark.parametrize("seed", [0, 1, 5])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_split_keeps_groups_together(share, seed):
    prompts = people_prompts()
    others, chosen = prompts.split(share, seed)
    assert len(others) + len(chosen) == len(prompts)
    assert not set(others.groups) & set(chosen.groups)
    assert len(set(chosen.groups)) == round(share * len(set(prompts.groups)))
    again = prompts.split(share, seed)[1]
    assert again.tokens == chosen.tokens
    assert prompts.split(share, seed + 1)[1].tokens != chosen.tokens


def test_picked_prompts_keep_their_runs():
    prompts = people_prompts()
    picked = prompts.pick([7, 3, 11])
    assert picked.tokens == tuple(prompts.tokens[place] for place in (7, 3, 11))
    assert picked.groups == tuple(prompts.groups[place] for place in (7, 3, 11))
    torch.testing.assert_close(picked.runs.samples.writes, prompts.runs.samples.writes[:, [7, 3, 11]], rtol=0, atol=0)
    some = prompts.some(50, 2)
    assert len(set(some.tokens)) == len(some) == 50
    assert some.tokens == prompts.some(50, 2).tokens != prompts.some(50, 3).tokens


def test_stored_runs_teach_what_calibrate_learns():
    (model, circuit), reference = people(), halves()[0].some(160, 0)
    stored = learn_from(model, circuit, reference, 3)
    usual = eics.calibrate(model, circuit, reference.tokens, group=reference.groups, terms="sheaf", seed=3).learned
    assert stored.fitted == usual.fitted
    assert sorted(map(str, stored.ids)) == sorted(map(str, usual.ids))
    assert stored.breadth == usual.breadth
    order = [usual.ids.index(id) for id in stored.ids]
    whole = (stored.reference.log_whole, usual.reference.log_whole[order])
    torch.testing.assert_close(*whole, rtol=1e-3, atol=5e-3)
    torch.testing.assert_close(stored.sheaf.regressions.r2, usual.sheaf.regressions.r2, rtol=1e-3, atol=1e-4)


def test_every_way_has_the_same_parts():
    (model, circuit), reference = people(), halves()[0].some(160, 0)
    found = Fitted.of(model, circuit, reference, 0, ["calibrated", "norms", "layers", "recomputed"])
    calibrating = sum(not place.fits for place in places_of(reference, 0))
    assert {len(part) for part in found.references.values()} == {calibrating} == {len(found.learned.ids)}
    assert list(found.ways) == ["calibrated", "norms", "layers", "recomputed"]
    node = found.targets[0]
    row = found.learned.sheaf.layout.nodes.index(node)
    fits = torch.tensor([place.fits for place in places_of(reference, 0)])
    mean = reference.runs.samples.writes[row][fits].double().mean(dim=0)  # fewer than the 256 that bases come from
    torch.testing.assert_close(found.mean(node), mean, rtol=1e-4, atol=1e-5)
