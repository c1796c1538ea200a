"""Two sets on the bundled model of people, from prompts to the document."""

import functools
import json

import numpy as np
import pytest
import torch
from scipy import stats

import eics
from eics.studies.comparison import set_rows
from eics.studies.comparison.prompt_sets import compare_prompt_sets
from eics.studies.comparison.set_passes import Passes
from eics.transformer.adapt import adapt
from support.learned import random_prompts, small, small_calibration
from support.prompt_sets import people, people_lines, table, usual
from support.tiny_models import some_circuit, tiny_module

PATCH = eics.Patch("m1", prompt="Fivi Mekett works as a", at="last")
HOW = {"preset": "calibrated", "terms": "sheaf"}


def lines(start, end, part=1):
    return people_lines(part)[start:end]


def compare(a, b, **how):
    return compare_prompt_sets(*people(), a, b, **{"calibration": usual(), "resamples": 200, **how})


@functools.cache
def patched():
    """Fifty prompts against fifty others on which m1 is changed."""
    return compare(lines(0, 50), lines(50, 100), interventions=[PATCH], names=("clean", "patched.jsonl"))


@functools.cache
def unchanged():
    return compare(lines(0, 24), lines(24, 48))


def without_60(count, seed=0):
    return [[token % 60 for token in tokens] for tokens in random_prompts(count, seed)]


def z_of(comparison, key):
    return np.array([list(row["z"].values()) for row in comparison.prompts if row["set"] == key])


def test_z_is_what_score_gives():
    scores = eics.score(*people(), lines(24, 48), calibration=usual(), **HOW)
    rows = {row["id"]: row["z"] for row in unchanged().prompts if row["set"] == "b"}
    for score in scores:
        for node in score.nodes:
            assert rows[score.id][node.node] == pytest.approx(node.z, abs=1e-3)


def test_interventions_are_in_force_on_b_alone():
    scores = eics.score(*people(), lines(50, 60), calibration=usual(), interventions=[PATCH], **HOW)
    rows = {row["id"]: row["z"] for row in patched().prompts}
    assert all(rows[one.id]["m1"] == pytest.approx({n.node: n.z for n in one.nodes}["m1"], abs=1e-3) for one in scores)
    clean = eics.score(*people(), lines(0, 5), calibration=usual(), **HOW)
    assert all(rows[one.id]["m1"] == pytest.approx({n.node: n.z for n in one.nodes}["m1"], abs=1e-3) for one in clean)


def test_a_changed_node_is_the_entry_and_everything_is_said_of_it():
    found = patched()
    assert found.entries[0] == found.nodes[0].node == "m1"
    a, b = z_of(found, "a"), z_of(found, "b")
    column = list(found.prompts[0]["z"]).index("m1")
    assert found["m1"].shift.value == pytest.approx(b[:, column].mean() - a[:, column].mean())
    assert found["m1"].p == pytest.approx(stats.mannwhitneyu(b[:, column], a[:, column]).pvalue)
    assert found["m1"].shift.low < found["m1"].shift.value < found["m1"].shift.high
    assert repr(found).startswith("SetComparison(clean and patched.jsonl, 50 and 50 prompts, 23 nodes; entries: m1")
    assert "\n" not in repr(found)
    assert found.sentences[0].startswith("The difference enters at m1 (+")


def test_write_shifts_are_in_standard_deviations_of_a():
    found, names = patched(), list(usual().learned.sheaf.layout.judged)
    (_, a), (_, b) = table(lines(0, 50)), table(lines(50, 100), [PATCH])
    for name in ("m1", "m2", "a0.h3"):
        node = names.index(name)
        expected = (b[:, node].mean() - a[:, node].mean()) / a[:, node].std(ddof=1)
        assert found[name].write_shift.value == pytest.approx(expected, abs=1e-3)
        assert found[name].write_p == pytest.approx(stats.mannwhitneyu(b[:, node], a[:, node]).pvalue)


def test_the_document():
    record = patched().to_record()
    again = json.loads(json.dumps(record, allow_nan=False))
    model, circuit = people()
    assert (again["format"], again["version"], again["kind"]) == ("eics-comparison", 1, "prompts")
    assert again["circuit"] == circuit.label()
    assert again["edges"] == [str(edge) for edge in circuit.edges]
    assert again["fingerprint"] == model.fingerprint()
    assert again["calibration"] == usual().sha256
    assert (again["level"], again["paired"], again["grouped"]) == (0.05, False, False)
    assert again["sets"]["b"] == {"name": "patched.jsonl", "prompts": 50, "compared": 50, "groups": 50, "failed": 0}
    assert [node["node"] for node in again["nodes"]] == [node.node for node in patched().nodes]
    assert set(again["nodes"][0]["shift"]) == {"value", "low", "high"}
    first = again["prompts"][0]
    assert (first["set"], first["id"], first["prompt"]) == ("a", lines(0, 1)[0]["id"], lines(0, 1)[0]["prompt"])


