"""Effects: gradients against finite differences, samples against the whole matrix, restored writes against hybrids."""

from dataclasses import replace

import pytest
import torch

from eics.models.prompts import Prompt
from eics.studies.comparison.attribution import numbers
from eics.studies.comparison.batches import Item, Step, as_batches, with_samples
from eics.studies.comparison.models import compare_models
from eics.studies.comparison.parts import Parts
from eics.studies.comparison.passes import observe
from eics.studies.comparison.targets import difference, sampled_directions
from eics.studies.discovery.eap import _gradients
from eics.studies.discovery.full_graph import FullGraph
from eics.transformer.forward import run
from eics.transformer.write_sites import GradientTape, added, site_of_part
from support.tiny_models import FAMILIES
from support.two_models import TOKENS, hybrid, pair, runs

STEP = 3e-3  # transformers computes norms and softmax in float32 even in a float64 model


def shifted(model, name, made, by, tokens=TOKENS):
    """Logits with `by` times what a part made added to its write."""
    with added(model, {site_of_part(name): by * made}):
        return observe(model, tokens, Parts.named(()))["logits"]


def makers(step, model, ours, theirs, outputs):
    made = step.restorations(model, ours, theirs, outputs)
    return {name: -tensor for name, tensor in made.items() if name != "logits"}


@pytest.mark.parametrize("family", FAMILIES)
def test_slopes_are_derivatives_of_the_metric(family):
    model, against = pair(family, torch.float64, noise=0.2)
    step, batch, ours, theirs, outputs = runs(model, against)
    found = numbers(step.parts, model, ours, theirs, outputs)
    prompts = [item.prompt for item in batch]
    for name, made in makers(step, model, ours, theirs, outputs).items():
        up, down = (
            difference("kl", model, prompts, ours["logits"], shifted(against, name, made, by)) for by in (STEP, -STEP)
        )
        slope = found.slope[step.parts.names.index(name)]
        torch.testing.assert_close(slope, (up - down) / (2 * STEP), rtol=2e-2, atol=1e-3)


def test_a_sampled_direction_has_mean_zero_and_the_covariance_of_the_prediction():
    torch.manual_seed(0)
    logits = 2 * torch.randn(2, 6, dtype=torch.float64)
    drawn = torch.stack(sampled_directions(logits, [[1, 2], [3]], seed=0, draws=4000))  # (draws, B, V)
    for row, probabilities in enumerate(logits.softmax(dim=1)):
        covariance = torch.diag(probabilities) - torch.outer(probabilities, probabilities)
        assert drawn[:, row].mean(dim=0).abs().max() < 1e-3  # stratified: each token comes as often as it should
        assert ((drawn[:, row].T @ drawn[:, row]) / 4000 - covariance).abs().max() < 1e-3


def test_which_tokens_are_sampled_depends_on_prompt_and_seed_alone():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    tokens = [[1, 2], [3], [7, 7]]
    together = sampled_directions(logits, tokens, seed=0, draws=5)
    for row in range(3):
        alone = sampled_directions(logits[row : row + 1], tokens[row : row + 1], seed=0, draws=5)
        assert all(torch.equal(one[row], two[0]) for one, two in zip(together, alone, strict=True))
    other = sampled_directions(logits, tokens, seed=1, draws=5)
    assert not all(torch.equal(one, two) for one, two in zip(together, other, strict=True))


def test_the_second_order_is_that_of_the_logits_change():
    """(J m)^T H (J m) with J m by finite differences and the whole H."""
    model, against = pair("llama", torch.float64, noise=0.02)
    step, _, ours, theirs, outputs = runs(model, against, draws=200)
    found = numbers(step.parts, model, ours, theirs, outputs)
    probabilities = theirs["logits"].softmax(dim=1)
    for name, made in makers(step, model, ours, theirs, outputs).items():
        up, down = (shifted(against, name, made, by) for by in (STEP, -STEP))
        moved = (up - down) / (2 * STEP)
        expected = (probabilities * moved.square()).sum(dim=1) - (probabilities * moved).sum(dim=1).square()
        twice = 2 * found.second[step.parts.names.index(name)]
        torch.testing.assert_close(twice, expected, rtol=0.15, atol=1e-4)


@pytest.mark.parametrize("metric", ["kl", "log_prob", "logit_diff"])
def test_effects_are_exact_to_second_order(metric):
    """With the whole curvature the error of an effect falls as the third power of the change."""
    errors = []
    for noise in (0.02, 0.01):
        model, against = pair("gpt2", torch.float64, noise=noise)
        against.module.transformer.ln_f.weight.data.copy_(model.module.transformer.ln_f.weight)
        prompts = [{"tokens": ids, "answer": "5", "foil": "7"} for ids in TOKENS]
        found = compare_models(
            _reading(model), None, prompts, _reading(against), metric=metric, restore=99, samples=2000
        )
        effects = {change.node: (change.effect.value, change.restored.value) for change in found.nodes}
        size = max(abs(true) for _, true in effects.values())
        errors.append(max(abs(first - true) for first, true in effects.values()) / size)
    assert errors[0] < 0.15
    assert errors[1] < 0.75 * errors[0]


