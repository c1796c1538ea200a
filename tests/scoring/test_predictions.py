"""The model's likeliest next tokens in a record are those of the model itself, from the pass that was scored."""

import json
from dataclasses import replace

import pytest
import torch

import eics
from eics.models.base import Model
from eics.scoring.result import Scores, failed
from eics.transformer.adapt import adapt
from support.tiny_models import FAMILIES, some_circuit, tiny_model, tiny_module

PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [9, 10, 11]]  # of different lengths: padded in a batch


class Letters:
    """A tokenizer that only decodes."""

    decoded = 0

    def decode(self, ids):
        Letters.decoded += 1
        return f"<{ids[0]}>"


def likeliest(model, tokens, position=-1):
    with torch.no_grad():
        logits = model.module(torch.tensor([tokens])).logits[0, position]
    return logits.softmax(dim=0).topk(5)


@pytest.mark.parametrize("family", FAMILIES)
def test_predictions_are_the_models_own(family):
    model = tiny_model(family)
    passes = []
    handle = model.module.register_forward_hook(lambda *_: passes.append(1))
    try:
        scores = eics.score(model, some_circuit(model), PROMPTS, mode="fast")
    finally:
        handle.remove()
    assert len(passes) == 1
    for tokens, score in zip(PROMPTS, scores, strict=True):
        truth = likeliest(model, tokens)
        assert [entry["id"] for entry in score.predictions] == truth.indices.tolist()
        probabilities = [entry["probability"] for entry in score.predictions]
        assert probabilities == pytest.approx(truth.values.tolist(), rel=1e-9)
        assert all(entry["token"] is None for entry in score.predictions)  # there is no tokenizer
        assert json.dumps(score.to_record()["predictions"])


def test_predictions_at_another_answer_position_and_with_logits():
    model = tiny_model("gemma2")
    for readout in ("final_norm", "logits"):
        scores = eics.score(model, some_circuit(model), PROMPTS, mode="fast", answer=1, readout=readout)
        for tokens, score in zip(PROMPTS, scores, strict=True):
            assert [entry["id"] for entry in score.predictions] == likeliest(model, tokens, 1).indices.tolist()


def test_tokens_are_decoded_once():
    plain = tiny_model("gpt2")
    model = Model(plain.module, plain.adapter, Letters(), "letters")
    first = eics.score(model, some_circuit(model), [PROMPTS[0]], mode="fast")[0]
    assert all(entry["token"] == f"<{entry['id']}>" for entry in first.predictions)
    texts = Letters.decoded
    model.token_text(first.predictions[0]["id"])
    assert Letters.decoded == texts


def test_bfloat16_and_overflow():
    model = adapt(tiny_module("llama", torch.bfloat16))
    score = eics.score(model, some_circuit(model), [PROMPTS[0]], mode="fast")[0]
    assert score.predictions[0]["id"] == likeliest(model, PROMPTS[0]).indices[0]
    broken = tiny_module("llama", torch.float32)
    with torch.no_grad():
        broken.lm_head.weight[3] = float("inf")
    score = eics.score(adapt(broken, check=False), some_circuit(model), [PROMPTS[0]], mode="fast")[0]
    assert score.predictions == []
    json.dumps(score.to_record(), allow_nan=False)


def test_an_explicit_circuit_predicts_nothing():
    assert failed("a", "why").predictions == []


def test_slices_and_sums_of_scores_are_scores():
    model = tiny_model("gpt2")
    scores = eics.score(model, some_circuit(model), PROMPTS, mode="fast")
    for part in (scores[:2], scores + scores[:1], scores.copy(), scores[::-1]):
        assert isinstance(part, Scores)
        assert part.plot() is not None
        assert len(part.to_pandas()) == len(part)
    assert scores[0] is next(iter(scores))


def test_reprs_have_one_line():
    model = tiny_model("gpt2")
    scores = eics.score(model, some_circuit(model), PROMPTS, mode="fast")
    noisy = replace(scores[0], status="ok", stderr={"eics": 0.0123}, eics=0.5, reason="a long\nreason")
    assert repr(noisy).startswith("Score(0, ")
    assert "eics=0.500 ± 0.0123" in repr(noisy)
    assert repr(Scores([failed("a", "why"), noisy])) == f"Scores(2: 1 {noisy.status}, 1 failed; median eics=0.500)"
    for value in (noisy, scores, model, some_circuit(model), Scores(), scores[0].edges):
        assert "\n" not in repr(value)
        assert len(repr(value)) < 200
    assert repr(model) == "Model(gpt2: GPT2LMHeadModel, 3 layers of 4 heads, width 24, float64 on cpu)"
