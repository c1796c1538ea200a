"""Scores are those of the weights of the moment: after every kind of change, those of a model adapted afresh.

The twin of each test is a new model with the same change that nothing was computed from before. Both are compared to
the last digit, in every mode and linearization; and so is the model, changed back, with what it was at first.
"""

import copy
from operator import attrgetter

import pytest
import torch
from torch.nn.utils import parametrize, prune

import eics
from eics.errors import ModelError
from eics.models.prompts import as_prompts
from eics.scoring.batch import score_prompts
from eics.scoring.cuda_graphs import graph_cache
from eics.scoring.options import PAPER
from eics.transformer.adapt import adapt
from support.tiny_models import tiny_module

PROMPTS = [[5, 17, 3, 42], [9, 2, 8]]
CIRCUIT = eics.Circuit(["input->a0.h1", "a0.h1->a1.h2", "a1.h2->m2", "m2->logits", "a1.h2->logits"])
EXACT = PAPER.with_(readout="logits")
FAST = PAPER.with_(mode="fast")
LANCZOS = PAPER.with_(mode="lanczos", node_probes=4, macro_probes=4, steps=2)
ALL = [o.with_(linearization=name) for o in (EXACT, FAST, LANCZOS) for name in ("jacobian", "frozen")]
EMBEDDINGS = ("wte.weight", "embed_tokens.weight")
FEW = [EXACT.with_(linearization="frozen"), FAST]


def records(model, configurations=ALL):
    """What a run would write, number for number."""
    rows = score_prompts(model, CIRCUIT, as_prompts(PROMPTS, None), configurations)
    return [score.to_record() for row in rows for score in row]


class Parts:
    """The same parts of every family."""

    def __init__(self, module):
        adapter = adapt(module, check=False).adapter
        self.module, self.layers = module, adapter.layers(module)
        self.layer, self.names = self.layers[1], adapter.modules
        self.out = attrgetter(self.names.out_proj)(self.layer)
        self.mlp = attrgetter(self.names.mlp)(self.layers[2])
        self.mlp_weight = [p for p in self.mlp.parameters() if p.ndim == 2][-1]
        self.norm = attrgetter(self.names.attention_norm)(self.layer)
        self.final_norm = attrgetter(self.names.final_norm)(module)
        self.unembed = module.get_output_embeddings().weight


def noise(tensor, seed=1):
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(tensor)


def scaled_through_data(parts):
    parts.out.weight.data.mul_(1.25)


def scaled_everywhere(parts):
    for parameter in parts.module.parameters():
        parameter.data.mul_(1.05)


def pruned_element_of_an_mlp(parts):
    parts.mlp_weight.data[3, 7] = 0.0


def pruned_element_of_an_attention(parts):
    parts.out.weight.data[17, 17] = 0.0  # of head 2


def pruned_neuron(parts):
    parts.mlp_weight.data[:, 4] = 0.0


def swapped_rows(parts):
    parts.out.weight.data[:6] = parts.out.weight.data[:6].flip(0)


def edited_norm(parts):
    parts.norm.weight.data[2] += 0.5


def edited_final_norm(parts):
    parts.final_norm.weight.data[3] -= 0.25


def edited_unembedding(parts):
    parts.unembed.data[8, 2] += 1.0


def merged_adapter(parts):
    weight = parts.mlp_weight
    left, right = noise(weight[:, :2]), noise(weight[:2], 2)
    weight.data += 0.1 * left @ right


def rounded(parts):
    for parameter in parts.layer.parameters():
        parameter.data.copy_((parameter.data * 8).round() / 8)


def edited_in_place(parts):
    with torch.no_grad():
        parts.out.weight[1, 1] += 0.5


def optimizer_step(parts):
    module = parts.module
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.05)
    module(input_ids=torch.tensor(PROMPTS[:1])).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def loaded(parts, **how):
    state = {name: tensor + 0.1 * noise(tensor) for name, tensor in parts.module.state_dict().items()}
    if "lm_head.weight" in state and parts.unembed is parts.module.get_input_embeddings().weight:
        state["lm_head.weight"] = next(tensor for name, tensor in state.items() if name.endswith(EMBEDDINGS))
    parts.module.load_state_dict(state, **how)


def loaded_by_assignment(parts):
    loaded(parts, assign=True)
    parts.module.tie_weights()


def replaced_mlp(parts):
    other = copy.deepcopy(parts.mlp)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    setattr(parts.layers[2], parts.names.mlp, other)


def replaced_layer(parts):
    layers = attrgetter(parts.names.layers)(parts.module)
    layers[1] = copy.deepcopy(layers[1])
    layers[1].load_state_dict(layers[0].state_dict())


def replaced_parameter(parts):
    parts.out.weight = torch.nn.Parameter(parts.out.weight.detach() * 0.75)


