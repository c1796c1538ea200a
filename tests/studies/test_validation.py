"""`eics validate` from prompts to report, on tiny models."""

import json
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import eics
from eics import OptionError
from eics.cli import main
from eics.linearized.circuit import Stalk
from eics.models.prompts import as_prompts
from eics.scoring.baselines import EdgeAlignmentResidual
from eics.scoring.batch import score_prompts
from eics.studies.validation.answers import Answering, answer_rows
from eics.studies.validation.data import group_values, read_labelled
from eics.studies.validation.matching import accepted_tokens, begins_with
from eics.studies.validation.measure import ALPHAS, FittedEAR, Measuring, measured_rows
from eics.studies.validation.table import read_table, write_table
from eics.transformer.adapt import adapt
from support.tiny_models import some_circuit, tiny_model, tiny_module

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
WORDS = ["the", "of", *LETTERS, *(2 * letter for letter in LETTERS), *map(str, range(7))]
CIRCUIT = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits", "a0.h1->logits"]
MORE = ["--matched", "relation"]
QUICK = ["--mode", "fast", "--resamples", "1200", "--quiet"]


def word_tokenizer():
    """Whole words, spaces between them: 61 tokens."""
    names = {name: at for at, name in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(names, unk_token="0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="0")


@pytest.fixture(scope="module")
def model():
    return adapt(tiny_module("llama"), word_tokenizer(), name="tiny")


@pytest.fixture(scope="module")
def data(model):
    """Sixty prompts; every second one has the model's own prediction as its answer."""
    draw = random.Random(0)
    texts = list(dict.fromkeys(" ".join(draw.choices(WORDS, k=draw.randint(3, 8))) for _ in range(60)))
    found = []
    for at, text in enumerate(texts):
        with torch.no_grad():
            best = int(model.module(**model.tokenizer(text, return_tensors="pt")).logits[0, -1].argmax())
        answer = WORDS[best] if at % 2 else WORDS[(best + 7) % 61]
        found.append({"id": f"p{at}", "prompt": text, "answer": answer, "relation": f"r{at // 2 % 5}"})
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory, model, data):
    """A folder with the model, a circuit and the prompts."""
    folder = tmp_path_factory.mktemp("validation")
    model.module.save_pretrained(folder / "model")
    model.tokenizer.save_pretrained(folder / "model")
    circuit = {"format": "eics-circuit", "version": 1, "edges": CIRCUIT}
    (folder / "circuit.json").write_text(json.dumps(circuit))
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in data))
    return folder


def run(place, out, *more, data="data.jsonl"):
    about = ["--model", place / "model", "--circuit", place / "circuit.json", "--data", place / data, "--out", out]
    return CliRunner().invoke(main, ["validate", *map(str, [*about, "--dtype", "float64", *QUICK, *more])])


@pytest.fixture(scope="module")
def whole(place, tmp_path_factory):
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "new" / "folder"
    result = run(place, out, *MORE, "--ensemble", place / "model")
    assert result.exit_code == 0, result.output
    return out


def test_from_prompts_to_report(whole):
    out = whole
    rows = list(read_table(out / "scores.parquet"))
    assert [row["id"] for row in rows] == [f"p{at}" for at in range(60)]
    assert [row["label"] for row in rows] == [bool(at % 2) for at in range(60)]
    assert {row["split"] for row in rows} == {"development", "test"}
    record = json.loads((out / "results.json").read_text())
    assert record["counts"]["development"] == record["counts"]["test"] == [15, 15]
    assert record["not_compared"] == {}
    assert len(record["scores"]) == 28
    assert record["scores"]["ensemble_variance"]["distinct"] == 1  # the same model twice
    for name in ("report.md", "report.html"):
        text = (out / name).read_text()
        assert "AUROC" in text
        assert "No evidence that" in text
        assert "Decided on the development split alone" in text
    assert "data:image/svg+xml;base64," in (out / "report.html").read_text()
    assert "EICS well-posed" in (out / "roc.svg").read_text()
    assert sorted(path.name for path in out.iterdir()) == [
        "distributions.svg", "report.html", "report.md", "results.json", "roc.svg", "scores.parquet", "settings.json",
    ]  # fmt: skip


