"""`--patch` and `--patch-read`: what they do, that a run with them can be resumed, and what is refused."""

import json

import pytest
from click.testing import CliRunner

from eics.cli import main

HERE, OTHER = "The instrument of Mera Balloway is the", "The food of Mera Balloway is the"


def score(out, *given, prompt=HERE):
    common = ["--model", "people-0", "--circuit", "people", "--prompt", prompt, "--mode", "fast", "--device", "cpu"]
    return CliRunner().invoke(main, ["score", *common, "--quiet", "--out", str(out), *given])


@pytest.mark.parametrize("flag", ["--patch", "--patch-read"])
def test_a_run_with_patches_can_be_resumed(tmp_path, flag):
    out = tmp_path / "a.jsonl"
    change = (flag, f"m1@last={OTHER}")
    assert score(out, *change).exit_code == 0
    written = out.read_text()
    again = score(out, *change, "--resume")
    assert again.exit_code == 0, again.output
    assert out.read_text() == written
    for other in ((flag, f"m1@last={HERE}"), (flag, f"m2@last={OTHER}"), (flag, f"m1={OTHER}"), ()):
        refused = score(out, *other, "--resume")
        assert refused.exit_code == 2
        assert "--resume must continue with the same" in refused.output


def test_a_patched_read_is_described_in_the_record(tmp_path):
    out = tmp_path / "a.jsonl"
    assert score(out, "--patch-read", f"m1@last={OTHER}").exit_code == 0
    (change,) = json.loads(out.read_text())["interventions"]
    assert {"kind": "patch_read", "node": "m1", "at": "last", "prompt": OTHER}.items() <= change.items()
    assert "m0" in change["parents"]
    assert change["change_norm"] > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"a1.h0={OTHER}", "must be an MLP"),
        ("m1=", "NODE=TEXT, the node and the other prompt"),
        ("m1", "NODE=TEXT, the node and the other prompt"),
        (f"m1@first={OTHER}", "all, last or whole numbers"),
        (f"m9={OTHER}", "layers 0 to 2"),
    ],
)
def test_what_cannot_be_patched_is_refused(tmp_path, text, says):
    result = score(tmp_path / "a.jsonl", "--patch-read", text)
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "a.jsonl").exists()
