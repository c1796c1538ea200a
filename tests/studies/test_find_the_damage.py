"""The example that ends the demo, on the tiny bundled world: it runs, and says of each prompt what it found."""

import json
import runpy
import sys
from pathlib import Path

import pytest

import make_prompts
from eics.models.prompt_files import read_grouped

EXAMPLE = Path(__file__).parents[2] / "scripts" / "find_the_damage.py"


def test_the_example_finds_damage_that_nobody_told_it_of(tmp_path, monkeypatch, capsys):
    arguments = ["--model", "people-0", "--circuit", "people", "--reference", "people", "--prompts", "people-withheld",
                 "--group", "person", "--out", str(tmp_path)]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["find_the_damage.py", *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12
    assert sum("exchanged" in line for line in lines) == 3
    assert sum(": right; found" in line for line in lines) >= 10
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert ["exchanged" in record["label"] for record in records] == ["exchanged" in line for line in lines]
    for record in records:
        done, said = record["label"].rsplit(": ", 1)
        right = record["suspects"] == [] if done == "untouched" else record["suspects"][:1] == [done.split(",")[0]]
        assert said == ("right" if right else "wrong")
    assert not any(record["interventions"] for record in records)
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(("part", "name"), [(0, "facts"), (1, "facts-withheld")])
def test_the_bundled_facts_are_those_of_the_script(part, name):
    bundled = {(item.prompt.text, item.group) for item in read_grouped(name, "subject")}
    assert bundled == {(line["prompt"], line["subject"]) for line in make_prompts.prompts(part)}


def test_no_subject_is_in_both_parts():
    parts = [{(line["subject"], line["relation"]) for line in make_prompts.prompts(part)} for part in (0, 1)]
    assert not parts[0] & parts[1]
