"""Prompts that a model cannot take fail alone, with a reason; the others are scored, and records say what was run."""

import json
import logging
import random
import re

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import eics
from eics.models.prompts import Prompt, as_prompts, tokenize
from eics.scoring.batch import score_prompts
from eics.scoring.calibration.prompt_means import prompt_means
from eics.transformer.adapt import adapt
from support.tiny_models import some_circuit, tiny_model, tiny_module

OVERFLOWS = 60  # a token of the tiny models


@pytest.fixture(scope="module")
def model():
    words = {word: id for id, word in enumerate(["<unk>", *"abcdefgh"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    module = tiny_module("gpt2", torch.float32)
    with torch.no_grad():
        module.transformer.wte.weight[OVERFLOWS] = torch.inf
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", model_max_length=32)
    return adapt(module, tokenizer, name="tiny", check=False)


BAD = [
    ("", "empty"),
    (" \t", "empty"),
    ([], "empty"),
    ([1, 61], "token ids must be 0 to 60; this prompt has 61"),
    ([-1, 2], "this prompt has -1"),
    ([1, 10**30], "token ids must be"),
    ([1] * 33, "at most 32 tokens, the model's context; this has 33"),
    ("a " * 33, "this has 33"),
    ("a " * 100_000, "this has more than 256"),
    ("a \ud800 b", r"lone surrogate U\+D800 at character 2"),
    ([3, OVERFLOWS], "activations are not finite"),
]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_bad_prompts_fail_alone(model, tmp_path, suffix, capsys):
    prompts = as_prompts(
        [item for bad, _ in BAD for item in ({"prompt": bad} if isinstance(bad, str) else {"tokens": bad}, "a b c")]
    )
    configurations = [eics.Options(mode="limit"), eics.Options(mode="limit", residual="joint")]
    rows = list(score_prompts(model, some_circuit(model), prompts, configurations))
    assert capsys.readouterr() == ("", "")
    for (_, says), bad, good in zip(BAD, rows[::2], rows[1::2], strict=True):
        for score in bad:
            assert score.status == "failed"
            assert re.search(says, score.reason)
        assert [score.status == "failed" for score in good] == [False, False]
        assert good[0].dei == pytest.approx(rows[1][0].dei, rel=1e-4)
    path = tmp_path / f"s{suffix}"
    scores = [score for row in rows for score in row]
    eics.write_records(scores, path)
    assert eics.read_records(path) == scores
    assert "a \\ud800 b" in [score.prompt for score in scores]


def test_transformers_does_not_warn_beside_our_reason(model, monkeypatch):
    logger, heard = logging.getLogger("transformers"), []
    handler = logging.Handler()
    handler.emit = heard.append
    monkeypatch.setattr(logger, "level", logging.WARNING)
    monkeypatch.setattr(logger, "handlers", [handler])
    logging.getLogger("transformers.tokenization_utils_base")._cache.clear()
    model.tokenizer.deprecation_warnings.clear()  # it would warn once only
    with pytest.raises(eics.EICSError, match="this has 40"):
        tokenize(model, Prompt(0, text="a " * 40))
    assert heard == []


def test_records_have_token_ids_and_warn_of_unknown_words(model):
    scores = eics.score(
        model, some_circuit(model), ["a zebra b yak", "a b", [3, 4], [3, OVERFLOWS], [1, 61]], mode="limit"
    )
    assert [score.token_ids for score in scores] == [[1, 0, 2, 0], [1, 2], [3, 4], [3, OVERFLOWS], [1, 61]]
    assert [[warning["code"] for warning in score.warnings] for score in scores] == [["unknown-tokens"], [], [], [], []]
    assert scores[0].warnings[0]["text"].startswith("2 of 4 tokens are unknown to the tokenizer (at positions 1, 3)")
    assert len(scores[3].tokens) == 2  # it ran, though its activations overflowed
    json.dumps(scores[0].to_record(), allow_nan=False)


def test_an_unknown_token_that_is_also_the_first_one_is_no_warning(model):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model.tokenizer.backend_tokenizer, unk_token="<unk>", bos_token="<unk>"
    )
    gpt2 = adapt(tiny_model("gpt2").module, tokenizer, check=False)
    assert eics.score(gpt2, some_circuit(gpt2), "a zebra", mode="limit").warnings == []


def test_a_prompt_may_be_longer_than_a_sliding_window():
    mistral = tiny_model("mistral")
    assert mistral.module.config.sliding_window < 12 < mistral.context
    short, long = eics.score(mistral, some_circuit(mistral), [[1, 2], [*range(12)]], mode="limit")
    assert short.status != "failed"
    assert long.status != "failed"


@pytest.mark.parametrize("mode", ["exact", "limit"])
def test_sorting_by_length_changes_passes_but_neither_order_nor_scores(mode):
    model, rng = tiny_model("llama"), random.Random(0)
    prompts = as_prompts([[rng.randrange(60) for _ in range(rng.randrange(2, 14))] for _ in range(23)])
    passes = []

    def widths(state, group, *_):
        passes.append([len(prompt.tokens) for prompt in group])
        return [{} for _ in group]

    def run(**how):
        passes.clear()
        options = [eics.Options(mode=mode)]
        rows = score_prompts(
            model, some_circuit(model), prompts, options, batch_size=3, extra_diagnostics=widths, **how
        )
        return [score for (score,) in rows], [list(widths) for widths in passes]

    (by_length, sorted_passes), (in_order, plain_passes) = run(), run(sort=False)
    assert [score.id for score in by_length] == [score.id for score in in_order] == [prompt.id for prompt in prompts]
    lengths = [len(prompt.tokens) for prompt in prompts]
    assert plain_passes == [lengths[start : start + 3] for start in range(0, 23, 3)]
    assert (
        sum(len(p) * max(p) - sum(p) for p in sorted_passes) < sum(len(p) * max(p) - sum(p) for p in plain_passes) / 2
    )
    for ours, theirs in zip(by_length, in_order, strict=True):
        assert (ours.dei, ours.c_sh) == pytest.approx((theirs.dei, theirs.c_sh), rel=1e-9)
        assert ours.token_ids == theirs.token_ids


def test_results_come_as_early_as_their_order_allows():
    model, started = tiny_model("llama"), []
    prompts = as_prompts([[1] * length for length in (9, 2, 2, 9, 2, 2)])
    rows = score_prompts(
        model,
        some_circuit(model),
        prompts,
        [eics.Options(mode="limit")],
        batch_size=2,
        extra_diagnostics=lambda _, group, *__: started.append(len(group)) or [{} for _ in group],
    )
    assert next(rows)[0].id == 0
    assert len(started) == 1  # the batch with the first prompt runs first
    assert [scores[0].id for scores in rows] == [1, 2, 3, 4, 5]


def test_a_calibration_leaves_out_prompts_on_which_the_model_overflows(model):
    circuit = some_circuit(model)
    usual = as_prompts([[1, 2, 3], [4, 5], [6, 7, 8, 1]])
    means = prompt_means(model, circuit, [*usual, Prompt("inf", tokens=(3, OVERFLOWS))])
    expected = prompt_means(model, circuit, usual)
    for name, mean in expected.writes.items():
        assert torch.allclose(means.writes[name], mean, rtol=1e-5, atol=1e-6)
    with pytest.raises(eics.OptionError, match="overflows on each one"):
        prompt_means(model, circuit, as_prompts([[OVERFLOWS], [1, OVERFLOWS]]))


def test_every_function_takes_the_same_prompts(model, tmp_path):
    circuit = some_circuit(model)
    encoded = model.tokenizer(["a b c", "d e f g"], padding=False)
    expected = eics.score(model, circuit, [[1, 2, 3], [4, 5, 6, 7]], mode="limit")
    for prompts in (
        encoded,
        (ids for ids in encoded["input_ids"]),
        [torch.tensor(ids) for ids in encoded["input_ids"]],
    ):
        assert [score.dei for score in eics.score(model, circuit, prompts, mode="limit")] == [s.dei for s in expected]
    assert isinstance(eics.score(model, circuit, torch.tensor([1, 2, 3]), mode="limit"), eics.Score)
    assert eics.calibrate(model, circuit, encoded, preset="paper", mode="limit").prompts == 2
    for call in (
        lambda: eics.score(model, circuit, {"prompt": ["a"]}),
        lambda: eics.calibrate(model, circuit, {"a", "b"}),
        lambda: eics.damage(model, circuit, None),
        lambda: eics.validate(model, circuit, {"prompt": ["a"], "label": [1]}),
    ):
        with pytest.raises(eics.OptionError, match="The prompts must be"):
            call()
    with pytest.raises(eics.OptionError, match="at least 2 prompts"):
        eics.calibrate(model, circuit, "a b c", preset="paper", mode="limit")  # one prompt, not five letters


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"answer": 1.5}, "'answer' option must be a whole number"),
        ({"answer": "last"}, "'answer' option"),
        ({"answer": True}, "'answer' option"),
        ({"batch_size": 0}, "'batch_size' option must be a whole number >= 1"),
        ({"batch_size": "8"}, "'batch_size' option"),
        ({"readout": "tokens", "tokens": "3"}, "'tokens' option"),
        ({"readout": "tokens", "tokens": [1.5]}, "'tokens' option"),
        ({"readout": "tokens", "tokens": torch.tensor([99])}, "'tokens' option must be a list of ids from 0 to 60"),
        ({"tokens": [3, 4]}, "'tokens' option must be given with readout 'tokens', the only one that reads them"),
        ({"interventions": eics.Noise("m1"), "ids": [1.5]}, "'ids' option"),
        ({"details": "no"}, "'details' option must be True or False"),
    ],
)
def test_options_of_a_wrong_kind_are_refused(model, option, says):
    with pytest.raises(eics.OptionError, match=says):
        eics.score(model, some_circuit(model), ["a b"], **option)