def test_order_of_prompts_and_batches_change_nothing():
    turned = compare(lines(0, 24)[::-1], lines(24, 48)[::-1], batch_size=5)
    one, other = unchanged(), turned
    for key in "ab":
        assert z_of(other, key)[::-1] == pytest.approx(z_of(one, key), abs=1e-3)
    for node in one.nodes:
        assert other[node.node].p == pytest.approx(node.p, abs=1e-6)
        assert other[node.node].shift.low == pytest.approx(node.shift.low, abs=1e-3)


def test_a_pair_is_two_prompts_of_one_id():
    """The same prompts with and without the change: signed ranks, whatever order B is in."""
    found = compare(lines(0, 24), lines(0, 24)[::-1], interventions=[PATCH])
    assert found.to_record()["paired"]
    a, b = ({row["id"]: row["z"]["m2"] for row in found.prompts if row["set"] == key} for key in "ab")
    expected = stats.wilcoxon([b[id] - a[id] for id in a]).pvalue
    assert found["m2"].p == pytest.approx(expected)
    apart = compare(lines(0, 24), lines(0, 24)[::-1], interventions=[PATCH], paired=False)
    assert not apart.to_record()["paired"]
    assert apart["m2"].p == pytest.approx(stats.mannwhitneyu(list(b.values()), list(a.values())).pvalue)


def test_groups_are_what_is_tested():
    half = [line["relation"] + line["person"][0] for line in lines(0, 100)]
    found = compare(lines(0, 50), lines(50, 100), group_a=half[:50], group_b=half[50:])
    assert found.sets["a"].groups == len(set(half[:50]))
    means = [
        [z_of(found, key)[np.array(groups) == group, 0].mean() for group in set(groups)]
        for key, groups in (("a", half[:50]), ("b", half[50:]))
    ]
    node = next(iter(found.prompts[0]["z"]))
    assert found[node].p == pytest.approx(stats.mannwhitneyu(*means).pvalue)
    assert found.to_record()["prompts"][0]["group"] == half[0]


def test_without_a_calibration_only_what_taught_nothing_is_compared():
    a, b = lines(0, 200), lines(0, 60, part=0)
    groups = [[line["person"] for line in own] for own in (a, b)]
    seen = []
    found = compare(a, b, calibration=None, group_a=groups[0], group_b=groups[1], seed=3, tick=seen.append)
    made = eics.calibrate(*people(), a, group=groups[0], terms="sheaf", seed=3)
    assert sorted(made.learned.ids) == sorted(row["id"] for row in found.prompts if row["set"] == "a")
    assert found.to_record()["calibration"] is None
    assert any(f"{made.learned.fitted} prompts of set A taught one" in sentence for sentence in found.sentences)
    assert sum(seen) == 260
    scores = eics.score(*people(), b, calibration=made, **HOW)
    rows = {row["id"]: row["z"] for row in found.prompts if row["set"] == "b"}
    assert rows[scores[0].id]["m1"] == pytest.approx({n.node: n.z for n in scores[0].nodes}["m1"], abs=1e-3)


def test_prompts_of_b_whose_group_taught_are_left_out():
    a, b = lines(0, 150), lines(150, 300)
    groups = [[line["template"] + line["person"][:2] for line in own] for own in (a, b)]
    found = compare(a, b, calibration=None, group_a=groups[0], group_b=groups[1])
    taught = {line["id"] for line in a} - {row["id"] for row in found.prompts if row["set"] == "a"}
    of = dict(zip([line["id"] for line in a + b], groups[0] + groups[1], strict=True))
    expected = {line["id"] for line in b} - {id for id in of if of[id] in {of[id] for id in taught}}
    assert {row["id"] for row in found.prompts if row["set"] == "b"} == expected
    assert 20 <= len(expected) < 150


def test_of_the_prompts_that_a_calibration_was_made_from_those_that_taught_are_left_out():
    reference = people_lines(0)
    found = compare(reference, lines(0, 60))
    compared = {row["id"] for row in found.prompts if row["set"] == "a"}
    numbered = {reference[number]["id"] for number in usual().learned.ids}
    assert compared == numbered
    assert any("The calibration was made from set A" in sentence for sentence in found.sentences)
    few = compare(lines(0, 60) + reference[:2], lines(60, 120))
    assert few.sets["a"].compared == 62


