"""What every command that writes must do about its output files: nothing lost, nothing half, one line, an exit code."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.data.locks import Lock
from eics.errors import OptionError
from eics.linearized.explicit_file import save_linear
from eics.studies.comparison.model_rows import FILES as COMPARED
from eics.studies.comparison.set_rows import FILES as SETS
from eics.studies.damage.batches import FILES as DAMAGE
from eics.studies.toy.experiment import FILES as TOY
from eics.studies.tracking.run import FILES as TRACK
from eics.studies.validation.run import FILES as VALIDATE
from support.circuits import build
from support.small_disk import small_disk

MODEL = ["--model", "people-0"]
TASK = ["--task", "task.jsonl", *MODEL, "--limit", "4"]
SCORE = ["score", *MODEL, "--circuit", "circuit.json", "--prompts", "prompts.jsonl", "--mode", "limit"]
FAITHFUL = ["circuit", "faithfulness", "circuit.json", *TASK]
BENCH = ["bench", *MODEL, "--circuit", "circuit.json", "--rows", "given-fast-frozen", "--repeats", "1"]

FILES = {
    "score --out": ([*SCORE, "--out", "new.jsonl"], ["new.jsonl"]),
    "score parquet": ([*SCORE, "--out", "new.parquet"], ["new.parquet"]),
    "score csv": ([*SCORE, "--out", "new.csv"], ["new.csv"]),
    "score --picture": ([*SCORE, "--picture", "new.png"], ["new.png"]),
    "score --report": ([*SCORE, "--report", "new.html"], ["new.html"]),
    "score explicit": (["score", "--circuit", "explicit.safetensors", "--out", "new.jsonl"], ["new.jsonl"]),
    "calibrate": (
        [
            "calibrate",
            *MODEL,
            "--circuit",
            "circuit.json",
            "--prompts",
            "prompts.jsonl",
            "--preset",
            "paper",
            "--out",
            "new.safetensors",
        ],
        ["new.safetensors"],
    ),
    "trace": (
        [
            "trace",
            *MODEL,
            "--circuit",
            "circuit.json",
            "--prompts",
            "prompts.jsonl",
            "--calibration",
            "usual.safetensors",
            "--out",
            "new.jsonl",
        ],
        ["new.jsonl"],
    ),
    "discover": (["discover", *TASK, "--edges", "9", "--out", "new.json"], ["new.json"]),
    "faithfulness --out": ([*FAITHFUL, "--out", "new.json"], ["new.json"]),
    "faithfulness --picture": ([*FAITHFUL, "--picture", "new.png"], ["new.png"]),
    "convert": (["circuit", "convert", "circuit.json", "new.graphml"], ["new.graphml"]),
    "draw": (["circuit", "draw", "circuit.json", "new.svg"], ["new.svg"]),
    "report": (["report", "records.jsonl", "--out", "new.html"], ["new.html"]),
    "export": (["export", "records.jsonl", "new.json"], ["new.json"]),
    "compare --report": (
        ["compare", *MODEL, "--against", "people-1", "--prompts", "prompts.jsonl", "--report", "new.html"],
        ["new.html"],
    ),
    "bench --out": ([*BENCH, "--out", "new.json"], ["new.json"]),
    "bench --markdown": ([*BENCH, "--markdown", "new.md"], ["new.md"]),
    "toy": (["toy", "--seeds", "2", "--out", "new"], [f"new/{name}" for name in TOY]),
}
FOLDERS = {
    "compare models": (
        ["compare", *MODEL, "--against", "people-1", "--prompts", "prompts.jsonl", "--out", "new", "--restore", "1"],
        [f"new/{name}" for name in (*COMPARED, "compare.html")],
    ),
    "compare sets": (
        [
            "compare",
            *MODEL,
            "--circuit",
            "circuit.json",
            "--prompts",
            "first.jsonl",
            "--against-prompts",
            "second.jsonl",
            "--calibration",
            "usual.safetensors",
            "--out",
            "new",
        ],
        [f"new/{name}" for name in (*SETS, "compare.html")],
    ),
    "damage": (
        ["damage", *MODEL, "--circuit", "circuit.json", "--prompts", "prompts.jsonl", "--out", "new", "--nodes", "1"],
        [f"new/{name}" for name in DAMAGE],
    ),
    "track": (
        ["track", *MODEL, "--task", "task.jsonl", "--circuit", "circuit.json", "--out", "new", "--prompts", "8"],
        [f"new/{name}" for name in TRACK],
    ),
    "validate": (
        ["validate", *MODEL, "--circuit", "circuit.json", "--data", "prompts.jsonl", "--out", "new"],
        [f"new/{name}" for name in VALIDATE],
    ),
}
COMMANDS = FILES | FOLDERS
INPUTS = (
    "circuit.json",
    "prompts.jsonl",
    "first.jsonl",
    "second.jsonl",
    "task.jsonl",
    "records.jsonl",
    "explicit.safetensors",
    "usual.safetensors",
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A circuit, prompts, a task, records, a calibration and an explicit circuit, all of them small."""
    folder = tmp_path_factory.mktemp("inputs")
    data = Path(eics.__file__).parent / "data"
    edges = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    (folder / "circuit.json").write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": edges}))
    for name, source, lines in (("prompts", "prompts/people.jsonl", 6), ("task", "tasks/people.jsonl", 16)):
        kept = (data / source).read_text().splitlines(keepends=True)[:lines]
        (folder / f"{name}.jsonl").write_text("".join(kept))
    lines = (data / "prompts/people.jsonl").read_text().splitlines(keepends=True)
    for name, kept in (("first", lines[200:224]), ("second", lines[224:248])):
        (folder / f"{name}.jsonl").write_text("".join(kept))
    save_linear(build(5, batch=2, density=0.6), folder / "explicit.safetensors")
    usual = [json.loads(line) for line in lines[:160]]
    calibration = eics.calibrate(
        eics.load_model("people-0"), eics.load_circuit(folder / "circuit.json"), usual, terms="sheaf", at="all"
    )
    eics.save_calibration(calibration, folder / "usual.safetensors")
    eics.write_records(eics.score(build(5, batch=2, density=0.6)), folder / "records.jsonl")
    return folder


