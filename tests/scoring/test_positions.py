"""What is usual at single positions: against loops over texts, merged as at once, and what files keep of it."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

import eics
from eics.errors import OptionError
from eics.models.prompts import as_prompts
from eics.scoring.calibration.sheaf.judge_positions import PositionJudge
from eics.scoring.calibration.sheaf.learned import TINY, Distances
from eics.scoring.calibration.sheaf.positions import Alarm, Positions
from eics.scoring.calibration.sheaf.samples import Layout, sample
from eics.scoring.options import CALIBRATED
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.learned import pooled_calibration, random_prompts, small

NODES = 4


def drawn(rng, lengths):
    """log d_v^2 of texts, (nodes, length) each, and the same as the distances of rows; the last node is judged once."""
    logs = [rng.normal(size=(NODES, length)) + rng.normal(size=(NODES, 1)) for length in lengths]
    allowed = torch.from_numpy(np.exp(np.concatenate(logs, axis=1))) - TINY
    counts = torch.ones_like(allowed)
    ends = np.cumsum(lengths)
    counts[-1] = 0
    counts[-1, ends - 1] = 1
    prompt = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
    return logs, Positions.of(Distances(allowed, allowed, allowed), counts, prompt, len(lengths))


def judged_values(logs, node):
    return logs[node][-1:] if node == NODES - 1 else logs[node]


@pytest.mark.parametrize("lengths", [[3, 1, 7, 4], [1, 1, 1], [2, 50]])
def test_mean_deviation_and_largest_z_are_those_of_loops(lengths):
    logs, positions = drawn(np.random.default_rng(0), lengths)
    mean, deviation = positions.usual
    largest = np.full(len(lengths), -np.inf)
    for node in range(NODES):
        pooled = np.concatenate([judged_values(own, node) for own in logs])
        assert float(mean[node]) == pytest.approx(pooled.mean())
        assert float(deviation[node]) == pytest.approx(pooled.std(ddof=1))
        for text, own in enumerate(logs):
            others = np.concatenate([judged_values(o, node) for i, o in enumerate(logs) if i != text])
            if len(others) < 2:
                continue
            here = (judged_values(own, node).max() - others.mean()) / others.std(ddof=1)
            largest[text] = max(largest[text], here)
    if min(len(logs) - 1, sum(lengths) - max(lengths)) > 1:
        np.testing.assert_allclose(positions.largest_z(torch.ones(NODES, dtype=torch.bool)), largest, rtol=1e-9)


def test_a_node_that_does_not_count_alarms_nobody():
    _, positions = drawn(np.random.default_rng(1), [4] * 6)
    judged = torch.tensor([True, True, False, False])
    fewer = Positions(*(getattr(positions, field.name)[:, :2] for field in dataclasses.fields(positions)))
    torch.testing.assert_close(positions.largest_z(judged), fewer.largest_z(judged[:2]))


def test_numbers_that_differ_in_the_twelfth_digit_keep_their_deviation():
    """A sum of squares would have lost it."""
    logs = 12.0 + 1e-9 * np.random.default_rng(2).normal(size=(NODES, 400))
    allowed = torch.from_numpy(np.exp(logs)) - TINY
    prompt = torch.arange(400) % 20
    positions = Positions.of(Distances(allowed, allowed, allowed), torch.ones_like(allowed), prompt, 20)
    np.testing.assert_allclose(positions.usual[1], 1e-9, rtol=0.2)


def test_usual_texts_of_mixed_lengths_alarm_as_often_as_the_level_says():
    """Positions of a text depend on each other; the alarm counts texts."""
    rng, alarms = np.random.default_rng(3), []
    for _ in range(150):
        lengths = rng.integers(2, 12, size=39)
        _, positions = drawn(rng, lengths)
        alarm = Alarm.of(positions, torch.ones(NODES, dtype=torch.bool))
        fresh, _ = drawn(rng, rng.integers(2, 12, size=8))
        for logs in fresh:
            z = positions.z(torch.from_numpy(logs))
            z[-1, :-1] = -math.inf
            alarms.append((alarm.p_value(float(z.max())), float(z.max()) >= alarm.threshold(0.1)))
    p_values, suspected = map(np.array, zip(*alarms, strict=True))
    for level in (0.05, 0.1, 0.5):
        assert abs(np.mean(p_values <= level) - level) < 0.025
    assert np.array_equal(p_values <= 0.1, suspected.astype(bool))


@pytest.mark.parametrize(("texts", "level"), [(19, 0.05), (20, 0.05), (99, 0.01), (9, 0.1), (30, 0.1), (7, 0.5)])
def test_the_threshold_is_the_least_z_with_such_a_p_value(texts, level):
    draw = torch.Generator().manual_seed(texts)
    alarm = Alarm(torch.randn(texts, generator=draw, dtype=torch.float64).sort().values)
    threshold = alarm.threshold(level)
    assert alarm.p_value(threshold) <= level
    assert alarm.p_value(math.nextafter(threshold, -math.inf)) > level
    assert Alarm(alarm.ordered[: math.ceil(1 / level) - 2]).threshold(level) is None


def test_the_first_token_is_apart():
    model, circuit = small()
    prompts = [[5, 9, 2, 40], [3, 1]]
    made = TransformerRun(run(model, prompts, circuit), circuit)
    spec = model.transformer
    layout = Layout.of(circuit, spec.width, parallel=spec.blocks[0].parallel)
    samples = sample(made, layout, "all")
    assert samples.prompt.tolist() == [0, 0, 0, 1]
    whole = sample(made, layout, "all", first=0)
    assert whole.prompt.tolist() == [0, 0, 0, 0, 1, 1]
    kept = torch.tensor([1, 2, 3, 5])
    for name in ("writes", "explained", "counts"):
        assert torch.equal(getattr(samples, name), getattr(whole, name)[:, kept])
    assert samples.counts[layout.judged.index("logits")].tolist() == [0, 0, 1, 1]


def test_records_keep_the_mean_over_positions_and_tracing_has_the_positions():
    """z of a record is that of the mean of d_v^2 over the positions that tracing judges."""
    model, circuit = small()
    calibration = pooled_calibration()
    learned, judge = calibration.learned, PositionJudge.of(calibration.learned)
    tokens = random_prompts(1, seed=3)[0]
    score = eics.score(model, circuit, tokens, preset="calibrated", terms="sheaf", calibration=calibration)
    trace = eics.trace(model, circuit, tokens, calibration=calibration)
    mean, deviation = (part.numpy() for part in judge.positions.usual)
    logs = trace.table * deviation[:, None] + mean[:, None]
    means = np.log(np.nanmean(np.exp(logs), axis=1))
    reference = learned.reference.log_allowed.numpy()
    expected = (means - reference.mean(axis=0)) / reference.std(axis=0, ddof=1)
    found = {term.node: term.z for term in score.nodes}
    for node, z in zip(learned.sheaf.layout.judged, expected, strict=True):
        if found[node] is not None:
            assert found[node] == pytest.approx(z, abs=2e-3)


def test_the_largest_z_of_a_text_among_the_others_is_kept_whatever_the_order():
    model, circuit = small()
    prompts = as_prompts(random_prompts(150))
    one = eics.calibrate(model, circuit, prompts, terms="sheaf", at="all")
    other = eics.calibrate(model, circuit, prompts[::-1], terms="sheaf", at="all", batch_size=3)
    for name in ("count", "mean", "deviation", "largest"):
        here, there = (getattr(c.learned.positions, name) for c in (one, other))
        torch.testing.assert_close(here, there, rtol=0, atol=1e-3)
    lengths = dict(zip((p.id for p in prompts), (len(p.tokens) for p in prompts), strict=True))
    heads = [place for place, name in enumerate(one.learned.sheaf.layout.judged) if name != "logits"]
    expected = torch.tensor([[lengths[id] - 1] * len(heads) for id in one.learned.ids], dtype=torch.float64)
    assert torch.equal(one.learned.positions.count[:, heads], expected)


def test_prompts_of_one_token_are_left_out_by_name():
    model, circuit = small()
    failures = {}
    prompts = [*random_prompts(120), [7]]
    calibration = eics.calibrate(model, circuit, prompts, terms="sheaf", at="all", failures=failures)
    assert failures == {120: "a prompt must have a second token: the first one is apart if all positions are judged"}
    score = eics.score(
        model, circuit, [[5, 6, 7], [7]], preset="calibrated", terms="sheaf", positions="all", calibration=calibration
    )
    assert [one.status for one in score] == ["ok", "failed"]
    assert "second token" in score[1].reason


def test_the_answer_cannot_be_the_first_token():
    model, circuit = small()
    failures = {}
    with pytest.raises(OptionError, match="answer position must not be the first token"):
        eics.calibrate(model, circuit, random_prompts(120), terms="sheaf", at="all", answer=0, failures=failures)
    assert len(failures) == 120


def test_adding_prompts_gives_the_positions_of_all_of_them():
    """As at once, in the bases of the first prompts: by the definition, from what the whole reference set teaches."""
    model, circuit = small()
    prompts = as_prompts(random_prompts(260))
    first = eics.calibrate(model, circuit, prompts[:160], terms="sheaf", at="all", keep_moments=True)
    added = eics.calibrate(model, circuit, prompts[160:], terms="sheaf", add_to=first)
    learned = added.learned
    assert len(learned.positions) == len(learned.ids) > len(first.learned.ids)
    by_id = {prompt.id: prompt for prompt in prompts}
    for place in (0, len(first.learned.ids) - 1, len(learned.ids) - 1):  # kept, kept, added
        prompt = by_id[learned.ids[place]]
        trace = eics.trace(model, circuit, list(prompt.tokens), calibration=added)
        mean, deviation = (part.numpy() for part in learned.positions.usual)
        logs = trace.table * deviation[:, None] + mean[:, None]
        judged = learned.reference.judged.numpy()
        found = learned.positions.largest[place].numpy()
        np.testing.assert_allclose(found[judged], np.nanmax(logs[judged], axis=1), atol=2e-3)


def test_files_keep_positions_and_older_ones_score_but_do_not_trace(tmp_path):
    model, circuit = small()
    calibration, path = pooled_calibration(), tmp_path / "usual.safetensors"
    eics.save_calibration(calibration, path)
    loaded = eics.load_calibration(path)
    assert loaded.sha256 == calibration.sha256
    assert torch.equal(loaded.learned.positions.largest, calibration.learned.positions.largest)
    assert version_of(path) == 4
    older = as_older(calibration)
    eics.save_calibration(older, tmp_path / "older.safetensors")
    assert version_of(tmp_path / "older.safetensors") == 3
    read = eics.load_calibration(tmp_path / "older.safetensors")
    assert read.learned.sheaf.first == 0  # it judges the first token, as it did when it was made
    prompt = random_prompts(1)[0]
    how = {"preset": "calibrated", "terms": "sheaf"}
    one, other = (eics.score(model, circuit, prompt, calibration=c, **how) for c in (older, read))
    assert (
        [n.z for n in one.nodes]
        == [n.z for n in other.nodes]
        != [n.z for n in eics.score(model, circuit, prompt, calibration=calibration, **how).nodes]
    )
    with pytest.raises(OptionError, match="older version, does not: calibrate again with --at all"):
        eics.trace(model, circuit, prompt, calibration=read)
    kept = eics.calibrate(model, circuit, random_prompts(120), terms="sheaf", at="all", keep_moments=True)
    with pytest.raises(OptionError, match="calibrate again on all prompts"):
        eics.calibrate(model, circuit, random_prompts(20, seed=8), terms="sheaf", add_to=as_older(kept))


def as_older(calibration):
    """As a version that kept no positions would have made it from the same maps."""
    learned = calibration.learned
    sheaf = dataclasses.replace(learned.sheaf, first=0)
    return dataclasses.replace(calibration, learned=dataclasses.replace(learned, sheaf=sheaf, positions=None))


def version_of(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["calibration"])["version"]


def test_a_damaged_table_of_positions_is_refused_by_name(tmp_path):
    calibration = pooled_calibration()
    positions = calibration.learned.positions
    damaged = dataclasses.replace(positions, mean=positions.mean * math.nan)
    learned = dataclasses.replace(calibration.learned, positions=damaged)
    eics.save_calibration(dataclasses.replace(calibration, learned=learned), tmp_path / "odd.safetensors")
    with pytest.raises(OptionError, match=r"finite numbers in 'sheaf:positions\.mean'"):
        eics.load_calibration(tmp_path / "odd.safetensors")


def test_what_is_not_learned_at_all_positions_is_refused():
    model, circuit = small()
    calibration = eics.calibrate(model, circuit, random_prompts(120), terms="sheaf")
    with pytest.raises(OptionError, match="This one is of the answer position: calibrate again with --at all"):
        eics.trace(model, circuit, [1, 2, 3], calibration=calibration)
    assert CALIBRATED.level == 0.05
