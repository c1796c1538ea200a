"""Run folders: settings that must match, rows that survive a kill, files that are whole or absent."""

import json

import pytest
from click.testing import CliRunner

from eics.cli import main
from eics.errors import OptionError, RecordError
from eics.scoring import batch
from eics.scoring.batch import score_prompts
from eics.scoring.result import RECORD_VERSION
from eics.studies.run_folder import RowFile, RunFolder, check_same, whole_file
from support.tiny_models import tiny_module

SETTINGS = {"model": "tiny", "circuit": {"name": "a", "sha256": "1" * 64}, "seed": 0, "strengths": (0.5, 1.0)}
ROWS = [{"id": 1, "text": "Zürich \u2028 \ud83d"}, {"id": "two", "value": None}, {"id": 3, "value": 0.1 + 0.2}]


def test_rows_come_back_as_they_were(tmp_path):
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(ROWS[:1])
    file.append(iter(ROWS[1:]))
    assert list(file) == list(RowFile(file.path, resume=True)) == ROWS
    assert "Zürich" in file.path.read_text(encoding="utf-8")
    assert list(RowFile(file.path)) == []  # not resumed: starts afresh
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.append([{"id": 4, "value": float("nan")}])
    assert list(file) == []


@pytest.mark.parametrize("kept", [1, 8, -30, -16, -2])
def test_a_torn_last_line_is_dropped(tmp_path, kept):
    """Wherever it is torn, in the middle of a character too."""
    file = RowFile(tmp_path / "rows.jsonl")
    file.append(ROWS[1:])
    start = file.path.read_bytes()
    file.append([{"id": 4, "name": "é" * 5}])
    line = file.path.read_bytes()[len(start) :]
    file.path.write_bytes(start + line[:kept])
    again = RowFile(file.path, resume=True)
    assert file.path.read_bytes() == start
    again.append([{"id": 5}])
    assert list(again) == [*ROWS[1:], {"id": 5}]


def test_every_tear_leaves_whole_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    RowFile(path).append(ROWS)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        file = RowFile(path, resume=True)
        rows = list(file)
        assert rows == ROWS[: len(rows)]
        file.append(ROWS[len(rows) :])
        assert path.read_bytes() == whole


def test_a_line_that_is_no_row_is_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    for line in ("{broken", "[1]", "\udcff"):
        path.write_bytes(b'{"id": 1}\n' + line.encode("utf-8", "surrogateescape") + b'\n{"id": 2}\n')
        with pytest.raises(RecordError, match=r"Line 2 of .*rows\.jsonl' must be a JSON object: remove the line"):
            list(RowFile(path, resume=True))


def open_run(path, settings=SETTINGS, files=("rows.jsonl",), **how):
    """A run folder whose lock is given back at once."""
    with RunFolder.open(path, settings, files, **{"resume": False} | how) as folder:
        return folder


def test_a_row_without_its_fields_is_named(tmp_path):
    with RunFolder.open(tmp_path, {}, ["rows.jsonl"], resume=False) as folder:
        rows = folder.rows("rows.jsonl", "id", "label")
        rows.append([{"id": 1, "label": None}, {"id": 2}])
        with pytest.raises(RecordError, match=r"Line 2 of .* must be a JSON object with 'id', 'label': remove"):
            list(rows)


def test_a_run_starts_and_resumes_with_the_same_settings(tmp_path):
    out = tmp_path / "new" / "run"
    folder = open_run(out, resume=True)  # nothing there yet
    assert not folder.resumed
    written = json.loads((out / "settings.json").read_text())
    assert written == SETTINGS | {"strengths": [0.5, 1.0], "version": RECORD_VERSION}
    folder.rows("rows.jsonl").append(ROWS)
    renamed = SETTINGS | {"circuit": {"name": "b", "sha256": "1" * 64}}
    again = open_run(out, renamed, resume=True)
    assert again.resumed
    assert list(again.rows("rows.jsonl")) == ROWS
    with pytest.raises(OptionError, match="already holds a run: continue it with --resume, replace it with --overwr"):
        open_run(out)
    assert list(again.rows("rows.jsonl")) == ROWS
    with pytest.raises(OptionError, match="exclude each other"):
        open_run(out, resume=True, overwrite=True)
    fresh = open_run(out, overwrite=True)
    assert list(fresh.rows("rows.jsonl")) == []
    assert sorted(file.name for file in out.iterdir()) == ["rows.jsonl", "settings.json"]


