"""`eics` itself: quick imports, options, output, clear errors."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.linearized.explicit_file import save_linear
from eics.scoring.numbers import percent
from eics.scoring.options import CHOICES
from eics.scoring.result import with_provenance
from support.circuits import build

HEAVY = ("torch", "transformers", "numpy", "scipy", "matplotlib", "pyarrow", "rich")


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('LOADED', ' '.join(sys.modules))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    return {name.split(".")[0] for name in output.split("LOADED")[-1].split()} & set(HEAVY)


def test_nothing_heavy_before_it_is_needed():
    assert loaded_after("import eics; eics.Circuit; eics.PAPER") == set()
    for arguments in (
        ["--help"],
        ["score", "--help"],
        ["models", "--help"],
        ["circuit", "draw", "--help"],
        ["report", "--help"],
        ["calibrate", "--help"],
        ["track", "--help"],
        ["export", "--help"],
        ["--version"],
    ):
        code = f"from eics.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
        assert loaded_after(code) == set()
    assert "torch" in loaded_after("import eics; eics.score")


def test_the_function_stays_the_function():
    """Importing a module of `eics.scoring` first must not replace `eics.score`."""
    loaded_after("import eics.scoring.api, eics\nassert callable(eics.score)")
    loaded_after("from eics.scoring.batch import score_prompts\nimport eics\nassert callable(eics.score)")


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'scoer'"):
        _ = eics.scoer
    assert set(dir(eics)) == set(eics.__all__)
    assert all(getattr(eics, name) is not None for name in eics.__all__)


@pytest.fixture
def circuit(tmp_path):
    path = tmp_path / "c.safetensors"
    save_linear(build(5, batch=2, density=0.6), path)
    return path


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_score_writes_what_the_library_says(circuit, tmp_path, suffix):
    out = tmp_path / f"scores.{suffix}"
    result = run("score", "--circuit", circuit, "--alpha", 2, "--parts", "branches", "--out", out)
    assert result.exit_code == 0, result.output
    expected = eics.score(build(5, batch=2, density=0.6), alpha=2.0, parts="branches")
    assert eics.read_records(out) == with_provenance(expected, expected[0].circuit | {"name": str(circuit)})
    assert "worst edges" in result.output


def test_both_presets_stand_together(circuit, tmp_path):
    result = run("score", "--circuit", circuit, "--preset", "both", "--json")
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.output.splitlines()]
    assert [(r["id"], r["metric"]) for r in records] == [
        (0, "euclidean"), (0, "relative"), (1, "euclidean"), (1, "relative"),
    ]  # fmt: skip


def test_every_option_reaches_the_library(circuit):
    arguments = ["--mode", "lanczos", "--residual", "propagated", "--metric", "relative", "--emergence", "intensive"]
    arguments += ["--positions", "last", "--linearization", "frozen", "--seed", "3", "--steps", "4"]
    arguments += [
        "--node-probes",
        "5",
        "--macro-probes",
        "6",
        "--alpha",
        "auto",
        "--target",
        "0.2",
        "--curve",
        "--laplacian",
    ]
    result = run("score", "--circuit", circuit, "--json", *arguments)
    assert result.exit_code == 0, result.output
    expected = eics.score(
        build(5, batch=2, density=0.6), mode="lanczos", residual="propagated", metric="relative", emergence="intensive",
        positions="last", linearization="frozen", seed=3, steps=4, node_probes=5, macro_probes=6, alpha="auto",
        target=0.2, curve=True, laplacian=True,
    )  # fmt: skip
    expected = with_provenance(expected, expected[0].circuit | {"name": str(circuit)})
    assert [eics.Score.from_record(json.loads(line)) for line in result.output.splitlines()] == expected


def test_help_names_every_option():
    text = run("score", "--help").output
    assert all(f"--{name}" in text for name in CHOICES if name != "readout")


@pytest.fixture
def single(tmp_path):
    save_linear(build(5, density=0.6), tmp_path / "one.safetensors")
    return tmp_path / "one.safetensors"


def test_one_prompt_gets_a_bar_for_each_of_the_worst_edges(single, circuit):
    output = CliRunner().invoke(main, ["score", "--circuit", str(single)], env={"COLUMNS": "80"}).output
    assert max(map(len, output.splitlines())) <= 80
    bars = output[output.index("Worst edges") :]
    worst = eics.score(build(5, density=0.6)).edges
    lines = [next(line for line in bars.splitlines() if f" {edge} " in f" {line} ") for edge in worst[:8]]
    lengths = [line.count("█") for line in lines]
    assert lengths[0] == 24
    assert lengths == sorted(lengths, reverse=True)
    assert percent(worst[0].share) in lines[0]
    assert f"({len(worst) - 8} more are not shown)" in " ".join(bars.split())
    assert "Worst edges" not in run("score", "--circuit", circuit).output  # two prompts
    assert "\x1b" not in output


def test_score_makes_a_report(circuit, tmp_path):
    assert run("score", "--circuit", circuit, "--preset", "both", "--report", tmp_path / "r.html").exit_code == 0
    assert "Well-posed" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_quiet_says_nothing(circuit):
    assert run("score", "--circuit", circuit, "--quiet").output == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--circuit", "none.safetensors"], "No such file"),
        (["--circuit", "{circuit}", "--alpha", "-1"], "The 'alpha' option must be"),
        (["--circuit", "{circuit}", "--alpha", "high"], "must be a number > 0, or 'auto'"),
        (["--circuit", "{circuit}", "--node-probes", "0"], "The 'node_probes' option must be"),
        (["--circuit", "{circuit}", "--mode", "quick"], "'exact', 'lanczos', 'fast'"),
        (["--circuit", "{circuit}", "--out", "x.txt"], "ending in .jsonl, .parquet or .csv"),
        (["--circuit", "{circuit}", "--out", "none/x.jsonl"], "folder for the records must exist"),
        (["--circuit", "{circuit}", "--report", "r.pdf"], "an .html file in a folder that exists"),
        ([], "Missing option '--circuit'"),
    ],
)
def test_wrong_input_is_one_clear_line_and_exit_code_two(circuit, arguments, message):
    result = run("score", *(argument.format(circuit=circuit) for argument in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_toy_makes_the_figure(tmp_path):
    result = run("toy", "--out", tmp_path / "out", "--seeds", 3)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "toy.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "out" / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert "a bump" in result.output or "rises" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    bad = run("toy", "--out", tmp_path / "out", "--noisy-edge", "n1->n6")
    assert bad.exit_code == 2
    assert "one of n1->n3" in bad.output


def test_modules_named_in_the_docs_exist():
    loaded_after(
        "import eics\neics.linear_file.save_linear; eics.laplacian.project; eics.baselines.BASELINES; eics.alpha"
    )


def test_a_consistent_circuit_blames_no_edge(tmp_path):
    chain = eics.LinearCircuit({"x->y": [[2.0]], "y->z": [[3.0]]}, {"x": [1.0], "y": [2.0], "z": [6.0]})
    eics.linear_file.save_linear(chain, tmp_path / "c.safetensors")
    output = run("score", "--circuit", tmp_path / "c.safetensors", "--preset", "both").output
    assert output.count("none:") == 2


def test_the_table_shows_what_c_sh_is_made_of(circuit):
    assert "worst nodes" in run("score", "--circuit", circuit, "--preset", "well-posed").output
    assert "worst edges" in run("score", "--circuit", circuit).output


def test_markup_in_names_is_not_interpreted(tmp_path):
    odd = eics.LinearCircuit({"[/foo]->[red]x": [[2.0]]}, {"[/foo]": [1.0], "[red]x": [1.0]})
    eics.linear_file.save_linear(odd, tmp_path / "c.safetensors")
    result = run("score", "--circuit", tmp_path / "c.safetensors")
    assert result.exit_code == 0
    assert "[/foo]->[red]x" in result.output


@pytest.mark.parametrize(
    "arguments", [["toy", "--out", "/proc/x"], ["score", "--circuit", "{circuit}", "--out", "/proc/x.jsonl"]]
)
def test_an_unwritable_path_gives_one_line(circuit, arguments):
    result = run(*(argument.format(circuit=circuit) for argument in arguments))
    assert result.exit_code == 2
    assert result.output.startswith("eics: The output '/proc/x")
    assert len(result.output.splitlines()) == 1


def test_a_repeated_noisy_edge_counts_once():
    from eics.studies.toy.protocol import check_noisy

    assert check_noisy(["n3->n5", "n3->n5"]) == ("n3->n5",)