def replaced_data(parts):
    parts.mlp_weight.data = parts.mlp_weight.data + 0.1 * noise(parts.mlp_weight)


def exchanged_data(parts):
    one, other = parts.norm.weight, parts.final_norm.weight
    one.data, other.data = other.data, one.data


def half_the_precision(parts):
    parts.module.to(torch.float32)


def masked(parts):
    prune.l1_unstructured(parts.out, "weight", amount=0.4)


CHANGES = [
    scaled_through_data, scaled_everywhere, pruned_element_of_an_mlp, pruned_element_of_an_attention, pruned_neuron,
    swapped_rows, edited_norm, edited_final_norm, edited_unembedding, merged_adapter, rounded, edited_in_place,
    optimizer_step, loaded, loaded_by_assignment, replaced_mlp, replaced_layer, replaced_parameter, replaced_data,
    exchanged_data, half_the_precision, masked,
]  # fmt: skip


IN_EVERY_FAMILY = [pruned_element_of_an_mlp, edited_norm, replaced_mlp]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_scores_like_one_adapted_afresh(change):
    compare_with_twin("llama", change, ALL)


@pytest.mark.parametrize("change", IN_EVERY_FAMILY, ids=lambda change: change.__name__)
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gemma2", "gemma3", "phi3"])
def test_in_every_family(family, change):
    compare_with_twin(family, change, FEW)


def compare_with_twin(family, change, configurations):
    module, twin = tiny_module(family), tiny_module(family)
    model = adapt(module)
    before, held = records(model, configurations), Held(module)
    change(Parts(module))
    change(Parts(twin))
    changed, want = records(model, configurations), records(adapt(twin), configurations)
    assert changed == want
    assert [r["c_sh"] for r in changed] != [r["c_sh"] for r in before]
    assert {r["fingerprint"] for r in changed}.isdisjoint(r["fingerprint"] for r in before)
    held.restore()
    assert records(model, configurations) == before


class Held:
    """A model's modules, parameters and values, to be put back."""

    def __init__(self, module):
        self.parts = [(part, dict(part._modules), dict(part._parameters)) for part in module.modules()]
        self.values = [(parameter, parameter.detach().clone()) for parameter in module.parameters()]

    def restore(self):
        for part, modules, parameters in self.parts:
            if prune.is_pruned(part) and "weight_orig" in part._parameters:
                prune.remove(part, "weight")
            part._modules.update(modules)
            part._parameters.update(parameters)
        for parameter, value in self.values:
            parameter.data = value.clone()


def test_an_edited_mask_of_a_pruned_module_counts():
    module, twin = tiny_module("llama"), tiny_module("llama")
    for one in (module, twin):
        masked(Parts(one))
    model = adapt(module)
    before = records(model, FEW)
    for one in (module, twin):
        Parts(one).out.weight_mask.data[2] = 0.0
    assert records(model, FEW) == records(adapt(twin), FEW) != before
    for one in (module, twin):
        Parts(one).out.weight_orig.data[3, 3] += 2.0  # one element of what the weight is computed from
    assert records(model, FEW) == records(adapt(twin), FEW)


class Doubled(torch.nn.Module):
    """A parametrization: the module's weight is computed whenever it is read."""

    def forward(self, weight):
        return 2.0 * weight


def test_a_parametrized_weight_is_that_of_the_moment():
    module, twin = tiny_module("llama"), tiny_module("llama")
    model = adapt(module)
    before = records(model, FEW)
    for one in (module, twin):
        parametrize.register_parametrization(Parts(one).mlp.up_proj, "weight", Doubled())
    doubled = records(model, FEW)
    assert doubled == records(adapt(twin), FEW) != before
    for one in (module, twin):
        Parts(one).mlp.up_proj.parametrizations.weight.original.data[4, 9] += 1.0
    assert records(model, FEW) == records(adapt(twin), FEW) != doubled


class Shifted(torch.nn.Module):
    """Looks like a linear layer, and computes something else, as a layer with an unmerged adapter does."""

    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias

    def forward(self, x):
        return self.base(x) + x.roll(1, dims=-1)[..., :1]


def test_a_replaced_module_that_is_not_the_family_s_is_refused_by_name_until_it_is_put_back():
    module = tiny_module("llama")
    model = adapt(module)
    before, mlp = records(model, FEW), module.model.layers[1].mlp
    up = mlp.up_proj
    mlp.up_proj = Shifted(up)
    for _ in range(2):
        with pytest.raises(ModelError, match=r"After model.layers.1.mlp.up_proj was replaced: .* the MLP in layer 1"):
            records(model, FEW)
    mlp.up_proj = up
    assert records(model, FEW) == before
    module.model.layers[1].mlp = torch.nn.Identity()
    for _ in range(2):
        with pytest.raises(ModelError, match=r"modules of llama.*Identity.*model.layers.1.mlp was replaced"):
            records(model, FEW)
    module.model.layers[1].mlp = mlp
    assert records(model, FEW) == before


