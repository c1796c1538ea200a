"""Prompts from files of every format: what is read, which ids it gets, and what is refused, naming the place."""

import io
import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import eics
from eics.errors import OptionError
from eics.models.prompts import Prompt
from eics.studies.validation.data import read_labelled, read_labelled_files

ROWS = [
    {"prompt": "one, two", "id": "x", "answer": " three", "label": True},
    {"prompt": 'say "four"', "id": "y", "answer": None, "label": 0.5},
]
PROMPTS = [Prompt("x", "one, two", None, " three", True), Prompt("y", 'say "four"', None, None, 0.5)]


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def parquet(path, rows=ROWS):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


CSV = 'prompt,id,answer,label\r\n"one, two",x, three,True\r\n"say ""four""",y,,0.5\r\n'
CONTENTS = {
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS),
    "b.ndjson": "\r\n".join(json.dumps(row) for row in ROWS),
    "c.json": json.dumps(ROWS, indent=1),
    "d.csv": CSV,
    "e.tsv": 'prompt\tid\tanswer\tlabel\none, two\tx\t three\ttrue\n"say ""four"""\ty\t\t0.5\n',
    "f.dat": json.dumps(ROWS),
    "g": "\n\n" + "\n".join(json.dumps(row) for row in ROWS),
}


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", CONTENTS)
def test_every_format_says_the_same(tmp_path, name, bom):
    assert eics.read_prompts(written(tmp_path / name, bom + CONTENTS[name].encode())) == PROMPTS


@pytest.mark.parametrize("name", ["a.parquet", "a.pq", "a.unknown"])
def test_parquet(tmp_path, name):
    rows = [row | {"label": label} for row, label in zip(ROWS, (True, False), strict=True)]
    read = eics.read_prompts(parquet(tmp_path / name, rows))
    assert [{"prompt": p.text, "id": p.id, "answer": p.answer, "label": p.label} for p in read] == rows


@pytest.mark.parametrize("name", ["a.txt", "a.other"])
def test_text_has_a_prompt_per_line(tmp_path, name):
    path = written(tmp_path / name, b"\xef\xbb\xbfThe capital \r\n\r\n of\x00 France\n\tis\xe2\x80\xa8it")
    assert [(p.id, p.text) for p in eics.read_prompts(path)] == [
        (0, "The capital "), (2, " of\x00 France"), (3, "\tis\u2028it"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "texts", "tokens"),
    [
        (b'["a", {"prompt": "b"}]', ["a", "b"], [None, None]),
        (b"[[5, 6], [7]]", [None, None], [(5, 6), (7,)]),
        (b"[5, 6]\n[7]\n", [None, None], [(5, 6), (7,)]),
        (b'{"prompt": "a"}\n"b"\n', ["a", "b"], [None, None]),
        (b"plain\n[text]\n", ["plain", "[text]"], [None, None]),
    ],
)
def test_standard_input_is_recognised_by_its_first_line(monkeypatch, content, texts, tokens):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    prompts = eics.read_prompts("-")
    assert [p.text for p in prompts] == texts
    assert [p.tokens for p in prompts] == tokens


def test_standard_input_may_be_parquet_or_endless(monkeypatch, tmp_path):
    content = parquet(tmp_path / "p.parquet", [{"prompt": "a"}]).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert [p.text for p in eics.read_prompts("-")] == ["a"]

    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            buffer[:2] = b"y\n"
            return 2

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert [p.text for p in eics.read_prompts("-", limit=3)] == ["y"] * 3
    with pytest.raises(OptionError, match="once only"):
        eics.read_prompts(["-", "-"])


