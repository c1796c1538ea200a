"""The validation world: bundled models load by name and do what they were trained for, labels follow from nothing but
their meaning, and the script that made everything is deterministic."""

import hashlib
import json
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import eics
import make_world
import world_induction
import world_people
from eics.circuits.load import load_graph
from eics.cli import main
from eics.errors import OptionError
from eics.models.download.sources import bundled_model, bundled_models, manifest
from eics.models.prompt_files import read_prompts
from eics.models.prompts import tokenize
from eics.studies.discovery.faithfulness import faithfulness
from eics.studies.discovery.task import read_task

PACKAGE = Path(str(files("eics.data")))
PEOPLE = [f"people-{seed}" for seed in range(5)]


def lines(name):
    return [json.loads(line) for line in (PACKAGE / "prompts" / f"{name}.jsonl").read_text().splitlines()]


def of(name, label, kind=None):
    return [line for line in lines(name) if line["label"] == label and kind in (None, line["relation"])]


def accuracy(model, prompts):
    """How often the most likely next token is the answer; text goes through the tokenizer of the model."""
    right = 0
    by_length = {}
    for line in prompts:
        tokens = model.tokenizer(line["prompt"])["input_ids"]
        (answer,) = model.tokenizer(line["answer"], add_special_tokens=False)["input_ids"]
        by_length.setdefault(len(tokens), []).append((tokens, answer))
    for group in by_length.values():
        with torch.no_grad():
            best = model.module(torch.tensor([tokens for tokens, _ in group])).logits[:, -1].argmax(dim=-1)
        right += int((best == torch.tensor([answer for _, answer in group])).sum())
    return right / len(prompts)


def test_files_are_those_of_the_script():
    recorded = manifest()["sha256"]
    hashes = {
        path.relative_to(PACKAGE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("worlds", "prompts")
        for path in (PACKAGE / folder).rglob("*")
        if path.is_file() and path.name != "manifest.json" and not path.name.startswith("facts")  # of another script
    }
    tasks = [f"tasks/{name}.jsonl" for name in ("people", "people-test", "induction", "induction-test")]
    hashes |= {name: hashlib.sha256((PACKAGE / name).read_bytes()).hexdigest() for name in tasks}
    assert hashes == recorded
    size = sum((PACKAGE / name).stat().st_size for name in recorded)
    assert size < 10e6


def test_prompts_and_tasks_are_those_of_the_script(tmp_path):
    written = make_world.write_lines(world_people.make_world(), tmp_path)
    assert len(written) == 7
    for path in written:
        assert path.read_bytes() == (PACKAGE / path.relative_to(tmp_path)).read_bytes()


@pytest.mark.parametrize("name", PEOPLE)
def test_people_are_known_or_guessed(name):
    model = eics.load_model(name)
    assert model.name == name
    assert type(model.module).__name__ == "GPT2LMHeadModel"
    assert accuracy(model, of("people", "known")) > 0.99
    # guessing among sixteen values: 45 of 720 are right, with standard deviation 6.5; 15 of 240, with 3.8
    assert accuracy(model, of("people", "unknown")) < 1 / 16 + 4 * 6.5 / 720
    assert accuracy(model, of("people-withheld", "known")) > 0.99
    assert accuracy(model, of("people-withheld", "unknown")) < 1 / 16 + 4 * 3.8 / 240


def test_induction_works_on_coherent_contexts_only():
    model = eics.load_model("induction")
    assert accuracy(model, of("induction", "coherent")) > 0.99
    assert accuracy(model, of("induction", "broken", "unseen")) < 0.35
    assert accuracy(model, of("induction", "broken", "inconsistent")) < 0.65


@pytest.mark.parametrize(
    ("name", "model", "labels"),
    [
        ("people", "people-0", {"known": 720, "unknown": 720}),
        ("people-withheld", "people-0", {"known": 240, "unknown": 240}),
        ("induction", "induction", {"coherent": 240, "broken": 240}),
    ],
)
def test_prompts_load_by_name(name, model, labels):
    prompts = read_prompts(name)
    assert Counter(prompt.label for prompt in prompts) == labels
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert len({prompt.text for prompt in prompts}) == len(prompts)
    loaded = eics.load_model(model)
    unknown = loaded.tokenizer.unk_token_id
    assert unknown is not None
    for prompt in prompts:
        tokens = tokenize(loaded, prompt)
        assert unknown not in tokens
        assert tokens[0] == loaded.tokenizer.bos_token_id
        assert len(loaded.tokenizer(prompt.answer, add_special_tokens=False)["input_ids"]) == 1


def same_counts(name, feature):
    """Whether a feature has the same counts under both labels, so that it reveals nothing."""
    by_label = {}
    for line in lines(name):
        by_label.setdefault(line["label"], Counter())[feature(line)] += 1
    first, second = by_label.values()
    return first == second


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("people", lambda line: len(line["prompt"].split())),
        ("people", lambda line: line["prompt"].split()[-1]),
        ("people", lambda line: (line["person"].split()[0], line["template"])),
        ("people", lambda line: (line["person"].split()[1], line["template"])),
        ("people", lambda line: (line["answer"], line["template"])),
        ("people-withheld", lambda line: len(line["prompt"].split())),
        ("people-withheld", lambda line: line["person"]),
        ("people-withheld", lambda line: line["template"]),
        ("induction", lambda line: (len(line["prompt"].split()), line["relation"])),
        ("induction", lambda line: line["prompt"].split()[-1]),
        ("induction", lambda line: line["answer"]),
    ],
)
def test_labels_do_not_follow_from(name, feature):
    assert same_counts(name, feature)


