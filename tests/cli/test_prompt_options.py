"""Prompts and interventions on the command line: every command reads prompts in the same way."""

import json
import shutil

import pytest
from click.testing import CliRunner

import eics
from eics.cli import main
from eics.models.chat import as_chat
from eics.models.download.sources import bundled_model
from eics.models.prompts import as_prompts, tokenize

TEXTS = ["The instrument of Mera Balloway is the", "The zebra of Mera Balloway is the", "The instrument of Mera is"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'] }} The {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}is the{% endif %}"
)


def run(*arguments, **keywords):
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **keywords)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Scores prompts on a small circuit of a bundled model; returns the result and the records."""
    folder = tmp_path_factory.mktemp("scored")
    circuit = folder / "c.json"
    edges = ["input->a0.h1", "a0.h1->m1", "m1->logits", "input->logits"]
    circuit.write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": edges}))

    def score(*arguments, model="people-0", **keywords):
        base = ["score", "--model", model, "--circuit", circuit, "--mode", "limit", "--json"]
        result = run(*base, *arguments, **keywords)
        records = [json.loads(line) for line in result.output.splitlines() if line.startswith("{")]
        return result, records

    score.circuit = circuit
    return score


def one_line(result, says):
    assert result.exit_code == 2
    assert says in result.output
    assert len(result.output.splitlines()) == 1


def test_prompts_of_many_formats_are_scored_together(scored, tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS[:2]) + "\n")
    (tmp_path / "b.csv").write_text(f'question,id,label\r\n"{TEXTS[2]}",third,known\r\n')
    files = ["--prompts", tmp_path / "a.txt", "--prompts", "-"]
    result, records = scored(*files, input=json.dumps({"prompt": TEXTS[2]}))
    assert result.exit_code == 0, result.output
    assert [(r["id"], r["prompt"]) for r in records] == list(zip(["a.txt:0", "a.txt:1", "stdin:0"], TEXTS, strict=True))
    assert [[w["code"] for w in r["warnings"]] for r in records] == [[], ["unknown-tokens"], []]
    _, alone = scored("--prompts", tmp_path / "b.csv", "--column", "question", "--no-sort", "--limit", 5)
    assert (alone[0]["id"], alone[0]["label"]) == ("third", "known")
    assert alone[0]["dei"] == pytest.approx(records[2]["dei"], rel=1e-4)
    assert alone[0]["token_ids"] == records[2]["token_ids"]


def test_limit_and_shuffle_take_the_seed(scored):
    ids = []
    for seed in (1, 1, 2):
        result, records = scored("--prompts", "people", "--shuffle", "--limit", 3, "--seed", seed)
        assert result.exit_code == 0, result.output
        ids.append([record["id"] for record in records])
    assert ids[0] == ids[1] != ids[2]


@pytest.fixture(scope="module")
def chatting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(str(bundled_model("people-0")), folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_a_chat_has_the_template_and_one_first_token(scored, chatting):
    result, [record] = scored("--prompt", "instrument of Mera Balloway", "--chat", "--system", "city", model=chatting)
    assert result.exit_code == 0, result.output
    text = "system The city\nuser The instrument of Mera Balloway\nis the"
    assert record["prompt"].endswith(text)
    model = eics.load_model(chatting)
    first = model.tokenizer.bos_token_id
    assert record["token_ids"].count(first) == 1
    assert record["token_ids"] == tokenize(model, as_prompts([text])[0])  # which has its first token from the tokenizer
    [prompt] = as_chat(model, as_prompts(["x \ud800"]))
    with pytest.raises(eics.EICSError, match="lone surrogate"):
        tokenize(model, prompt)
    model.tokenizer.chat_template = "{{ raise_exception('no\nsystem') }}"
    with pytest.raises(eics.OptionError, match=r"chat template must take prompt 0. It says: no system"):
        as_chat(model, as_prompts(["x"]))


def test_chats_that_cannot_be(scored, chatting, tmp_path):
    one_line(scored("--prompt", "a", "--chat")[0], "whose tokenizer has a chat template. 'people-0' has none")
    one_line(scored("--prompt", "a", "--system", "b")[0], "add --chat")
    (tmp_path / "t.jsonl").write_text('{"tokens": [1, 2], "id": "ids"}\n')
    one_line(scored("--prompts", tmp_path / "t.jsonl", "--chat", model=chatting)[0], "Prompt 'ids' is a list of token")


def test_a_model_fetched_without_its_template_says_how_to_renew_it(chatting):
    model = eics.adapt(eics.load_model(chatting).module, name="smollm2")
    with pytest.raises(eics.OptionError, match="`eics models remove smollm2`, then `eics models fetch smollm2`"):
        as_chat(model, as_prompts(["x"]))


def test_standard_input_may_be_closed(monkeypatch):
    monkeypatch.setattr("eics.models.row_files.sys.stdin", None)
    with pytest.raises(eics.OptionError, match=r"must be open to be read\. It is closed"):
        eics.read_prompts("-")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompts", "poeple"], "Did you mean 'people'?"),
        (["--prompts", "people", "--column", "question"], "Line 1 of 'people' must be a prompt"),
        (["--prompts", "-", "--prompts", "-"], "once only"),
        (["--prompt", "a", "--limit", "2"], "--limit chooses prompts from files"),
        (["--prompt", "a", "--noise", "m9=1"], "layers 0 to 2"),
        (["--prompt", "a", "--noise", "m1=x"], "NODE=STRENGTH with a number"),
        (["--prompt", "a", "--noise", "m1=1@last"], "positions go with the node"),
        (["--prompt", "a", "--noise", "m1@end=1"], "all, last or whole numbers"),
        (["--prompt", "a", "--noise", "=1"], "a node, as in m3"),
        (["--prompt", "a", "--noise", "logits=1"], "--noise logits=1: The 'node' option must be one that writes"),
        (["--prompt", "a", "--noise", "m1=-1"], "finite number >= 0"),
        (["--prompt", "a", "--noise", "m1=nan"], "finite number >= 0"),
        (["--prompt", "a", "--ablate", "m1=2"], "at most 1 to ablate"),
        (["--prompt", "a", "--ablate", "m1=mean"], "needs --calibration"),
        (["--prompt", "a", "--patch", "m1"], "NODE=TEXT"),
        (["--prompt", "a", "--vector", "v.json"], "name the node to steer"),
        (["--prompt", "a", "--steer", "m1", "--vector", "/nowhere.json"], "readable JSON file"),
    ],
)
def test_wrong_options_are_one_line(scored, arguments, says):
    one_line(scored(*arguments)[0], says)


def test_interventions_need_a_model(tmp_path):
    one_line(run("score", "--circuit", tmp_path / "c.safetensors", "--noise", "m1=1"), "Interventions need a --model")


def test_interventions_are_those_of_the_library(scored, tmp_path):
    model, circuit = eics.load_model("people-0"), eics.load_circuit(scored.circuit)
    width = model.transformer.width
    (tmp_path / "v.json").write_text(json.dumps([1.0] * width))
    other = "The food of Mera Balloway is the"
    result, [record] = scored(
        "--prompt", TEXTS[0], "--seed", 3, "--noise", "m1=0.5", "--noise", "m0@last=2", "--ablate", "a0.h1@1,-1",
        "--patch", f"a1.h0={other}", "--steer", "m2=0.25", "--vector", tmp_path / "v.json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    interventions = [
        eics.Ablate("a0.h1", at=[1, -1]), eics.Patch("a1.h0", prompt=other),
        eics.Steer("m2", 0.25, vector=[1.0] * width, seed=3), eics.Noise("m1", 0.5, seed=3),
        eics.Noise("m0", 2.0, at="last", seed=3),
    ]  # fmt: skip
    direct = eics.score(model, circuit, TEXTS[0], mode="limit", seed=3, interventions=interventions)
    assert record["interventions"] == direct.to_record()["interventions"]
    assert record["dei"] == pytest.approx(direct.dei, rel=1e-5)
    assert record["dei"] != pytest.approx(scored("--prompt", TEXTS[0], "--seed", 3)[1][0]["dei"], rel=1e-3)


def test_calibrate_reads_the_same_prompts_and_ablation_to_the_mean_takes_its_means(scored, tmp_path):
    (tmp_path / "usual.csv").write_text("prompt\n" + "\n".join(TEXTS) + "\nnever read\n")
    usual = tmp_path / "usual.safetensors"
    calibrated = run("calibrate", "--model", "people-0", "--circuit", scored.circuit, "--prompts",
                     tmp_path / "usual.csv", "--limit", 3, "--out", usual, "--preset", "paper", "--mode",
                     "limit")  # fmt: skip
    assert calibrated.exit_code == 0, calibrated.output
    assert "3 prompts" in calibrated.output
    result, [record] = scored("--prompt", TEXTS[0], "--calibration", usual, "--ablate", "m1=mean")
    assert result.exit_code == 0, result.output
    mean = eics.load_calibration(usual).means.writes["m1"]
    model, circuit = eics.load_model("people-0"), eics.load_circuit(scored.circuit)
    direct = eics.score(
        model, circuit, TEXTS[0], mode="limit", calibration=usual, interventions=eics.Ablate("m1", mean=mean)
    )
    assert record["dei"] == pytest.approx(direct.dei, rel=1e-5)
    assert record["interventions"][0]["mean"] == "given"
    one_line(scored("--prompt", "a", "--calibration", usual, "--ablate", "m0=mean")[0], "which has: a0.h1, input, m1")


def test_damage_and_validate_declare_the_same_options(scored, tmp_path):
    (tmp_path / "p.txt").write_text(TEXTS[0] + "\n" + TEXTS[2] + "\n")
    damaged = run("damage", "--model", "people-0", "--circuit", scored.circuit, "--prompts", tmp_path / "p.txt",
                  "--limit", 1, "--kind", "noise", "--strengths", "0,1", "--nodes", "m1", "--off-circuit", 0,
                  "--preset", "paper", "--mode", "limit", "--out", tmp_path / "damaged", "--quiet")  # fmt: skip
    assert damaged.exit_code == 0, damaged.output
    rows = [json.loads(line) for line in (tmp_path / "damaged" / "damage.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [0, 0]
    for command in (["damage", "--prompts"], ["validate", "--data"]):
        arguments = ["--model", "people-0", "--circuit", scored.circuit, "--out", tmp_path / "x"]
        one_line(run(command[0], command[1], "people", *arguments, "--limit", 20, "--chat"), "has a chat template")
        one_line(run(command[0], command[1], "poeple", *arguments), "Did you mean 'people'?")
