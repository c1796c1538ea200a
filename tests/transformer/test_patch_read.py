"""Patched reads: an MLP keeps what its parents write and takes the rest of its read from another prompt."""

import dataclasses
import json

import pytest
import torch

import eics
from eics.circuits.graph import Circuit
from eics.errors import CircuitError, ModelError, OptionError
from eics.transformer.adapt import adapt
from eics.transformer.forward import run
from eics.transformer.interventions import Noise, Patch, PatchRead, as_interventions
from eics.transformer.interventions.donors import bind, with_writes
from eics.transformer.linearize import Linearizer, TransformerRun
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5]]
DONOR = [8, 21, 2, 34, 5]
CIRCUIT = Circuit(["input->a0.h1", "a0.h1->m1", "a0.h3->m1", "input->m1", "m0->m1", "m1->a2.h0", "m1->logits"])
PARENTS = ("a0.h1", "a0.h3", "input", "m0")


def patched(model, circuit, interventions, prompts=PROMPTS, further=()):
    """A pass with the same interventions on every prompt; everything is recorded."""
    bound = bind(model, circuit, as_interventions(interventions))
    rows, passes = with_writes(model, [bound] * len(prompts))
    assert passes == 1
    return run(model, prompts, logits=True, interventions=[[*further, *row] for row in rows])