class _Numbers:
    """A tokenizer of numbers, for answers given as text."""

    def __call__(self, text, **_):
        return {"input_ids": [int(part) for part in text.split()]}


def _reading(model):
    return replace(model, tokenizer=_Numbers())


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "phi3"])
def test_restoring_is_writing_what_the_other_modules_would_have_written(family):
    """An MLP's A in B's place, in the model's own code, gives the logits of the restored run."""
    model, against = pair(family, noise=0.2)
    found = compare_models(model, None, TOKENS, against, restore=99)
    plain, ours = run(against, TOKENS, logits=True), run(model, TOKENS, logits=True)
    prompts = [None] * len(TOKENS)
    for layer in range(2):
        other = run(hybrid(against, model, layer, "mlp"), TOKENS, logits=True)
        before, after = (
            difference("kl", model, prompts, ours.logits, logits) for logits in (plain.logits, other.logits)
        )
        expected = float((before - after).mean())
        assert found[f"m{layer}"].restored.value == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_restoring_the_only_change_takes_all_of_it_back():
    def change(module):
        module.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1.5)

    model, against = pair("llama", change=change)
    found = compare_models(model, None, TOKENS, against, restore=1)
    assert found.nodes[0].node == "m1"
    assert found.nodes[0].restored.value == pytest.approx(found.total.value, rel=1e-3)
    assert [c.node for c in found.nodes if c.made_here] == ["m1"]


def test_the_tape_agrees_with_the_attribution_sweep():
    """Two ways to the same gradients: autograd through the model's code, and the score's own transposed operators."""
    model, _ = pair("qwen2", torch.float64)
    tape = GradientTape(model, ("input", "m1"))
    state = run(model, TOKENS, logits=True, tape=tape)
    direction = torch.randn(state.logits.shape, dtype=state.logits.dtype, generator=torch.Generator().manual_seed(0))
    direction -= direction.mean(dim=1, keepdim=True)  # the sweep's read-out is centred
    (by_site,) = tape.by_site(direction)
    graph, stream, by_reader = FullGraph.of(model), 0.0, {}
    names = {column: name for (name, _), column in graph.columns.items()}
    with torch.no_grad():
        for columns, gradient in _gradients(run(model, TOKENS, logits=True), graph, direction, frozen=False):
            stream = stream + gradient.sum(dim=0)
            for column, one in zip(columns, gradient, strict=True):
                by_reader[names[column]] = by_reader.get(names[column], 0.0) + one
    after_m1 = sum(one for name, one in by_reader.items() if name in ("logits", "m2") or name.startswith("a2."))
    valid = state.valid
    torch.testing.assert_close(by_site["input"][valid], stream[valid], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(by_site["m1"][valid], after_m1[valid], rtol=1e-3, atol=1e-3)


def test_a_tape_leaves_no_trace():
    model, _ = pair("llama")
    before = [parameter.grad for parameter in model.module.parameters()]
    tape = GradientTape(model, ("a1",))
    state = run(model, TOKENS, logits=True, tape=tape)
    assert not state.logits.requires_grad
    tape.by_site(torch.ones_like(state.logits))
    assert tape.logits is None
    assert [parameter.grad for parameter in model.module.parameters()] == before
    assert torch.is_grad_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.module.modules())


def test_draws_cover_an_eighth_of_many_prompts_and_all_of_few():
    def drawn(count, samples=None):
        items = [Item(Prompt(i, tokens=(i, i + 1)), [i, i + 1]) for i in range(count)]
        return with_samples(items, 0, samples)

    assert sum(item.draws for item in drawn(4)) == 64
    assert {item.draws for item in drawn(64)} == {1}
    assert sorted({item.draws for item in drawn(1000)}) == [0, 1]
    assert sum(item.draws for item in drawn(1000)) == 125
    assert sum(item.draws for item in drawn(100, samples=10)) == 10
    for batch in as_batches(drawn(1000), 8):
        assert len({item.draws for item in batch}) == 1
    chosen = {item.prompt.id for item in drawn(1000) if item.draws}
    again = with_samples(list(reversed(drawn(1000))), 0)
    assert {item.prompt.id for item in again if item.draws} == chosen


def test_a_step_without_sites_runs():
    """The read-out alone writes nothing to the residual stream."""
    model, against = pair("llama")
    step, batch, ours, theirs, outputs = runs(model, against)
    whole = numbers(step.parts, model, ours, theirs, outputs)
    alone = Step(Parts.named(("logits",)), "kl")
    assert alone.parts.sites == ()
    ours = alone.ours(model, batch)
    found = numbers(alone.parts, model, ours, alone.theirs(against, batch, ours["logits"]), outputs)
    torch.testing.assert_close(found.slope[0], whole.slope[step.parts.names.index("logits")], rtol=1e-4, atol=1e-7)