def test_other_weights_in_the_ensemble_are_another_run(whole, place, tmp_path):
    """Under the same name: the folder's weights were replaced since."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    settings = json.loads((out / "settings.json").read_text())
    assert settings["ensemble_weights"] == [settings["fingerprint"]]  # the same model twice
    (out / "settings.json").write_text(json.dumps(settings | {"ensemble_weights": ["0" * 64]}))
    result = run(place, out, *MORE, "--ensemble", place / "model", "--resume")
    assert result.exit_code == 2
    assert "the same ensemble_weights" in result.output


def test_a_prompt_that_cannot_be_run_is_left_out(model, data, tmp_path):
    bad = {"tokens": [10**6], "label": True, "id": "bad", "relation": data[0]["relation"]}
    how = {"mode": "limit", "resamples": 1200, "out": tmp_path / "run"}
    eics.validate(model, eics.Circuit(CIRCUIT), [*data, bad], **how)
    rows = {row["id"]: row for row in read_table(tmp_path / "run" / "scores.parquet")}
    assert rows["bad"]["failed"].startswith("token ids must be 0 to")
    assert [row["id"] for row in rows.values() if row["failed"]] == ["bad"]


def test_python_gives_the_same_and_keeps_nothing(whole, model, data):
    how = {"mode": "fast", "resamples": 1200, "matched": "relation"}
    ours = eics.validate(model, eics.Circuit(CIRCUIT), data, ensemble=[model], **how)
    theirs = json.loads((whole / "results.json").read_text())
    assert json.loads(json.dumps(ours.to_record()["scores"])) == theirs["scores"]
    assert "Validation on 60 prompts" in repr(ours)


def test_rows_are_the_scores_of_eics_score(model, data):
    circuit = eics.Circuit(CIRCUIT)
    texts = [line["prompt"] for line in data[:5]]
    items = read_labelled(data[:5])
    [answers] = answer_rows(Answering(model), items, 8)
    [measured] = measured_rows(Measuring(model, circuit, mode="exact"), [item.prompt for item in items])
    rows = [one | two for one, two in zip(answers, measured, strict=True)]
    paper = eics.score(model, circuit, texts, curve=True)
    well_posed = eics.score(model, circuit, texts, preset="well-posed")
    propagated = eics.score(model, circuit, texts, linearization="frozen", residual="propagated", metric="relative")
    for row, one, two, three in zip(rows, paper, well_posed, propagated, strict=True):
        assert row["eics_paper"] == pytest.approx(one.eics, rel=1e-9)
        assert row["a1_paper"] == pytest.approx(one.consistency, rel=1e-9)
        assert row["dei_paper"] == pytest.approx(one.dei, rel=1e-9)
        assert row["eics_paper_by_alpha"][ALPHAS.index(1.0)] == pytest.approx(one.eics, rel=1e-6)
        assert row["eics_well_posed"] == pytest.approx(two.eics, rel=1e-9)
        assert row["emergence_ratio"] == pytest.approx(two.emergence_ratio, rel=1e-9)
        assert row["propagated"] == pytest.approx(three.c_sh, rel=1e-9)
        logits = model.module(**model.tokenizer(row_text(data, row), return_tensors="pt")).logits[0, -1].detach()
        p = np.sort(torch.softmax(logits, 0).numpy())[::-1]
        assert row["log_probability"] == pytest.approx(np.log(p[0]), rel=1e-6)
        assert row["entropy"] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
        assert row["margin"] == pytest.approx(p[0] - p[1], rel=1e-6)
        assert row["length"] == len(model.tokenizer(row_text(data, row))["input_ids"])


def row_text(data, row):
    return next(line["prompt"] for line in data if line["id"] == row["id"])


def test_an_interrupted_run_goes_on_where_it_was(place, whole, tmp_path, monkeypatch):
    """Killed twice: while answering, and while scoring, with half a line written."""
    import eics.studies.validation.run as stages

    done, out = [], tmp_path / "halved"

    def stopping(stage, after):
        def stopped(*arguments, **options):
            for count, rows in enumerate(stage(*arguments, **options)):
                if count == after:
                    raise KeyboardInterrupt
                done.extend(row["id"] for row in rows)
                yield rows

        return stopped

    monkeypatch.setattr(stages, "answer_rows", stopping(answer_rows, 3))
    assert run(place, out, "--resume", *MORE).exit_code != 0
    assert done == [f"p{at}" for at in range(24)]
    monkeypatch.setattr(stages, "answer_rows", stopping(answer_rows, 99))
    monkeypatch.setattr(stages, "measured_rows", stopping(measured_rows, 2))
    assert run(place, out, "--resume", *MORE).exit_code != 0
    assert len(done) == 60 + 16
    with (out / "measured.jsonl").open("a") as file:
        file.write('{"id": "p50", "eics_pap')
    monkeypatch.setattr(stages, "measured_rows", stopping(measured_rows, 99))
    result = run(place, out, "--resume", *MORE)
    assert result.exit_code == 0, result.output
    assert sorted(done) == sorted([f"p{at}" for at in range(60)] * 2)  # each once in each stage
    scores, halved = (json.loads((one / "results.json").read_text())["scores"] for one in (whole, out))
    for name, score in halved.items():
        assert score["metrics"]["auroc"]["value"] == pytest.approx(scores[name]["metrics"]["auroc"]["value"])
    rows, resumed = ({row["id"]: row for row in read_table(one / "scores.parquet")} for one in (whole, out))
    assert list(resumed) == list(rows)
    for id, row in rows.items():
        for name, value in row.items():
            if not name.startswith("ensemble"):  # the other run had an ensemble
                number = isinstance(value, float | list)
                truth = pytest.approx(value, rel=1e-6, abs=1e-9) if number else value
                assert resumed[id][name] == truth, name
    monkeypatch.setattr(stages, "answer_rows", None)  # nothing is run again, only the analysis
    assert run(place, out, "--resume", *MORE).exit_code == 0
    other = run(place, out, "--resume", *MORE, "--seed", 1)
    assert (other.exit_code, "the same seed" in other.output, "this run 1" in other.output) == (2, True, True)


def test_a_prompt_scores_the_same_alone_and_in_a_batch(model, data):
    prompts = [item.prompt for item in read_labelled(data[:6])]
    how = Measuring(model, eics.Circuit(CIRCUIT), mode="lanczos")
    together = [row for rows in measured_rows(how, prompts) for row in rows]
    for prompt, row in zip(prompts, together, strict=True):
        [[alone]] = measured_rows(how, [prompt])
        assert alone.keys() == row.keys()
        for name, value in alone.items():
            if name != "id":
                assert value == pytest.approx(row[name], rel=1e-6, abs=1e-9), name


def test_one_forward_pass_serves_both_presets_and_the_baselines(model, data):
    passes = []
    handle = model.module.register_forward_hook(lambda *_: passes.append(1))
    list(measured_rows(Measuring(model, eics.Circuit(CIRCUIT), mode="fast"), [read_labelled(data)[0].prompt]))
    handle.remove()
    assert len(passes) == 1


def test_what_is_measured_beside_the_score_sees_its_pass(model):
    seen = []

    def also(state, some, linearized, options):
        seen.append((state, [prompt.id for prompt in some]))
        return [{"length": len(linearized.stalks["m1"].activation[place])} for place in range(len(some))]

    circuit = eics.Circuit(CIRCUIT)
    prompts = as_prompts(["a b c", "", "d e"])
    scores = list(score_prompts(model, circuit, prompts, [eics.PAPER.with_(mode="fast")], extra_diagnostics=also))
    assert scores[1][0].status == "failed"
    [(state, ids)] = seen
    assert ids == [0, 2]
    assert state.logits.shape == (2, 61)
    assert scores[0][0].norms["m1"] == pytest.approx(float(state.mlp_writes[1][0].norm()))
    assert [scores[place][0].diagnostics["length"] for place in (0, 2)] == [3, 3]  # padded


def test_ear_of_a_reference_prompt_comes_from_maps_that_never_saw_it(model, data):
    items = read_labelled(data[:20])
    prompts = [item.prompt for item in items]
    how = Measuring(model, eics.Circuit(CIRCUIT), mode="fast", batch_size=7)
    ear = FittedEAR(how, prompts, {prompt.id: at % 4 for at, prompt in enumerate(prompts)})
    reference = FittedEAR._reference(how, prompts, lambda _: None)

    def some(rows):
        stalks = {n: Stalk(s.activation[rows], s.constant) for n, s in reference.stalks.items()}
        return replace(reference, stalks=stalks, entries={})

    for fold in range(4):
        inside = [at for at in range(20) if at % 4 == fold]
        outside = [at for at in range(20) if at % 4 != fold]
        truth = EdgeAlignmentResidual().fit(some(outside)).measure(some(inside))
        torch.testing.assert_close(ear.measure(some(inside), [prompts[at] for at in inside]), truth)
    seen = ear.fit.measure(reference)
    assert float(seen.mean()) < 0.5 * float(ear.measure(reference, prompts).mean())  # what fitting by heart would give
    assert reference.stalks["m1"].activation.shape == (20, 1, 24)


def test_ensemble_against_loops(model, data):
    torch.manual_seed(1)
    other = tiny_module("llama")
    with torch.no_grad():
        other.lm_head.weight.add_(torch.randn_like(other.lm_head.weight) * 0.3)
    others = [adapt(other, word_tokenizer()), model]
    items = read_labelled(data[:5])
    [rows] = answer_rows(Answering(model, ensemble=others), items, 5)
    for item, row in zip(items, rows, strict=True):
        tokens = model.tokenizer(item.prompt.text, return_tensors="pt")
        with torch.no_grad():
            p = np.array([torch.softmax(m.module(**tokens).logits[0, -1], 0).numpy() for m in (model, *others)])
        best = p[0].argmax()
        assert row["predicted"] == best
        assert row["ensemble_variance"] == pytest.approx(p[:, best].var(), rel=1e-5)
        assert row["ensemble_disagreement"] == pytest.approx((p.argmax(axis=1) != best).mean())
        entropy = -(p.mean(0) * np.log(p.mean(0))).sum() + (p * np.log(p)).sum(axis=1).mean()
        assert row["ensemble_information"] == pytest.approx(entropy, rel=1e-4, abs=1e-9)
    tokenizer, wide = byte_level(), tiny_module("llama")
    wide.resize_token_embeddings(len(tokenizer))
    other = adapt(wide, tokenizer)
    with pytest.raises(eics.ModelError, match="must share their vocabulary"):
        Answering(model, ensemble=[other])


def byte_level():
    """Spaces belong to the word after them, as in GPT-2; Lisbon is two tokens, 7 after a space too."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["Paris", "Lis", "bon", "is"]
    merges = []
    for word in words:
        for end in range(1, len(word)):
            merges.append((word[:end], word[end]))
    merges += [("Ġ", "Paris"), ("Ġ", "Lis"), ("Ġ", "is")]
    vocabulary = {token: at for at, token in enumerate(dict.fromkeys([*letters, *map("".join, merges)]))}
    backend = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(merges))))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