def parents_wrote(state, row, position, parents=PARENTS):
    return sum(state.write(parent)[row, position] for parent in parents)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_read_keeps_the_parents_and_takes_the_rest_from_the_donor(family):
    model = tiny_model(family)
    clean, donor = run(model, PROMPTS, logits=True), run(model, [DONOR])
    state = patched(model, CIRCUIT, PatchRead("m1", tokens=DONOR, at="last"))
    expected = clean.mlp_reads[1].clone()
    for row, tokens in enumerate(PROMPTS):
        at = len(tokens) - 1
        rest = donor.mlp_reads[1][0, -1] - parents_wrote(donor, 0, -1)
        expected[row, at] = rest + parents_wrote(clean, row, at)
    torch.testing.assert_close(state.mlp_reads[1], expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(state.mlp_reads[1], clean.mlp_reads[1])
    assert not torch.allclose(state.logits, clean.logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_node_writes_its_own_function_of_the_changed_read(family):
    """And nothing else sees the change: the stream goes on with its value, plus what the node now writes."""
    model = tiny_model(family)
    clean = run(model, PROMPTS)
    state = patched(model, CIRCUIT, PatchRead("m1", tokens=DONOR, at="last"))
    own = Linearizer(TransformerRun(state, CIRCUIT), frozen=False).map(eics.Node.parse("m1"), None).function
    inside = state.valid.unsqueeze(2)
    torch.testing.assert_close(state.write("m1") * inside, own * inside, rtol=1e-6, atol=1e-6)
    assert torch.equal(state.attention_reads[1], clean.attention_reads[1])
    for head in range(4):
        assert torch.equal(state.write(f"a1.h{head}"), clean.write(f"a1.h{head}"))
    past = clean.attention_reads[2] - clean.write("m1")
    torch.testing.assert_close(state.attention_reads[2] - state.write("m1"), past, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_donor_that_is_the_prompt_itself_changes_nothing(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    for at in ("last", "all", [1, -1]):
        for tokens in PROMPTS:
            same = PatchRead("m2", tokens=tokens, at=at)
            before = eics.score(model, circuit, tokens, mode="fast", preset="well-posed")
            after = eics.score(model, circuit, tokens, mode="fast", preset="well-posed", interventions=same)
            for name in ("eics", "c_sh", "dei"):
                assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-6, abs=1e-9)
            (record,) = after.interventions
            assert record["change_norm"] < 1e-9 * record["read_norm"]


@pytest.mark.parametrize("family", FAMILIES)
def test_other_prompts_of_the_batch_are_untouched_and_padding_does_not_matter(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    change = PatchRead("m2", tokens=DONOR, at="last")
    how = {"mode": "fast", "preset": "well-posed"}
    clean = eics.score(model, circuit, PROMPTS, **how)
    together = eics.score(model, circuit, PROMPTS, interventions={1: [change]}, **how)
    assert [score.interventions for score in (together[0], together[2])] == [[], []]
    for row in (0, 2):
        assert (together[row].eics, together[row].c_sh) == (clean[row].eics, clean[row].c_sh)
    alone = eics.score(model, circuit, PROMPTS[1], interventions=change, **how)
    for name in ("eics", "c_sh", "dei"):
        assert getattr(together[1], name) == pytest.approx(getattr(alone, name), rel=1e-6, abs=1e-9)
    assert together[1].c_sh != pytest.approx(clean[1].c_sh, rel=1e-6)


def test_parents_count_as_they_are_in_this_run():
    """A parent that is damaged itself, and one that has its read patched, count with what they then write."""
    model = tiny_model("llama")
    donor = run(model, [DONOR])
    for further in (Noise("a0.h1", 0.7), Noise("m0", 0.7)):
        state = patched(model, CIRCUIT, PatchRead("m1", tokens=DONOR, at="last"), further=[further])
        for row, tokens in enumerate(PROMPTS):
            at = len(tokens) - 1
            rest = donor.mlp_reads[1][0, -1] - parents_wrote(donor, 0, -1)
            expected = rest + parents_wrote(state, row, at)
            torch.testing.assert_close(state.mlp_reads[1][row, at], expected, rtol=1e-9, atol=1e-9)
    both = [PatchRead("m0", tokens=DONOR, at="last"), PatchRead("m1", tokens=DONOR, at="last")]
    state = patched(model, CIRCUIT, both)
    rest = donor.mlp_reads[1][0, -1] - parents_wrote(donor, 0, -1)
    torch.testing.assert_close(state.mlp_reads[1][0, 5], rest + parents_wrote(state, 0, 5), rtol=1e-9, atol=1e-9)


def test_strength_and_positions():
    model = tiny_model("gpt2")
    donor = [5, 4, 3, 2]
    clean, full = run(model, PROMPTS[1:2]), patched(model, CIRCUIT, PatchRead("m1", tokens=donor), PROMPTS[1:2])
    half = patched(model, CIRCUIT, PatchRead("m1", 0.5, tokens=donor), PROMPTS[1:2])
    between = (clean.mlp_reads[1] + full.mlp_reads[1]) / 2
    torch.testing.assert_close(half.mlp_reads[1], between, rtol=1e-9, atol=1e-9)
    some = patched(model, CIRCUIT, PatchRead("m1", tokens=donor, at=[0, -2]), PROMPTS[1:2])
    changed = (some.mlp_reads[1] - clean.mlp_reads[1]).abs().sum(dim=2)[0] > 1e-9
    assert changed.tolist() == [True, False, True, False]


def test_a_node_without_parents_reads_the_donor_alone():
    """With its whole read from the donor it writes what it writes there."""
    model = tiny_model("gemma2")
    donor = run(model, [DONOR])
    for circuit in (Circuit(["m1->logits"]), Circuit(["input->logits"])):
        state = patched(model, circuit, PatchRead("m1", tokens=DONOR, at="last"))
        torch.testing.assert_close(state.write("m1")[0, 5], donor.write("m1")[0, -1], rtol=1e-9, atol=1e-9)


def test_with_every_upstream_node_as_parent_only_biases_could_come_from_the_donor():
    """Everything that is read is kept, so nothing changes: the same bias of the attention is in both runs."""
    for family in FAMILIES:
        model = tiny_model(family)
        clean = run(model, PROMPTS)
        state = patched(model, full_circuit(model), PatchRead("m1", tokens=DONOR, at="last"))
        torch.testing.assert_close(state.mlp_reads[1], clean.mlp_reads[1], rtol=1e-9, atol=1e-6)


def test_records_say_what_was_done_and_from_which_parents(tmp_path):
    model = tiny_model("gpt2")
    change = {"kind": "patch_read", "node": "m1", "tokens": DONOR, "at": "last"}
    score = eics.score(model, CIRCUIT, PROMPTS[0], mode="fast", interventions=change)
    (record,) = score.interventions
    said = {"kind": "patch_read", "node": "m1", "at": "last", "tokens": DONOR, "parents": sorted(PARENTS)}
    assert said.items() <= (record | {"parents": sorted(record["parents"])}).items()
    assert record["read_norm"] > 0 < record["change_norm"]
    assert "write_norm" not in record
    assert score.options["interventions"][0]["parents"] == record["parents"]
    assert score.forward_passes == 2
    json.dumps(score.to_record(), allow_nan=False)
    eics.write_records([score], tmp_path / "a.parquet")
    assert eics.read_records(tmp_path / "a.parquet")[0].interventions == score.interventions


def test_random_circuits_are_shown_the_same_damage():
    """Parents are those of the circuit that is scored, not of the random one."""
    model = tiny_model("llama")
    change = PatchRead("m1", tokens=DONOR, at="last")
    compared = eics.score(model, CIRCUIT, PROMPTS, mode="fast", interventions=change, against_random=2)
    assert all(score.status != "failed" for score in compared)
    bound = bind(model, CIRCUIT, [change])
    assert set(bind(model, some_circuit(model), bound)[0].parents) == set(PARENTS)


def test_only_an_mlp_has_a_read_of_its_own():
    for node in ("a1.h2", "input"):
        with pytest.raises(OptionError, match=f"'node' option must be an MLP, .* share what they read. Got '{node}'"):
            PatchRead(node, tokens=DONOR)
    with pytest.raises(OptionError, match="one that writes"):
        PatchRead("logits", tokens=DONOR)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: PatchRead("m1"), OptionError, r"the other prompt of a patch \(or its 'tokens', or the 'rest' itself"),
        (lambda: PatchRead("m1", prompt=[1]), OptionError, "token ids go into 'tokens'"),
        (lambda: PatchRead("m1", 2, tokens=[1]), OptionError, "at most 1 to patch_read"),
        (lambda: PatchRead("m1", tokens=[1], at="first"), OptionError, "'at' option must be"),
        (lambda: PatchRead("m1", tokens=[1], parents="m0"), OptionError, "'parents' option must be a list"),
        (lambda: PatchRead("m1", tokens=[1], parents=[3]), OptionError, "'parents' option must be a list"),
        (lambda: PatchRead("m9", tokens=[1]), CircuitError, "layers 0 to 2"),
        (lambda: PatchRead("m1", tokens=[]), OptionError, "other prompt of a patch must be one that the model takes"),
        (
            lambda: PatchRead("m1", tokens=[400]),
            OptionError,
            "other prompt of a patch must be one that the model takes",
        ),
        (lambda: PatchRead("m1", prompt="text"), OptionError, "no tokenizer"),
        (lambda: PatchRead("m1", rest=[[1.0] * 5]), OptionError, "24 numbers, the model's width"),
        (lambda: PatchRead("m1", tokens=[1], parents=["m2"]), CircuitError, "m2->m1"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(make, error, says):
    model = tiny_model("gpt2")
    with pytest.raises(error, match=says) as raised:
        eics.score(model, CIRCUIT, PROMPTS, interventions=make(), mode="fast")
    assert "\n" not in str(raised.value)


def test_a_prompt_that_does_not_fit_fails_alone():
    model = tiny_model("gpt2")
    scores = eics.score(model, CIRCUIT, PROMPTS, interventions=PatchRead("m1", tokens=[1, 1, 2, 3]), mode="fast")
    assert [score.status == "failed" for score in scores] == [True, False, True]
    assert scores[0].reason.startswith("a patch needs another prompt with the same number of tokens; this has 6")
    scores = eics.score(model, CIRCUIT, PROMPTS, interventions=PatchRead("m1", tokens=DONOR, at=[4]), mode="fast")
    assert [score.status == "failed" for score in scores] == [True, True, False]


def test_a_family_whose_heads_read_through_the_same_norm_is_refused_by_name():
    model = adapt(tiny_module("gpt_neox"))
    sites = type(model.adapter).sites

    class Shared(type(model.adapter)):
        def sites(self, layer):
            found = sites(self, layer)
            return dataclasses.replace(found, mlp_norm=found.attention_norm)

    shared = dataclasses.replace(model, adapter=Shared())
    with pytest.raises(ModelError, match="read of m1 cannot be patched in gpt_neox: its MLPs and heads read through"):
        eics.score(shared, CIRCUIT, PROMPTS, interventions=PatchRead("m1", tokens=DONOR, at="last"), mode="fast")


def test_bfloat16_models_compute_on_the_read_that_is_recorded():
    model = adapt(tiny_module("llama", torch.bfloat16))
    state = patched(model, CIRCUIT, PatchRead("m1", tokens=DONOR, at="last"))
    read = state.mlp_reads[1]
    assert read.dtype == torch.float32
    assert torch.equal(read, read.bfloat16().float())


def test_patches_of_writes_and_reads_share_the_pass_over_their_donors():
    model = tiny_model("qwen3")
    both = [Patch("a0.h1", tokens=DONOR, at="last"), PatchRead("m1", tokens=DONOR, at="last")]
    score = eics.score(model, CIRCUIT, PROMPTS[0], interventions=both, mode="fast")
    assert score.forward_passes == 2
    assert [record["kind"] for record in score.interventions] == ["patch", "patch_read"]
