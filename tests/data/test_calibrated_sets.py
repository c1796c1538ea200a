"""The prompt sets of the calibration study: unique, reproducible, and each with the property that it is there for."""

import json
import re
import sys
from collections import Counter

import pytest

import calibrated_sets
from calibrated_sets import (
    GIVING,
    LANGUAGES,
    LASTING,
    OCCASIONS,
    SENTENCES,
    WORDINGS,
    greater_than,
    indirect_objects,
    mentions,
    put_before,
    reasons,
    rephrased,
    statement,
    translated,
)
from make_prompts import PHRASINGS
from make_tasks import CAPITALS, NAMES, RELATIONS
from make_tasks import LANGUAGES as SPOKEN

KNOWN = [
    {"id": f"known-{relation}-{number}", "prompt": f"Number {number} {relation} is", "answer": f" Answer {number}",
     "subject": f"Number {number}", "relation": relation}
    for relation in [*WORDINGS, "P138"] for number in range(12)
]  # fmt: skip
FORMS = ("plain", "recall", "copy", "swap")
SETS = {
    "indirect objects": indirect_objects,
    "greater than": greater_than,
    "sentence": lambda: put_before(KNOWN, "sentence"),
    "context": lambda: put_before(KNOWN, "context"),
    "rephrased": lambda: rephrased(KNOWN),
    "translated": lambda: translated(KNOWN),
    "reasons": reasons,
}


def balanced(rows, groups):
    """Whether each of the groups has its share of the rows; a prompt drawn twice moves a row to another group."""
    found = Counter(row["group"] for row in rows)
    return set(found) == set(groups) and max(found.values()) - min(found.values()) <= 2


@pytest.mark.parametrize("name", SETS)
def test_sets_are_unique_grouped_and_reproducible(name):
    rows = SETS[name]()
    assert rows == SETS[name]()
    assert len({row["id"] for row in rows}) == len({row["prompt"] for row in rows}) == len(rows) > 300
    for row in rows:
        assert isinstance(row["group"], str)
        assert row["group"]
        assert row["prompt"] == row["prompt"].strip()
        assert "{" not in row["prompt"]
        assert "  " not in row["prompt"]


@pytest.mark.parametrize("make", [indirect_objects, greater_than])
def test_drawn_sets_have_the_size_asked_for(make):
    assert len(make()) == 1200
    assert make(count=30) == make()[:30]
    assert make(count=30, seed=1) != make(count=30)
    assert make(count=0) == []


def test_the_receiver_is_named_once_and_the_giver_twice():
    rows = indirect_objects()
    assert len(GIVING) >= 8
    assert {row["template"] for row in rows} == set(range(len(GIVING)))
    assert balanced(rows, NAMES)
    for row in rows:
        assert row["answer"] == " " + row["group"]
        named = Counter(word for word in re.findall(r"\w+", row["prompt"]) if word in NAMES)
        assert sorted(named.values()) == [1, 2]
        assert named[row["group"]] == 1
        assert row["prompt"].endswith(" to")


def test_the_answer_is_a_later_decade_of_the_same_century():
    rows = greater_than()
    assert len(set(OCCASIONS)) == len(OCCASIONS) >= 40
    assert len(LASTING) >= 6
    assert {row["template"] for row in rows} == set(range(len(LASTING)))
    assert balanced(rows, OCCASIONS)
    centuries = set()
    for row in rows:
        start, century = re.findall(r"\d+", row["prompt"])
        assert row["prompt"].endswith(century)
        assert start.startswith(century)
        assert f" {row['group']}" in row["prompt"]
        assert row["answers"] == [digit for digit in "0123456789" if digit > start[2]]
        assert row["answer"] in row["answers"]
        centuries.add(int(century))
    assert centuries == set(range(11, 19))


@pytest.mark.parametrize("kind", ["sentence", "context"])
def test_what_is_put_before_leaves_the_rest_as_it_was(kind):
    rows = put_before(KNOWN, kind)
    assert len(rows) == len(KNOWN)
    for before, row in zip(KNOWN, rows, strict=True):
        assert row["id"] == f"{before['id']}/{kind}"
        assert row["prompt"].endswith(". " + before["prompt"])
        assert {key: row[key] for key in before if key not in ("id", "prompt")} == {
            key: before[key] for key in before if key not in ("id", "prompt")
        }
        assert row["group"] == before["subject"]
        text = row["prompt"].removesuffix(" " + before["prompt"])
        used = [sentence for sentence in SENTENCES if sentence in text]
        assert sum(map(len, used)) + len(used) - 1 == len(text)
        if kind == "sentence":
            assert len(used) == 1
        else:
            assert 6 <= len(used) <= 10
            assert 60 <= len(text.split()) <= 120
    assert put_before(KNOWN[5:], kind) == rows[5:]
    assert put_before(KNOWN, kind, seed=1) != rows


def test_put_before_keeps_a_group_and_avoids_the_answer():
    row = {"id": "a", "prompt": "The animal is a", "group": "animals", "answer": " cat", "n": 3}
    lines = [line for seed in range(100) for line in put_before([row], "context", seed=seed)]
    assert {(line["group"], line["n"], line["answer"]) for line in lines} == {("animals", 3, " cat")}
    assert any("duck" in line["prompt"] for line in lines)
    assert not any("cat" in line["prompt"].lower() for line in lines)


def test_put_before_makes_equal_prompts_different_or_refuses():
    rows = [{"id": str(number), "prompt": "It is", "answer": " so"} for number in range(51)]
    few = put_before(rows[:30], "sentence")
    assert len({row["prompt"] for row in few}) == 30
    with pytest.raises(ValueError, match="too many rows have the prompt 'It is'"):
        put_before(rows, "sentence")
    with pytest.raises(ValueError, match="kind is 'page'"):
        put_before(rows, "page")


