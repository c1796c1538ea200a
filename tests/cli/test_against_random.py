"""`eics score --against-random N`."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from eics.cli import main
from eics.linearized.explicit_file import save_linear
from eics.scoring.against_random import _compared
from eics.scoring.result import failed
from support.circuits import build

ARGUMENTS = ["score", "--model", "people-0", "--circuit", "people", "--preset", "both", "--mode", "limit"]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in ([1, 2, 3, 4], [5, 6, 7])))
    return ["--prompts", str(path)]


def test_records_and_terminal_say_what_random_circuits_give(prompts, tmp_path):
    out = tmp_path / "scores.jsonl"
    result = CliRunner().invoke(main, [*ARGUMENTS, *prompts, "--against-random", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "2 random circuits of this size give EICS = " in said  # the paper's preset has no r
    assert "2 random circuits of this size give r = " in said
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["diagnostics"]["against_random"]["circuits"] for record in records] == [2] * 4
    names = [set(record["diagnostics"]["against_random"]) - {"circuits"} for record in records]
    assert names == [{"dei_norm", "c_sh", "eics"}, {"emergence_ratio", "dei_norm", "c_sh", "eics"}] * 2


def test_it_is_off_by_default_and_its_help_says_what_it_costs(prompts):
    result = CliRunner().invoke(main, [*ARGUMENTS, *prompts, "--json"])
    assert all("against_random" not in json.loads(line)["diagnostics"] for line in result.stdout.splitlines())
    assert "N more scores" in " ".join(CliRunner().invoke(main, ["score", "--help"]).stdout.split())


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_a_wrong_number_is_refused(prompts, count):
    assert CliRunner().invoke(main, [*ARGUMENTS, *prompts, "--against-random", count]).exit_code == 2


def test_an_explicit_circuit_is_refused(tmp_path):
    save_linear(build(5), tmp_path / "c.safetensors")
    result = CliRunner().invoke(main, ["score", "--circuit", str(tmp_path / "c.safetensors"), "--against-random", "2"])
    assert result.exit_code == 2
    assert "needs a --model" in result.stderr


def test_ties_get_the_middle_rank():
    own = replace(failed("a", "why"), status="clipped", eics=0.0, reason=None)
    for others, rank in [([0.0, 0.0], 2), ([0.0, 1.0], 2.5), ([1.0, 1.0], 3), ([-1.0, -1.0], 1)]:
        compared = _compared(own, [replace(own, eics=value) for value in others])
        assert compared.diagnostics["against_random"]["eics"]["rank"] == rank