def test_the_balance_check_can_fail():
    assert not same_counts("people", lambda line: line["person"])
    assert not same_counts("people-withheld", lambda line: (line["person"], line["relation"]))


def test_labels_follow_from_what_was_written():
    sentences = {sentence.removesuffix(" .") for sentence in world_people.make_world().sentences()}
    for name in ("people", "people-withheld"):
        for line in lines(name):
            assert (line["prompt"] + line["answer"] in sentences) == (line["label"] == "known")
    starts = {sentence.rsplit(" ", 1)[0] for sentence in sentences}
    assert not any(line["prompt"] in starts for line in lines("people") if line["label"] == "unknown")
    assert not any(line["prompt"] in starts for line in lines("people-withheld") if line["label"] == "unknown")


def test_contexts_are_coherent_or_broken_as_they_say():
    for line in lines("induction"):
        *context, last = line["prompt"].split()
        followers = {value for key, value in zip(context[::2], context[1::2], strict=True) if key == last}
        answer = line["answer"].strip()
        if line["label"] == "coherent":
            assert followers == {answer}
        elif line["relation"] == "unseen":
            assert followers == set()
            assert last not in context
        else:
            assert len(followers) == 2
            assert answer in followers


def test_tasks_share_nobody_with_the_labelled_prompts():
    tasks = {}
    for name in ("people", "people-test"):
        read = [json.loads(line) for line in (PACKAGE / "tasks" / f"{name}.jsonl").read_text().splitlines()]
        tasks[name] = {line[side] for line in read for side in ("clean", "corrupted")}
    people = {line["person"] for line in lines("people")}
    in_tasks = {" ".join(names) for prompts in tasks.values() for text in prompts for names in pairwise(text.split())}
    assert not people & in_tasks
    assert not tasks["people"] & tasks["people-test"]
    seen = {line["prompt"] for line in lines("induction")}
    for name in ("induction", "induction-test"):
        read = [json.loads(line) for line in (PACKAGE / "tasks" / f"{name}.jsonl").read_text().splitlines()]
        assert not seen & {line["clean"] for line in read}


