"""`eics.compare` of two models as its users meet it: what it says, refuses, keeps and goes on with."""

import copy
import json
from dataclasses import replace

import pytest
import torch

import eics
from eics.errors import EICSError, ModelError, OptionError
from eics.models.lora import with_adapter
from eics.studies.comparison.model_rows import FILES
from eics.studies.comparison.model_sentences import sentences
from eics.studies.comparison.models import NOT_FINITE
from eics.studies.statistics import Interval
from eics.transformer.adapt import adapt
from support.tiny_models import some_circuit, tiny_module
from support.two_models import TOKENS, nothing, pair

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # in peft


@pytest.fixture(scope="module")
def two():
    return pair("llama")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Both models as folders, which can be loaded one at a time."""
    folder = tmp_path_factory.mktemp("models")
    for model in pair("llama"):
        model.module.save_pretrained(folder / model.name)
    return folder / "base", folder / "tuned"


def record(found):
    return found.to_record()


def test_a_comparison_reads_well(two):
    found = eics.compare(two[0], None, TOKENS, against=two[1])
    assert repr(found).startswith("ModelComparison(base to tuned: kl 0.")
    assert "\n" not in repr(found)
    assert found.sentences[0].startswith("4 of 4 prompts are touched; the likeliest next token changed on")
    assert "made in 20 of 20 parts" in found.sentences[1]  # 3 layers of 4 heads, a bias and an MLP: 3 * 6 + 2
    document = record(found)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert (document["format"], document["kind"], document["metric"]) == ("eics-comparison", "models", "kl")
    assert [entry["node"] for entry in document["nodes"]] == [change.node for change in found.nodes]
    effects = [abs(change.effect.value) for change in found.nodes]
    assert effects == sorted(effects, reverse=True)
    with pytest.raises(KeyError):
        found["m9"]


def test_sizes_are_root_mean_squares_over_prompts_and_positions(two):
    from eics.transformer.forward import run

    found, states = eics.compare(two[0], None, TOKENS, against=two[1]), [run(model, TOKENS) for model in two]
    moved, size = 0.0, 0.0
    for row, tokens in enumerate(TOKENS):
        for position in range(len(tokens)):
            first, second = (state.input[row, position].double() for state in states)
            moved, size = moved + float((second - first).square().sum()), size + float(first.square().sum())
    assert found["input"].made_here == pytest.approx((moved / size) ** 0.5, rel=1e-5)
    assert found["input"].inherited == 0


def test_a_copy_changed_nothing():
    model, against = pair("llama", change=nothing)
    found = eics.compare(model, None, TOKENS, against=against)
    assert found.sentences == ("Nothing changed on any of 4 prompts: the logits differ by no more than rounding.",)
    assert not any(change.made_here or change.inherited or change.effect.value for change in found.nodes)
    assert not any(prompt.touched for prompt in found.prompts)
    assert found.residue < 1e-6


def test_prompts_that_a_change_does_not_reach_are_not_touched():
    def change(module):
        module.get_parameter("model.embed_tokens.weight")[33] += 1.0

    model, against = pair("llama", change=change)
    found = eics.compare(model, None, TOKENS, against=against)
    assert [prompt.touched for prompt in found.prompts] == [33 in tokens for tokens in TOKENS]
    assert found.sentences[0].startswith("1 of 4 prompts are touched")


def test_a_hook_is_named():
    model, against = pair("llama", change=nothing)
    mlp = against.adapter.sites(against.adapter.layers(against.module)[1]).mlp_write
    handle = mlp.register_forward_hook(lambda *given: given[-1] + 0.5)
    found = eics.compare(model, None, TOKENS, against=against)
    handle.remove()
    assert "neither made nor inherited" in found.sentences[-1]
    assert "what m1 wrote is not its own function" in found.sentences[-1]


def test_a_change_too_large_for_gradients_is_said():
    model = pair("llama")[0]
    torch.manual_seed(5)
    other = tiny_module("llama", torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter[torch.randperm(len(parameter))])
    found = eics.compare(model, None, TOKENS, against=adapt(other))
    assert any("too large for these estimates" in sentence for sentence in found.sentences)


def test_parts_that_only_act_together_are_said_to(two):
    found = eics.compare(two[0], None, TOKENS, against=two[1], restore=2)
    best = max(change.restored.value for change in found.nodes if change.restored)
    against = [change for change in found.nodes if change.restored]
    worse = [replace(change, restored=Interval(-1.0, -2.0, -0.5)) for change in against]
    assert best > 0
    assert f"Restoring {max(against, key=lambda c: c.restored.value).node} alone takes back" in found.sentences[-1]
    (said,) = list(sentences(replace(found, nodes=tuple(worse))))[-1:]
    assert said == "Restoring a part alone takes nothing back, for none of the 2 measured: they act together."


@pytest.mark.parametrize("restore", [0, 3])
@pytest.mark.parametrize("circuit", [False, True])
def test_one_at_a_time_gives_the_same_numbers(saved, restore, circuit):
    together = [eics.load_model(path, device="cpu") for path in saved]
    chosen = some_circuit(together[0]) if circuit else None
    how = {"restore": restore, "batch_size": 2}
    first = eics.compare(together[0], chosen, TOKENS, against=together[1], **how)
    second = eics.compare(saved[0], chosen, TOKENS, against=saved[1], one_at_a_time=True, **how)
    same, other = record(first), record(second)
    for one, two in zip(same.pop("nodes"), other.pop("nodes"), strict=True):
        assert one["node"] == two["node"]
        for name in ("made_here", "inherited", "residue"):
            assert one[name] == pytest.approx(two[name], rel=1e-4, abs=1e-6)
        for name in ("effect", "restored"):
            assert one[name] == (two[name] and pytest.approx(two[name], rel=1e-4, abs=1e-7))
    for name in ("residue", "total", "prompts"):
        same.pop(name), other.pop(name)
    assert same.pop("sentences")[0] == other.pop("sentences")[0]
    assert same == other


def test_one_at_a_time_holds_one_model(saved):
    """Live models are counted whenever one is loaded."""
    import gc
    import weakref

    held, most = [], []

    def load(path):
        gc.collect()
        model = eics.load_model(path, device="cpu")
        held.append(weakref.ref(model.module))
        most.append(sum(one() is not None for one in held))
        return model

    eics.compare(saved[0], None, TOKENS, against=saved[1], one_at_a_time=True, load=load, restore=1)
    assert len(most) >= 6
    assert max(most) == 1


def test_batches_change_nothing(two):
    whole, single = (eics.compare(two[0], None, TOKENS, against=two[1], batch_size=size) for size in (4, 1))
    for change in whole.nodes:
        other = single[change.node]
        assert change.effect.value == pytest.approx(other.effect.value, rel=1e-3, abs=1e-6)
        assert change.made_here == pytest.approx(other.made_here, rel=1e-4)


def test_intervals_over_groups_are_those_of_whole_groups(two):
    """Four copies of two prompts in two groups say as much as two prompts."""
    prompts = [TOKENS[0], TOKENS[1]] * 4
    alone = eics.compare(two[0], None, prompts[:2], against=two[1], resamples=400, metric="kl", samples=64)
    grouped = eics.compare(two[0], None, prompts, against=two[1], group=["x", "y"] * 4, resamples=400, samples=256)
    for bound in ("low", "high"):
        assert getattr(grouped.total, bound) == pytest.approx(getattr(alone.total, bound), rel=1e-3)
    ungrouped = eics.compare(two[0], None, prompts, against=two[1], resamples=400)
    assert ungrouped.total.high - ungrouped.total.low < 0.8 * (grouped.total.high - grouped.total.low)


REFUSED = {
    "width": ("number of layers", {"num_hidden_layers": 2}),
    "heads": ("shape of w_q", {"num_attention_heads": 2}),
    "vocabulary": ("vocabulary size", {"vocab_size": 64}),
    "mlp": ("shape of w_in", {"intermediate_size": 44}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_of_other_shapes_are_refused_by_name(two, what):
    import transformers

    from support.tiny_models import CONFIGS

    named, change = REFUSED[what]
    config = CONFIGS["llama"]()
    config.update(change)
    other = adapt(transformers.AutoModelForCausalLM.from_config(config), name="other")
    with pytest.raises(ModelError, match=f"must have the same {named}.*'base' has .*'other'") as error:
        eics.compare(two[0], None, TOKENS, against=other)
    assert len(str(error.value).splitlines()) == 1


def test_another_family_is_refused(two):
    with pytest.raises(ModelError, match=r"same architecture\. 'base' has llama, 'other' mistral"):
        eics.compare(two[0], None, TOKENS, against=adapt(tiny_module("mistral", torch.float32), name="other"))


def test_another_tokenizer_is_refused(two):
    class Words:
        def __init__(self, words):
            self.words = words

        def get_vocab(self):
            return {word: index for index, word in enumerate(self.words)}

    first, second = (replace(m, tokenizer=Words(w)) for m, w in zip(two, (["a", "b"], ["a", "c"]), strict=True))
    with pytest.raises(ModelError, match=r"same tokenizer\. They have not: 'b' is 1 to one and unknown to the other"):
        eics.compare(first, None, TOKENS, against=second)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs either against=, another model, or a second set of prompts. Got neither"),
        ({"against": "both", "prompts_b": TOKENS}, "Got both"),
        ({"against": "itself"}, "must be two. Got the same one twice"),
        ({"against": "two", "metric": "accuracy"}, "'metric'.*one of kl, log_prob, logit_diff"),
        ({"against": "two", "metric": "log_prob"}, "needs the field 'answer' in every prompt. Prompt 0 has none"),
        ({"against": "two", "restore": -1}, "'restore'.*whole number >= 0"),
        ({"against": "two", "samples": 0}, "'samples'.*whole number >= 1"),
        ({"against": "two", "one_at_a_time": True}, "'one_at_a_time'.*by path or name"),
        ({"against": "two", "group": ["x"]}, "'group'.*one for each of the 4 prompts"),
        ({"against": "two", "resume": True}, "--resume needs --out"),
        ({"against": 3}, "must be a loaded transformers model"),
    ],
)
def test_wrong_calls_are_one_line(two, given, said):
    models = {"itself": two[0], "two": two[1], "both": two[1]}
    given = {name: models.get(value, value) if name == "against" else value for name, value in given.items()}
    with pytest.raises(EICSError, match=said) as error:
        eics.compare(two[0], None, TOKENS, **given)
    assert len(str(error.value).splitlines()) == 1


def test_no_prompts_are_refused(two):
    with pytest.raises(OptionError, match="at least one prompt"):
        eics.compare(two[0], None, [], against=two[1])


def test_prompts_that_cannot_run_fail_alone(two):
    prompts = [TOKENS[0], [99], TOKENS[1], [1] * 40]
    found = eics.compare(two[0], None, prompts, against=two[1])
    assert [prompt.status for prompt in found.prompts] == ["ok", "failed", "ok", "failed"]
    assert "token ids must be 0 to 60" in found.prompts[1].reason
    assert "at most 32 tokens" in found.prompts[3].reason
    alone = eics.compare(two[0], None, [TOKENS[0], TOKENS[1]], against=two[1])
    assert found.total.value == pytest.approx(alone.total.value, rel=1e-5)
    none = eics.compare(two[0], None, [[99]], against=two[1], restore=2)
    assert none.sentences == ("No prompt could be run in both models.",)
    assert record(none)["total"]["value"] is None


def test_a_prompt_on_which_a_model_overflows_fails_alone():
    def change(module):
        module.get_parameter("model.embed_tokens.weight")[33] = float("inf")

    model, against = pair("llama", change=change)
    found = eics.compare(model, None, TOKENS, against=against, restore=1)
    assert [prompt.reason for prompt in found.prompts] == [None, NOT_FINITE, None, None]
    assert found.total.value == 0
    json.dumps(record(found), allow_nan=False)


def test_a_run_is_resumed_where_it_stopped(two, tmp_path):
    how = {"against": two[1], "batch_size": 1, "restore": 2}
    whole = eics.compare(two[0], None, TOKENS, out=tmp_path / "whole", **how)
    assert sorted(file.name for file in (tmp_path / "whole").iterdir()) == sorted([*FILES, "settings.json"])
    seen = []

    def stop(count):
        seen.append(count)
        if sum(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        eics.compare(two[0], None, TOKENS, out=tmp_path / "cut", tick=stop, **how)
    assert len((tmp_path / "cut" / "rows.jsonl").read_text().splitlines()) == 2
    with pytest.raises(OptionError, match="already holds a run"):
        eics.compare(two[0], None, TOKENS, out=tmp_path / "cut", **how)
    with pytest.raises(EICSError, match="continue with the same seed"):
        eics.compare(two[0], None, TOKENS, out=tmp_path / "cut", resume=True, seed=1, **how)
    counts = []
    again = eics.compare(two[0], None, TOKENS, out=tmp_path / "cut", resume=True, tick=counts.append, **how)
    assert record(again) == record(whole)
    assert counts[0] == 2
    assert sum(counts) == 4
    assert (tmp_path / "cut" / "compare.json").read_text() == (tmp_path / "whole" / "compare.json").read_text()


def _lora(module, folder, **config):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    how = {"r": 2, "target_modules": ["down_proj"], "layers_to_transform": [1], "task_type": "CAUSAL_LM"}
    adapted = get_peft_model(module, LoraConfig(**how | config))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(folder)
    return adapted


def test_an_adapter_is_merged_and_its_layer_is_named(saved, tmp_path):
    base = eics.load_model(saved[0], device="cpu")
    adapted = _lora(copy.deepcopy(base.module), tmp_path / "adapter")
    tuned = eics.load_model(saved[0], device="cpu", adapter=tmp_path / "adapter")
    ids = torch.tensor([TOKENS[0]])
    with torch.no_grad():
        torch.testing.assert_close(tuned.module(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)
    assert tuned.name == f"{saved[0]} + {tmp_path / 'adapter'}"
    found = eics.compare(base, None, TOKENS, against=tuned)
    assert [change.node for change in found.nodes if change.made_here] == ["m1"]


def test_adapters_that_could_run_something_are_refused(saved, tmp_path):
    folder = tmp_path / "adapter"
    with pytest.raises(ModelError, match=r"has no adapter_config.json"):
        eics.load_model(saved[0], device="cpu", adapter=folder)
    _lora(tiny_module("llama", torch.float32), folder)
    config = json.loads((folder / "adapter_config.json").read_text())

    def refused(changed, said):
        (folder / "adapter_config.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=said) as error:
            with_adapter(tiny_module("llama", torch.float32), folder)
        assert len(str(error.value).splitlines()) == 1

    refused(config | {"peft_type": "PREFIX_TUNING"}, "must be of type LORA.*'PREFIX_TUNING'")
    refused(config | {"megatron_config": {}, "megatron_core": "antigravity"}, "remove 'megatron_config'")
    refused([1], "must be a JSON object")
    refused(config | {"target_modules": ["nothing"]}, "must fit the model. It does not")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelError, match=r"has no adapter_model.safetensors"):
        with_adapter(tiny_module("llama", torch.float32), folder)
