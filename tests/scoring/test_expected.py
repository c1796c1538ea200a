"""What a node was expected to write and which parents carried it, against dense matrices in float64."""

import functools
import json

import numpy as np
import pytest
import torch

import eics
from eics.circuits.graph import HELD_PORTS
from eics.scoring import expected_details
from eics.scoring.calibration.sheaf.bases import OF_EACH
from eics.scoring.calibration.sheaf.expected import expectation, parents_shares
from eics.scoring.calibration.sheaf.learned import OUTSIDE
from eics.scoring.calibration.sheaf.samples import sample
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.learned import random_prompts, small, small_calibration
from support.tiny_models import full_circuit, some_circuit, tiny_model

PROMPTS = random_prompts(5, seed=9)
FAMILIES = ["llama", "gpt2", "gemma2", "gpt_neox"]  # biases, other norms, norms after, parallel
HOW = {"preset": "calibrated", "terms": "sheaf"}


@functools.cache
def learned(family, at="answer", full=False):
    """A float64 model, a circuit of it, and what is usual for that."""
    model = tiny_model(family)
    circuit = full_circuit(model) if full else some_circuit(model)
    return model, circuit, eics.calibrate(model, circuit, random_prompts(160), at=at, terms="sheaf")


def detailed(model, circuit, calibration, prompts=PROMPTS, **options):
    return eics.score(model, circuit, prompts, calibration=calibration, details=True, **HOW, **options)


class Dense:
    """One prompt, and the definitions written out with dense matrices in numpy."""

    def __init__(self, model, circuit, sheaf, tokens):
        self.circuit, self.sheaf = circuit, sheaf
        self.nodes = list(sheaf.layout.nodes)
        self.state = run(model, [tokens], circuit, nodes=("logits",))
        self.run = TransformerRun(self.state, circuit)
        self.linearized = self.run.linearize("frozen")
        self.last = len(tokens) - 1

    def row(self, node, vector):
        """What a whole stalk has at the answer position, padded to the width."""
        width = self.sheaf.layout.width
        rows = np.asarray(vector).reshape(-1, width)  # final_norm: the read-out is as wide as the stream
        return rows[0 if node == "logits" else self.last]

    def write(self, node):
        """a_v as a whole, from the pass; `linearized` has no node that nothing enters and that enters nothing."""
        if node == "logits":
            return self.state.final[0, self.last].numpy()
        return self.state.write(node)[0].numpy()

    def rho(self, node):
        """(parent, dense matrix) of every edge that carries something into the node."""
        for entry in self.linearized.entries.get(node, ()):
            matrix = entry.operator.dense()[0].numpy()
            yield from ((edge.source, matrix) for edge in entry.edges if edge.port not in HELD_PORTS)

    def explained(self, node):
        """e_v at the answer position; what nothing enters is its constant."""
        if node not in self.linearized.stalks or not self.linearized.entries.get(node):
            explained = sample(self.run, self.sheaf.layout, "answer").explained
            return explained[self.sheaf.layout.judged.index(node), 0].numpy()
        whole = self.linearized.stalks[node].constant[0].numpy().reshape(-1)
        return self.row(node, whole + sum(m @ self.write(u).reshape(-1) for u, m in self.rho(node)))

    def mean(self, node):
        return self.sheaf.bases.write_mean[self.nodes.index(node)].numpy()

    def expected(self, node):
        """expected_v, g and r^T S^-1 r."""
        bases, fit, place = self.sheaf.bases, self.sheaf.regressions, self.sheaf.layout.judged.index(node)
        given = bases.explained[place].numpy() @ (self.explained(node) - bases.explained_mean[place].numpy())
        reduced = [
            float(bases.unit[i]) * bases.write[i, :OF_EACH].numpy() @ (self.row(u, self.write(u)) - self.mean(u))
            for i, u in enumerate(self.nodes)
        ]
        x = np.concatenate([given, bases.context[place].numpy() @ np.concatenate(reduced)])
        x = (x - fit.mean[place].numpy()) * fit.scale[place].numpy()
        count = int(bases.outputs[place])
        own = bases.write[self.nodes.index(node), :count].numpy()
        y = fit.intercept[place].numpy()[:count] + x @ fit.weight[place].numpy()[:, :count]
        expected = self.mean(node) + own.T @ y
        residual = own @ (self.row(node, self.write(node)) - self.mean(node)) - y
        factor = fit.whitener[place].numpy()[:count, :count]
        metric = factor.T @ factor  # S^-1
        return expected, own.T @ metric @ residual, residual @ metric @ residual

    def shares(self, node):
        """Shares of the parents, of the rest, and of what came from off the circuit."""
        _, g, unusual = self.expected(node)
        centred = self.sheaf.at == "all" or ".h" not in node
        shares = {}
        for parent, matrix in self.rho(node):
            write = self.write(parent)
            moved = write - self.mean(parent) if centred else write
            push = g @ self.row(node, matrix @ moved.reshape(-1)) / unusual
            shares[parent] = shares.get(parent, 0.0) + push
        place = self.sheaf.layout.judged.index(node)
        beyond = self.row(node, self.write(node)) - self.mean(node)
        explained = self.explained(node) - self.sheaf.bases.explained_mean[place].numpy()
        return shares, 1 - sum(shares.values()), g @ (beyond - explained) / unusual