@pytest.fixture
def place(inputs, tmp_path, monkeypatch):
    """A folder of its own with the inputs, in which commands run."""
    for name in INPUTS:
        shutil.copy(inputs / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=None):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert code is None or result.exit_code == code, (result.exit_code, result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def content(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def one_line(result):
    assert len(result.stderr.splitlines()) == 1, result.output
    assert result.stderr.startswith("eics: ")
    return result.stderr


def occupy(files):
    for file in map(Path, files):
        file.parent.mkdir(exist_ok=True)
        file.write_text("mine")


@pytest.mark.parametrize("name", COMMANDS)
def test_what_exists_is_refused(place, name):
    arguments, files = COMMANDS[name]
    for file in files:
        occupy([file])
        before = content(place)
        line = one_line(run(*arguments, code=2))
        assert "already exists" in line or "already holds a run" in line
        assert "--overwrite" in line
        assert content(place) == before
        Path(file).unlink()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_input_touches_nothing(place, name):
    arguments, files = COMMANDS[name]
    occupy(files)
    before = content(place)
    given = [index for index, argument in enumerate(arguments) if argument in (*INPUTS, "people-0")]
    resumes = "--resume" in run(arguments[0], "--help").output and "explicit" not in name
    for index in given:
        for how in ("--overwrite", "--resume") if resumes else ("--overwrite",):
            mistyped = [*arguments[:index], f"/nowhere/{arguments[index]}", *arguments[index + 1 :]]
            one_line(run(*mistyped, how, code=2))
            assert content(place) == before


@pytest.mark.parametrize("name", FILES)
def test_an_output_is_never_an_input(place, name):
    arguments, (file, *_) = FILES[name]
    for read in {argument for argument in arguments if argument in INPUTS}:
        for link in (os.symlink, os.link):
            link(read, file)
            before = content(place)
            assert "which is read" in one_line(run(*arguments, "--overwrite", code=2))
            assert content(place) == before
            Path(file).unlink()


@pytest.mark.parametrize("name", FOLDERS)
def test_files_of_a_run_folder_are_never_inputs(place, name):
    arguments, files = FOLDERS[name]
    for read in {argument for argument in arguments if argument in INPUTS}:
        Path("new").mkdir(exist_ok=True)
        os.link(read, files[0])
        before = content(place)
        for how in ("--overwrite", "--resume"):
            assert "which is read" in one_line(run(*arguments, how, code=2))
            assert content(place) == before
        Path(files[0]).unlink()


@pytest.mark.parametrize("name", FOLDERS)
def test_the_lock_of_a_run_folder_is_no_input(place, name):
    """It would be removed in the end."""
    arguments, _ = FOLDERS[name]
    for read in {argument for argument in arguments if argument in INPUTS}:
        Path("new").mkdir(exist_ok=True)
        os.link(read, "new/.lock")
        assert "the lock file in --out must not be the same file as" in one_line(run(*arguments, code=2))
        Path("new/.lock").unlink()


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("validate", ["--seed", 2**40]),
        ("validate", ["--memory", "nan"]),
        ("track", ["--seed", -1]),
        ("track", ["--memory", "nan"]),
        ("damage", ["--memory", "nan"]),
        ("damage", ["--seed", 2**70]),
    ],
)
def test_an_option_out_of_range_makes_no_folder(place, name, option):
    result = run(*FOLDERS[name][0], *option, code=2)
    assert option[0].strip("-") in result.stderr
    assert "internal error" not in result.stderr
    assert not Path("new").exists()