def test_fewer_layers_are_noticed_before_the_circuit_is_checked():
    module = tiny_module("llama")
    model = adapt(module)
    records(model, FEW)
    del module.model.layers[2]
    with pytest.raises(eics.errors.EICSError, match="m2"):
        records(model, FEW)


def test_an_edited_setting_counts():
    module, twin = tiny_module("llama"), tiny_module("llama")
    model = adapt(module)
    before = records(model, FEW)
    for one in (module, twin):
        one.model.layers[1].self_attn.scaling *= 2.0
        one.model.norm.variance_epsilon = 0.5
    assert records(model, FEW) == records(adapt(twin), FEW) != before


def test_a_table_of_the_config_that_is_edited_in_place_counts():
    module, twin = tiny_module("llama"), tiny_module("llama")
    model = adapt(module)
    before = records(model, FEW)
    for one in (module, twin):
        one.config.rope_parameters["rope_theta"] = 5.0
    assert records(model, FEW) == records(adapt(twin), FEW) != before  # other fingerprints


def test_a_setting_that_is_not_a_number_is_read_once():
    """NaN is not equal to itself: taken for a change, it would be read again and again without end."""
    module = tiny_module("llama")
    module.model.layers[1].made_up = float("nan")
    model = adapt(module)
    assert records(model, FEW) == records(adapt(tiny_module("llama")), FEW)


def test_weights_made_in_inference_mode_are_scored_and_watched():
    module, twin = tiny_module("llama"), tiny_module("llama")
    with torch.inference_mode():
        for one in (module, twin):
            Parts(one).out.weight = torch.nn.Parameter(Parts(one).out.weight * 1.5)  # has no version
    assert Parts(module).out.weight.is_inference()
    model = adapt(module)
    before = records(model, FEW)
    with torch.inference_mode():
        for one in (module, twin):
            Parts(one).out.weight[4, 4] += 1.0
    assert records(model, FEW) == records(adapt(twin), FEW) != before


@pytest.mark.parametrize(
    "change", [pruned_element_of_an_mlp, pruned_element_of_an_attention, edited_norm, replaced_mlp]
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_edit_between_two_batches_counts_in_the_second(family, change):
    module, twin = tiny_module(family), tiny_module(family)
    prompts = as_prompts([[5, 17, 3], [5, 17, 3], [5, 17, 3]], None)
    rows = score_prompts(adapt(module), CIRCUIT, prompts, FEW, batch_size=1)
    numbers = [[(s.c_sh, s.ei_macro, s.ei_parts) for s in next(rows)] for _ in range(2)]  # every cache is filled now
    for one in (module, twin):
        change(Parts(one))
    third = [(s.c_sh, s.ei_macro, s.ei_parts) for s in next(rows)]
    want = next(score_prompts(adapt(twin), CIRCUIT, prompts[2:], FEW))
    assert third == [(s.c_sh, s.ei_macro, s.ei_parts) for s in want]
    assert numbers[0] == numbers[1] != third


def test_caches_are_kept_while_nothing_changes_and_go_with_the_weights():
    module = tiny_module("llama")
    model = adapt(module)
    records(model)
    description, matrices = model.transformer, dict(model.transformer.blocks[2].mlp.cache.matrices)
    assert matrices
    records(model)
    assert not model.refresh(full=True)
    assert model.transformer is description
    assert all(description.blocks[2].mlp.cache.matrices[name][2] is kept[2] for name, kept in matrices.items())
    module.model.layers[0].mlp.up_proj.weight.data[0, 0] += 1.0
    assert model.refresh(full=True)
    assert model.transformer is not description
    assert not model.transformer.blocks[2].mlp.cache.matrices


def test_two_adapted_models_of_one_module_both_notice():
    module, twin = tiny_module("llama"), tiny_module("llama")
    models = [adapt(module), adapt(module)]
    for model in models:
        records(model, FEW)
    for one in (module, twin):
        pruned_element_of_an_mlp(Parts(one))
    want = records(adapt(twin), FEW)
    assert [records(model, FEW) for model in models] == [want, want]


def test_recorded_graphs_are_forgotten_with_the_weights():
    model = adapt(tiny_module("llama"))
    graphs = graph_cache(model)
    graphs._check_weights(model.transformer)
    graphs.entries["key"] = None
    graphs._check_weights(model.transformer)
    assert "key" in graphs.entries
    model.module.model.norm.weight.data += 1.0
    model.refresh()
    graphs._check_weights(model.transformer)
    assert not graphs.entries
