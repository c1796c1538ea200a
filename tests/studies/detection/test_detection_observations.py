"""What runs leave behind, against the real modules: hidden states, logits, and MLPs called by hand."""

import dataclasses

import pytest
import torch

from eics.scoring.calibration.sheaf.samples import Samples
from eics.studies.detection.observations import Observations, divergence, layout_of, observe, observe_batch
from eics.transformer.interventions.kinds import Ablate, Noise, Patch
from support.detection import people, people_rows
from support.tiny_models import FAMILIES, some_circuit, tiny_model

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5], [2, 4, 6, 8, 10, 12, 14], [21]]
FIELDS = ("layers", "recomputed", "log_probabilities", "predicted", "probability")


def same(one: Observations, other: Observations, atol: float = 2e-6) -> None:
    for name in ("writes", "explained", "counts"):
        ours, theirs = getattr(one.samples, name), getattr(other.samples, name)
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=atol)
    for name in FIELDS:
        ours, theirs = getattr(one, name), getattr(other, name)
        rounding = 0.02 if name == "log_probabilities" else atol  # half precision
        torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=rounding)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_leaves_the_same_alone_in_a_batch_and_padded(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    together = observe_batch(model, circuit, PROMPTS, distributions=True)
    apart = [observe_batch(model, circuit, [tokens], distributions=True) for tokens in PROMPTS]
    same(together, Observations.cat(apart))
    sorted_by_length = observe(model, circuit, PROMPTS, batch_size=2, distributions=True)
    same(sorted_by_length, together)


def test_damaged_prompts_do_not_touch_each_other():
    model = tiny_model("llama")
    circuit = some_circuit(model)
    rows = [[Noise("m0", at="last")], [Patch("a1.h2", tokens=(9, 8, 7), at="last")], [], [Ablate("m2", at="last")], []]
    together = observe_batch(model, circuit, PROMPTS, rows, distributions=True)
    apart = [
        observe_batch(model, circuit, [tokens], [row], distributions=True)
        for tokens, row in zip(PROMPTS, rows, strict=True)
    ]
    same(together, Observations.cat(apart))
    plain = observe_batch(model, circuit, PROMPTS)
    changed = (together.layers - plain.layers).abs().amax(dim=(1, 2)) > 1e-4
    assert changed.tolist() == [True, True, False, True, False]


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_differences_of_the_modules_hidden_states(family):
    model = tiny_model(family)
    found = observe(model, some_circuit(model), PROMPTS)
    norm = model.adapter.final_norm(model.module)[0]
    for row, tokens in enumerate(PROMPTS):
        seen = []
        handle = norm.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            output = model.module(input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False)
        handle.remove()
        streams = torch.stack([*(state[0, -1] for state in output.hidden_states[:-1]), seen[0][0, -1]])
        torch.testing.assert_close(found.layers[row], streams.diff(dim=0).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_next_tokens_are_those_of_the_modules_logits(family):
    model = tiny_model(family)
    found = observe(model, some_circuit(model), PROMPTS, distributions=True)
    for row, tokens in enumerate(PROMPTS):
        with torch.no_grad():
            logits = model.module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
        expected = logits.log_softmax(dim=0)
        torch.testing.assert_close(found.log_probabilities[row].double(), expected, rtol=1e-3, atol=1e-3)
        assert int(found.predicted[row]) == int(expected.argmax())
        assert float(found.probability[row]) == pytest.approx(float(expected.max().exp()), rel=1e-5)
    assert observe(model, some_circuit(model), PROMPTS).log_probabilities.shape == (len(PROMPTS), 0)


def test_samples_are_the_writes_at_the_last_position():
    """Of the bundled GPT-2, with its modules called by hand."""
    model, circuit = people()
    prompts = people_rows()[:6]
    found = observe(model, circuit, prompts)
    nodes, size = layout_of(model, circuit).nodes, model.transformer.blocks[0].attention.head_width
    for row, tokens in enumerate(prompts):
        with torch.no_grad():
            stream = model.module(
                input_ids=torch.tensor([tokens]), output_hidden_states=True, use_cache=False
            ).hidden_states
            torch.testing.assert_close(found.samples.writes[nodes.index("input"), row], stream[0][0, -1])
            for layer, block in enumerate(model.module.transformer.h):
                heads = []
                handle = block.attn.c_proj.register_forward_pre_hook(
                    lambda _, given, heads=heads: heads.append(given[0])
                )
                attended = stream[layer] + block.attn(block.ln_1(stream[layer]))[0]
                handle.remove()
                mlp = block.mlp(block.ln_2(attended))[0, -1]
                writes = {f"m{layer}": mlp}
                for head in range(model.transformer.blocks[0].attention.heads):
                    part = slice(head * size, (head + 1) * size)
                    writes[f"a{layer}.h{head}"] = heads[0][0, -1, part] @ block.attn.c_proj.weight[part]
                for name in writes.keys() & set(nodes):
                    torch.testing.assert_close(
                        found.samples.writes[nodes.index(name), row], writes[name], rtol=1e-4, atol=1e-5
                    )


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputed_is_the_size_of_the_damage_at_the_damaged_node(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    assert float(observe(model, circuit, PROMPTS).recomputed.max()) < 1e-6  # Llama's norm is in float32
    half = {node: [Ablate(node, 0.5, at="last")] for node in ("a1.h2", "m2", "m0")}
    for node, row in half.items():
        found = observe_batch(model, circuit, PROMPTS, [row] * len(PROMPTS)).recomputed
        expected = torch.zeros(len(circuit.inner))
        expected[circuit.inner.index(node)] = 1.0  # half of the write is missing: as much as is left
        torch.testing.assert_close(found, expected.expand_as(found), rtol=1e-5, atol=1e-6)


def test_divergence_is_torchs():
    torch.manual_seed(0)
    clean, damaged = (torch.randn(5, 40).log_softmax(dim=1) for _ in range(2))
    expected = torch.nn.functional.kl_div(damaged, clean, log_target=True, reduction="none").sum(dim=1)
    torch.testing.assert_close(divergence(clean, damaged), expected)
    torch.testing.assert_close(divergence(clean.half(), damaged.half()), expected, rtol=0.01, atol=0.01)
    assert divergence(clean, clean).tolist() == [0.0] * 5
    assert not torch.allclose(divergence(clean, damaged), divergence(damaged, clean), rtol=0.01)


def test_rows_and_cat_keep_everything_together():
    model = tiny_model("gpt2")
    found = observe(model, some_circuit(model), PROMPTS, distributions=True)
    order = torch.tensor([3, 0, 4])
    chosen = found.rows(order)
    assert len(chosen) == 3
    for name in FIELDS:
        assert torch.equal(getattr(chosen, name), getattr(found, name)[order])
    assert torch.equal(chosen.samples.writes, found.samples.writes[:, order])
    again = Observations.cat([found.rows(torch.tensor([1])), chosen])
    same(again, found.rows(torch.tensor([1, 3, 0, 4])), atol=0)
    assert again.samples.prompt.tolist() == [0, 1, 2, 3]
    assert {field.name for field in dataclasses.fields(Observations)} == {"samples", *FIELDS}
    assert {field.name for field in dataclasses.fields(Samples)} == {"writes", "explained", "counts", "prompt"}
