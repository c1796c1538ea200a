"""The fields of a record besides the score: cosines, norms, attributions, positions, tokens, answer and label."""

import json

import numpy as np
import pytest
import torch
from hypothesis import assume, given

import eics
from eics.circuits.graph import Edge
from eics.errors import OptionError
from eics.models.prompt_files import read_prompts
from eics.models.prompts import Prompt
from eics.scoring.batch import score_prompts
from eics.scoring.sheaf import sheaf_term
from eics.transformer.adapt import adapt
from support.brute import Brute
from support.circuits import build, circuits
from support.tiny_models import tiny_model, tiny_module

EDGES = ["input->a0.h1", "a0.h1->m1", "m1->logits"]


@given(circuits())
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_cosines_are_the_formula_written_out(linearization, circuit):
    linearized = circuit.linearize(linearization)
    assume(linearized.edges)
    sheaf = sheaf_term(linearized.engine())
    for prompt in range(circuit.batch):
        truth = Brute(circuit, prompt, frozen=linearization == "frozen")
        for edge, cosine in zip(sheaf.names, sheaf.cosine[prompt].tolist(), strict=True):
            predicted, observed = truth.rho[edge] @ truth.vec(edge.source), truth.vec(edge.target)
            expected = predicted @ observed / np.linalg.norm(predicted) / np.linalg.norm(observed)
            assert cosine == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("options", [{}, {"residual": "joint", "metric": "relative"}, {"residual": "propagated"}])
def test_every_configuration_has_cosines_and_norms(options):
    circuit = build(5, batch=2, density=0.6)
    for prompt, score in enumerate(eics.score(circuit, **options)):
        truth = Brute(circuit, prompt)
        assert score.norms == pytest.approx({node: np.linalg.norm(truth.vec(node)) for node in truth.a})
        assert all(-1.0 <= edge.cosine <= 1.0 for edge in score.edges)


def test_norms_are_of_the_positions_that_count():
    circuit = build(5, density=0.6)
    truth = Brute(circuit, keep={n: [1, 2] for n, a in circuit.activations.items() if a.shape[1] == 3})
    norms = eics.score(circuit, positions="no_sink").norms
    assert norms == pytest.approx({node: np.linalg.norm(truth.vec(node)) for node in truth.a})


def test_a_zero_activation_has_no_cosine():
    silent = eics.LinearCircuit({"x->y": np.eye(2)}, {"x": [1.0, 0.0], "y": [0.0, 0.0]})
    assert eics.score(silent).edges[0].cosine is None
    eics.scoring.records.to_line(eics.score(silent))


def test_attribution_comes_from_the_circuit():
    model = tiny_model("llama")
    scores = {Edge.parse(EDGES[0]): -0.5, Edge.parse(EDGES[1]): 2.0}
    circuit = eics.Circuit(EDGES, {"a0.h1": [1, 2]}, scores=scores)
    results = eics.score(model, circuit, [3, 4, 5], mode="fast")
    assert {str(edge): edge.attribution for edge in results.edges} == {EDGES[0]: -0.5, EDGES[1]: 2.0, EDGES[2]: None}
    assert results.node_positions == {"a0.h1": [1, 2]}
    assert results.tokens is None


class Letters:
    """A tokenizer with one token for each letter."""

    def __call__(self, text):
        return {"input_ids": [ord(letter) - ord("a") for letter in text]}

    def decode(self, ids):
        return "".join(chr(ord("a") + token) for token in ids)


def test_tokens_answer_and_label_are_recorded(tmp_path):
    model = adapt(tiny_module("gpt2", torch.float32), Letters())
    prompts = [Prompt(0, text="abc", answer=" d", label="known"), Prompt(1, tokens=(7, 8), label=1), Prompt(2, text="")]
    options = eics.Options(mode="fast")
    results = [scores[0] for scores in score_prompts(model, eics.Circuit(EDGES), prompts, [options])]
    assert [score.tokens for score in results] == [["a", "b", "c"], ["h", "i"], None]
    assert [(score.answer, score.label) for score in results] == [(" d", "known"), (None, 1), (None, None)]
    assert [score.status == "failed" for score in results] == [False, False, True]
    for name in ("a.jsonl", "a.parquet"):
        eics.write_records(results, tmp_path / name)
        assert eics.read_records(tmp_path / name) == results


def test_a_tokenizer_that_only_encodes_will_do():
    model = adapt(tiny_module("gpt2", torch.float32), lambda text: {"input_ids": [len(word) for word in text.split()]})
    result = eics.score(model, eics.Circuit(EDGES), "a bc def", mode="fast")
    assert (result.status != "failed", result.tokens) == (True, None)


def test_prompts_files_have_answers_and_labels(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x", "answer": " y", "label": true}\n{"tokens": [1], "label": 0.5}\n')
    assert [(p.answer, p.label) for p in read_prompts(path)] == [(" y", True), (None, 0.5)]
    for bad, says in (({"answer": 3}, "an answer must be text"), ({"label": [1]}, "a label must be")):
        path.write_text(json.dumps({"prompt": "x"} | bad) + "\n")
        with pytest.raises(OptionError, match=says):
            read_prompts(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_records_from_before_these_fields_are_read(tmp_path, name):
    import pyarrow as pa
    import pyarrow.parquet as pq

    new = ("norms", "node_positions", "tokens", "answer", "label")
    score = eics.score(build(5, density=0.6))
    record = score.to_record()
    older = {key: value for key, value in record.items() if key not in new}
    older["edges"] = [{k: v for k, v in e.items() if k not in ("cosine", "attribution")} for e in record["edges"]]
    path = tmp_path / name
    if name == "a.jsonl":
        path.write_text(json.dumps(older) + "\n")
    else:
        eics.write_records(score, path)
        rows = pq.read_table(path).drop_columns(list(new)).to_pylist()
        for edge in rows[0]["edges"]:
            del edge["cosine"], edge["attribution"]
        keep = pa.table({key: [rows[0][key]] for key in rows[0] if key not in ("ei_parts", "stderr")})
        pq.write_table(keep, path)
    restored = eics.read_records(path)[0]
    assert restored.eics == score.eics
    assert restored.norms == {}
    assert restored.edges[0].cosine is None
    assert [str(edge) for edge in restored.edges] == [str(edge) for edge in score.edges]


def test_terms_of_later_versions_may_have_more(tmp_path):
    record = eics.score(build(5, density=0.6)).to_record()
    record["edges"][0]["colour"] = "red"
    assert eics.Score.from_record(record).edges[0].share == record["edges"][0]["share"]
