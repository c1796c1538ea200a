"""Files that are whole or absent, locks that end with their process, outputs that are nobody's input."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from eics.data.files import RowFile, count_rows, read_rows, remove_parts, whole_file, write_bytes, write_text
from eics.data.locks import Lock, lock_file
from eics.data.outputs import Outputs, check_distinct, is_same, journal_of
from eics.errors import OptionError, RecordError
from support.small_disk import small_disk


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_a_full_disk_leaves_the_earlier_file(tmp_path):
    path = tmp_path / "page.md"
    write_text(path, "earlier")
    with small_disk(100), pytest.raises(OSError, match="File too large"):
        write_bytes(path, b"x" * 1000)
    assert path.read_text() == "earlier"
    assert names(tmp_path) == ["page.md"]


def test_a_full_disk_takes_whole_rows_or_none(tmp_path):
    file = RowFile(tmp_path / "rows.jsonl")
    file.append([{"id": 1}])
    with small_disk(100), pytest.raises(OSError, match="File too large"):
        file.append([{"id": 2}, {"id": 3, "text": "x" * 1000}])
    assert list(file) == [{"id": 1}]
    assert file.path.read_bytes().endswith(b"\n")


def test_a_link_goes_on_pointing_and_permissions_stay(tmp_path):
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    write_text(target, "earlier")
    target.chmod(0o640)
    link.symlink_to(target)
    write_text(link, "later")
    assert link.is_symlink()
    assert target.read_text() == "later"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_the_longest_name_can_be_written_and_locked(tmp_path):
    path = tmp_path / ("é" * 124 + ".jsonl")
    assert len(os.fsencode(path.name)) == 254
    lock = Lock(path)
    write_text(path, "whole")
    lock.release()
    assert names(tmp_path) == [path.name]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path):
    path = tmp_path / "page.md"
    with whole_file(path) as part:
        part.write_text("whole")
        left = part.name
    path.rename(tmp_path / left)  # as a kill would leave it
    for other in (".part-of-a-book.md", f"{left}.txt", "page.md.part"):
        (tmp_path / other).write_text("")
    remove_parts(path)
    assert names(tmp_path) == sorted([".part-of-a-book.md", f"{left}.txt", "page.md.part"])


def test_a_torn_line_is_passed_over_only_at_the_end(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": 1}\n\n{"id": 2, "na')
    assert list(read_rows(path, torn=True)) == [{"id": 1}]
    assert count_rows(path) == 1
    with pytest.raises(RecordError, match="Line 3"):
        list(read_rows(path))
    path.write_bytes(b'{"id"\n{"id": 2}\n')
    with pytest.raises(RecordError, match="Line 1"):
        list(read_rows(path, torn=True))
    assert count_rows(tmp_path / "none") == 0


HOLD = """
import sys
from pathlib import Path
from eics.data.locks import Lock
lock = Lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_lock(tmp_path):
    path = tmp_path / "scores.jsonl"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], **pipes) as process:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(OptionError, match="must not be written by two processes"):
            Lock(path)
        process.kill()
        process.wait()
    assert lock_file(path).exists()
    Lock(path).release()
    assert names(tmp_path) == []


