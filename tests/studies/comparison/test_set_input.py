"""Bad input is one line each; small, unlike and paired sets are said to be so."""

import dataclasses

import pytest

import eics
from eics.errors import EICSError
from eics.studies.comparison.prompt_sets import compare_prompt_sets
from eics.studies.comparison.set_input import PromptSet, is_paired
from support.learned import random_prompts, small, small_calibration
from support.tiny_models import full_circuit, tiny_module

A, B = random_prompts(30, 5), random_prompts(30, 6)
MANY = random_prompts(120, 7)


def compare(a=A, b=B, *, model=None, circuit=None, calibration="usual", **how):
    usual = small_calibration() if calibration == "usual" else calibration
    own = small()
    return compare_prompt_sets(
        model or own[0], circuit or own[1], a, b, **{"calibration": usual, "resamples": 20, **how}
    )


def with_ids(prompts, ids):
    return [{"tokens": tokens, "id": id} for tokens, id in zip(prompts, ids, strict=True)]


def named(prompts, prefix="p"):
    return with_ids(prompts, [f"{prefix}{row}" for row in range(len(prompts))])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": []}, "Set A must have at least 20 prompts that the model can run. Of 0, 0 are such."),
        ({"b": B[:19]}, "Set B must have at least 20 prompts that the model can run. Of 19, 19 are such."),
        ({"b": B[:19] + [[999]] * 5}, "Of 24, 19 are such. Prompt 19 failed: token ids must be 0 to 60"),
        ({"b": A[::-1]}, "The two sets must differ. Set A and set B have the same 30 prompts"),
        ({"b": A, "names": ("x.jsonl", "y.jsonl")}, "Set A (x.jsonl) and set B (y.jsonl) have the same"),
        ({"calibration": None}, "Without a calibration, which is then fitted on it, set A must have at least 100"),
        ({"a": MANY, "b": B + MANY[3:5], "calibration": None}, "2 of B's are in A (30 first)"),
        ({"group_a": list(range(30))}, "'group_b' option must be given if that of the other set is"),
        ({"group_b": list(range(30))}, "'group_a' option must be given if that of the other set is"),
        (
            {"group_a": [1] * 29 + [None], "group_b": [1] * 30},
            "Set A: The 'group' option must be given for every prompt",
        ),
        (
            {"group_a": [1, 2], "group_b": [1] * 30},
            "Set A: The 'group' option must be a list with one for each of the 30",
        ),
        ({"group_a": [1] * 30, "group_b": [2] * 30}, "Set A must have at least 2 groups to compare. It has 1."),
        ({"level": 0.0}, "'level' option must be a number > 0"),
        ({"level": 1.0}, "'level' option must be a number > 0 and < 1"),
        ({"level": "often"}, "'level' option must be a number"),
        ({"seed": -1}, "'seed' option must be"),
        ({"batch_size": 0}, "'batch_size' option must be a whole number >= 1"),
        ({"resamples": 0}, "'resamples' option must be a whole number >= 1"),
        ({"names": "AB"}, "'names' option must be two texts"),
        ({"names": ("A",)}, "'names' option must be two texts"),
        ({"paired": "yes"}, "'paired' option must be True or False"),
        ({"a": A[:25], "paired": True}, "Paired sets must have equal ids. 25 is in B alone"),
        ({"calibration": 3}, "'calibration' option must be an eics.Calibration or the path"),
        ({"calibration": "nowhere.safetensors"}, "nowhere.safetensors"),
        (
            {"interventions": {"no such id": []}},
            "'interventions' option must be a list, or a dictionary by the prompts'",
        ),
        ({"resume": True}, "--resume needs --out"),
        ({"circuit": "people"}, "The circuit must be an eics.Circuit"),
        ({"a": {1, 2}}, "The prompts must be text"),
    ],
)
def test_bad_input_is_one_line(given, says):
    with pytest.raises(EICSError) as caught:
        compare(**given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_calibration_of_something_else_is_refused():
    model, _ = small()
    with pytest.raises(eics.OptionError, match="same circuit"):
        compare(circuit=full_circuit(model))
    other = tiny_module("llama")
    with pytest.raises(eics.OptionError, match="same dtype"):
        compare(model=other)
    changed = tiny_module("llama", model.transformer.unembed.dtype)
    changed.lm_head.weight.data[0, 0] += 1.0
    with pytest.raises(eics.OptionError, match="weights"):
        compare(model=changed)
    assert compare(model=changed, allow_changed_weights=True).nodes
    without = dataclasses.replace(small_calibration(), learned=None)
    with pytest.raises(eics.OptionError, match="a calibration that has a learned sheaf"):
        compare(calibration=without)


@pytest.mark.parametrize(
    ("ids_a", "ids_b", "paired", "expected"),
    [
        (["x", "y"], ["y", "x"], None, True),
        (["x", "y"], ["y", "x"], False, False),
        ([0, 1], [0, 1], None, False),
        ([0, 1], [1, 0], True, True),
        ([17, 40], [17, 40], None, False),  # the same lines, drawn by one seed from two files
        (["a.jsonl:0", "b.jsonl:0"], ["a.jsonl:0", "b.jsonl:0"], None, False),
        (["x", "y"], ["x", "z"], None, False),
    ],
)
def test_which_ids_make_pairs(ids_a, ids_b, paired, expected):
    model, _ = small()
    a, b = (PromptSet.of(key, key, model, with_ids(A[:2], ids), None) for key, ids in (("a", ids_a), ("b", ids_b)))
    assert is_paired(a, b, paired) is expected


def test_default_ids_are_no_pairs():
    assert not compare().to_record()["paired"]
    assert compare(paired=True).to_record()["paired"]
    assert compare(named(A), named(B)).to_record()["paired"]


def test_pairs_of_which_one_fails_are_left_out():
    found = compare(named([*A, [999]]), named([[999], *B]))
    assert [found.sets[key].compared for key in "ab"] == [29, 29]
    assert [len(found.sets[key].failures) for key in "ab"] == [1, 1]
    with pytest.raises(eics.OptionError, match=r"at least 20 pairs of which both prompts can be compared\. Of 40, 15"):
        compare(named(A[:20] + [[999]] * 5 + A[:15]), named([[999]] * 20 + B[:20]))


def test_the_prompts_of_a_pair_belong_to_one_group():
    groups = {"group_a": list(range(30)), "group_b": [*range(29), 7]}
    with pytest.raises(eics.OptionError, match=r"must belong to one group\. Those of 'p29' do not"):
        compare(named(A), named(B), **groups)


def test_a_repeated_prompt_counts_once():
    found = compare(A[:20] * 3, B)
    assert found.sets["a"].to_record() | {"name": ""} == {
        "name": "", "prompts": 60, "compared": 60, "groups": 20, "failed": 0,
    }  # fmt: skip
    once = compare(A[:20], B)
    assert [found[node.node].p for node in once.nodes] == pytest.approx([node.p for node in once.nodes], rel=1e-3)


def said(found, words):
    return [sentence for sentence in found.sentences if words in sentence]


def test_sets_unlike_the_reference_are_said_to_be():
    longer = compare(A, random_prompts(30, 6, least=15, most=20))
    assert said(longer, "30 of 30 prompts of set B are longer than any of the reference (4 to 8 tokens)")
    assert said(compare(random_prompts(30, 6, least=2, most=3), B), "30 of 30 prompts of set A are shorter")
    assert not said(compare(), "of the reference (")


def test_few_groups_are_said_to_be_few():
    found = compare(group_a=[row % 3 for row in range(30)], group_b=[f"b{row % 3}" for row in range(30)])
    assert said(found, "Set A has 3 groups to compare: small differences go unseen")
    assert said(found, "no single node of")
    assert not said(compare(), "small differences")


def test_prompts_in_both_sets_are_said_to_be():
    assert said(compare(A, [*A[:6], *B]), "The sets have 6 prompts in common")


def test_a_narrow_set_that_taught_is_said_to_be_narrow():
    narrow = [[*tokens[:-1], 3] for tokens in MANY]
    assert said(compare(narrow, B, calibration=None), "As a reference, set A is narrow: its prompts end in 1.00 tokens")