def test_columns(tmp_path):
    table = written(tmp_path / "t.csv", "question,n\nwhy?,1\n")
    with pytest.raises(OptionError, match="has these columns: question, n"):
        eics.read_prompts(table)
    with pytest.raises(OptionError, match=r"must have 'prompt'.* has these columns: question, n"):
        eics.read_prompts(table, column="prompt")
    assert eics.read_prompts(table, column="question")[0].text == "why?"
    assert eics.read_prompts(written(tmp_path / "one.csv", "question\nwhy?\n"))[0].text == "why?"
    assert eics.read_prompts(written(tmp_path / "t.jsonl", '{"q": "why?"}\n'), column="q")[0].text == "why?"
    ids = parquet(tmp_path / "t.parquet", [{"ids": [5, 6]}])
    assert eics.read_prompts(ids, column="ids")[0].tokens == (5, 6)
    assert eics.read_prompts(written(tmp_path / "k.csv", 'tokens\n"[5, 6]"\n'))[0].tokens == (5, 6)
    with pytest.raises(OptionError, match=r"Line 1 .* drop the column"):
        eics.read_prompts(written(tmp_path / "t.txt", "why?\n"), column="q")


def test_several_files_keep_ids_apart(tmp_path):
    first = written(tmp_path / "a.txt", "one\ntwo\n")
    second = written(tmp_path / "b.jsonl", '"three"\n{"prompt": "four", "id": "own"}\n')
    assert [p.id for p in eics.read_prompts([first, second])] == ["a.txt:0", "a.txt:1", "b.jsonl:0", "own"]
    (tmp_path / "sub").mkdir()
    same = written(tmp_path / "sub" / "a.txt", "five\n")
    assert [p.id for p in eics.read_prompts([first, same])] == [f"{first}:0", f"{first}:1", f"{same}:0"]
    with pytest.raises(OptionError, match=r"Got 'own' twice: on line 2 of .*b.jsonl' and on line 1 of .*c.jsonl'"):
        eics.read_prompts([second, written(tmp_path / "c.jsonl", '{"prompt": "x", "id": "own"}\n')])
    assert len(eics.read_prompts(["people", "induction"], limit=3)) == 3


def test_limit_and_shuffle(tmp_path):
    path = written(tmp_path / "p.txt", "".join(f"prompt {n}\n" for n in range(30)))
    assert [p.id for p in eics.read_prompts(path, limit=4)] == [0, 1, 2, 3]
    shuffled = eics.read_prompts(path, shuffle=True, seed=1)
    assert sorted(p.id for p in shuffled) == list(range(30))
    assert [p.id for p in shuffled] != list(range(30))
    assert all(p.text == f"prompt {p.id}" for p in shuffled)
    assert eics.read_prompts(path, shuffle=True, seed=1, limit=5) == shuffled[:5]
    assert eics.read_prompts(path, shuffle=True, seed=2) != shuffled
    with pytest.raises(OptionError, match="'limit' option"):
        eics.read_prompts(path, limit=0)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": ', "Line 2 .* must be JSON"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": "b", "id": 0}\n', "Got 0 twice: on line 1 .* and on line 2"),
        ("a.jsonl", b'{"prompt": "a", "id": true}\n', "Line 1 .* an id must be text or a whole number; got the bool"),
        ("a.jsonl", b'{"prompt": "a", "id": NaN}\n', "Line 1 .* an id must be"),
        ("a.jsonl", b'{"prompt": "a", "id": 1.5}\n', "Line 1 .* an id must be"),
        ("a.jsonl", b'{"prompt": "a", "id": [1]}\n', "Line 1 .* an id must be"),
        ("a.jsonl", b'{"prompt": "a", "id": "\\ud800"}\n', "Line 1 .* lone surrogates"),
        ("a.jsonl", b'{"prompt": "a", "label": Infinity}\n', "Line 1 .* a label must be"),
        ("a.jsonl", b'{"prompt": ["a", "b"]}\n', "Line 1 .* tokens must be whole numbers"),
        ("a.jsonl", b'{"prompt": 3}\n', "Line 1 .* got the int 3 there"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "Line 1 .* nested too deeply"),
        ("a.jsonl", b'{"tokens": [' + b"9" * 5000 + b"]}\n", "Line 1 .* must be JSON"),
        ("a.jsonl", b'"a"\n\xff\xfe\n', "Line 2 .* must be UTF-8"),
        ("a.txt", b"\xff\xfea\x00", "Line 1 .* must be UTF-8"),
        ("a.json", b'{"prompts": []}', "must be a JSON array"),
        ("a.json", b'{"prompt": "a"}\n{"prompt": "b"}\n', "goes into a .jsonl file"),
        ("a.json", b'["a", 3]', "Item 1 .* must be a prompt"),
        ("a.json", b"\xff", "UTF-8"),
        ("a.csv", b"prompt,prompt\na,b\n", "must name each column once"),
        ("a.csv", b"prompt,id\na\n", "Line 2 .* must have 2 cells, as its header. It has 1"),
        ("a.csv", b'prompt\n"a\nb\n', "must be a row of a table: unexpected end of data"),
        ("a.csv", b"prompt\n\xff\n", "UTF-8"),
        ("a.csv", b"prompt\n", "at least one prompt"),
        ("a.csv", b"", "at least one prompt"),
        ("a.parquet", b"PAR1 no", "must be a Parquet file"),
        ("a.txt", b"\n \n", "at least one prompt"),
    ],
)
def test_refusals_name_the_place_in_one_line(tmp_path, name, content, says):
    with pytest.raises(OptionError, match=says) as caught:
        eics.read_prompts(written(tmp_path / name, content))
    assert "\n" not in str(caught.value)