def test_read_out_tokens_and_patches_take_tensors(model):
    circuit, tokens = some_circuit(model), torch.tensor([3, 4])
    scored = eics.score(model, circuit, "a b", mode="limit", readout="tokens", tokens=tokens)
    assert scored.dei == eics.score(model, circuit, "a b", mode="limit", readout="tokens", tokens=[3, 4]).dei
    assert eics.Patch("m1", tokens=tokens).tokens == (3, 4)
    with pytest.raises(eics.OptionError, match="'tokens' of a patch"):
        eics.Patch("m1", tokens="ab")


def test_a_tokenizer_that_breaks_fails_the_prompt(model):
    def broken(text):
        raise RuntimeError("no\nway")

    other = adapt(tiny_model("gpt2").module, broken, check=False)
    scores = eics.score(other, some_circuit(other), ["a", [1, 2]], mode="limit")
    assert scores[0].reason == "the model's tokenizer cannot take this text: no way"
    assert scores[1].status != "failed"
    assert tokenize(other, Prompt(0, text="shown only", tokens=(1, 2))) == [1, 2]


@pytest.mark.parametrize("strange", ["people", ["input->m0"], 5])
@pytest.mark.parametrize("function", [eics.score, eics.calibrate, eics.damage])
def test_what_is_no_circuit_is_refused_by_name(model, function, strange):
    with pytest.raises(eics.CircuitError, match=r"must be an eics.Circuit. Got .*eics.load_circuit"):
        function(model, strange, ["a b"])


