"""Code that comes with a model runs only if `--trust-remote-code` says so, whatever is piped into the terminal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eics.errors import ModelError, OptionError
from eics.transformer.adapt import load_model
from support.tiny_models import tiny_module

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
Path({proof!r}).write_text("ran")
class Config(LlamaConfig):
    model_type = {model_type!r}
class Model(LlamaForCausalLM):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def foreign(tmp_path):
    """A model with Python files of its own that leave a proof when they run."""

    def make(*, model_type="llama", of_model=True, of_tokenizer=False):
        folder, proof = tmp_path / "m", tmp_path / "proof"
        tiny_module("llama", torch.float32).save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text()) | {"model_type": model_type}
        if of_model:
            config["auto_map"] = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
        (folder / "config.json").write_text(json.dumps(config))
        if of_tokenizer:
            tokenizer = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["code.Words", "code.Words"]}}
            (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        (folder / "code.py").write_text(CODE.format(proof=str(proof), model_type=model_type))
        return folder, proof

    return make


def test_a_piped_yes_runs_nothing_and_the_flag_is_named(foreign):
    folder, proof = foreign(model_type="brand-new")
    command = [sys.executable, "-m", "eics", "score", "--model", str(folder), "--circuit", "people", "--prompt", "x"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HOME": str(folder.parent / "hf")}
    result = subprocess.run(command, input="y\ny\ny\n", capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert "--trust-remote-code" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not proof.exists()


def test_a_known_architecture_loads_without_the_code_beside_it(foreign):
    folder, proof = foreign()
    assert load_model(folder).vocabulary == 61
    assert not proof.exists()


def test_a_tokenizer_with_code_is_refused_by_the_same_name(foreign):
    folder, proof = foreign(of_model=False, of_tokenizer=True)
    with pytest.raises(ModelError, match="--trust-remote-code"):
        load_model(folder)
    assert not proof.exists()


def test_with_the_flag_the_code_runs(foreign, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder, proof = foreign()
    load_model(folder, trust_remote_code=True)
    assert proof.read_text() == "ran"


def test_every_call_says_whether_foreign_code_may_run():
    """`from_pretrained` asks on the terminal if nobody says; `torch.load` and `numpy.load` unpickle if nobody says."""
    root = Path(__file__).parents[2]
    calls = []
    for path in [*root.glob("src/**/*.py"), *root.glob("scripts/*.py"), *root.glob("tests/support/*.py")]:
        text = path.read_text(encoding="utf-8")
        calls += [(path.name, line.strip()) for line in text.splitlines() if ".from_pretrained(" in line]
        assert text.count("torch.load(") <= text.count("weights_only=True"), path
        assert "allow_pickle" not in text, path
        assert "weights_only=False" not in text, path
    assert {name for name, _ in calls} == {"load.py", "lora.py"}
    of_transformers = [line for name, line in calls if name == "load.py"]
    assert all("**hub" in line or line.endswith("(") for line in of_transformers), calls
    assert [line for name, line in calls if name == "lora.py"] == [  # peft's, which runs no code of an adapter's
        "return PeftModel.from_pretrained(module, str(folder)).merge_and_unload()"
    ]


@pytest.mark.parametrize("trust", ["no", "false", 1, None])
def test_only_true_is_trust(trust):
    with pytest.raises(OptionError, match="'trust_remote_code' option must be True or False"):
        load_model("people-0", trust_remote_code=trust)