def test_an_interrupted_run_resumes_to_the_same_numbers(tmp_path, monkeypatch):
    a, b = lines(0, 120), lines(120, 160)
    how = {"calibration": None, "batch_size": 16, "seed": 1}
    whole = compare(a, b, out=tmp_path / "whole", **how).to_record()

    class Stop(Exception):
        pass

    calls = []
    rows = Passes.rows

    def interrupted(self, prompts):
        calls.append(len(prompts))
        if len(calls) == 3:
            raise Stop
        return rows(self, prompts)

    with monkeypatch.context() as patch:
        patch.setattr(Passes, "rows", interrupted)
        with pytest.raises(Stop):
            compare(a, b, out=tmp_path / "cut", **how)
    kept = (tmp_path / "cut" / "rows.jsonl").read_text().splitlines()
    assert 16 <= len(kept) < 64
    with (tmp_path / "cut" / "rows.jsonl").open("a") as file:
        file.write('{"set": "a", "id"')  # the line that was being written
    monkeypatch.setattr(set_rows, "save_calibration", None)  # the one on disk is read
    assert compare(a, b, out=tmp_path / "cut", resume=True, **how).to_record() == whole
    for name in ("compare.json", "settings.json"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert json.loads((tmp_path / "whole" / "compare.json").read_text()) == json.loads(json.dumps(whole))
    with pytest.raises(eics.OptionError, match="already holds a run"):
        compare(a, b, out=tmp_path / "cut", **how)
    with pytest.raises(eics.RecordError, match="seed"):
        compare(a, b, out=tmp_path / "cut", resume=True, **(how | {"seed": 2}))


def test_interventions_and_groups_belong_to_a_run(tmp_path):
    how = {"out": tmp_path / "run", "resamples": 2}
    compare(lines(0, 20), lines(20, 40), **how)
    with pytest.raises(eics.RecordError, match="interventions"):
        compare(lines(0, 20), lines(20, 40), resume=True, interventions=[PATCH], **how)
    groups = {"group_a": list(range(20)), "group_b": list(range(20))}
    with pytest.raises(eics.RecordError, match="groups_a"):
        compare(lines(0, 20), lines(20, 40), resume=True, **groups, **how)
    assert compare(lines(0, 20), lines(20, 40), resume=True, level=0.2, **how).to_record()["level"] == 0.2
    compare(lines(0, 20), lines(20, 40), overwrite=True, interventions=[PATCH], **how)


@pytest.mark.parametrize("family", ["gemma2", "gpt_neox", "gpt2"])
def test_every_family_and_other_read_outs(family):
    model, circuit = small(family)
    calibration = eics.calibrate(
        model, circuit, random_prompts(120), terms="sheaf", readout="tokens", tokens=[3, 4], answer=-2
    )
    found = compare_prompt_sets(
        model, circuit, random_prompts(20, 5), random_prompts(20, 6), calibration=calibration, resamples=20
    )
    assert len(found.nodes) == len(calibration.learned.sheaf.layout.judged)
    again = compare_prompt_sets(
        model,
        circuit,
        random_prompts(20, 5),
        random_prompts(20, 6),
        calibration=calibration,
        resamples=20,
        batch_size=1,
    )
    assert z_of(again, "b") == pytest.approx(z_of(found, "b"), abs=1e-3)


def test_prompts_that_fail_are_counted_and_named():
    model, circuit = small()
    bad = [*random_prompts(21, 5), [999], []]
    found = compare_prompt_sets(model, circuit, bad, random_prompts(20, 6), calibration=small_calibration())
    assert found.sets["a"].to_record() == {"name": "A", "prompts": 23, "compared": 21, "groups": 21, "failed": 2}
    assert any(s.startswith("2 of 23 prompts of set A failed, 21 first: token ids must be") for s in found.sentences)


def test_a_prompt_whose_activations_are_not_finite_fails_alone():
    module = tiny_module("llama", torch.float32)
    model = adapt(module)
    circuit = some_circuit(model)
    module.model.embed_tokens.weight.data[60] = float("nan")
    calibration = eics.calibrate(model, circuit, without_60(120), terms="sheaf")
    prompts = without_60(21, 5)
    prompts[4] = [3, 60, 5, 7]
    found = compare_prompt_sets(model, circuit, without_60(20, 6), prompts, calibration=calibration, resamples=20)
    alone = compare_prompt_sets(
        model, circuit, without_60(20, 6), prompts[:4] + prompts[5:], calibration=calibration, resamples=20
    )
    assert found.sets["b"].compared == 20
    assert "not finite" in found.sets["b"].failures[4]
    assert z_of(found, "b") == pytest.approx(z_of(alone, "b"), abs=1e-3)