def test_two_runs_do_not_share_a_folder(tmp_path):
    with RunFolder.open(tmp_path, SETTINGS, [], resume=False):
        for how in ({"resume": True}, {"overwrite": True}):
            with pytest.raises(OptionError, match="must not be written by two processes"):
                open_run(tmp_path, **how)
    assert open_run(tmp_path, resume=True).resumed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": 1}, "seed.* has 0, this run 1: nothing was changed; use what the file has, or another --out"),
        ({"strengths": [0.5]}, r"strengths.* has \[0.5, 1.0\], this run \[0.5\]"),
        ({"circuit": {"name": "a", "sha256": "2" * 64}}, "circuit.* has .*, this run"),
        ({"vector": [1.0]}, r"vector.* has None, this run \[1.0\]"),  # not recorded: not given
        ({"version": 1}, "version.* has 2, this run 1"),
        ({"fingerprint": "b" * 64}, "model.* has 'weights aaaaaaaaaaaa', this run 'weights bbbbbbbbbbbb'"),
    ],
)
def test_other_settings_are_refused(tmp_path, change, says):
    with_weights = SETTINGS | {"fingerprint": "a" * 64}
    open_run(tmp_path, with_weights)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(RecordError, match=f"must continue with the same {says}"):
        open_run(tmp_path, with_weights | change, resume=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_what_is_no_run_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="'out' option must be a folder"):
        open_run(tmp_path / "file")
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n')  # rows without settings: nobody knows of which run
    with pytest.raises(OptionError, match="already holds a run"):
        open_run(tmp_path)
    for content in (None, "{", "[]"):
        if content is not None:
            (tmp_path / "settings.json").write_text(content)
        with pytest.raises(RecordError, match="must hold the settings of the run to resume"):
            open_run(tmp_path, resume=True)
    assert (tmp_path / "rows.jsonl").read_text() == '{"id": 1}\n'


def test_a_model_is_its_weights_if_both_sides_know_them():
    check_same({"model": "a", "more": 1}, {"model": "a"}, "s.jsonl")
    with pytest.raises(RecordError, match=r"the same model\. 's\.jsonl' has 'a', this run 'b'"):
        check_same({"model": "a"}, {"model": "b", "fingerprint": "1"}, "s.jsonl")
    check_same({"model": "a", "fingerprint": "1"}, {"model": "moved", "fingerprint": "1"}, "s.jsonl")


def test_a_file_is_whole_or_absent(tmp_path):
    path = tmp_path / "page.md"

    def write(text, *, fail):
        with whole_file(path) as part:
            part.write_text(text)
            if fail:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write("half", fail=True)
    assert list(tmp_path.iterdir()) == []
    write("whole", fail=False)
    with pytest.raises(KeyboardInterrupt):
        write("half", fail=True)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("page.md", "whole")]


def test_rows_as_parquet_have_all_columns(tmp_path):
    import pyarrow.parquet as pq

    folder = open_run(tmp_path)
    folder.write_parquet("rows.parquet", [{"id": 1, "a": 0.5}, {"id": 2, "b": "x"}])
    expected = [{"id": 1, "a": 0.5, "b": None}, {"id": 2, "a": None, "b": "x"}]
    assert pq.read_table(tmp_path / "rows.parquet").to_pylist() == expected


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model, a circuit and four prompts."""
    folder = tmp_path_factory.mktemp("score")
    tiny_module("llama").save_pretrained(folder / "model")
    edges = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    (folder / "circuit.json").write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": edges}))
    prompts = [{"id": f"é{at}", "tokens": [3 + at, 5, 7, 11]} for at in range(4)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    return folder


def test_a_killed_eics_score_is_resumed(model_folder, tmp_path, monkeypatch):
    def score(out, *more):
        given = {"--model": "model", "--circuit": "circuit.json", "--prompts": "prompts.jsonl"}
        paths = [part for name, file in given.items() for part in (name, str(model_folder / file))]
        how = ["--preset", "both", "--mode", "fast", "--batch-size", "1", "--dtype", "float64", "--quiet"]
        return CliRunner().invoke(main, ["score", *paths, *how, "--out", str(out), *more])

    whole, halved = tmp_path / "whole.jsonl", tmp_path / "halved.jsonl"
    assert score(whole).exit_code == 0
    scored = []

    def stopping(*arguments, **options):
        for scores in score_prompts(*arguments, **options):
            if len(scored) == 2:
                raise KeyboardInterrupt
            scored.append(scores)
            yield scores

    monkeypatch.setattr(batch, "score_prompts", stopping)
    assert score(halved).exit_code != 0
    assert len(halved.read_text().splitlines()) == 4  # two prompts, two presets
    monkeypatch.undo()
    halved.write_bytes(halved.read_bytes()[:-5])
    assert score(halved, "--resume").exit_code == 0
    assert halved.read_bytes() == whole.read_bytes()
