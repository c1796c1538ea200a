"""The protocol on synthetic scores: what it must detect, and what must not fool it."""

import json

import numpy as np
import pytest

from eics import OptionError
from eics.cli.tables import validation_table
from eics.cli.terminal import console
from eics.studies.validation.analysis import LEAST_RESAMPLES, analyse
from eics.studies.validation.columns import gather
from eics.studies.validation.fitted import choose_alpha, folds, with_fitted
from eics.studies.validation.incremental import gains
from eics.studies.validation.matching import is_function_word
from eics.studies.validation.measure import ALPHAS
from eics.studies.validation.split import FUNCTION_WORD, UNMATCHED, by_group, choose, stratified
from support.validation_rows import SETTINGS, made_up


def judge(rows, **settings):
    said = SETTINGS | settings
    return analyse(rows, said, said["group"], said["matched"], resamples=LEAST_RESAMPLES)


def gain(found, name, base):
    [one] = [gain for gain in found.gains if (gain.name, gain.base) == (name, base)]
    return one


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def balanced(count, rng):
    return rng.permutation(np.arange(count) % 2 == 0)


def test_a_perfect_score_is_found_in_either_direction(rng):
    labels = balanced(120, rng)
    signal = labels + 0.1 * rng.normal(size=120)
    found = judge(made_up(labels, rng, eics_well_posed=signal, propagated=-signal))
    for name, sign in (("eics_well_posed", 1), ("propagated", -1)):
        result = found.results[name]
        assert (result.decision.sign, result.auroc.value) == (sign, 1.0)
        assert {m: result.metrics[m].value for m in ("auprc", "f1", "f1_youden", "prr")} == pytest.approx(
            {"auprc": 1.0, "f1": 1.0, "f1_youden": 1.0, "prr": 1.0}
        )
        assert result.metrics["ece"].value < 0.01  # isotonic steps are joined by straight lines
        assert result.difference.low > 0
        assert result.p_value < 0.05
        assert gain(found, name, "all suspects").shown
    said = " ".join(found.sentences)
    assert "EICS well-posed separates correct from wrong on the test split: AUROC 1.000" in said
    assert "Better than max-probability (corrected for" in said
    assert "No evidence that EICS paper (alpha 1) separates correct from wrong" in said


def test_the_table_has_whole_names_in_every_terminal(rng, monkeypatch):
    """In 80 columns p values go before names and intervals do."""
    found = judge(made_up(balanced(80, rng), rng))
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        screen = console()
        with screen.capture() as capture:
            screen.print(validation_table(found, width))
        text = capture.get()
        assert max(map(len, text.splitlines())) <= width
        assert all(result.kind.title in text for result in found.results.values())
        assert "…" not in text
        assert "less max-probability's" in text
        assert ("Not shown in 80 columns: p (Holm)." in text) == (width == 80)


def test_the_direction_is_chosen_on_development_alone(rng):
    labels = balanced(160, rng)
    inside = np.arange(160) % 2 == 0
    signal = np.where(inside, 1, -1) * (labels - 0.5) + 0.1 * rng.normal(size=160)
    found = judge(made_up(labels, rng, development=inside, eics_well_posed=signal))
    result = found.results["eics_well_posed"]
    assert result.decision.auroc > 0.99
    assert result.auroc.high < 0.1
    assert "points the other way on test than on development" in " ".join(found.sentences)


def test_a_meter_of_length_is_unmasked(rng):
    """Longer prompts are wrong more often, and the score is their length: it adds to max-probability, not to length."""
    labels = balanced(300, rng)
    length = 8 + 2 * (~labels) + rng.integers(0, 4, 300)
    found = judge(made_up(labels, rng, length=length, eics_well_posed=-(length + 0.01 * rng.normal(size=300))))
    result = found.results["eics_well_posed"]
    assert result.auroc.low > 0.7
    assert gain(found, "eics_well_posed", "max-probability").shown
    assert not gain(found, "eics_well_posed", "all suspects").shown
    assert result.beyond_suspects.low <= 0
    assert result.length_correlation < -0.95
    said = " ".join(found.sentences)
    assert "EICS well-posed is nearly a measure of prompt length" in said
    assert "Beware: the labels follow from prompt length" in said
    assert "adds to all suspects" in said


def test_a_meter_of_the_predicted_token_is_unmasked(rng):
    """Some answers are nearly always right: a score that only knows the predicted token looks good."""
    labels = balanced(300, rng)
    predicted = (rng.integers(0, 4, 300) + np.where(rng.random(300) < 0.8, np.where(labels, 0, 8), 4)) % 12
    predicted = np.where(rng.random(300) < 0.15, rng.integers(0, 12, 300), predicted)
    ease = np.repeat([1.0, 0.5, 0.0], 4)[predicted]
    found = judge(
        made_up(labels, rng, predicted=predicted, a1_paper=ease, eics_well_posed=labels + rng.normal(size=300))
    )
    assert found.results["a1_paper"].auroc.low > 0.7
    assert gain(found, "a1_paper", "max-probability").shown
    for base in ("max-probability, norms, token", "all suspects"):
        assert not gain(found, "a1_paper", base).shown
    assert found.suspect.name == "token_fitted"
    alike = found.within["predicted token"].auroc
    assert (alike["a1_paper"].value, alike["a1_paper"].low, alike["a1_paper"].high) == (0.5, 0.5, 0.5)
    assert alike["eics_well_posed"].low > 0.5
    said = " ".join(found.sentences)
    assert "same predicted token, no evidence that these still separate: A1 paper (0.500" in said
    assert "same predicted token, these still separate (AUROC): EICS well-posed" in said