def pieces():
    """Words begin with a mark, as in SentencePiece: "Paris" by itself is the token that follows a space."""
    names = ["<unk>", "▁x", "▁is", "▁Paris", "▁Lis", "bon", "▁", '▁is"', "Paris"]
    backend = Tokenizer(models.WordPiece({n: at for at, n in enumerate(names)}, unk_token="<unk>",
                                         continuing_subword_prefix=""))  # fmt: skip
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "answer", "tokens", "splits"),
    [
        (byte_level, "x is", "Paris", ["ĠParis"], False),
        (byte_level, "x is", " Paris", ["ĠParis"], False),  # the same, however it was written
        (byte_level, 'x is "', "Paris", ["Paris", "ĠParis"], False),  # after a quote no space is needed
        (byte_level, "x is ", "Paris", ["Paris", "ĠParis"], False),
        (byte_level, "x is", "Lisbon", ["ĠLis"], True),
        (byte_level, "x is", ["Lisbon", "Paris"], ["ĠLis", "ĠParis"], True),
        (pieces, "x is", "Paris", ["▁Paris"], False),
        (pieces, "x is", " Lisbon", ["▁Lis"], True),
    ],
)
def test_the_first_token_of_an_answer_after_this_prompt(tokenizer, prompt, answer, tokens, splits):
    made = tokenizer()
    wide = transformers.LlamaConfig(
        vocab_size=max(61, len(made)), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = adapt(transformers.LlamaForCausalLM(wide).eval(), made, check=False)
    [item] = read_labelled([{"prompt": prompt, "answer": answer}])
    found, split = accepted_tokens(model, item)
    assert sorted(made.convert_ids_to_tokens(sorted(found))) == sorted(tokens)
    assert split == splits


def test_text_is_matched_by_what_the_model_writes(model):
    text = "a b c"
    ids = model.tokenizer(text)["input_ids"]
    for _ in range(3):
        with torch.no_grad():
            ids.append(int(model.module(torch.tensor([ids])).logits[0, -1].argmax()))
    said = model.tokenizer.decode(ids[3:])
    items = read_labelled([
        {"prompt": text, "answer": said.upper()}, {"prompt": text, "answer": said.split()[0][:-1] + "q"},
        {"prompt": text, "answer": "a", "label": True}, {"prompt": "b " * 31 + "a", "answer": "zz zz zz"},
    ])  # fmt: skip
    [rows] = answer_rows(Answering(model, match="text", generate=3), items, 8)
    assert [row["label"] for row in rows] == [True, False, True, False]
    assert rows[0]["generated"] == said
    assert rows[3]["generated"] == model.tokenizer.decode([rows[3]["predicted"]])  # the context has room for no more
    assert begins_with("  «The  Hague».", "the hague")
    assert not begins_with("The Hagueish", "the hague")
    assert not begins_with("anything", " ?")


def test_labels_function_words_and_failures_are_in_the_rows(model):
    items = read_labelled([
        {"tokens": [3, 4, 5], "label": 1}, {"prompt": "a b", "answer": "the"}, {"prompt": "a " * 40, "answer": "b"},
        {"prompt": "a b", "answer": 12}, {"tokens": [3, 4, 99], "label": False},
    ])  # fmt: skip
    [rows] = answer_rows(Answering(model), items, 8)
    assert (rows[0]["label"], rows[0]["label_given"], "answer_probability" in rows[0]) == (True, True, False)
    assert rows[1]["function_word"]
    assert "at most 32 tokens" in rows[2]["failed"]
    assert rows[3]["label"] == (rows[3]["predicted"] == 12)
    assert "token ids must be 0 to 60" in rows[4]["failed"]
    with torch.no_grad():
        p = torch.softmax(model.module(torch.tensor([model.tokenizer("a b")["input_ids"]])).logits[0, -1], 0)
    assert rows[3]["answer_probability"] == pytest.approx(float(p[12]), rel=1e-5)
    assert rows[3]["answer_mass"] == pytest.approx(float(p[p >= p[12]].sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("lines", "more", "says"),
    [
        ([{"prompt": "a"}], [], "must have an 'answer' or a 'label'. 1 of 1 have neither"),
        ([{"prompt": "a", "label": 1, "id": "x"}] * 2, [], "must have an id of its own. Got 'x' twice"),
        ([{"prompt": "a", "label": "yes"}], [], "Line 1 of"),
        ([{"prompt": "a", "label": 2}], [], "a label must be true or 1 (right), false or 0 (wrong), or one of correct"),
        ([{"prompt": "a", "answer": []}], [], "an answer must be text, a token id, or a list of those; got []"),
        ([{"label": 1}], [], "a prompt must have 'prompt' (text) or 'tokens'"),
        ([], [], "must have at least one prompt"),
        ([["a"]], [], "must be an object with 'prompt' or 'tokens'"),
        ([{"prompt": "a b", "label": 1}] * 30, [], "must have both labels. All 30 that remain are correct"),
        ([{"prompt": "a b", "label": at % 2} for at in range(8)], [], "at least 5 correct and 5 wrong prompts"),
        (None, ["--group", "subject"], "must have the field 'subject' to be grouped by it. 60 of 60 have none"),
        (None, ["--group", "subject"], "The data has these fields: relation."),
        (None, ["--coverage", "0.99"], "at least 99 development prompts with an answer. Got 30"),
        (None, ["--coverage", "1"], "'coverage' option must be a number between 0 and 1"),
        (None, ["--dev-share", "0"], "'dev-share' option must be a number between 0 and 1"),
        (None, ["--resamples", "200"], "a whole number >= 1200, since fewer could show nothing after correction"),
        (None, ["--ensemble", "."], "The model folder '.' must have a config.json"),
    ],
)
def test_wrong_input_is_one_clear_line(place, tmp_path, lines, more, says):
    data = "data.jsonl"
    if lines is not None:
        with (place / "wrong.jsonl").open("w") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        data = "wrong.jsonl"
    result = run(place, tmp_path / "out", *more, data=data)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_answers_are_kept_when_the_split_is_refused(place, tmp_path):
    """The folder keeps them, although the run fails."""
    assert run(place, tmp_path, "--dev-share", "0.95").exit_code == 2
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 60


def test_groups_need_a_field_on_every_line():
    items = read_labelled([{"prompt": "a", "label": 1, "kind": 3}, {"prompt": "b", "label": 0, "kind": "x"}])
    assert group_values(items, "kind") == ["3", "x"]
    with pytest.raises(OptionError, match="Item 1 of the data must be a labelled prompt"):
        read_labelled([{"prompt": "a", "label": 1}, {"prompt": "b", "label": 0.5}])


def test_a_table_is_written_and_read_by_groups_of_rows(tmp_path):
    import pyarrow.parquet as pq

    rows = (
        {"id": at if at % 2 else str(at), "groups": {"k": "v"}, "length": at, "norms": [1.0, 2.0]} for at in range(600)
    )
    write_table(rows, tmp_path / "t.parquet")
    assert pq.ParquetFile(tmp_path / "t.parquet").num_row_groups == 3
    back = list(read_table(tmp_path / "t.parquet"))
    assert [row["id"] for row in back[:3]] == ["0", 1, "2"]
    assert back[599]["length"] == 599
    assert back[0]["groups"] == {"k": "v"}
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    (tmp_path / "t.parquet").write_bytes(b"no")
    with pytest.raises(eics.RecordError, match="must be a Parquet file of scores"):
        list(read_table(tmp_path / "t.parquet"))


def test_a_bare_circuit_with_a_hostile_name(data, tmp_path):
    """What cannot be computed is left out and listed; no name injects markup into the report."""
    model = adapt(tiny_model("gpt2").module, word_tokenizer(), name="tiny")
    evil = "<script>alert(1)</script>|[x](javascript:1)"
    lines = [{"prompt": line["prompt"], "label": at % 3 == 0} for at, line in enumerate(data)]
    circuit = eics.Circuit(["m2->logits"], name=evil)
    found = eics.validate(model, circuit, lines, out=tmp_path, mode="fast", resamples=1200)
    assert found.columns.missing["eac"] == "needs an edge between stalks of one length"
    assert found.columns.missing["conformal_lac"] == "needs answers"
    page, text = ((tmp_path / name).read_text() for name in ("report.html", "report.md"))
    assert evil not in page
    assert "&lt;script&gt;" in page
    assert "\\<script>alert(1)\\</script>\\|\\[x]" in text
    assert "EAC: needs an edge between stalks of one length." in text


def test_every_part_of_a_richer_circuit(data):
    """Several sources and sinks, with and without ports."""
    model = adapt(tiny_model("gpt2").module, word_tokenizer(), name="tiny")
    prompts = [item.prompt for item in read_labelled(data[:6])]
    how = Measuring(model, some_circuit(model), mode="fast")
    how = replace(how, ear=FittedEAR(how, prompts, {prompt.id: at % 2 for at, prompt in enumerate(prompts)}))
    [rows] = measured_rows(how, prompts)
    for name in ("eics_well_posed", "propagated", "eac", "ear", "norm_last", "norm_all"):
        assert len({row[name] for row in rows}) == 6, name
    assert len(rows[0]["norms"]) == len(some_circuit(model).order)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"batch_size": 0}, "'batch_size' option must be a whole number >= 1"),
        ({"memory": float("nan")}, "'memory' option must be a finite number > 0"),
        ({"seed": 2**32}, "'seed' option must be a whole number >= 0 and <= 4,294,967,295"),
        ({"seed": True}, "'seed' option must be a whole number"),
        ({"ensemble": None}, "'ensemble' option must be a list of models"),
        ({"dev_shore": 0.5}, "Unknown option 'dev_shore'.* Did you mean 'dev_share'"),
        ({"out": 5}, "output folder must be given as text or a path"),
        ({"out": "/dev/null/folder"}, "must be in a folder that exists and can be written: Not a directory"),
    ],
)
def test_options_of_a_wrong_kind_are_refused_before_a_folder_is_made(model, data, tmp_path, option, says):
    how = {"out": tmp_path / "run", "mode": "limit", "resamples": 1200} | option
    with pytest.raises(OptionError, match=says):
        eics.validate(model, eics.Circuit(CIRCUIT), data, **how)
    assert not (tmp_path / "run").exists()
