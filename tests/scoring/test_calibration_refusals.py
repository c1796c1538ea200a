"""Wrong and odd calls of `calibrate` and of its results: one line each, or the right answer."""

import dataclasses

import numpy as np
import pytest
import torch

import eics
from eics.errors import EICSError, OptionError
from eics.models.prompts import as_prompts
from eics.scoring.calibration.sheaf.assign import assign
from eics.scoring.calibration.summary import sheaf_sentences
from eics.scoring.calibration.task import check_groups
from eics.transformer.adapt import adapt
from support.learned import kept_calibration, random_prompts, small, small_calibration
from support.tiny_models import tiny_module

BROKEN = 60  # a token on which the model below overflows


def overflowing():
    """A model like `small` that overflows on one token, and prompts without it."""
    module = tiny_module("llama", torch.float32)
    module.load_state_dict(small()[0].module.state_dict())
    adapted = adapt(module)
    module.model.embed_tokens.weight.data[BROKEN] = float("nan")
    return adapted, [[token % BROKEN for token in tokens] for tokens in random_prompts(140)]


def test_the_level_that_an_error_names_is_accepted():
    for count in range(2, 400):
        reference = dataclasses.replace(
            small_calibration().learned.reference, log_allowed=torch.zeros(count, 1, dtype=torch.float64)
        )
        assert count >= 1 / reference.least_level - 1
        assert float(f"{reference.least_level:g}") == reference.least_level
        assert reference.least_level == pytest.approx(1 / (1 + count), rel=0.01)


def test_another_dtype_is_named_and_never_taken_for_changed_weights():
    _, circuit = small()
    how = {"preset": "calibrated", "terms": "sheaf", "calibration": small_calibration()}
    for dtype in (torch.bfloat16, torch.float64):
        other, name = adapt(tiny_module("llama", dtype)), str(dtype).removeprefix("torch.")
        for allowed in (False, True):
            with pytest.raises(OptionError, match=f"same dtype. The file has float32, this run {name}"):
                eics.score(other, circuit, [1, 2, 3, 4], allow_changed_weights=allowed, **how)


@pytest.mark.parametrize("missing", [None, float("nan"), np.nan])
def test_a_prompt_without_a_group_is_refused(missing):
    """They would all be one group, which is never split."""
    with pytest.raises(OptionError, match=r"'group' option must be given for every prompt.*prompt 1 has none"):
        check_groups(["a", missing, "b"], as_prompts(random_prompts(3)))


def test_groups_from_tables_and_tensors():
    prompts = as_prompts(random_prompts(3))
    expected = ["1", "2", "1"]
    for group in ([1, 2, 1], [1.0, 2, "1"], np.array([1, 2, 1]), torch.tensor([1.0, 2.0, 1.0]), iter([1, 2, 1])):
        assert check_groups(group, prompts) == expected
    assert len(set(check_groups(torch.tensor([0.12345678, 0.12345679, 0.1], dtype=torch.float64), prompts))) == 3
    for wrong in ("abc", {"a", "b", "c"}, {"a": 1, "b": 2, "c": 3}, 3, torch.tensor(3), []):
        with pytest.raises(OptionError, match="a list with one for each of the 3 prompts"):
            check_groups(wrong, prompts)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"add_to": "usual.safetensors"}, "'add_to' option must be an eics.Calibration; read its file"),
        ({"add_to": 3}, "'add_to' option must be an eics.Calibration"),
        ({"keep_moments": "no"}, "'keep_moments' option must be True or False"),
        ({"answer": "last"}, "'answer' option must be a whole number"),
        ({"answer": 1.5}, "'answer' option must be a whole number"),
        ({"tokens": "x"}, "'tokens' option must be a list of token ids"),
        ({"preset": "paper", "keep_moments": True}, "'keep_moments' option must be given with residual 'calibrated'"),
        ({"preset": "paper", "at": "all"}, "'at' option must be given with residual 'calibrated'"),
        ({"preset": "paper", "at": "nowhere"}, "'at' option must be one of answer, all"),
        ({"preset": "paper", "group": list(range(120))}, "'group' option must be given with residual 'calibrated'"),
    ],
)
def test_wrong_calls(change, says):
    model, circuit = small()
    with pytest.raises(EICSError, match=says) as caught:
        eics.calibrate(model, circuit, random_prompts(120), **change)
    assert "\n" not in str(caught.value)


def test_what_prompts_are_added_to_is_never_ignored():
    model, circuit = small()
    more = random_prompts(20, seed=3)
    with pytest.raises(OptionError, match="'add_to' option must be given with residual 'calibrated'"):
        eics.calibrate(model, circuit, more, preset="paper", add_to=kept_calibration())
    with pytest.raises(OptionError, match=r"'at' option must be 'answer', as when the calibration was made. Got 'all'"):
        eics.calibrate(model, circuit, more, at="all", add_to=kept_calibration(), terms="sheaf")


