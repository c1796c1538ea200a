"""While the model writes: every token's numbers are those of the finished text, whatever the family."""

import numpy as np
import pytest
import torch

import eics
from eics.errors import OptionError
from eics.studies.tracing.generation import Generation
from eics.studies.tracing.task import checked_task
from support.learned import pooled_calibration, small
from support.tiny_models import FAMILIES

PROMPT = [17, 4, 22, 60, 9, 33]


def task_of(prompts, *, generate, family="llama", **more):
    model, circuit = small(family)
    how = {
        "level": 0.05, "seed": 0, "memory": None, "batch_size": 8, "interventions": None, "temperature": 0.0,
        "allow_changed_weights": False,
    }  # fmt: skip
    listed = [eics.Prompt(place, tokens=tuple(tokens)) for place, tokens in enumerate(prompts)]
    return checked_task(model, circuit, listed, pooled_calibration(family), generate=generate, **how | more)


def same_z(one, other):
    """To 1e-3; of a node that its inputs explain to the last digits, rounding is all that is judged."""
    explained = np.array(one.header.r2) > 0.9999
    np.testing.assert_allclose(one.table[~explained], other.table[~explained], atol=1e-3)
    np.testing.assert_allclose(one.table[explained], other.table[explained], atol=1e-2)


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_those_of_the_finished_text(family):
    """Sliding windows (mistral, gemma), grouped keys, rotations, post-norms, parallel layers, learned positions."""
    model, circuit = small(family)
    calibration = pooled_calibration(family)
    grown = eics.trace(model, circuit, PROMPT, calibration=calibration, generate=9)
    assert grown.generated == len(PROMPT)
    assert len(grown) == len(PROMPT) + 9
    assert [one.generated for one in grown] == [False] * 6 + [True] * 9
    finished = eics.trace(model, circuit, list(grown.token_ids), calibration=calibration)
    same_z(grown, finished)
    assert grown.p_value == finished.p_value
    written = model.module.generate(
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, 6, dtype=torch.long), max_new_tokens=9, do_sample=False,
        pad_token_id=0,
    )  # fmt: skip
    assert list(grown.token_ids) == written[0].tolist()


def test_a_step_is_there_before_the_next_token():
    task = task_of([PROMPT], generate=4)
    passes = []
    handle = task.model.module.register_forward_hook(lambda *_: passes.append(1))
    try:
        generation = Generation(task, task.prompts[0])
        steps = iter(generation)
        for count in range(1, 6):
            step = next(steps)
            assert len(passes) == count  # nothing of the text is computed twice, and nothing ahead
            assert step.generated == (count > 1)
            assert step.z.shape == (len(task.header.nodes), 1 if count > 1 else len(PROMPT))
        assert next(steps, None) is None
    finally:
        handle.remove()
    assert np.isnan(step.z[task.header.nodes.index("logits")]).all()
    assert not np.isnan(generation.trace.table[task.header.nodes.index("logits"), -1])


def test_drawn_tokens_follow_from_the_seed_and_the_prompt():
    model, circuit = small()
    how = {"calibration": pooled_calibration(), "generate": 6, "temperature": 1.5}
    one, same, alone = (
        eics.trace(model, circuit, prompts, **how)
        for prompts in ([PROMPT, [1, 2, 3]], [PROMPT, [1, 2, 3]], [[1, 2, 3]])
    )
    other = eics.trace(model, circuit, [PROMPT, [1, 2, 3]], seed=1, **how)
    assert one[0].token_ids == same[0].token_ids != other[0].token_ids
    assert one[1].token_ids == alone[0].token_ids
    finished = eics.trace(model, circuit, list(one[0].token_ids), calibration=pooled_calibration())
    same_z(one[0], finished)


def test_draws_have_the_probabilities_of_the_temperature():
    task = task_of([PROMPT], generate=1, temperature=0.5)
    generation = Generation(task, task.prompts[0])
    logits = torch.tensor([0.0, 1.0, 0.5])
    drawn = np.bincount([generation._next(logits) for _ in range(4000)], minlength=3) / 4000
    np.testing.assert_allclose(drawn, (logits / 0.5).softmax(0), atol=0.03)


def test_the_text_stops_at_the_context_and_at_the_models_end():
    model, circuit = small()
    long = eics.trace(model, circuit, [5] * 28, calibration=pooled_calibration(), generate=20)
    assert len(long) == model.context == 32
    assert "context of 32 tokens" in long.notes[-1] or "context of 32 tokens" in long.notes[0]
    full = eics.trace(model, circuit, [5] * 32, calibration=pooled_calibration(), generate=2)
    assert "must leave room" in full.reason
    plain = eics.trace(model, circuit, PROMPT, calibration=pooled_calibration(), generate=5)
    end = plain.token_ids[len(PROMPT) + 2]
    stop = plain.token_ids.index(end, len(PROMPT))
    config = model.module.generation_config
    before, config.eos_token_id = config.eos_token_id, [end, 60]
    try:
        ended = eics.trace(model, circuit, PROMPT, calibration=pooled_calibration(), generate=5)
    finally:
        config.eos_token_id = before
    assert ended.token_ids == plain.token_ids[:stop]
    assert "The model ended the text before it had written 5 tokens." in ended.notes


def test_a_single_token_can_be_gone_on_with():
    model, circuit = small()
    grown = eics.trace(model, circuit, [7], calibration=pooled_calibration(), generate=3)
    assert len(grown) == 4
    assert grown[0].largest is None
    assert grown[1].largest is not None


def test_damage_to_the_prompt_is_found_while_the_model_goes_on():
    model, circuit = small()
    damage = [eics.Steer("m0", 3.0, at=(2,), seed=4)]
    how = {"calibration": pooled_calibration(), "interventions": damage}
    grown = eics.trace(model, circuit, PROMPT, generate=4, **how)
    finished = eics.trace(model, circuit, list(grown.token_ids), **how)
    same_z(grown, finished)
    with pytest.raises(OptionError, match="prompt's own positions"):
        eics.trace(model, circuit, PROMPT, generate=2, calibration=pooled_calibration(),
                   interventions=[eics.Ablate("m0", at="last")])  # fmt: skip


def test_generated_traces_resume(tmp_path):
    model, circuit = small()
    how = {"calibration": pooled_calibration(), "generate": 3, "temperature": 1.0}
    prompts = [PROMPT, [1, 2, 3], [4, 5]]
    eics.trace(model, circuit, prompts, out=tmp_path / "whole.jsonl", **how)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    (tmp_path / "part.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    eics.trace(model, circuit, prompts, out=tmp_path / "part.jsonl", resume=True, **how)
    assert (tmp_path / "part.jsonl").read_bytes() == whole
    with pytest.raises(eics.RecordError, match=r"same options\.seed"):
        eics.trace(model, circuit, prompts, out=tmp_path / "part.jsonl", resume=True, seed=3, **how)