@pytest.mark.parametrize(("name", "model"), [("people", "people-0"), ("induction", "induction")])
def test_bundled_circuits_do_the_task(name, model):
    graph = load_graph(name)
    assert graph.metadata["command"].startswith(f"eics discover --model {model} --task {name} ")
    loaded = eics.load_model(model)
    test = read_task(f"{name}-test", loaded)
    assert not test.skipped
    curve = faithfulness(loaded, test, {"circuit": eics.load_circuit(name)}, batch_size=32)
    recorded = graph.metadata["faithfulness"]["corrupted"]
    assert curve.points[0].faithfulness.value == pytest.approx(recorded["value"], abs=0.02)
    assert recorded["value"] > 0.7
    assert recorded["low"] > 0.6


def test_induction_circuit_has_the_heads_that_attention_shows():
    """A previous-token head, and a head that attends from a key to what followed it (Olsson et al. 2022)."""
    model = eics.load_model("induction")
    tokens, _ = world_induction.pair_batch(32, len(make_world.SPECIAL), torch.Generator().manual_seed(7))
    begin = torch.full((32, 1), model.tokenizer.bos_token_id)
    tokens = torch.cat([begin, tokens, tokens[:, :1]], dim=1)  # the first key again
    model.module.set_attn_implementation("eager")
    with torch.no_grad():
        first, second = model.module(tokens, output_attentions=True).attentions
    previous = torch.stack([first[:, :, at, at - 1] for at in range(2, 29, 2)]).mean(dim=(0, 1))  # from values
    values = torch.zeros_like(tokens, dtype=torch.bool)
    values[:, 1:] = tokens[:, :-1] == tokens[:, -1:]
    lookup = (second[:, :, -1] * values.unsqueeze(1)).sum(dim=-1).mean(dim=0)
    assert float(previous.max()) > 0.5
    assert float(lookup.max()) > 0.5
    nodes = eics.load_circuit("induction").order
    assert f"a0.h{int(previous.argmax())}" in nodes
    assert f"a1.h{int(lookup.argmax())}" in nodes


def test_training_is_deterministic():
    world = world_people.make_world()
    words = world_people.words()
    first, again, other = (
        make_world.trained(make_world.PEOPLE, words, make_world.people_batches(world, seed), seed, 4)
        for seed in (3, 3, 4)
    )
    pairs = list(zip(first.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(first.transformer.wte.weight, other.transformer.wte.weight)


def test_written_models_load_unchanged(tmp_path):
    words = list(world_induction.WORDS)
    module = make_world.trained(make_world.INDUCTION, words, make_world.induction_batches(0), 0, 2)
    make_world.write(module, words, tmp_path / "model", end=None)
    model = eics.load_model(tmp_path / "model")
    ours, lengths = make_world.encoded(["ba de", "fi fi ko"], words)
    assert model.tokenizer("fi fi ko")["input_ids"] == ours[1].tolist()
    assert model.tokenizer("ba de")["input_ids"] == ours[0, : lengths[0]].tolist()
    with torch.no_grad():
        assert torch.equal(model.module(ours).logits, module(ours).logits)


def test_names_on_the_command_line(tmp_path):
    listed = CliRunner().invoke(main, ["models", "list"])
    assert listed.exit_code == 0
    for name in bundled_models():
        assert [line for line in listed.output.splitlines() if line.split()[:2] == [name, "bundled"]]
    fetched = CliRunner().invoke(main, ["models", "fetch", "people-3", "--quiet"])
    assert fetched.output.strip() == str(bundled_model("people-3"))
    out = tmp_path / "circuit.json"
    command = ["discover", "--model", "people-1", "--task", "people", "--limit", "4", "--edges", "10", "--quiet"]
    assert CliRunner().invoke(main, [*command, "--out", str(out)]).exit_code == 0
    assert load_graph(out).metadata["model"] == "people-1"
    with pytest.raises(OptionError, match="or one of facts, facts-withheld, induction, people, people-withheld"):
        read_prompts("nobody")


def test_a_file_takes_precedence_over_a_bundled_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "induction").mkdir()
    with pytest.raises(eics.ModelError, match="The model folder 'induction' must have a config"):
        eics.load_model("induction")