@pytest.mark.parametrize("edges", [5, "input->m0", None])
def test_a_circuit_is_made_from_a_list(edges):
    with pytest.raises(eics.CircuitError, match="from a list of edges"):
        eics.Circuit(edges)


@pytest.mark.parametrize(
    "function",
    [eics.load_model, eics.load_circuit, eics.load_calibration, eics.read_records, eics.read_prompts],
)
@pytest.mark.parametrize("path", [5, None, 0.5])
def test_what_is_no_path_is_refused_by_name(function, path):
    with pytest.raises(eics.EICSError, match="must be given as text or a path"):
        function(path)


@pytest.mark.parametrize("strange", [5, [1], [None]])
def test_only_scores_are_written(tmp_path, strange):
    with pytest.raises(eics.RecordError, match=r"must be eics\.Score objects"):
        eics.write_records(strange, tmp_path / "s.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "edges",
    [
        ["input->a0.h1<v>", "a0.h1->logits"],
        ["input->a0.h1<q>", "a0.h1->logits"],
        ["input->a0.h1<v>", "a0.h1->a1.h0<v>", "a1.h0->logits"],
        ["input->m0", "m0->m1"],
        ["input->m0"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("mode", ["fast", "limit"])
@pytest.mark.parametrize("linearization", ["frozen", "jacobian"])
def test_estimates_have_bounds_where_only_some_maps_are_exact(edges, mode, linearization):
    circuit = eics.Circuit(edges)
    result = eics.score(tiny_model("gpt2"), circuit, [3, 5, 9, 8], mode=mode, linearization=linearization)
    estimated = any(error for name, error in result.stderr.items() if name.startswith("ei_"))
    bounds = result.diagnostics.get("ei_bounds")
    assert bounds is not None or not estimated
    if bounds is not None and mode == "fast":
        slack = 1 + 1e-9
        for value, (low, high) in [(result.ei_macro, bounds["macro"])] + [
            (result.ei_parts[name], bounds["parts"][name]) for name in result.ei_parts
        ]:
            assert low / slack <= value <= high * slack
