"""What Python callers may give as prompts: one meaning is accepted, several are refused by name."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import transformers

import eics
from eics.errors import OptionError, PromptError
from eics.models.prompts import Prompt, as_prompts, single_or_many

ENCODED = transformers.BatchEncoding({"input_ids": [[5, 6, 0], [7, 0, 0]], "attention_mask": [[1, 1, 0], [1, 0, 0]]})
ONE = {"input_ids": [5, 6], "attention_mask": [1, 1]}


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("a b", "a b"),
        (np.str_("a b"), "a b"),
        ([5, 6], (5, 6)),
        ((np.int64(5), torch.tensor(6)), (5, 6)),
        (torch.tensor([5, 6]), (5, 6)),
        (torch.tensor([5, 6], dtype=torch.uint8), (5, 6)),
        (np.array([5, 6], dtype=np.int32), (5, 6)),
        ((token for token in (5, 6)), (5, 6)),
        ({"prompt": "a b"}, "a b"),
        ({"tokens": np.array([5, 6])}, (5, 6)),
        (Prompt("p", text="a b"), "a b"),
        (transformers.BatchEncoding(ONE), (5, 6)),
        (ONE, (5, 6)),
    ],
)
def test_one_prompt(given, means):
    [prompt], single = single_or_many(given)
    assert single
    assert (prompt.text if isinstance(means, str) else prompt.tokens) == means
    assert prompt.tokens is None or all(type(token) is int for token in prompt.tokens)


@pytest.mark.parametrize(
    ("given", "means"),
    [
        (["a", "b"], ["a", "b"]),
        (("a", [5, 6]), ["a", (5, 6)]),
        (iter(["a", "b"]), ["a", "b"]),
        ((text for text in "ab"), ["a", "b"]),
        ({0: "a", 1: "b"}.values(), ["a", "b"]),
        (pd.Series(["a", "b"], index=[7, 3]), ["a", "b"]),
        (pd.DataFrame({"prompt": ["a", "b"]})["prompt"], ["a", "b"]),
        (pd.Series([[5, 6], [7]]), [(5, 6), (7,)]),
        (pd.DataFrame({"prompt": ["a", "b"]}).to_dict("records"), ["a", "b"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", "b"], dtype=object), ["a", "b"]),
        (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
        ([[5, 6], [7]], [(5, 6), (7,)]),
        ([torch.tensor([5, 6]), np.array([7]), (8,)], [(5, 6), (7,), (8,)]),
        (torch.tensor([[5, 6]]), [(5, 6)]),
        ([torch.tensor([[5, 6]]), ONE, {"input_ids": torch.tensor([[7, 8]])}], [(5, 6), (5, 6), (7, 8)]),
        (ENCODED, [(5, 6), (7,)]),
        (ENCODED.convert_to_tensors("pt"), [(5, 6), (7,)]),
        ({"input_ids": [[0, 5, 6], [0, 0, 7]], "attention_mask": [[0, 1, 1], [0, 0, 1]]}, [(5, 6), (7,)]),
        ({"input_ids": [[5, 6], [7]]}, [(5, 6), (7,)]),
        ([], []),
    ],
)
def test_many_prompts(given, means):
    prompts, single = single_or_many(given)
    assert not single
    assert [prompt.text if prompt.tokens is None else prompt.tokens for prompt in prompts] == means
    assert [prompt.id for prompt in prompts] == list(range(len(means)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (pd.DataFrame({"question": ["a"], "n": [1]}), r"a DataFrame: give one of its columns \(question, n\)"),
        ({"prompt": ["a", "b"], "id": [1, 2]}, "a dictionary with prompt, id"),
        ({"tokens": [[5], [6]]}, "a dictionary with tokens"),
        ({}, "nothing in it"),
        (pd.Series([5, 6]), "Prompt 0 .* got the int"),
        (pd.Series(["a", None]), "Prompt 1 .* got (None|the float nan)"),
        (np.array([["a"], ["b"]]), r"an array of .* \(2x1\)"),
        (torch.tensor([[5, 6], [7, 0]]), "rows may be padded"),
        ({"input_ids": torch.tensor([[5, 6], [7, 0]])}, "keep the tokenizer's attention_mask"),
        ({"input_ids": [5, 6, 7], "attention_mask": [1, 0, 1]}, "in the middle"),
        ({"input_ids": [5, 6], "attention_mask": [1]}, "one 0 or 1 for each token"),
        ([ENCODED], "must hold one prompt; this holds 2"),
        (torch.ones(2, 3), r"an array of floating-point numbers \(2x3\)"),
        (torch.ones(3, dtype=torch.bfloat16), "floating-point numbers"),
        (np.array([True, False]), "truth values"),
        (torch.tensor(5), "a single number"),
        ([torch.ones(3)], "Prompt 0 .* floating-point"),
        ([5, 6.5], "Prompt 0"),
        ([True, False], "Prompt 0 .* the bool True"),
        (["a", None], "Prompt 1 .* got None"),
        (["a", 3], "Prompt 1 .* got the int 3"),
        (["a", {"text": "b"}], "Prompt 1 .* 'prompt'"),
        ([["a", "b"]], "Prompt 0 .* tokens must be whole numbers; got the str 'a'"),
        ([[[5]]], "Prompt 0 .* tokens must be whole numbers"),
        ([b"ab"], "Prompt 0 .* the bytes"),
        (b"ab", "decode it first"),
        (bytearray(b"ab"), "decode it first"),
        ({"a", "b"}, "a set, which has no order"),
        ({"a": 1}.keys(), "no order"),
        (Path("p.jsonl"), "read the file with eics.read_prompts"),
        (io.StringIO("a\nb"), "read the file with eics.read_prompts"),
        (None, "Got None"),
        (3, "Got the int 3"),
        (2.5, "Got the float 2.5"),
        (object(), "Got a object|Got the object"),
    ],
)
def test_refused_by_name_in_one_line(given, says):
    with pytest.raises(OptionError, match=says) as caught:
        as_prompts(given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("wrong", [True, 1.0, float("nan"), [1], None, b"x", "\ud800"])
def test_an_id_is_text_or_a_whole_number(wrong):
    with pytest.raises(PromptError, match="an id must be text"):
        Prompt(wrong, text="a")
    with pytest.raises(OptionError, match="'ids' option must name"):
        as_prompts(["a", "b"], ids=[0, wrong])
    with pytest.raises(OptionError, match="'ids' option must name"):
        eics.score(eics.LinearCircuit({"x->y": np.eye(2)}, {"x": [1.0, 0.0], "y": [1.0, 0.0]}), ids=[wrong])


def test_ids_are_unique():
    for prompts, ids in ((["a", "b"], ["x", "x"]), ([{"prompt": "a", "id": 1}, "b"], None)):
        with pytest.raises(OptionError, match="an id of its own"):
            as_prompts(prompts, ids)
    with pytest.raises(OptionError, match="one for each of the 2 prompts"):
        as_prompts(["a", "b"], ids="xy")
    assert [type(prompt.id) for prompt in as_prompts(["a", "b"], ids=np.array([4, 5]))] == [int, int]


@pytest.mark.parametrize(
    "wrong", [{"label": float("nan")}, {"label": [1]}, {"answer": 3}, {"text": 3}, {"tokens": "a"}]
)
def test_a_prompt_checks_itself(wrong):
    with pytest.raises(PromptError, match="must be"):
        Prompt(0, **wrong)
