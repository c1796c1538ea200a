"""A text that grows in the model's cache, against one pass over the whole of it."""

import pytest
import torch

import eics
from eics.transformer.adapt import adapt
from eics.transformer.cached import GrowingText
from eics.transformer.explained import observe
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.stretches import Stretches
from support.tiny_models import FAMILIES, full_circuit, tiny_model, tiny_module

TEXT = [17, 4, 4, 22, 60, 9, 33, 2, 19, 30, 5]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", [1, 7])
def test_token_by_token_has_the_numbers_of_one_pass(family, first):
    """Windows of 4 tokens slide in mistral and gemma; some prompts are longer than that."""
    model = tiny_model(family)
    circuit = full_circuit(model)
    text, whole = GrowingText(model, circuit), Stretches(circuit, "final_norm")
    parts = [TEXT[:first], *([token] for token in TEXT[first:])]
    states = [text.advance(part) for part in parts]
    observed = [whole.advance(state) for state in states]
    every = observe(TransformerRun(run(model, [TEXT], circuit), circuit), "all")
    for kind in ("writes", "explained"):
        for name, there in getattr(every, kind).items():
            own = [getattr(one, kind)[name] for one in observed]
            here = own[-1] if name == "logits" else torch.cat(own, dim=1)
            torch.testing.assert_close(here, there.expand_as(here), rtol=1e-4, atol=1e-5)
    for stop, state in zip(range(first, len(TEXT) + 1), states, strict=True):
        logits = run(model, [TEXT[:stop]], circuit, logits=True).logits
        torch.testing.assert_close(state.logits, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_activations_took_is_recorded_and_changes_no_number(family):
    model = tiny_model(family)
    circuit = full_circuit(model)
    state = GrowingText(model, circuit).advance(TEXT)
    assert sorted(state.mlp_hidden) == [0, 1, 2]
    with_hidden = Stretches(circuit, "final_norm").advance(state).explained
    state.mlp_hidden.clear()
    for name, there in Stretches(circuit, "final_norm").advance(state).explained.items():
        torch.testing.assert_close(with_hidden[name], there, rtol=1e-4, atol=1e-6)


def test_an_intervention_on_the_first_tokens_stays_in_the_cache():
    model = tiny_model("llama")
    circuit = full_circuit(model)
    rows = [[eics.Steer("m0", 2.0, at=(2,), seed=1)]]
    text = GrowingText(model, circuit)
    first, later = text.advance(TEXT[:6], rows), text.advance(TEXT[6:])
    there = run(model, [TEXT], circuit, interventions=rows)
    for layer in range(3):
        here = torch.cat([first.mlp_writes[layer], later.mlp_writes[layer]], dim=1)
        torch.testing.assert_close(here, there.mlp_writes[layer], rtol=1e-6, atol=1e-8)


def test_between_two_tokens_the_model_is_as_it_was():
    model = adapt(tiny_module("llama"))
    text = GrowingText(model, full_circuit(model))
    text.advance(TEXT[:3])
    hooks = [h for part in model.module.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert not hooks
    text.advance(TEXT[3:4])
    assert text.length == 4