def test_an_interrupted_benchmark_does_not_call_replacing_its_rows_going_on(place, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("eics.studies.bench.growth.grow", interrupt)
    line = run(*BENCH, "--growth", "--quiet", "--out", "new.json", code=130).stderr.splitlines()[-1]
    assert line.startswith(
        "eics: interrupted: 1 row is safe in new.json. Start again, and replace them, with: eics bench"
    )
    assert line.endswith(" --overwrite")


def test_a_validation_interrupted_after_its_scores_is_resumed(place, monkeypatch):
    """The rows are in a table then, and the files that they came from are gone."""
    arguments = [*FOLDERS["validate"][0], "--mode", "limit"]

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    data = Path(eics.__file__).parent / "data/prompts/people.jsonl"
    Path("prompts.jsonl").write_text("".join(data.read_text().splitlines(keepends=True)[:60]))
    monkeypatch.setattr("eics.studies.validation.run.analyse", interrupt)
    line = run(*arguments, "--quiet", code=130).stderr.splitlines()[-1]
    again = shlex.join(["eics", *arguments, "--quiet", "--resume"])
    assert line == f"eics: interrupted: 60 rows are safe in new/scores.parquet. Go on with: {again}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_process_is_refused(place, name):
    arguments, files = COMMANDS[name]
    if "new" in arguments:
        Path("new").mkdir()
    lock = Lock(Path(files[0] if name in FILES else "new"))
    before = content(place)
    assert "must not be written by two processes" in run(*arguments, code=2).stderr.splitlines()[-1]
    assert content(place) == before
    lock.release()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_loses_nothing(place, name):
    arguments, files = COMMANDS[name]
    occupy(files)
    before = content(place)
    with small_disk(150):
        line = run(*arguments, "--overwrite", code=1).stderr.splitlines()[-1]
    if name in FILES:
        assert content(place) == before
        assert "nothing was written. Start again with: eics" in line
    else:
        assert line.startswith("eics: a file would grow beyond what the system allows")
    again = shlex.split(line.partition(" with: ")[2])
    assert again[0] == "eics"
    if name in ("score --out", "convert", "export", "report"):
        run(*again[1:], code=0)


LINES = {"prompts.jsonl", "task.jsonl", "records.jsonl"}
READING = {name: arguments for name, (arguments, _) in COMMANDS.items() if LINES & {*arguments}}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the pipe that stays open
@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_commands_say_how_to_go_on(place, name, number, code):
    """A pipe stands in for the lines that are read: the signal comes while the command waits for them."""
    arguments = READING[name]
    (read,) = LINES & {*arguments}
    Path(read).unlink()
    os.mkfifo(read)

    def interrupt():
        for _ in range(6000):
            try:
                pipe = os.open(read, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # nobody reads yet
                time.sleep(0.01)
        else:
            return
        os.kill(os.getpid(), number)
        finished.wait(60)
        os.close(pipe)

    finished = threading.Event()

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = run(*arguments, "--overwrite")
    finished.set()
    thread.join()
    Path(read).unlink()
    assert result.exit_code == code, result.output
    word = "interrupted" if number == signal.SIGINT else "terminated"
    again = shlex.join(["eics", *arguments, "--overwrite"])
    assert one_line(result) == f"eics: {word}: nothing was written. Start again with: {again}\n"
    assert sorted(file.name for file in place.iterdir()) == sorted({*INPUTS} - {read})


@pytest.mark.parametrize("out", ["new.jsonl", "new.parquet", "new.csv"])
def test_records_that_fit_on_the_disk_are_safe(place, out):
    whole, arguments = [*SCORE, "--out", "whole.jsonl"], [*SCORE, "--out", out, "--batch-size", "1"]
    run(*whole, "--batch-size", "1", code=0)
    first = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    with small_disk(len(first[0] + first[1]) + 100):
        line = run(*arguments, code=1).stderr.splitlines()[-1]
    journal = out if out == "new.jsonl" else f"{out}.part.jsonl"
    assert f": 2 records are safe in {journal}. Go on with: eics score" in line
    assert Path(journal).read_bytes() == first[0] + first[1]
    assert "already exists" in run(*arguments, code=2).stderr
    run(*shlex.split(line.partition(" with: ")[2])[1:], code=0)
    run(*SCORE, "--out", f"direct{Path(out).suffix}", "--batch-size", "1", code=0)
    assert Path(out).read_bytes() == Path(f"direct{Path(out).suffix}").read_bytes()
    assert not list(place.glob("*.part.jsonl"))
    assert not list(place.glob(".*"))


def test_failed_prompts_give_exit_code_one_and_their_reasons(place):
    bad = ['{"prompt": ""}', '{"tokens": [1, 2, 3]}', '{"tokens": [9999999]}', '{"id": "x", "prompt": ""}']
    Path("prompts.jsonl").write_text("\n".join([*bad, Path("prompts.jsonl").read_text()]))
    for out in (["--out", "new.csv", "--preset", "both"], ["--json"]):
        said = run(*SCORE, *out, code=1).stderr.partition("eics: ")[2].splitlines()
        assert re.fullmatch(r"3 prompts failed\. The first, 0: a prompt must have at least one token.*", said[0])
        assert re.fullmatch(r"  2 x a prompt must have at least one token.*", said[1])
        assert re.fullmatch(r"  1 x token ids must be.*", said[2])
    calibrated = run(*FILES["calibrate"][0], code=1)
    assert "3 prompts failed. The first, 0: " in calibrated.stderr
    damaged = run(*FOLDERS["damage"][0], "--kind", "ablate", "--strengths", "1", "--off-circuit", "0", code=1)
    assert "3 prompts failed" in damaged.stderr


MANY = 60


def started(*arguments):
    """`eics` in a process of its own, with the environment of this one."""
    command = [sys.executable, "-m", "eics", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_lines(path, count, process):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.005)
    raise AssertionError(f"no {count} lines in {path}: {process.communicate()}")


@pytest.mark.parametrize(
    ("number", "out"), [(signal.SIGINT, "new.jsonl"), (signal.SIGTERM, "new.parquet"), (signal.SIGKILL, "new.csv")]
)
def test_a_killed_process_is_continued(place, number, out):
    lines = [json.loads(line) for line in Path("prompts.jsonl").read_text().splitlines()]
    prompts = [lines[index % len(lines)] | {"id": index} for index in range(MANY)]
    Path("prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    arguments = [*SCORE, "--batch-size", "1", "--alpha", "auto", "--quiet", "--out"]
    journal = Path(out if out == "new.jsonl" else f"{out}.part.jsonl")
    with started(*arguments, out) as process:
        wait_for_lines(journal, 3, process)
        with pytest.raises(OptionError, match="two processes"):
            Lock(Path(out))
        process.send_signal(number)
        said = process.communicate()[1]
    kept = journal.read_bytes().count(b"\n")
    assert 3 <= kept < MANY
    assert not Path(out).exists() or journal == Path(out)
    if number == signal.SIGKILL:
        assert (process.returncode, said) == (-9, "")
        again = [*arguments, out, "--resume"]
    else:
        assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert re.search(rf"{kept} records are safe in .*{re.escape(journal.name)}\. Go on with: ", said), said
        again = shlex.split(said.partition(" with: ")[2])[3:]
    run(*again, code=0)
    run(*arguments, f"whole{Path(out).suffix}", code=0)
    assert Path(out).read_bytes() == Path(f"whole{Path(out).suffix}").read_bytes()
    assert not [file for file in place.iterdir() if file.name.startswith(".") or "part" in file.name]