@pytest.mark.parametrize("at", ["answer", "all"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_definitions_written_out(family, at):
    model, circuit, calibration = learned(family, at)
    sheaf = calibration.judge.sheaf
    for tokens in PROMPTS:
        dense = Dense(model, circuit, sheaf, tokens)
        found = expectation(sheaf, dense.run)
        for place, node in enumerate(sheaf.layout.judged):
            expected, g, unusual = dense.expected(node)
            np.testing.assert_allclose(found.expected[place, 0], expected, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(found.written[place, 0], dense.row(node, dense.write(node)), atol=1e-8)
            np.testing.assert_allclose(found.direction[place, 0], g, rtol=1e-5, atol=1e-6 * np.abs(g).max())
            assert float(found.unusual[place, 0]) == pytest.approx(unusual, rel=1e-6)
            shares = parents_shares(sheaf, dense.linearized, found, node, dense.state.answer)
            parents, rest, off_circuit = dense.shares(node)
            assert shares.parents.keys() == parents.keys()
            size = 1 + sum(map(abs, parents.values()))
            for parent, share in parents.items():
                assert float(shares.parents[parent][0]) == pytest.approx(share, abs=1e-6 * size)
            assert float(shares.rest[0]) == pytest.approx(rest, abs=1e-6 * size)
            assert float(shares.off_circuit[0]) == pytest.approx(off_circuit, abs=1e-6 * size)
            assert sum(float(s[0]) for s in shares.parents.values()) + float(shares.rest[0]) == pytest.approx(1)


def test_what_is_split_is_the_first_part_of_the_distance():
    """`k D_v^2` less what lies outside the principal directions is `g . (a_v - expected_v)`."""
    model, circuit, calibration = learned("llama")
    sheaf = calibration.judge.sheaf
    batch = TransformerRun(run(model, PROMPTS, circuit, nodes=("logits",)), circuit)
    found, samples = expectation(sheaf, batch), sample(batch, sheaf.layout, "answer")
    at, fit = sheaf.coordinates(samples), sheaf.regressions
    whole = sheaf.by_prompt(samples, len(PROMPTS)).whole
    outside = torch.where(fit.outside.unsqueeze(1) > 0, at.outside / fit.outside.unsqueeze(1), 1.0)
    first = (whole - OUTSIDE * outside) * fit.outputs.unsqueeze(1)
    torch.testing.assert_close(found.unusual, first, rtol=1e-9, atol=1e-9)
    split = (found.direction * (found.written - found.expected)).sum(dim=2)
    torch.testing.assert_close(split, first, rtol=1e-4, atol=1e-4)  # files keep directions in float32


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_records_hold_them_with_the_top_tokens_of_both_writes(family):
    model, circuit, calibration = learned(family)
    sheaf, head, spec = calibration.judge.sheaf, model.module.get_output_embeddings().weight, model.transformer
    for tokens, score in zip(PROMPTS, detailed(model, circuit, calibration, batch_size=1), strict=True):
        dense = Dense(model, circuit, sheaf, tokens)
        norm, stream = model.adapter.final_norm(model.module)[0], dense.state.final_read[0, -1]
        centred = spec.final_norm.centred
        spread = stream - stream.mean() if centred else stream
        gain = (norm(stream) - (norm.bias if centred else 0.0)) / spread  # over the scale observed there

        def logits(node, write, gain=gain, centred=centred):
            write = torch.tensor(write)
            if node == "logits":
                return head @ write
            return head @ (gain * (write - write.mean() if centred else write))

        entries = score.details["expected"]
        assert entries.keys() == {term.node for term in score.nodes if term.z is not None}
        for node, entry in entries.items():
            expected, _, unusual = dense.expected(node)
            wrote = dense.row(node, dense.write(node))
            for name, write in {"wrote": wrote, "expected": expected, "difference": wrote - expected}.items():
                values = logits(node, write)
                assert [token["logit"] for token in entry[name]] == pytest.approx(
                    values.topk(5).values.tolist(), rel=1e-4, abs=1e-6
                )
                assert [float(values[token["id"]]) for token in entry[name]] == pytest.approx(
                    [token["logit"] for token in entry[name]], rel=1e-4, abs=1e-6
                )
            if unusual < 1e-6:
                continue  # the shares of nothing
            parents, rest, off_circuit = dense.shares(node)
            size = 1e-5 * (1 + sum(map(abs, parents.values())))
            assert entry["parents"] == pytest.approx(parents, abs=size)
            assert entry["rest"] == pytest.approx(rest, abs=size)
            assert entry["off_circuit"] == pytest.approx(off_circuit, abs=size)
            assert list(map(abs, entry["parents"].values())) == sorted(map(abs, entry["parents"].values()))[::-1]


@pytest.mark.parametrize("at", ["answer", "all"])
def test_the_same_alone_in_a_batch_and_padded(at):
    model, circuit, calibration = learned("gemma2", at)
    for tokens, score in zip(PROMPTS, detailed(model, circuit, calibration), strict=True):
        (alone,) = detailed(model, circuit, calibration, [tokens])
        assert alone.details["expected"].keys() == score.details["expected"].keys()
        for node, entry in alone.details["expected"].items():
            other = score.details["expected"][node]
            size = 1e-4 * (1 + sum(map(abs, entry["parents"].values())))
            assert entry["parents"] == pytest.approx(other["parents"], abs=size)
            assert entry["rest"] == pytest.approx(other["rest"], abs=size)
            for name in ("wrote", "expected", "difference"):
                assert [t["logit"] for t in entry[name]] == pytest.approx([t["logit"] for t in other[name]], abs=1e-5)


def test_a_patched_write_comes_from_off_the_circuit_and_its_childs_does_not():
    """With every edge in the circuit, nothing comes from off it but what is patched."""
    model, circuit, calibration = learned("llama", full=True)
    prompts = random_prompts(4, seed=3, least=6, most=6)
    plain = detailed(model, circuit, calibration, prompts)
    for node, child in (("m1", "m2"), ("a1.h2", "m1")):
        change = eics.Patch(node, 1.0, tokens=random_prompts(1, seed=8, least=6, most=6)[0], at="last")
        patched = detailed(model, circuit, calibration, prompts, interventions=[change])
        for before, after in zip(plain, patched, strict=True):
            own = after.details["expected"][node]
            assert after.nodes[0].node == node
            assert own["off_circuit"] == pytest.approx(1, abs=0.2)
            assert after.details["expected"][child]["off_circuit"] == pytest.approx(0, abs=1e-3)
            assert before.details["expected"][node]["off_circuit"] == pytest.approx(0, abs=1e-3)


def test_a_steered_parent_has_the_largest_share_of_what_its_child_did_not_expect():
    """A parent is pushed to where the reference never was; its child follows, and the record says whom."""
    model, circuit, calibration = learned("llama", full=True)
    vector = torch.randn(model.transformer.width, generator=torch.manual_seed(1)).double()
    for score in detailed(
        model, circuit, calibration, interventions=[eics.Steer("m1", 30.0, vector=vector, at="last")]
    ):
        own, child = score.details["expected"]["m1"], score.details["expected"]["logits"]
        assert own["off_circuit"] == pytest.approx(1, abs=0.02)
        assert next(iter(child["parents"])) == "m1"
        assert child["off_circuit"] == pytest.approx(0, abs=1e-3)


def test_parents_beyond_the_largest_are_summed(monkeypatch):
    model, circuit, calibration = learned("llama", full=True)
    whole = detailed(model, circuit, calibration)[0].details["expected"]["logits"]
    monkeypatch.setattr(expected_details, "MOST_PARENTS", 3)
    few = detailed(model, circuit, calibration)[0].details["expected"]["logits"]
    assert list(few["parents"].items()) == list(whole["parents"].items())[:3]
    assert len(whole["parents"]) == 8
    for entry in (whole, few):
        total = sum(entry["parents"].values()) + entry["other_parents"] + entry["rest"]
        assert total == pytest.approx(1, abs=1e-3)


def test_nodes_that_only_queries_and_keys_enter_have_no_parents_and_unjudged_ones_no_entry():
    model = tiny_model("llama")
    circuit = eics.Circuit(["input->a1.h2<q>", "input->m0", "m0->a1.h3<k>", "a1.h3->m2", "m2->logits"])
    calibration = eics.calibrate(model, circuit, random_prompts(160), terms="sheaf")
    for score in detailed(model, circuit, calibration):
        assert score.details["expected"]["a1.h2"]["parents"] == {}
        assert score.details["expected"]["a1.h2"]["rest"] == 1
    calibration.judge.reasons["m2"] = "it rests"
    assert "m2" not in detailed(model, circuit, calibration)[0].details["expected"]


@torch.no_grad()
def test_the_readout_in_logits_of_chosen_tokens():
    model, circuit = tiny_model("gpt2"), some_circuit(tiny_model("gpt2"))
    ids = [7, 3, 11]
    how = {"readout": "tokens", "tokens": ids}
    calibration = eics.calibrate(model, circuit, random_prompts(160), terms="sheaf", **how)
    for tokens, score in zip(PROMPTS, detailed(model, circuit, calibration, **how), strict=True):
        logits = model.module(torch.tensor([tokens])).logits[0, -1]
        logits = logits - logits.mean()  # as the read-out of chosen tokens has them
        entry = score.details["expected"]["logits"]
        assert {token["id"]: token["logit"] for token in entry["wrote"]} == pytest.approx(
            {token: float(logits[token]) for token in ids}, rel=1e-5
        )
        assert len(entry["parents"]) == 2


@pytest.mark.parametrize("name", ["records.jsonl", "records.parquet"])
def test_a_round_trip_through_files(tmp_path, name):
    model, circuit = small()
    scores = detailed(model, circuit, small_calibration())
    eics.write_records(scores, tmp_path / name)
    read = eics.read_records(tmp_path / name)
    assert [score.details for score in read] == [score.details for score in scores]
    assert [list(score.details["expected"]) for score in read] == [list(s.details["expected"]) for s in scores]
    json.dumps(scores[0].details, allow_nan=False)


def test_nothing_is_computed_without_details(monkeypatch):
    model, circuit = small()
    monkeypatch.setattr("eics.scoring.batch.expected_of", lambda *_: pytest.fail("must not be computed"))
    score = eics.score(model, circuit, PROMPTS[0], calibration=small_calibration(), **HOW)
    assert score.details is None
    assert score.edges == ()  # no map is made
    plain = eics.score(model, circuit, PROMPTS[0], mode="fast", details=True)
    assert "expected" not in plain.details
