"""Interventions: what enters the residual stream is the node's own write plus exactly the change."""

import dataclasses
import json
import math

import pytest
import torch

import eics
from eics.circuits.graph import Kind, Node
from eics.errors import CircuitError, ModelError, OptionError
from eics.scoring.sheaf import sheaf_term
from eics.transformer.adapt import adapt
from eics.transformer.forward import run
from eics.transformer.interventions import Ablate, Noise, Patch, Steer, as_interventions
from eics.transformer.linearize import Linearizer, TransformerRun
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5]]
NODES = ("input", "a0.h1", "a1.h2", "m1", "a2.h3", "m2")
JOINT = {"linearization": "frozen", "residual": "joint", "mode": "fast"}


def every_kind(node, width=24):
    vector = torch.randn(width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return [
        Noise(node, 0.7), Steer(node, 0.5, at=[1, -1]), Ablate(node, mean=vector),
        Patch(node, 0.6, at="last", tokens=[8]),
    ]  # fmt: skip


def functions(state, circuit, name):
    """The node's function, applied to what it read in this state."""
    linearizer = Linearizer(TransformerRun(state, circuit), frozen=False)
    node = Node.parse(name)
    if node.kind is Kind.HEAD:
        return linearizer.attention(node.layer).function[linearizer.heads[node.layer].index(node.head)]
    return linearizer.map(node, None).function


def valid(state, x):
    return x if state.mask is None else x * state.mask.unsqueeze(2)


def injected(intervention, write, rows=PROMPTS):
    """The change, computed from the undamaged write."""
    total = torch.zeros_like(write)
    for row, tokens in enumerate(rows):
        total[row, : len(tokens)] = intervention.change(write[row, : len(tokens)], tokens)
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_a_damaged_node_writes_its_own_function_plus_exactly_the_damage(family):
    model = tiny_model(family)
    circuit = full_circuit(model)
    clean = run(model, PROMPTS, circuit, logits=True)
    donor = run(model, [[8]], circuit)
    for name in NODES:
        for intervention in every_kind(name):
            if isinstance(intervention, Patch):
                intervention = Patch(name, 0.6, at="last", write=donor.write(name)[0])  # noqa: PLW2901
            state = run(model, PROMPTS, circuit, logits=True, interventions=[[intervention]] * 3)
            assert state.forward_passes == 1
            change = injected(intervention, clean.write(name))
            assert float(change.norm()) > 0.01 * float(clean.write(name).norm())
            observed = TransformerRun(state, circuit).linearize("jacobian").stalks[name].activation
            torch.testing.assert_close(valid(state, state.write(name)), observed, rtol=1e-12, atol=1e-12)
            own = clean.input if name == "input" else functions(state, circuit, name)
            scale = float(change.abs().max())
            torch.testing.assert_close(observed, valid(state, own + change), rtol=1e-5, atol=2e-6 * scale)
            check_stream(model, state)
            check_others(clean, state, circuit, name)
            assert not torch.allclose(state.logits, clean.logits)


def check_stream(model, state):
    """Writes and biases add up to what each layer reads: nothing else entered the residual stream."""
    stream = state.input
    for layer, block in enumerate(model.transformer.blocks):
        torch.testing.assert_close(stream, state.attention_reads[layer], rtol=1e-9, atol=2e-6)
        before = stream
        stream = stream + sum(state.write(f"a{layer}.h{head}") for head in range(block.attention.heads))
        if block.attention.b_o is not None:
            stream = stream + block.attention.b_o
        read = before if block.parallel else stream
        torch.testing.assert_close(read, state.mlp_reads[layer], rtol=1e-9, atol=2e-6)
        stream = stream + state.mlp_writes[layer]
    torch.testing.assert_close(stream, state.final_read, rtol=1e-9, atol=2e-6)


def check_others(clean, state, circuit, name):
    """Nodes not downstream of the damaged one, siblings in its layer included, write the same to the bit."""
    downstream = {name}
    for node in circuit.order:
        if any(edge.source in downstream for edge in circuit.parents[node]):
            downstream.add(node)
    for node in set(circuit.order) - downstream - {"logits"}:
        assert torch.equal(clean.write(node), state.write(node)), node
    assert downstream - {name}


@pytest.mark.parametrize("family", FAMILIES)
def test_strength_zero_changes_nothing(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    clean = [eics.score(model, circuit, PROMPTS, preset=preset, mode="fast") for preset in ("paper", "well-posed")]
    for name in ("input", "a1.h2", "m2"):
        zero = [Noise(name, 0), Steer(name, 0), Ablate(name, 0), Patch(name, 0, at="last", tokens=[1, 2])]
        for preset, before in zip(("paper", "well-posed"), clean, strict=True):
            after = eics.score(model, circuit, PROMPTS, preset=preset, mode="fast", interventions=zero)
            for a, b in zip(before, after, strict=True):
                assert (a.eics, a.c_sh, a.dei, a.edges) == (b.eics, b.c_sh, b.dei, b.edges)
                assert [record["change_norm"] for record in b.interventions] == [0.0] * 4


@pytest.mark.parametrize("family", FAMILIES)
def test_on_the_full_graph_the_damaged_node_holds_the_inconsistency(family):
    """Each node with parents, damaged alone, ranks first with nearly the whole share."""
    model = tiny_model(family)
    circuit = full_circuit(model)
    clean = eics.score(model, circuit, PROMPTS, **JOINT)
    assert max(score.c_sh for score in clean) < 5e-6
    for index, name in enumerate(circuit.inner):
        if name == "logits":
            continue
        intervention = (Noise(name, 0.5), Ablate(name, 0.5), Steer(name, 0.3))[index % 3]
        state = run(model, PROMPTS, circuit, interventions=[[intervention]] * 3)
        term = sheaf_term(
            TransformerRun(state, circuit).linearize("frozen").engine(), residual="joint", metric="relative"
        )
        best = [term.names[int(row.argmax())] for row in term.share]
        assert best == [name] * 3
        assert float(term.share.max(dim=1).values.min()) > 0.999
        assert float(term.c_sh.min()) > 100 * max(score.c_sh for score in clean)


def test_damage_to_a_source_leaves_the_full_graph_consistent():
    """The model is consistent with another input, so no node of the circuit can tell."""
    model = tiny_model("llama")
    scores = eics.score(model, full_circuit(model), PROMPTS, interventions=Noise("input", 1.0), **JOINT)
    assert max(score.c_sh for score in scores) < 5e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_a_damaged_prompt_scores_the_same_alone_and_padded_in_a_batch(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    interventions = [Noise("a1.h2", 0.8, seed=3), Steer("m0", 0.4), Noise("input", 0.1, at="last")]
    together = eics.score(model, circuit, PROMPTS, interventions=interventions, mode="fast", preset="well-posed")
    for score, prompt in zip(together, PROMPTS, strict=True):
        alone = eics.score(model, circuit, prompt, interventions=interventions, mode="fast", preset="well-posed")
        for name in ("eics", "c_sh", "dei"):
            assert getattr(alone, name) == pytest.approx(getattr(score, name), rel=1e-6, abs=1e-9)
        sizes = [[record["change_norm"] for record in s.interventions] for s in (alone, score)]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-9)


def test_noise_depends_on_seed_node_and_prompt_and_scales_with_strength():
    write = torch.randn(5, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = [1, 2, 3, 4, 5]
    noise = Noise("m1", 0.5).change(write, tokens)
    assert torch.equal(noise, Noise("m1", 0.5).change(write, tokens))
    torch.testing.assert_close(4 * noise, Noise("m1", 2.0).change(write, tokens))
    for intervention in (Noise("m1", 0.5, seed=1), Noise("m2", 0.5)):
        other = intervention.change(write, tokens)
        assert abs(float(torch.corrcoef(torch.stack([noise.flatten(), other.flatten()]))[0, 1])) < 0.5
    assert not torch.allclose(noise, Noise("m1", 0.5).change(write, [1, 2, 3, 4, 6]))
    rows = torch.randn(4000, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3
    change = Noise("m1", 0.5).change(rows, range(4000))
    ratio = change.norm(dim=1) / rows.norm(dim=1)
    assert float(ratio.square().mean().sqrt()) == pytest.approx(0.5, rel=0.02)


def test_the_very_same_vector_at_another_node():
    write = torch.randn(3, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = 7 * torch.randn(3, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for kind in (Noise, Steer):
        original = kind("m1", 0.5).change(write, [1, 2, 3])
        copy = kind("a0.h1", 0.5, like="m1", norms=write.norm(dim=1)).change(other, [1, 2, 3])
        torch.testing.assert_close(original, copy)


def test_steering_ablation_and_positions_follow_their_formulas():
    write = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens = [1, 2, 3, 4]
    steered = Steer("m1", 2.0, vector=[0, 3, 0, 0, 0, 0]).change(write, tokens)
    expected = torch.zeros(4, 6, dtype=torch.float64)
    expected[:, 1] = 2 * write.norm(dim=1)
    torch.testing.assert_close(steered, expected)
    assert torch.equal(write + Ablate("m1").change(write, tokens), torch.zeros_like(write))
    mean = [1.0, 2, 3, 4, 5, 6]
    torch.testing.assert_close(Ablate("m1", 0.5, mean=mean).change(write, tokens), 0.5 * (torch.tensor(mean) - write))
    for at, positions in (("last", [3]), ([0, -1], [0, 3]), ([2], [2])):
        kept = Ablate("m1", at=at).change(write, tokens).abs().sum(dim=1) > 0
        assert kept.nonzero().flatten().tolist() == positions


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gpt_neox"])
def test_a_full_patch_of_every_node_is_the_other_prompt(family):
    """With every write patched, embeddings included, the read-out is that of the other prompt."""
    model = tiny_model(family)
    other, tokens = [2, 4, 6, 8], PROMPTS[1]
    nodes = [node for node in full_circuit(model).order if node != "logits"]
    patches = [Patch(node, tokens=other) for node in nodes]
    patched = eics.score(model, full_circuit(model), tokens, interventions=patches, mode="fast")
    plain = eics.score(model, full_circuit(model), other, mode="fast")
    assert patched.norms == pytest.approx(plain.norms, rel=1e-6)
    assert patched.forward_passes == 2
    assert {record["kind"] for record in patched.interventions} == {"patch"}


def test_one_prompt_can_fail_without_the_others():
    model = tiny_model("gpt2")
    circuit = some_circuit(model)
    patched = eics.score(model, circuit, PROMPTS, interventions=Patch("m0", tokens=[1, 1, 2, 3]), mode="fast")
    assert [score.status == "failed" for score in patched] == [True, False, True]
    assert patched[0].reason == (
        "a patch needs another prompt with the same number of tokens; this has 6, the other 4: choose one of that "
        "length, or at='last'"
    )
    assert patched[0].interventions[0]["kind"] == "patch"
    noisy = eics.score(model, circuit, PROMPTS, interventions=Noise("m0", at=[4]), mode="fast")
    assert [score.status == "failed" for score in noisy] == [False, True, False]
    assert "position 4 must lie in the prompt's 4 tokens" in noisy[1].reason


def test_huge_damage_fails_with_a_reason():
    model = adapt(tiny_module("gpt2", torch.float32))
    scores = eics.score(model, some_circuit(model), PROMPTS, interventions={0: [Noise("m0", 1e38)]}, mode="fast")
    assert [score.status == "failed" for score in scores] == [True, False, False]
    assert "not finite" in scores[0].reason
    json.dumps([score.to_record() for score in scores], allow_nan=False)


def test_each_prompt_may_have_its_own_interventions():
    model = tiny_model("llama")
    circuit = full_circuit(model)
    by_prompt = {0: [Noise("m1", 0.5)], 2: [{"kind": "ablate", "node": "a1.h1"}]}
    scores = eics.score(model, circuit, PROMPTS, interventions=by_prompt, **JOINT)
    assert [score.nodes[0].node for score in scores if score.c_sh > 1e-3] == ["m1", "a1.h1"]
    assert scores[1].c_sh < 5e-6
    assert [len(score.interventions) for score in scores] == [1, 0, 1]


def test_hooks_of_the_user_stay_in_force():
    module = tiny_module("qwen2")
    model = adapt(module)
    handle = model.adapter.layers(module)[1].mlp.register_forward_hook(lambda _, __, out: 2 * out)
    try:
        state = run(model, PROMPTS, full_circuit(model), interventions=[[Ablate("m1", 0.5)]] * 3)
    finally:
        handle.remove()
    own = functions(state, full_circuit(model), "m1")
    torch.testing.assert_close(valid(state, state.write("m1")), valid(state, own), rtol=1e-5, atol=1e-6)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_bfloat16_models_record_the_rounded_change():
    """In bfloat16 a change is rounded when it enters the residual stream; the rounded change is recorded."""
    model = adapt(tiny_module("llama", torch.bfloat16))
    state = run(model, PROMPTS, full_circuit(model), interventions=[[Noise("a1.h2", 0.5)]] * 3)
    kept = state.applied.heads[1][2]
    assert kept.dtype == torch.float32
    assert torch.equal(kept, kept.bfloat16().float())


def test_records_hold_interventions(tmp_path):
    model = tiny_model("gpt2")
    scores = eics.score(model, some_circuit(model), PROMPTS, interventions=Noise("m0", 0.5, at=[0, 1]), mode="fast")
    (record,) = scores[0].interventions
    assert record["change_norm"] / record["write_norm"] < 0.8
    assert {"kind": "noise", "node": "m0", "strength": 0.5, "at": [0, 1], "seed": 0}.items() <= record.items()
    for name in ("a.jsonl", "a.parquet"):
        eics.write_records(scores, tmp_path / name)
        assert [s.interventions for s in eics.read_records(tmp_path / name)] == [s.interventions for s in scores]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Noise("m1", -1), "'strength' option must be a finite number >= 0. Got -1"),
        (lambda: Noise("m1", math.inf), "'strength' option must be a finite number"),
        (lambda: Noise("m1", True), "'strength' option must be a finite number"),
        (lambda: Ablate("m1", 1.5), "at most 1 to ablate"),
        (lambda: Patch("m1", 2, tokens=[1]), "at most 1 to patch"),
        (lambda: Patch("m1"), "the other prompt of a patch"),
        (lambda: Patch("m1", prompt=[1, 2]), "token ids go into 'tokens'"),
        (lambda: Noise("logits"), "'node' option must be one that writes"),
        (lambda: Noise("m1", at="first"), "'at' option must be 'all', 'last' or a list"),
        (lambda: Noise("m1", at=[]), "'at' option must be"),
        (lambda: Noise("m1", at=[0.5]), "'at' option must be"),
        (lambda: Noise("m1", seed=-1), "'seed' option must be"),
        (lambda: Steer("m1", vector=[0.0, 0.0]), "a direction, not all zeros"),
        (lambda: Steer("m1", vector=[1.0, math.nan]), "finite numbers"),
        (lambda: Steer("m1", vector="up"), "finite numbers"),
        (lambda: as_interventions({"kind": "melt", "node": "m1"}), "a 'kind' of noise, ablate, patch, steer"),
        (lambda: as_interventions([{"kind": "noise"}]), "a noise with 'node'"),
        (lambda: as_interventions([{"kind": "noise", "node": "m1", "vector": [1]}]), "a noise with 'node'"),
        (lambda: as_interventions("noise"), "a list of interventions"),
        (lambda: as_interventions(7), "a list of interventions"),
    ],
)
def test_bad_interventions_are_refused(make, says):
    with pytest.raises(OptionError, match=says.replace("(", "\\(")):
        make()


@pytest.mark.parametrize(
    ("interventions", "error", "message"),
    [
        (Noise("m9"), CircuitError, "layers 0 to 2"),
        (Noise("a0.h7"), CircuitError, "heads 0 to 3"),
        (Steer("m1", vector=[1.0] * 5), OptionError, "24 numbers, the model's width"),
        (Patch("m1", tokens=[400]), OptionError, "other prompt of a patch must be one that the model takes"),
        (Patch("m1", prompt="text"), OptionError, "no tokenizer"),
        ({"nobody": [Noise("m1")]}, OptionError, "by the prompts' ids. Got 'nobody'"),
    ],
)
def test_interventions_that_fit_no_prompt_fail_the_run(interventions, error, message):
    model = tiny_model("gpt2")
    with pytest.raises(error, match=message):
        eics.score(model, some_circuit(model), PROMPTS, interventions=interventions)


def test_an_adapter_without_a_site_for_its_post_norm_is_refused():
    """Otherwise damage to a head would silently have no effect."""
    model = adapt(tiny_module("gemma2"))
    sites = type(model.adapter).sites

    class Forgetful(type(model.adapter)):
        def sites(self, layer):
            return dataclasses.replace(sites(self, layer), attention_post_norm=None)

    forgetful = dataclasses.replace(model, adapter=Forgetful())
    with pytest.raises(ModelError, match="must name it: set attention_post_norm"):
        eics.score(forgetful, some_circuit(model), PROMPTS, interventions=Noise("a1.h2"), mode="fast")


def test_explicit_circuits_take_no_interventions():
    circuit = eics.LinearCircuit({"x->y": torch.eye(2)}, {"x": [1.0, 0.0], "y": [1.0, 0.0]})
    with pytest.raises(OptionError, match="an explicit circuit runs nothing"):
        eics.score(circuit, interventions=[Noise("m1")])