def test_sentences_name_nobody_and_nowhere():
    assert len(set(SENTENCES)) == len(SENTENCES) >= 40
    names = {*NAMES, *CAPITALS, *CAPITALS.values(), *SPOKEN, *SPOKEN.values()}
    for sentence in SENTENCES:
        assert sentence.endswith(".")
        assert not re.search(r"\d", sentence)
        assert not {word.casefold() for word in re.findall(r"\w+", sentence)} & {name.casefold() for name in names}
        assert not re.search(r"(?<!^)[A-Z]", sentence)


def test_every_relation_is_rephrased():
    rows = rephrased(KNOWN)
    assert [row["id"] for row in rows] == [f"{row['id']}/rephrased" for row in KNOWN if row["relation"] in WORDINGS]
    assert len(WORDINGS) == 31
    assert len({wording.english for wording in WORDINGS.values()}) == 31
    for row in rows:
        assert row["prompt"] == WORDINGS[row["relation"]].english.replace("{}", row["subject"])
        assert row["answer"].startswith(" ")
        assert row["group"] == row["subject"]


def test_every_relation_is_translated_into_every_language():
    rows = translated(KNOWN)
    assert {(row["relation"], row["language"]) for row in rows} == {(r, lang) for r in WORDINGS for lang in LANGUAGES}
    for row in rows:
        assert row["answer"] is None
        assert row["id"].endswith("/translated")
        assert row["prompt"] == getattr(WORDINGS[row["relation"]], row["language"]).replace("{}", row["subject"])
    alone = [row for one in KNOWN for row in translated([one])]
    assert alone == rows
    assert KNOWN[0]["answer"] == " Answer 0"


def test_reasons_has_every_fact_in_every_phrasing_and_form():
    found = {(row["relation"], row["subject"], row["phrasing"], row["form"]) for row in reasons()}
    facts = {(relation, subject) for relation, (table, _) in RELATIONS.items() for subject in table}
    facts -= {("language", "Thailand"), ("language", "Germany")}  # they contain their answer
    assert found == {(*fact, number, form) for fact in facts for number in range(4) for form in FORMS}
    assert len(reasons()) == 133 * 4 * 4


def test_reasons_gives_the_answer_only_where_it_should():
    rows = {row["id"]: row for row in reasons()}
    assert len(rows) == 2128
    for row in rows.values():
        table = RELATIONS[row["relation"]][0]
        question = PHRASINGS[row["relation"]][row["phrasing"]].format(row["subject"])
        name = f"{row['subject']} {row['relation']}-{row['phrasing']}"
        assert row["id"] == f"{name}/{row['form']}"
        assert row["group"] == row["subject"]
        assert row["answer"] == " " + table[row["subject"]]
        assert row["prompt"].endswith(question)
        assert not mentions(question, row["answer"])
        said = row["prompt"].removesuffix(question)
        assert (said == "") == (row["form"] == "plain")
        assert mentions(said, row["answer"]) == (row["form"] == "copy")
        assert mentions(said, row["subject"]) == (row["form"] in ("copy", "swap"))
        assert ("said" in row) == (row["form"] == "swap")
        swapped = rows[f"{name}/swap"]["said"]
        assert swapped != row["answer"]
        assert not mentions(question, swapped)
        assert mentions(said, swapped) or row["form"] in ("plain", "copy")


def test_recall_and_swap_have_one_other_subject_and_its_whole_answer():
    rows = {row["id"]: row for row in reasons()}
    for row in rows.values():
        if row["form"] != "recall":
            continue
        table = RELATIONS[row["relation"]][0]
        opening = row["prompt"].removesuffix(rows[row["id"].replace("/recall", "/plain")]["prompt"]).strip()
        swap = rows[row["id"].replace("/recall", "/swap")]
        (other,) = [subject for subject in table if statement(row["relation"], subject) == opening]
        assert swap["said"] == " " + table[other]
        assert swap["prompt"].startswith(statement(row["relation"], row["subject"], other) + " ")


def test_statements_have_whole_names():
    assert statement("capital", "Argentina") == "The capital of Argentina is Buenos Aires."
    assert statement("language", "Brazil") == "The main language of Brazil is Portuguese."
    assert statement("landmark", "the Louvre", "Central Park") == "Visitors find the Louvre in New York."
    assert statement("author", "The Origin of Species") == "The Origin of Species is a work by Charles Darwin."
    assert all(
        len(statement("author", title).split(" by ")[1].split()) > 1 or author == "Homer"
        for title, author in RELATIONS["author"][0].items()
    )


@pytest.mark.parametrize("known", [False, True])
def test_main_writes_the_sets(tmp_path, monkeypatch, known):
    source = tmp_path / "known.jsonl"
    source.write_text("\n".join(map(json.dumps, KNOWN)) + "\n\n", encoding="utf-8")
    arguments = ["--out", str(tmp_path / "new" / "sets"), *(["--known", str(source)] if known else [])]
    monkeypatch.setattr(sys, "argv", ["calibrated_sets.py", *arguments])
    calibrated_sets.main()
    expected = {"indirect-objects": indirect_objects(), "greater-than": greater_than(), "reasons": reasons()}
    if known:
        expected |= {f"known-{kind}": put_before(KNOWN, kind) for kind in ("sentence", "context")}
        expected |= {"known-rephrased": rephrased(KNOWN), "known-translated": translated(KNOWN)}
    written = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "new" / "sets").glob("*.jsonl")}
    assert {name: [json.loads(line) for line in text.splitlines()] for name, text in written.items()} == expected
