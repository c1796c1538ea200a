"""Trials: damaged runs belong to their damages, and what is summed up of them is what a loop finds."""

import numpy as np
import pytest
import torch

from eics.studies.detection.fitted import Fitted
from eics.studies.detection.measure import run_trial, summarise
from eics.studies.detection.observations import divergence, observe_batch
from eics.studies.detection.plan import KINDS, OFF, intervention
from eics.studies.detection.summary import Verdicts, auroc
from eics.transformer.interventions.kinds import Patch
from support.detection import OFF_CIRCUIT, PER_PROMPT, fitted, halves, people, trial


def test_every_run_is_that_of_its_damage():
    """Run again alone, a damage leaves the same behind; so no row of a batch was given to another damage."""
    (model, circuit), whole = people(), trial()
    for row in range(0, len(whole.damages), 17):
        damage = whole.damages[row]
        change = intervention(damage, whole.test.tokens, fitted().mean)
        tokens = [whole.test.tokens[damage.prompt]]
        alone = observe_batch(model, circuit, tokens, [[change]], distributions=True)
        stored = whole.runs.rows(torch.tensor([row]))
        torch.testing.assert_close(stored.samples.writes, alone.samples.writes, rtol=1e-4, atol=1e-5)
        clean = whole.test.runs.log_probabilities[damage.prompt]
        kl = divergence(clean[None], alone.log_probabilities)
        assert whole.kl[row] == pytest.approx(float(kl[0]), rel=1e-3, abs=1e-6)
        assert whole.changed[row] == float(alone.predicted[0] != clean.argmax())


def test_the_divergence_is_that_of_the_definition():
    whole = trial()
    p = whole.test.runs.log_probabilities[:4].double()
    q = whole.test.runs.log_probabilities[4:8].double()
    by_hand = (p.exp() * (p - q)).sum(dim=1)
    torch.testing.assert_close(divergence(p, q).double(), by_hand, rtol=1e-6, atol=1e-9)


def test_every_prompt_is_damaged_as_often_as_asked():
    whole = trial()
    for kind, count in (PER_PROMPT | {OFF: OFF_CIRCUIT}).items():
        prompts = whole.prompts(whole.of_kind(kind))
        assert np.bincount(prompts).tolist() == [count] * len(whole.test)
    assert sum(len(whole.of_kind(kind)) for kind in (*KINDS, OFF)) == len(whole.damages) == len(whole.runs)


def test_damage_outside_the_circuit_exchanges_a_write_there():
    """Every node of the circuit still does what it does with what it reads."""
    (_, circuit), whole = people(), trial()
    rows = whole.of_kind(OFF)
    damages = [whole.damages[row] for row in rows]
    assert not {damage.node for damage in damages} & set(circuit.order)
    assert len({damage.node for damage in damages}) > 1
    changes = [intervention(damage, whole.test.tokens, fitted().mean) for damage in damages]
    assert {type(change) for change in changes} == {Patch}
    groups = whole.test.groups
    assert all(groups[damage.donor] != groups[damage.prompt] for damage in damages)
    recomputed = whole.runs.rows(torch.from_numpy(rows)).recomputed
    assert float(recomputed.max()) < 1e-4


def test_no_damage_outside_unless_asked_for():
    (model, circuit), some = people(), halves()[1].some(3, 0)
    runs = run_trial(model, circuit, fitted(), some, {"write": 1}, seed=0)
    assert [damage.kind for damage in runs.damages] == ["write"] * 3
    found = summarise(runs, ["calibrated"], ["write", "read"])
    assert found[OFF] == found["kinds"]["read"] == {}
    assert list(found["effect"]) == ["write"]


def test_a_summary_is_what_loops_find():
    whole = trial()
    found = summarise(whole, ["calibrated", "norms"], KINDS)
    clean = Verdicts.of(fitted().judge(whole.test.runs))
    for kind in KINDS:
        rows = whole.of_kind(kind)
        damaged = Verdicts.of(fitted().judge(whole.runs.rows(torch.from_numpy(rows))))
        first: dict[str, list[float]] = {}
        for place, row in enumerate(rows):
            node = whole.damages[row].node
            largest = damaged.z[place].argmax()
            first.setdefault(node, []).append(float(fitted().nodes[largest] == node))
        expected = np.mean([np.mean(values) for values in first.values()])
        assert found["kinds"][kind]["calibrated"]["first"]["value"] == pytest.approx(expected)
        assert found["by_node"][kind] == pytest.approx({node: np.mean(values) for node, values in first.items()})
        assert found["effect"][kind]["changed"] == pytest.approx(np.mean(whole.changed[rows]))
        assert found["effect"][kind]["median_kl"] == pytest.approx(np.median(whole.kl[rows]))
    rows = whole.of_kind(OFF)
    damaged = Verdicts.of(fitted().judge(whole.runs.rows(torch.from_numpy(rows))))
    changed = whole.changed[rows] > 0
    outside = found[OFF]["calibrated"]
    assert outside["all"]["value"] == pytest.approx(auroc(damaged.largest, clean.largest))
    assert outside["answer kept"]["runs"] == int((~changed).sum())
    assert outside["answer kept"]["value"] == pytest.approx(auroc(damaged.largest[~changed], clean.largest))
    assert found["calm"]["calibrated"]["prompts"] == found["test"] == 24
    assert found["kinds"]["write"]["calibrated"]["first"]["value"] > 0.7  # it works on this model
    assert found["kinds"]["write"]["norms"]["first"]["value"] < 0.3


def test_another_calibration_judges_the_same_runs():
    whole, (model, circuit) = trial(), people()
    fewer = Fitted.of(model, circuit, halves()[0].some(150, 1), 0, ["calibrated"])
    found = summarise(whole, ["calibrated"], ["write"], fitted=fewer)
    own = summarise(whole, ["calibrated"], ["write"])
    assert (found["fitted"], found["calibrated"]) == (fewer.learned.fitted, len(fewer.learned.ids))
    assert found["kinds"]["write"]["calibrated"]["first"] != own["kinds"]["write"]["calibrated"]["first"]


def test_a_trial_follows_from_its_seed():
    (model, circuit), some = people(), halves()[1].some(4, 0)
    one, same, other = (run_trial(model, circuit, fitted(), some, {"write": 2}, seed=seed) for seed in (3, 3, 4))
    assert one.damages == same.damages != other.damages
    torch.testing.assert_close(one.runs.samples.writes, same.runs.samples.writes, rtol=0, atol=0)


def test_progress_counts_every_damaged_run():
    (model, circuit), some = people(), halves()[1].some(4, 0)
    ticks: list[int] = []
    run_trial(model, circuit, fitted(), some, {"write": 2, "read": 1}, seed=0, off=1, tick=ticks.append)
    assert sum(ticks) == 16


def test_targets_can_be_judged_and_are_not_the_read_out():
    reasons = fitted().learned.sheaf.reasons
    assert "logits" not in fitted().targets
    assert not set(fitted().targets) & set(reasons)
    assert set(fitted().targets) | set(reasons) | {"logits"} == set(fitted().nodes)