@pytest.mark.parametrize("at", ["answer", "all"])
def test_kept_prompts_stay_with_their_ids_when_others_are_added(at):
    """Adding none that fits changes no regression, so the distances of each prompt must stay as well."""
    model, circuit = small()
    begun = eics.calibrate(model, circuit, random_prompts(130), terms="sheaf", at=at, keep_moments=True)
    failing = [[999]]
    again = eics.calibrate(model, circuit, failing, terms="sheaf", add_to=begun)
    assert again.learned.ids == begun.learned.ids
    torch.testing.assert_close(
        again.learned.reference.log_whole, begun.learned.reference.log_whole, rtol=1e-3, atol=1e-3
    )
    assert again.learned.breadth == begun.learned.breadth


def test_a_reference_on_which_the_model_overflows():
    model, prompts = overflowing()
    circuit = small()[1]
    spoilt = [[*tokens, BROKEN] for tokens in prompts]
    with pytest.raises(OptionError, match="overflows on each"):
        eics.calibrate(model, circuit, spoilt, terms="sheaf")
    with pytest.raises(OptionError, match=r"at least 100 prompts that the model can run. Of 140, 60 are such. Prompt "):
        eics.calibrate(model, circuit, prompts[:60] + spoilt[60:], terms="sheaf")
    groups = [f"group {index % 40}" for index in range(140)]
    lost = assign("group:group 1", 0).fold
    folds = [assign(f"group:{group}", 0) for group in groups]
    mixed = [
        bad if place.fits and place.fold == lost else good
        for good, bad, place in zip(prompts, spoilt, folds, strict=True)
    ]
    with pytest.raises(OptionError, match="They fill 4 folds"):
        eics.calibrate(model, circuit, mixed, group=groups, terms="sheaf")


def test_a_prompt_that_overflows_does_not_count_among_the_lengths():
    model, prompts = overflowing()
    usual = eics.calibrate(model, small()[1], [*prompts, [BROKEN] * 12], terms="sheaf")
    assert usual.learned.breadth.lengths == (4, 8)


def few_to_calibrate():
    """Prompts in groups of which few calibrate."""
    names = [f"g{index}" for index in range(200)]
    calibrating = [name for name in names if not assign(f"group:{name}", 0).fits][:6]
    fitting = [name for name in names if assign(f"group:{name}", 0).fits][:114]
    return random_prompts(120), calibrating + fitting


def test_a_calibration_part_that_is_too_small_for_the_level():
    """With both terms it scores itself, so that is refused before anything runs; the sheaf alone says what it takes."""
    model, circuit = small()
    prompts, groups = few_to_calibrate()
    done = []
    with pytest.raises(OptionError, match=r"scored at level 0.05, must have at least 19 prompts. It has 6"):
        eics.calibrate(model, circuit, prompts, group=groups, tick=done.append)
    assert not done
    usual = eics.calibrate(model, circuit, prompts, group=groups, terms="sheaf")
    text = " ".join(sheaf_sentences(usual.learned))
    assert "Only 6 prompts say what is usual: `eics score` must be given a --level of at least 0.143" in text
    how = {"preset": "calibrated", "terms": "sheaf", "calibration": usual}
    with pytest.raises(OptionError, match=r"at least 0.143 with 6 calibration prompts"):
        eics.score(model, circuit, prompts[0], **how)
    assert eics.score(model, circuit, prompts[0], level=0.143, **how).status == "ok"


@pytest.mark.parametrize(
    "how", [{"terms": "sheaf"}, {"terms": "sheaf", "at": "all"}, {}, {"preset": "paper", "mode": "fast"}]
)
def test_every_prompt_is_counted_once(how):
    model, circuit = small()
    done, prompts = [], [*random_prompts(130), [999]]
    eics.calibrate(model, circuit, prompts, tick=done.append, failures={}, **how)
    assert sum(done) == 131


def test_a_file_with_a_single_calibration_prompt_is_refused(tmp_path):
    usual = small_calibration()
    learned = usual.learned
    reference = type(learned.reference)(
        *(part[:1] for part in (learned.reference.log_allowed, learned.reference.log_whole)),
        learned.reference.log_input[:1],
        learned.reference.judged,
    )
    one = dataclasses.replace(usual, learned=dataclasses.replace(learned, reference=reference, ids=learned.ids[:1]))
    eics.save_calibration(one, tmp_path / "one.safetensors")
    with pytest.raises(OptionError, match=r"must have at least 2 calibration prompts. It has 1"):
        eics.load_calibration(tmp_path / "one.safetensors")
