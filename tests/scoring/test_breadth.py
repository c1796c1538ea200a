"""How broad a reference is, and what `calibrate` says of a small or a narrow one."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

import eics
from eics.errors import OptionError
from eics.scoring.calibration.sheaf.breadth import NARROW, Breadth
from eics.scoring.calibration.sheaf.tensors import learned_header, learned_tensors, read_learned
from eics.scoring.calibration.summary import FIRST, sheaf_sentences
from support.learned import random_prompts, small

RESULTS = Path(__file__).parents[2] / "docs" / "validation" / "calibrated"
PROMPTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=40)


def sentences(prompts, **options):
    model, circuit = small()
    usual = eics.calibrate(model, circuit, prompts, terms="sheaf", **options)
    return usual, " ".join(sheaf_sentences(usual.learned))


def ending_in(count: int, prompts: int = 320) -> list[list[int]]:
    """Random prompts that end in this many tokens, in turn."""
    return [[*tokens, place % count] for place, tokens in enumerate(random_prompts(prompts))]


@given(PROMPTS)
def test_effective_endings_are_the_exponential_of_the_entropy(prompts):
    counts = np.unique([tokens[-1] for tokens in prompts], return_counts=True)[1]
    breadth = Breadth.of(prompts)
    assert breadth.effective_endings == pytest.approx(np.exp(entropy(counts)))
    assert breadth.lengths == (min(map(len, prompts)), max(map(len, prompts)))
    assert breadth.is_narrow == (np.exp(entropy(counts)) < NARROW)


@given(PROMPTS, PROMPTS)
def test_parts_add_up(some, more):
    assert Breadth.of(more, Breadth.of(some)) == Breadth.of([*more, *some])
    assert Breadth.of([], Breadth.of(some)) == Breadth.of(some)


def test_a_narrow_reference_is_named_and_a_broad_one_is_not():
    narrow, said = sentences(ending_in(3))
    assert narrow.learned.breadth.effective_endings == pytest.approx(3, abs=0.01)
    assert "This reference is narrow: its prompts end in 3.00 tokens" in said
    broad, said = sentences(ending_in(8))
    assert broad.learned.breadth.effective_endings == pytest.approx(8, abs=0.01)
    assert "narrow" not in said


def test_added_prompts_make_it_broader():
    model, circuit = small()
    begun, _ = sentences(ending_in(3), keep_moments=True)
    usual = eics.calibrate(
        model, circuit, [[1, 2, 3, 10 + place % 9] for place in range(320)], terms="sheaf", add_to=begun
    )
    assert usual.learned.breadth.effective_endings > NARROW
    assert usual.learned.breadth.lengths == (4, 9)


def test_files_keep_it_and_older_ones_say_nothing(tmp_path):
    usual, _ = sentences(ending_in(3))
    eics.save_calibration(usual, tmp_path / "a.safetensors")
    assert eics.load_calibration(tmp_path / "a.safetensors").learned.breadth == usual.learned.breadth
    header, tensors = learned_header(usual.learned), learned_tensors(usual.learned)
    older = read_learned({name: value for name, value in header.items() if name != "endings"}, tensors)
    assert older.breadth.effective_endings is None
    assert "narrow" not in " ".join(sheaf_sentences(older))
    with pytest.raises(OptionError, match="at least one prompt for each token"):
        read_learned(header | {"endings": [[5, 0]]}, tensors)


@pytest.mark.parametrize(("count", "few"), [(100, True), (200, True), (299, True), (300, False)])
def test_few_prompts_are_told_what_that_costs(count, few):
    _, said = sentences(random_prompts(count))
    assert ("in 52 to 57% of cases with 100 prompts, 71 to 75% with 200, 83% with 800" in said) is few


def test_the_cost_is_what_the_study_found():
    sizes = json.loads((RESULTS / "facts.json").read_text())["sizes"]
    for size, (low, high) in FIRST.items():
        found = [draw["kinds"]["write"]["calibrated"]["first"]["value"] for draw in sizes[str(size)]]
        assert (round(min(found), 2), round(max(found), 2)) == (low, high)