def test_the_lock_of_a_file_is_that_of_its_links(tmp_path):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "scores.jsonl")
    lock = Lock(tmp_path / "scores.jsonl")
    with pytest.raises(OptionError, match="two processes"):
        Lock(tmp_path / "link.jsonl")
    lock.release()
    lock.release()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with one file under several names."""
    monkeypatch.chdir(tmp_path)
    Path("prompts.jsonl").write_text("mine\n")
    Path("soft.jsonl").symlink_to("prompts.jsonl")
    Path("hard.jsonl").hardlink_to("prompts.jsonl")
    Path("sub").mkdir()
    Path("again").symlink_to("sub")
    return tmp_path


@pytest.mark.parametrize("name", ["prompts.jsonl", "soft.jsonl", "hard.jsonl", "sub/../prompts.jsonl", "{}/soft.jsonl"])
def test_an_output_is_no_input_under_any_name(folder, name):
    out = Path(name.format(folder))
    for inputs in ({"--prompts": "prompts.jsonl"}, {"--task": ("facts", Path("prompts.jsonl"))}):
        with pytest.raises(OptionError, match=r"^--out must not be the same file as --(prompts|task), which is read"):
            Outputs({"--out": out}, inputs, overwrite=True)
    assert Path("prompts.jsonl").read_text() == "mine\n"


def test_new_outputs_differ_from_each_other(folder):
    for other in ("sub/../new.png", "New.PNG", f"{folder}/new.png"):
        with pytest.raises(OptionError, match="--picture must not be --out"):
            Outputs({"--out": Path("new.png"), "--picture": Path(other)})
    with pytest.raises(OptionError, match="--picture must not be --out"):
        Outputs({"--out": Path("sub/new.png"), "--picture": Path("again/new.png")})
    assert is_same(Path("caf\u00e9"), Path("cafe\u0301"))
    assert not is_same(Path("a.png"), Path("b.png"))


def test_what_stands_beside_an_output_is_no_input_either(folder):
    for beside in (journal_of(Path("s.parquet")), lock_file(Path("s.parquet"))):
        beside.write_text("mine\n")
        with pytest.raises(OptionError, match="of --out must not be the same file as --prompts"):
            Outputs({"--out": Path("s.parquet")}, {"--prompts": beside}, resume=True, records=("--out",))
        assert beside.read_text() == "mine\n"


def test_files_of_an_input_folder_are_not_replaced(folder):
    Path("sub/config.json").write_text("{}")
    with pytest.raises(OptionError, match="--out must not be a file of --model"):
        Outputs({"--out": Path("again/config.json")}, {"--model": "sub"}, overwrite=True)
    Outputs({"--out": Path("sub/new.json")}, {"--model": "sub"})
    Outputs({"--out": Path("sub/config.json")}, {"--model": "sub"}, resume=True)  # its content shows whose it is


def test_what_exists_is_refused_unless_told(folder):
    mine = {"--out": Path("soft.jsonl")}
    with pytest.raises(OptionError, match=r"already exists: replace it with --overwrite, or use another --out\.$"):
        Outputs(mine)
    with pytest.raises(OptionError, match="continue it with --resume, replace it with --overwrite"):
        Outputs(mine, resume=False)
    with pytest.raises(OptionError, match="exclude each other"):
        Outputs(mine, resume=True, overwrite=True)
    with pytest.raises(OptionError, match="must be a plain file"):
        Outputs({"--out": Path("sub")}, overwrite=True)
    with pytest.raises(OptionError, match="must be a plain file"):
        Outputs({"--out": Path("/dev/null")}, overwrite=True)
    journal_of(Path("s.csv")).write_text("")  # an interrupted run
    with pytest.raises(OptionError, match=r"s\.csv\.part\.jsonl' already exists"):
        Outputs({"--out": Path("s.csv")}, resume=False, records=("--out",))


def test_a_file_that_appears_meanwhile_is_refused(folder):
    outputs = Outputs({"--out": Path("new.jsonl"), "--picture": Path("new.png")})
    Path("new.png").write_text("theirs")
    with pytest.raises(OptionError, match="already exists"), outputs:
        pass
    assert not [name for name in names(folder) if name.endswith(".lock")]
    check_distinct({"--out": Path("new.jsonl")}, {"--prompts": "no such file", "--model": None})


def test_what_cannot_be_written_is_one_of_our_errors(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "no" / "a.txt", tmp_path / "file" / "a.txt"):
        with pytest.raises(OptionError, match="must be in a folder that exists and can be written: No"):
            write_text(path, "text")
        with pytest.raises(OptionError, match=str(path)):
            Lock(path)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
