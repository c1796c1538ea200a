"""The fingerprint: the same for the same model wherever it is computed, another one for any other model."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch
import transformers

import eics
from eics.models.bits import bit_sum, same_bits, sampled
from eics.models.fingerprint import _moments, fingerprint
from eics.transformer.adapt import adapt
from support.tiny_models import CONFIGS, tiny_module

CIRCUIT = eics.Circuit(["input->m1", "m1->logits", "input->logits"])
ELSEWHERE = """
import torch
from eics.models.fingerprint import fingerprint
layer = torch.nn.Linear(700, 500)
layer.load_state_dict({"weight": torch.arange(350_000.0).view(500, 700) / 7, "bias": torch.arange(500.0) / 3})
print(fingerprint(layer))
"""


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_every_parameter_and_the_config_count(family):
    module = tiny_module(family, torch.float32)
    seen = {fingerprint(module)}
    assert seen == {fingerprint(tiny_module(family, torch.float32))}
    some = list(module.parameters())[::4]
    for index, parameter in enumerate(some):
        parameter.data.view(-1)[index % parameter.numel()] += 0.01
        seen.add(fingerprint(module))
    assert len(seen) == 1 + len(some)
    assert fingerprint(tiny_module(family, torch.bfloat16)) not in seen
    with_other_config = tiny_module(family, torch.float32)
    with_other_config.config.max_position_embeddings = 31
    assert fingerprint(with_other_config) not in seen


def test_it_is_the_same_in_another_process_with_other_threads(capsys):
    exec(ELSEWHERE, {})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "3"}
    there = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout == capsys.readouterr().out
    assert len(there.stdout.strip()) == 64


def test_it_survives_saving_and_loading(tmp_path):
    module = tiny_module("qwen2", torch.float32)
    module.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert fingerprint(again) == fingerprint(module)
    assert set(fingerprint(module)) <= set("0123456789abcdef")
    assert len(fingerprint(module)) == 64


def test_sums_do_not_depend_on_layout_and_are_right():
    values = torch.randn(3, 70_001, generator=torch.Generator().manual_seed(0))
    total, squares = _moments(values)
    assert math.isclose(total, math.fsum(values.flatten().tolist()), rel_tol=1e-12)
    assert math.isclose(squares, math.fsum(x * x for x in values.flatten().tolist()), rel_tol=1e-12)
    assert _moments(values.T.contiguous().T) == (total, squares)
    assert _moments(torch.tensor([math.inf, -math.inf]))[1] == math.inf
    assert _moments(torch.zeros(0)) == (0.0, 0.0)


def test_records_of_models_have_it_and_those_of_explicit_circuits_do_not():
    module = tiny_module("llama")
    model = adapt(module)
    ok, failed = eics.score(model, CIRCUIT, [[1, 2, 3], [1000]])
    assert ok.fingerprint == failed.fingerprint == model.fingerprint() == fingerprint(module)
    assert failed.status == "failed"
    assert json.loads(json.dumps(ok.to_record()))["fingerprint"] == ok.fingerprint
    module.model.embed_tokens.weight.data[60, 23] += 1.0  # a token of no prompt, through `.data`
    assert eics.score(model, CIRCUIT, [1, 2, 3]).fingerprint == fingerprint(module) != ok.fingerprint
    explicit = eics.LinearCircuit(maps={"x->y": torch.eye(2)}, activations={"x": [1, 0], "y": [1, 0]})
    assert eics.score(explicit).fingerprint is None


@pytest.mark.parametrize("shape", [(7, 7), (12, 30), (30, 12), (1, 9), (9, 1), (6, 4, 10), (8,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_sample_has_every_row_and_column_and_a_sum_every_element(shape, dtype):
    tensor = torch.randn(shape).to(dtype)
    for own in (tensor, tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor, tensor[..., :-1]):
        if own.numel() == 0:
            continue
        before, total = sampled(own).clone(), bit_sum(own)
        assert same_bits([(sampled(own), before), (bit_sum(own), total)])
        for axis in range(own.ndim if own.ndim < 3 else 0):
            for index in range(own.shape[axis]):
                other = own.clone(memory_format=torch.preserve_format)
                other.select(axis, index).add_(1.0)
                assert not same_bits([(sampled(other), before)])
        for index in range(own.numel()):
            other = own.clone(memory_format=torch.preserve_format)
            other[tuple(int(i) for i in torch.unravel_index(torch.tensor(index), own.shape))] += 1.0
            assert not same_bits([(bit_sum(other), total)])


def test_every_family_has_its_own():
    assert len({fingerprint(tiny_module(family)) for family in CONFIGS}) == len(CONFIGS)
