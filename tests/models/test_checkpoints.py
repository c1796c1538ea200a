"""Checkpoints that are not what their config says are refused by name; those that are load without a word."""

import json
import re
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

import eics
from eics.errors import ModelError
from eics.transformer.adapt import load_model
from support.tiny_models import tiny_module


def saved(folder, family="llama", change=lambda _: None, **config):
    """A tiny model on disk, its tensors changed by `change` and its config by `config`."""
    tiny_module(family, torch.float32).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(
        {name: tensor.clone() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    content = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def write_tokenizer(folder, tokens):
    words = {f"w{i}": i for i in range(tokens)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "config", "says"),
    [
        (lambda t: t.pop(NAME), {}, rf"must have all weights .* lacks 1: '{NAME}'"),
        (lambda t: t.pop("lm_head.weight"), {}, r"lacks 1: 'lm_head\.weight'"),
        (lambda t: t.update({"model.layers.0.extra": torch.ones(2)}), {}, r"no weights .* 'model\.layers\.0\.extra'"),
        (lambda _: None, {"num_hidden_layers": 2}, r"It has 16: 'model\.layers\.2.* and 12 more\. .*fewer layers"),
        (lambda _: None, {"num_hidden_layers": 4}, r"lacks 16: 'model\.layers\.3"),
        (lambda t: t.update({NAME: torch.ones(3, 24)}), {}, rf"'{NAME}': shape \(3, 24\) instead of \(40, 24\)"),
        (lambda t: t.update({NAME: torch.full((40, 24), torch.nan)}), {}, rf"must be finite\. '{NAME}' .*damaged"),
        (lambda t: t[NAME].view(-1)[7:8].fill_(torch.inf), {}, rf"must be finite\. '{NAME}'"),
    ],
    ids=["missing", "no head", "surplus", "fewer layers", "more layers", "shape", "nan", "inf"],
)
def test_weights_that_are_not_the_models_are_refused_by_name(tmp_path, capfd, change, config, says):
    folder = saved(tmp_path / "m", change=change, **config)
    capfd.readouterr()  # transformers draws while it saves
    with pytest.raises(ModelError, match=says) as error:
        load_model(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("family", "extra"),
    [
        ("gpt2", ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("gpt_neox", ["gpt_neox.layers.0.attention.rotary_emb.inv_freq", "gpt_neox.layers.0.attention.masked_bias"]),
        ("llama", ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("gemma3", ["vision_tower.encoder.weight", "multi_modal_projector.weight"]),
    ],
)
def test_old_buffers_and_other_senses_are_no_surplus(tmp_path, family, extra):
    folder = saved(tmp_path / "m", family, lambda tensors: tensors.update({name: torch.ones(2) for name in extra}))
    loaded = load_model(folder).module.state_dict()
    for name, tensor in tiny_module(family, torch.float32).state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_tied_weights_are_not_missing(tmp_path):
    folder = saved(tmp_path / "m", "gpt2")
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    head = load_model(folder).module.get_output_embeddings().weight
    assert torch.equal(head, tiny_module("gpt2", torch.float32).lm_head.weight)


def test_weights_stored_as_integers_are_codes_and_no_numbers(tmp_path):
    folder = saved(tmp_path / "m", change=lambda tensors: tensors.update({NAME: tensors[NAME].to(torch.int8)}))
    with pytest.raises(ModelError, match=rf"floating-point numbers\. '{NAME}' is stored as I8: it is quantized"):
        load_model(folder)


def test_integers_in_a_checkpoint_of_the_inner_model_are_found_too(tmp_path):
    def inner(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.1.mlp.c_fc.weight"] = tensors["h.1.mlp.c_fc.weight"].to(torch.uint8)

    with pytest.raises(ModelError, match=r"'h\.1\.mlp\.c_fc\.weight' is stored as U8"):
        load_model(saved(tmp_path / "m", "gpt2", inner))


def test_an_adapter_beside_a_model_is_not_left_out_in_silence(tmp_path):
    folder = saved(tmp_path / "m")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with pytest.raises(ModelError, match=r"must hold one model\. It has a LoRA adapter"):
        load_model(folder)


def test_a_value_too_large_for_float16_is_named(tmp_path):
    folder = saved(tmp_path / "m", change=lambda tensors: tensors[NAME].view(-1)[:1].fill_(1e6))
    assert load_model(folder).vocabulary == 61
    with pytest.raises(ModelError, match=rf"'{NAME}' .*float16 ends at 65504: use bfloat16"):
        load_model(folder, dtype="float16")


def test_a_tokenizer_must_belong_to_its_model(tmp_path):
    folder = saved(tmp_path / "m")
    write_tokenizer(folder, 61)
    assert load_model(folder).tokenizer("w3")["input_ids"] == [3]
    write_tokenizer(folder, 62)
    with pytest.raises(ModelError, match="It has 62 tokens, but the model embeds 61"):
        load_model(folder)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"The tokenizer of .* must be readable"):
        load_model(folder)


def test_a_loaded_module_is_checked_like_a_folder():
    class Tokenizer:
        def __len__(self):
            return 62

    with pytest.raises(ModelError, match="It has 62 tokens, but the model embeds 61"):
        eics.adapt(tiny_module("llama"), Tokenizer())
    for cls in (transformers.LlamaModel, transformers.LlamaForSequenceClassification, transformers.GPT2Model):
        config = tiny_module("gpt2" if cls is transformers.GPT2Model else "llama").config
        with pytest.raises(ModelError, match=f"must be a causal language model.*Got {cls.__name__}"):
            eics.adapt(cls(config))
    with pytest.raises(ModelError, match="must be in memory"):
        eics.adapt(tiny_module("llama").to("meta"))
    replaced = tiny_module("llama")
    replaced.model.layers[1].mlp.up_proj = torch.nn.Identity()
    with pytest.raises(ModelError, match="must have the modules of llama"):
        eics.adapt(replaced)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "llama"])
def test_without_its_files_there_is_no_tokenizer(tmp_path, family):
    """transformers makes up one that knows only its special tokens: every text would be empty or unknown."""
    assert load_model(saved(tmp_path / "m", family)).tokenizer is None


def test_float16_agrees_with_float32(tmp_path):
    folder = saved(tmp_path / "m", "qwen2")
    circuit = eics.Circuit(["input->a0.h1", "a0.h1->m1", "input->m1", "m1->logits", "a0.h1->logits"])
    for preset in ("paper", "well-posed"):
        half, full = (
            eics.score(load_model(folder, dtype=dtype, device="cpu"), circuit, [3, 9, 4, 7, 1], preset=preset)
            for dtype in ("float16", "float32")
        )
        for name in ("c_sh", "dei", "ei_macro"):
            assert getattr(half, name) == pytest.approx(getattr(full, name), rel=0.02), name
            assert getattr(half, name) != getattr(full, name)


def broken(folder, kind):
    """Breaks a saved model in one way."""
    weights, config = folder / "model.safetensors", folder / "config.json"
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif kind == "no safetensors":
        weights.write_bytes(b"hello")
    elif kind == "pickle":
        torch.save(load_file(weights), folder / "pytorch_model.bin")
        weights.unlink()
    elif kind == "no weights":
        weights.unlink()
    elif kind == "no config":
        config.unlink()
    elif kind == "config no JSON":
        config.write_text("{")
    elif kind == "config nested":
        config.write_text("[" * 100_000)
    elif kind == "config a list":
        config.write_text("[]")
    elif kind == "adapter":
        config.unlink()
        (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("truncated", r"must be whole safetensors files.*Download them again"),
        ("no safetensors", r"must be whole safetensors files"),
        ("pickle", r"'pytorch_model\.bin', a pickle, which can run code and is not opened"),
        ("no weights", r"must have its weights as safetensors\. It has none"),
        ("no config", r"must have a config\.json"),
        ("config no JSON", r"config\.json' must be JSON"),
        ("config nested", r"config\.json' must be JSON"),
        ("config a list", r"must be a JSON object"),
        ("adapter", r"LoRA adapter: merge it"),
    ],
)
def test_a_broken_folder_says_what_is_broken(tmp_path, capfd, kind, says):
    folder = saved(tmp_path / "m")
    broken(folder, kind)
    capfd.readouterr()
    with pytest.raises(ModelError, match=says) as error:
        load_model(folder)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("model_type", ["bert", "t5", "mamba", "vit", "made-up"])
def test_another_architecture_is_refused_before_its_weights_are_read(tmp_path, model_type):
    folder = saved(tmp_path / "m", model_type=model_type)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelError, match=rf"one of gpt2, .*phi3\. Got '{model_type}'"):
        load_model(folder)


def test_a_copy_of_a_good_folder_still_loads(tmp_path):
    shutil.copytree(saved(tmp_path / "m"), tmp_path / "with a blank")
    assert re.search("with a blank", load_model(tmp_path / "with a blank").name)