def test_cells_and_lines_may_be_long(tmp_path):
    text = "long " * 50_000
    assert eics.read_prompts(written(tmp_path / "a.csv", f"prompt\n{text}\n"))[0].text == text
    assert eics.read_prompts(written(tmp_path / "a.txt", text + "\n"))[0].text == text


def test_a_mistyped_bundled_name_gets_a_suggestion(tmp_path):
    with pytest.raises(OptionError, match="Did you mean 'people'"):
        eics.read_prompts("poeple")
    with pytest.raises(OptionError, match="readable file"):
        eics.read_prompts(tmp_path)


def test_labelled_prompts_come_from_every_format_too(tmp_path):
    table = written(tmp_path / "d.csv", "question,answer,label,kind\nwhy?, so,,a\nwho?,,1,b\nwhen?,,false,b\n")
    items = read_labelled_files([table], column="question")
    assert [(i.prompt.text, i.answers, i.label, i.groups["kind"]) for i in items] == [
        ("why?", (" so",), None, "a"), ("who?", (), True, "b"), ("when?", (), False, "b"),
    ]  # fmt: skip
    assert len(read_labelled_files(["people", "induction"], limit=7)) == 7
    import pandas as pd

    with pytest.raises(OptionError, match="DataFrame"):
        read_labelled(pd.DataFrame({"prompt": ["a"], "label": [1]}))


def test_a_task_may_be_a_table(tmp_path):
    from eics.studies.discovery.task import read_task
    from support.tiny_models import tiny_model

    rows = [{"clean": [1, 2], "corrupted": [3, 2], "answer": 4, "foil": 5}, {"clean": 7, "answer": 4}]
    task = read_task(written(tmp_path / "t.json", json.dumps(rows)), tiny_model("gpt2"))
    assert [pair.clean for pair in task.pairs] == [(1, 2)]
    assert task.skipped == ("item 1: tokens must be a list of ids; got the int 7",)
    parquet(tmp_path / "t.parquet", rows[:1])
    assert read_task(tmp_path / "t.parquet", tiny_model("gpt2")).pairs == task.pairs


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [("a.csv", "prompt;label", "one;two"), ("a.csv", "prompt\tlabel", "one\ttwo"), ("a.tsv", "prompt,id", "one,two")],
)
def test_a_table_that_was_split_elsewhere_is_not_one_column_of_prompts(tmp_path, name, header, row):
    (tmp_path / name).write_text(f"{header}\n{row}\n")
    with pytest.raises(OptionError, match="must be separated by commas"):
        eics.read_prompts(tmp_path / name)
    assert [prompt.text for prompt in eics.read_prompts(tmp_path / name, column=header)] == [row]
