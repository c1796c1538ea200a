"""Made here and inherited, against the models' own modules put together anew."""

import pytest
import torch

from eics.linalg.memory import memory_limit
from eics.studies.comparison.attribution import changes, numbers
from eics.studies.comparison.parts import Parts
from eics.transformer.forward import run
from eics.transformer.write_sites import site_of_part
from support.tiny_models import FAMILIES, some_circuit
from support.two_models import TOKENS, hybrid, nothing, pair, runs


def by_part(model, against, circuit=None, tokens=TOKENS):
    step, _, ours, theirs, outputs = runs(model, against, circuit, tokens)
    with torch.no_grad():
        found = list(changes(step.parts, model, ours, theirs, outputs))
    return {
        name: {what: getattr(change, what)[i] for what in ("write", "made", "inherited", "residue")}
        for change in found
        for i, name in enumerate(change.names)
    }


def relative(numbers):
    return (numbers.sum(dim=1)).sqrt()


@pytest.mark.parametrize("family", FAMILIES)
def test_made_and_inherited_are_the_whole_change(family):
    model, against = pair(family)
    step, _, ours, theirs, outputs = runs(model, against)
    found = numbers(step.parts, model, ours, theirs, outputs)
    size = relative(found.squares["write"])
    assert (relative(found.squares["residue"]) / size).max() < 1e-5
    assert (relative(found.squares["made"]) / size).min() > 1e-3
    lost, stream = found.stream
    assert (lost.sqrt() / stream.sqrt()).max() < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer", [0, 1])