def test_pairs_that_are_alike_against_loops(rng):
    labels = balanced(80, rng)
    rows = made_up(labels, rng)
    found = judge(rows, matched="relation")
    test = [row for row in rows if row["split"] == "test"]
    for what, of in (("predicted token", lambda row: row["predicted"]), ("length", lambda row: row["length"]),
                     ("group", lambda row: row["groups"]["relation"])):  # fmt: skip
        pairs = [(a, b) for a in test for b in test if a["label"] and not b["label"] and of(a) == of(b)]
        if what in found.within:
            sign = found.results["entropy"].decision.sign
            truth = np.mean([sign * (a["entropy"] - b["entropy"]) > 0 for a, b in pairs])
            assert found.within[what].auroc["entropy"].value == pytest.approx(truth)
            assert found.within[what].pairs == len(pairs)
        else:
            assert len(pairs) < 20
    assert "length" in found.within


def test_a_null_score_adds_nothing_and_beats_nothing():
    claims = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        labels = balanced(100, rng)
        found = judge(made_up(labels, rng, log_probability=labels + rng.normal(size=100)))
        own = [r for r in found.results.values() if r.kind.family == "EICS"]
        claims += any(r.separates or (r.p_value < 0.05 and r.difference.value > 0) for r in own)
        claims += any(g.shown for g in found.gains)
    assert claims <= 2  # at 5% each, 0.4 of 8 are expected


def test_a_clipped_score_is_said_to_be_degenerate_first(rng):
    labels = balanced(80, rng)
    rows = [row | {"clipped": True} for row in made_up(labels, rng, eics_paper=np.zeros(80), a2_paper=np.zeros(80))]
    found = judge(rows)
    assert found.sentences[0].startswith("The literal score is 0 on all 80 prompts: dEI is negative everywhere")
    assert "EICS paper (alpha 1) has the same value on every prompt" in found.sentences[2]
    assert found.results["eics_paper"].auroc.value == 0.5
    assert found.columns.alpha == 1.0


def test_fitted_baselines_do_not_overfit(rng):
    """One category per prompt, and as many features as prompts: nothing to learn, nothing to show."""
    labels = balanced(100, rng)
    rows = made_up(labels, rng, predicted=np.arange(100))
    rows = [row | {"final": rng.normal(size=100)} for row in rows]
    found = judge(rows)
    for name in ("token_fitted", "probe_fitted"):
        result = found.results[name]
        assert not result.separates
        assert result.decision.auroc < 0.75  # on development too, since out of fold


def test_fitted_baselines_learn_what_there_is(rng):
    labels = balanced(200, rng)
    norms, final = rng.normal(size=(200, 3)), rng.normal(size=(200, 4))
    norms[:, 0] += 2 * labels
    final[:, 1] += 2 * labels
    rows = [row | {"norms": norms[row["id"]], "final": final[row["id"]]} for row in made_up(labels, rng)]
    rows = [row | {"groups": {"relation": "easy" if row["label"] and row["id"] % 3 else f"r{row['id'] % 2}"}}
            for row in rows]  # fmt: skip
    found = judge(rows, matched="relation")
    for name in ("norms_fitted", "probe_fitted", "group_fitted"):
        assert found.results[name].auroc.low > 0.7, name


def test_alpha_is_the_best_of_development_and_near_one_of_equals(rng):
    labels = balanced(60, rng)
    by_alpha = np.zeros((60, 17))
    assert choose_alpha(by_alpha, labels) == (8, 1.0)
    by_alpha[:, 3] = 0.5 * rng.normal(size=60) - labels
    assert choose_alpha(by_alpha, labels) == (3, ALPHAS[3])
    rows = [row | {"eics_paper_by_alpha": list(values)} for row, values in
            zip(made_up(labels, rng), by_alpha, strict=True)]  # fmt: skip
    found = judge(rows)
    assert found.columns.alpha == ALPHAS[3]
    assert found.results["eics_paper_alpha"].auroc.value > 0.8


def test_the_same_seed_gives_the_same_and_the_record_is_json(rng):
    labels = balanced(60, rng)
    rows = made_up(labels, rng)
    one, two, other = judge(rows), judge(rows), judge(rows, seed=1)
    assert one.to_record() == two.to_record()
    assert one.to_record()["scores"] != other.to_record()["scores"]
    json.dumps(one.to_record(), allow_nan=False)
    assert "needs --ensemble" in one.columns.missing["ensemble_variance"]


