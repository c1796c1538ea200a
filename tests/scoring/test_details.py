"""`details` of a record, each part against another way to the same numbers."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

import eics
from eics.cli import main
from eics.errors import OptionError
from eics.linearized.explicit_file import save_linear
from eics.scoring import details as details_module
from eics.scoring.sheaf import position_shares
from eics.transformer.adapt import adapt
from eics.transformer.forward import run
from support.brute import Brute
from support.circuits import circuits
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1], [8, 28, 18, 28, 45]]
RESIDUALS = ("edge", "joint", "propagated")
METRICS = ("euclidean", "relative")
FORMS = [(residual, metric) for residual in RESIDUALS for metric in METRICS]


def detailed(model, circuit, prompts=PROMPTS, **options):
    return eics.score(model, circuit, prompts, mode="fast", details=True, **options)


def node_shares(score):
    """The share of each node; by edge, the sum over the edges into it."""
    if score.nodes:
        return {term.node: term.share for term in score.nodes}
    shares = {}
    for term in score.edges:
        shares[term.target] = shares.get(term.target, 0.0) + term.share
    return shares


def brute_shares(circuit, residual, metric):
    """Shares by node and position from dense matrices, for one prompt."""
    brute, parts = Brute(circuit), {}
    if residual == "propagated":
        propagated, errors = brute.propagate(), {}
        for sink in brute.circuit.sinks:
            errors[sink] = (brute.vec(sink) - propagated[sink]).reshape(brute.a[sink].shape)
            energy = np.sum(brute.a[sink] ** 2 + propagated[sink].reshape(brute.a[sink].shape) ** 2, axis=1)
            weights = np.divide(1, energy, out=np.zeros_like(energy), where=energy > 0)
            errors[sink] = errors[sink], (weights if metric == "relative" else np.ones_like(energy))[:, None]
        for node in brute.circuit.inner:
            local = brute.vec(node) - brute.carried(node, {name: brute.vec(name) for name in brute.a})
            pulled = sum(brute.between(node, s).T @ (w * e).reshape(-1) for s, (e, w) in errors.items())
            parts[node] = (local * pulled).reshape(brute.a[node].shape).sum(axis=1)
        total = sum(np.sum(w * e * e) for e, w in errors.values())
        return {node: part / total for node, part in parts.items()}
    names = list(brute.rho) if residual == "edge" else list(brute.circuit.inner)
    terms = brute._edge_terms() if residual == "edge" else brute._joint_terms()
    for name, (predicted, observed, _) in zip(names, terms, strict=True):
        part = np.sum((predicted - observed) ** 2, axis=1)
        if metric == "relative":
            energy = np.sum(predicted**2 + observed**2, axis=1)
            part = np.divide(part, energy, out=np.zeros_like(part), where=energy > 0)
        node = name.target if residual == "edge" else name
        parts[node] = parts.get(node, 0.0) + part
    total = sum(part.sum() for part in parts.values())
    return {node: part / total for node, part in parts.items()}


@given(circuits(), st.sampled_from(FORMS))
def test_shares_by_position_are_the_formula_written_out(circuit, form):
    linearized = circuit.linearize("jacobian")
    assume(linearized.edges)
    shares = position_shares(linearized.engine(), residual=form[0], metric=form[1])
    truth = brute_shares(circuit, *form)
    assert shares.keys() == truth.keys()
    for node, share in shares.items():
        np.testing.assert_allclose(share[0].numpy(), truth[node], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("residual", "metric"), FORMS)
def test_shares_by_position_sum_to_the_nodes_share(family, residual, metric):
    """Padded prompts in one batch, each with a list as long as the prompt."""
    model = tiny_model(family)
    for score in detailed(model, some_circuit(model), residual=residual, metric=metric, linearization="jacobian"):
        positions, shares = score.details["positions"], node_shares(score)
        assert positions.keys() == shares.keys()
        for node, row in positions.items():
            assert len(row) == len(PROMPTS[score.id])
            rounding = 5e-6 * sum(map(abs, row))  # six digits of shares that may cancel
            assert sum(row) == pytest.approx(shares[node], rel=1e-9, abs=rounding)
        assert all(share == 0.0 for share in positions["logits"][:-1])


def test_positions_that_do_not_count_have_no_share():
    model = tiny_model("llama")
    first = detailed(model, some_circuit(model), positions="no_sink", residual="joint")[0].details["positions"]
    assert {row[0] for row in first.values()} == {0.0}
    (last,) = detailed(model, some_circuit(model), PROMPTS[:1], answer=2)
    assert [place for place, share in enumerate(last.details["positions"]["logits"]) if share] == [2]


@pytest.mark.parametrize("family", FAMILIES)
def test_patterns_are_those_of_transformers(family):
    module = tiny_module(family)
    module.set_attn_implementation("eager")
    model = adapt(module)
    circuit = some_circuit(model)
    heads = [node for node in circuit.order if node.startswith("a")]
    for tokens, score in zip(PROMPTS, detailed(model, circuit), strict=True):
        attentions = module(input_ids=torch.tensor([tokens]), output_attentions=True, use_cache=False).attentions
        assert list(score.details["patterns"]) == heads
        for name, pattern in score.details["patterns"].items():
            layer, head = map(int, name.removeprefix("a").split(".h"))
            assert pattern["queries"] == list(range(len(tokens)))
            assert pattern["rows"] == [[round(w, 4) for w in row] for row in attentions[layer][0, head].tolist()]


def test_a_long_prompt_keeps_the_answers_row(monkeypatch):
    monkeypatch.setattr(details_module, "MOST_QUERIES", 4)
    model = tiny_model("qwen3")
    long, short, _ = detailed(model, some_circuit(model), answer=-2)
    assert short.details["patterns"]["a1.h2"]["queries"] == [0, 1, 2]
    assert long.details["patterns"]["a1.h2"]["queries"] == [6]
    monkeypatch.undo()
    whole = detailed(model, some_circuit(model), answer=-2)[0]
    assert long.details["patterns"]["a1.h2"]["rows"] == [whole.details["patterns"]["a1.h2"]["rows"][6]]


@pytest.mark.parametrize("family", FAMILIES)
def test_top_tokens_are_the_write_through_norm_and_unembedding(family):
    model = tiny_model(family)
    circuit, module = full_circuit(model), model.module
    for tokens, score in zip(PROMPTS, detailed(model, circuit), strict=True):
        state = run(model, [tokens])
        norm, stream = model.adapter.final_norm(module)[0], state.final_read[0, -1]
        head = module.get_output_embeddings()
        total = torch.zeros(model.vocabulary, dtype=torch.float64)
        for node in circuit.order[1:-1]:
            write = state.write(node)[0, -1]
            centred = model.transformer.final_norm.centred
            direction = write - write.mean() if centred else write
            spread = stream - stream.mean() if centred else stream
            scale = (spread.square().mean() + model.transformer.final_norm.eps).sqrt()
            gain = (norm(stream) - (norm.bias if centred else 0.0)) / (spread / scale)
            logits = head.weight @ (gain * direction / scale)
            total += logits
            best = logits.argsort(descending=True)[:5].tolist()
            shown = score.details["top_tokens"][node]
            assert [token["id"] for token in shown] == best
            assert [token["logit"] for token in shown] == pytest.approx(logits[best].tolist(), rel=1e-5)
            assert {token["token"] for token in shown} == {None}
        biases = [block.attention.b_o for block in model.transformer.blocks if block.attention.b_o is not None]
        rest = state.write("input")[0, -1] + sum(biases, torch.zeros_like(stream))
        rest = gain * ((rest - rest.mean()) if centred else rest) / scale + (norm.bias if centred else 0.0)
        total += head(rest)  # with what belongs to no head or MLP, these are the model's logits before any cap
        torch.testing.assert_close(total, head(norm(stream)), rtol=1e-5, atol=1e-5)  # Gemma's norms work in float32


def test_an_ablated_head_says_nothing():
    model = tiny_model("gemma2")
    score = detailed(model, some_circuit(model), PROMPTS[:1], interventions=[eics.interventions.Ablate("a1.h2")])[0]
    assert max(abs(token["logit"]) for token in score.details["top_tokens"]["a1.h2"]) < 1e-12


def test_details_are_the_same_alone_and_leave_the_score_as_it_is():
    model = tiny_model("gemma3")
    circuit = some_circuit(model)
    plain = eics.score(model, circuit, PROMPTS, mode="fast")
    for tokens, together, without in zip(PROMPTS, detailed(model, circuit), plain, strict=True):
        alone = detailed(model, circuit, [tokens])[0].details
        assert without.details is None
        asked = without.options | {"details": True}
        assert together.to_record() | {"details": None} == without.to_record() | {"options": asked}
        assert alone["patterns"] == together.details["patterns"]
        for node, row in alone["positions"].items():
            assert row == pytest.approx(together.details["positions"][node], rel=2e-5, abs=1e-9)


def test_details_without_a_readout_in_the_circuit():
    model = tiny_model("llama")
    (score,) = detailed(model, eics.Circuit(["input->a0.h1", "a0.h1->m1"]), PROMPTS[:1])
    assert score.details["top_tokens"].keys() == {"a0.h1", "m1"}
    assert score.details["positions"].keys() == {"a0.h1", "m1"}


@pytest.mark.parametrize("name", ["records.jsonl", "records.parquet"])
def test_details_are_kept_by_records(tmp_path, name):
    model = tiny_model("qwen2")
    scores = detailed(model, some_circuit(model))
    eics.write_records(scores, tmp_path / name)
    assert [score.details for score in eics.read_records(tmp_path / name)] == [score.details for score in scores]
    json.dumps(scores[0].details, allow_nan=False)


def test_a_failed_prompt_has_no_details():
    model = tiny_model("llama")
    good, bad = detailed(model, some_circuit(model), [PROMPTS[0], []])
    assert bad.status == "failed"
    assert (good.details is not None, bad.details) == (True, None)


def test_an_explicit_circuit_has_no_details(tmp_path):
    circuit = eics.LinearCircuit({"x->y": np.eye(2)}, {"x": [1.0, 0.0], "y": [0.0, 1.0]})
    with pytest.raises(OptionError, match="Details need a model"):
        eics.score(circuit, details=True)
    save_linear(circuit, tmp_path / "c.safetensors")
    result = CliRunner().invoke(main, ["score", "--circuit", str(tmp_path / "c.safetensors"), "--details"])
    assert (result.exit_code, "--details needs a --model" in result.output) == (2, True)