def test_what_a_part_made_is_what_the_other_modules_make_of_the_same_read(family, layer):
    """A's attention or MLP in B's place reads what B's read: what changes in its write was made there."""
    model, against = pair(family, torch.float64)
    found = by_part(model, against)
    plain = run(against, TOKENS)
    with_mlp = run(hybrid(against, model, layer, "mlp"), TOKENS)
    made = plain.mlp_writes[layer] - with_mlp.mlp_writes[layer]
    valid = plain.valid
    torch.testing.assert_close(found[f"m{layer}"]["made"][valid], made[valid], rtol=1e-4, atol=1e-5)
    spec = model.transformer.blocks[layer].attention
    if spec.post_norm is not None:
        return  # the hybrid has its own denominator: the next test
    other = run(hybrid(against, model, layer, "attention"), TOKENS)
    for head in range(spec.heads):
        name = f"a{layer}.h{head}"
        made = plain.write(name) - other.write(name)
        torch.testing.assert_close(found[name]["made"][valid], made[valid], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_the_denominator_of_a_norm_behind_the_heads_is_that_of_the_run(family):
    """Written out: z of A's attention on B's read, times A's gain over B's denominator."""
    model, against = pair(family, torch.float64)
    found, layer = by_part(model, against), 1
    plain, other = run(against, TOKENS), run(hybrid(against, model, layer, "attention"), TOKENS)
    ours, theirs = (one.transformer.blocks[layer].attention for one in (model, against))
    valid, summed = plain.valid, plain.summed[layer]
    denominator = (summed.square().mean(dim=2, keepdim=True) + ours.post_norm.eps).sqrt()
    for head in range(ours.heads):
        width = slice(head * ours.head_width, (head + 1) * ours.head_width)
        by_ours = other.z[layer][..., width] @ ours.w_o[head].T * ours.post_norm.weight / denominator
        by_theirs = plain.z[layer][..., width] @ theirs.w_o[head].T * theirs.post_norm.weight / denominator
        made = found[f"a{layer}.h{head}"]["made"]
        torch.testing.assert_close(made[valid], (by_theirs - by_ours)[valid], rtol=1e-4, atol=1e-5)


def scaled(name, rows=slice(None), columns=None):
    """A change of some rows or columns of one weight."""

    def change(module):
        weight = module.get_parameter(name)
        if columns is None:
            weight[rows] *= 1.3
        else:
            weight[:, columns] *= 1.3

    return change


ONE = {  # of which weights only these parts use any
    "mlp": ("llama", scaled("model.layers.1.mlp.down_proj.weight"), {"m1"}),
    "norm of an mlp": ("llama", scaled("model.layers.1.post_attention_layernorm.weight"), {"m1"}),
    "one head's output": ("llama", scaled("model.layers.1.self_attn.o_proj.weight", columns=slice(6, 12)), {"a1.h1"}),
    "one head's queries": ("llama", scaled("model.layers.1.self_attn.q_proj.weight", slice(12, 18)), {"a1.h2"}),
    "keys of a group": ("llama", scaled("model.layers.1.self_attn.k_proj.weight", slice(6, 12)), {"a1.h2", "a1.h3"}),
    "norm of a layer": (
        "llama",
        scaled("model.layers.1.input_layernorm.weight"),
        {"a1.h0", "a1.h1", "a1.h2", "a1.h3"},
    ),
    "embeddings": ("llama", scaled("model.embed_tokens.weight"), {"input"}),
    "final norm": ("llama", scaled("model.norm.weight"), {"logits"}),
    "unembedding": ("llama", scaled("lm_head.weight", slice(0, 9)), {"logits"}),
    "output bias": ("gpt2", scaled("transformer.h.1.attn.c_proj.bias"), {"a1.bias"}),
    "norm behind one head's layer": (
        "gemma2",
        scaled("model.layers.1.post_attention_layernorm.weight"),
        {"a1.h0", "a1.h1", "a1.h2", "a1.h3"},
    ),
    "one head under a norm": (
        "gemma2",
        scaled("model.layers.1.self_attn.o_proj.weight", columns=slice(8, 16)),
        {"a1.h1"},
    ),
}


@pytest.mark.parametrize("what", ONE)
def test_a_change_is_made_where_its_weights_are_used_and_nowhere_else(what):
    family, change, where = ONE[what]
    model, against = pair(family, change=change)
    found = by_part(model, against)
    assert {name for name, one in found.items() if one["made"].any()} == where
    sites = [site_of_part(name) for name in found]
    for name in list(found)[: sites.index(site_of_part(min(where)))]:
        assert not found[name]["inherited"].any(), name  # nothing upstream has changed
    if "logits" not in where:
        assert found["logits"]["inherited"].any()


def test_a_hook_that_changes_a_write_is_residue_and_no_one_made_it():
    model, against = pair("llama", change=nothing)
    mlp = against.adapter.sites(against.adapter.layers(against.module)[1]).mlp_write
    handle = mlp.register_forward_hook(lambda *given: given[-1] + 0.5)
    found = by_part(model, against)
    handle.remove()
    assert not any(one["made"].any() for one in found.values())
    assert {name for name, one in found.items() if one["residue"].abs().max() > 1e-4} == {"m1"}
    torch.testing.assert_close(found["m1"]["residue"], torch.full_like(found["m1"]["residue"], 0.5))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_neox"])
def test_a_prompt_has_the_same_numbers_alone_and_in_a_batch(family):
    model, against = pair(family)

    def of(tokens):
        step, _, ours, theirs, outputs = runs(model, against, tokens=tokens)
        return numbers(step.parts, model, ours, theirs, outputs)

    together = of(TOKENS)
    for index, tokens in enumerate(TOKENS):
        alone = of([tokens])
        for name, squares in alone.squares.items():
            atol = 1e-9 if name == "residue" else 1e-6
            torch.testing.assert_close(squares[:, 0], together.squares[name][:, index], rtol=1e-3, atol=atol)
        torch.testing.assert_close(alone.slope[:, 0], together.slope[:, index], rtol=1e-3, atol=1e-6)


def test_the_nodes_of_a_circuit_have_the_numbers_of_the_whole_model():
    model, against = pair("qwen3")
    circuit = some_circuit(model)
    whole, some = by_part(model, against), by_part(model, against, circuit)
    assert set(some) == set(circuit.order)
    for name, one in some.items():
        for what, tensor in one.items():
            if what != "residue":
                torch.testing.assert_close(tensor, whole[name][what], rtol=1e-4, atol=1e-5)


def test_heads_in_chunks_give_the_same_numbers():
    model, against = pair("llama")
    step, _, ours, theirs, outputs = runs(model, against)
    whole = numbers(step.parts, model, ours, theirs, outputs)
    with memory_limit(1e-3):
        chunked = numbers(step.parts, model, ours, theirs, outputs)
    torch.testing.assert_close(chunked.slope, whole.slope, rtol=1e-4, atol=1e-7)
    for name in ("write", "made", "inherited"):
        torch.testing.assert_close(chunked.squares[name], whole.squares[name], rtol=1e-4, atol=1e-9)


def test_models_in_half_precision_made_nothing_where_weights_are_the_same():
    model, against = pair("llama", torch.bfloat16, change=scaled("model.layers.1.mlp.down_proj.weight"))
    found = by_part(model, against)
    assert {name for name, one in found.items() if one["made"].any()} == {"m1"}


def test_parts_know_their_sites_and_what_a_pass_must_record():
    model = pair("gpt2")[0]
    whole = Parts.of(model.transformer, None)
    assert whole.sites == ("input", "a0", "m0", "a1", "m1", "a2", "m2")
    assert whole.recorded is None
    some = Parts.named(("a1.h2", "a1.bias", "m2", "a0.h1", "a0.h3", "logits"))
    assert some.sites == ("a0", "a1", "m2")
    assert some.heads == {1: (2,), 0: (1, 3)}
    assert some.biases == (1,)
    assert set(some.recorded) == {"a1.h2", "a1.h0", "m2", "a0.h1", "a0.h3", "logits"}
    assert some.layers == [0, 1, 2]