def test_groups_are_resampled_whole(rng):
    labels = balanced(160, rng)
    rows = [row | {"groups": {"relation": f"r{row['id'] // 8}"}, "split": "test" if row["id"] < 80 else "development"}
            for row in made_up(labels, rng)]  # fmt: skip
    found = judge(rows, group="relation")
    assert found.columns.clustered
    assert found.results["group_fitted"].distinct <= 6  # test groups are unseen: one value there, one a fold


def test_a_stratified_split_keeps_shares_and_matches():
    rng = np.random.default_rng(0)
    groups = [f"g{at}" for at in rng.integers(0, 9, 60)] * 2
    labels = np.arange(120) < 60
    inside = stratified(labels, groups, 0.3, seed=3)
    assert (inside[labels].sum(), inside[~labels].sum()) == (18, 18)
    for group in set(groups):
        members = np.array([name == group for name in groups])
        assert inside[members & labels].sum() == inside[members & ~labels].sum()
    assert not np.array_equal(inside, stratified(labels, groups, 0.3, seed=4))


def test_a_split_by_group_tears_none():
    rng = np.random.default_rng(0)
    groups = [f"g{at}" for at in rng.integers(0, 30, 400)]
    inside = by_group(rng.random(400) < 0.5, groups, 0.25, seed=0)
    sides = {group: {bool(inside[at]) for at in range(400) if groups[at] == group} for group in set(groups)}
    assert all(len(side) == 1 for side in sides.values())
    assert 0.15 < inside.mean() < 0.35
    with pytest.raises(OptionError, match=r"at least two groups\. Got 1: all"):
        by_group(np.ones(4, bool), ["all"] * 4, 0.5, 0)


def test_folds_hold_every_prompt_once_and_tear_no_group():
    labels = np.arange(40) % 2 == 0
    for groups in (None, [str(at // 5) for at in range(40)]):
        cuts = folds(labels, groups, seed=0)
        assert sorted(at for _, held in cuts for at in held) == list(range(40))
        if groups is not None:
            assert all({groups[a] for a in train}.isdisjoint(groups[a] for a in held) for train, held in cuts)


def answers(labels, words=(), relation=lambda at: at % 3):
    return [
        {"id": at, "label": label, "function_word": at in words, "groups": {"relation": f"r{relation(at)}"}}
        for at, label in enumerate(labels)
    ]


def chosen(rows, **options):
    base = {"drop_function_words": False, "matched": None, "group": None, "share": 0.5, "seed": 0}
    return choose(rows, **(base | options))


def test_function_words_go_and_the_rest_is_matched():
    labels = [at % 5 != 0 for at in range(120)]
    found = chosen(answers(labels, words={1, 2}), drop_function_words=True, matched="relation")
    assert [found[at] for at in (1, 2)] == [(None, FUNCTION_WORD)] * 2
    for relation in range(3):
        kept = [labels[at] for at, (split, _) in found.items() if split and at % 3 == relation]
        assert kept.count(True) == kept.count(False) == 8
    assert sum(reason == UNMATCHED for _, reason in found.values()) == 120 - 2 - 48
    again = chosen(answers(labels, words={1, 2}), drop_function_words=True, matched="relation", seed=1)
    assert again != found


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        (answers([True] * 30), {}, "must have both labels. All 30 that remain are correct"),
        (
            answers([True] * 15 + [False] * 15, words=range(15)),
            {"drop_function_words": True},
            "All 15 that remain are wrong (excluded: 15 function word)",
        ),
        (answers([True, False] * 6), {}, "must have at least 5 correct and 5 wrong prompts. It has 3 correct and 3"),
        (
            answers([True, False] * 20, relation=lambda at: at % 2),
            {"matched": "relation"},
            "None of the 2 groups has both correct and wrong ones",
        ),
        (answers([True, False] * 20, relation=lambda _: 0), {"group": "relation"}, "at least two groups"),
    ],
)
def test_what_cannot_be_split_is_refused(rows, options, says):
    with pytest.raises(OptionError) as caught:
        chosen(rows, **options)
    assert says in str(caught.value)


def test_function_words():
    assert all(map(is_function_word, (" the", "The", ",", " \n", "of", '"', " called", "")))
    assert not any(map(is_function_word, (" Paris", "May", "US", "1984", " Anthem", "é")))


def test_few_prompts_do_not_make_a_score_add():
    """A base that overfits sixteen prompts must not gain from noise that merely takes weight away from it."""
    claims = 0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        labels = np.tile([True, True, False, False], 8)
        rows = made_up(labels, draw, log_probability=labels + draw.normal(size=32))
        columns = with_fitted(gather(rows, None), seed=0)
        claims += any(one.shown for one in gains(columns, resamples=LEAST_RESAMPLES, seed=0))
    assert claims <= 3  # three bases at 5% each: 1.1 are expected
