"""Calibration: means against loops, the propagated run against mean ablation of the affine model, percentiles against
scipy, files, and wrong calls."""

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy.stats import percentileofscore

import eics
from eics.circuits.graph import Circuit
from eics.cli import main
from eics.errors import OptionError
from eics.models.prompts import as_prompts
from eics.scoring.calibration.calibration import percentile
from eics.scoring.calibration.prompt_means import prompt_means
from eics.scoring.sheaf import sheaf_term
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means, read_name
from support.operators import node_map
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module

PROMPTS = [[3, 5, 7, 11, 13, 17], [1, 2, 3, 4], [9, 8, 7, 6, 5], [2, 4, 6, 8, 10, 12, 14]]
EDGES = ["input->a0.h1", "a0.h1->a1.h2<v>", "a0.h1->a1.h0<k>", "a1.h0->m2", "a1.h2->logits", "input->m2", "m2->logits"]
THIRDS = [0.0, 100 / 3, 200 / 3, 100.0]


def means_by_hand(model):
    """The mean write of every node over prompts and positions, prompt by prompt from the stalks of the full graph."""
    total, count = {}, 0
    for tokens in PROMPTS:
        circuit = full_circuit(model)
        stalks = TransformerRun(run(model, [tokens], circuit), circuit).linearize("jacobian").stalks
        for node, stalk in stalks.items():
            if node != "logits":
                total[node] = total.get(node, 0.0) + stalk.activation[0].sum(dim=0)
        count += len(tokens)
    return {node: value / count for node, value in total.items()}


def biases_upstream(model, node):
    """The sum of the attention output biases that a node reads, (d,)."""
    total = torch.zeros(24, dtype=torch.float64)
    for layer, block in enumerate(model.transformer.blocks):
        own = node == f"m{layer}" and not block.parallel
        if block.attention.b_o is not None and (node == "logits" or layer < int(node[1]) or own):
            total = total + block.attention.b_o
    return total


@pytest.mark.parametrize("family", FAMILIES)
def test_means_are_those_of_a_loop_and_reads_are_sums_of_writes(family):
    model = tiny_model(family)
    means = prompt_means(model, some_circuit(model), as_prompts(PROMPTS), batch_size=3)
    by_hand = means_by_hand(model)
    assert set(means.writes) == {node for node in some_circuit(model).order if node != "logits"}
    for node, mean in means.writes.items():
        torch.testing.assert_close(mean, by_hand[node], rtol=1e-6, atol=1e-7)
    every = full_circuit(model)
    for node in ("a1.h2", "m2", "logits"):
        read = sum(by_hand[edge.source] for edge in every.parents[node]) + biases_upstream(model, node)
        torch.testing.assert_close(means.reads[read_name(node)], read, rtol=1e-5, atol=1e-5)


def mean_ablated(model, tokens, circuit, readout):
    """The affine model run on its own, node by node: an edge outside the circuit carries the mean of its source."""
    every, means = full_circuit(model), means_by_hand(model)
    frozen = TransformerRun(run(model, [tokens], every, logits=True), every, readout).linearize("frozen")
    carried = circuit.carrying("frozen")
    carrying = {(edge.source, edge.target) for edge in carried.edges}
    live = {}
    for node in every.order:
        stalk = frozen.stalks[node]
        if node not in carried.order or not carried.parents[node]:
            live[node] = stalk.flat[0]  # a source keeps its activation; nodes outside the circuit are never read live
            continue
        read = 0.0
        for edge in every.parents[node]:
            spread = means[edge.source].expand(len(tokens), -1).flatten()
            read = read + (live[edge.source] if (edge.source, node) in carrying else spread)
        live[node] = node_map(frozen, node).dense()[0] @ read + stalk.constant.flatten(1)[0]
    return live, frozen


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("readout", ["final_norm", "logits"])
def test_the_propagated_run_with_means_is_mean_ablation_of_the_affine_model(family, readout):
    model, circuit, tokens = tiny_model(family), Circuit(EDGES), PROMPTS[0]
    live, frozen = mean_ablated(model, tokens, circuit, readout)
    means = prompt_means(model, circuit, as_prompts(PROMPTS))
    state = run(model, [tokens], circuit, logits=True)
    linearized = TransformerRun(state, circuit, readout, means=means).linearize("frozen")
    sheaf = sheaf_term(linearized.engine(), residual="propagated")
    a, b = frozen.stalks["logits"].flat[0], frozen.stalks["logits"].constant.flatten(1)[0]
    p = live["logits"]
    by_hand = (a - p).norm() / ((a - b).square().sum() + (p - b).square().sum()).sqrt()
    assert float(sheaf.c_sh[0]) == pytest.approx(float(by_hand), rel=2e-5)
    assert float(sheaf.share.sum()) == pytest.approx(1.0, abs=1e-6)
    without = sheaf_term(TransformerRun(state, circuit, readout).linearize("frozen").engine(), residual="propagated")
    assert abs(float(without.c_sh[0]) - float(by_hand)) > 1e-4


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gemma2"])
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
@pytest.mark.parametrize("positions", ["all", "no_sink"])
def test_reads_from_outside_written_out_with_ports_and_positions(family, linearization, positions):
    """p_v = b_v + M_v (mean read) + sum_e rho_e (p_u - m_u), with dense maps, rows and columns cut by hand."""
    model, tokens = tiny_model(family), PROMPTS[0]
    circuit = some_circuit(model)
    means = prompt_means(model, circuit, as_prompts(PROMPTS))
    state = run(model, [tokens], circuit)
    given = TransformerRun(state, circuit, means=means).linearize(linearization)
    sheaf = sheaf_term(given.restrict(positions).engine(), residual="propagated")
    plain = TransformerRun(state, circuit).linearize(linearization)
    kept = torch.ones(len(tokens), 24, dtype=torch.float64)
    kept[0] = float(positions == "all")
    cut = {node: 1.0 if node == "logits" else kept.flatten() for node in circuit.order}
    p = {}
    for node in circuit.order:
        stalk = plain.stalks[node]
        if not circuit.parents[node]:
            p[node] = cut[node] * stalk.flat[0]
            continue
        whole = Circuit([f"input->{node}"])  # its map goes through all ports at once
        at_whole = TransformerRun(run(model, [tokens], whole), whole).linearize(linearization)
        full = node_map(at_whole, node).dense()[0]
        read = means.reads[read_name(node)]
        if linearization == "frozen":  # which has the biases in b_v already
            read = read - biases_upstream(model, node)
        p[node] = stalk.constant.flatten(1)[0] + full @ read.expand(len(tokens), -1).flatten()
        for entry in plain.entries[node]:
            rho = entry.operator.dense()[0]
            for edge in entry.edges:
                mean = cut[edge.source] * means.writes[edge.source].expand(len(tokens), -1).flatten()
                p[node] = p[node] + rho @ (p[edge.source] - mean)
        p[node] = cut[node] * p[node]
    above = below = 0.0
    for node in circuit.sinks:
        a, b = (cut[node] * x for x in (plain.stalks[node].flat[0], plain.stalks[node].constant.flatten(1)[0]))
        above = above + (a - p[node]).square().sum()
        below = below + (a - b).square().sum() + (p[node] - b).square().sum()
    assert float(sheaf.c_sh[0]) == pytest.approx(float((above / below).sqrt()), rel=1e-6)


def test_a_complete_circuit_needs_no_reference():
    """Nothing lies outside the circuit, so the means cancel."""
    model = tiny_model("llama")
    circuit = full_circuit(model)
    means = prompt_means(model, circuit, as_prompts(PROMPTS))
    linearized = TransformerRun(run(model, PROMPTS, circuit), circuit, means=means).linearize("frozen")
    assert float(sheaf_term(linearized.engine(), residual="propagated").c_sh.max()) < 5e-6


def test_batches_and_padding_change_nothing():
    model, circuit = tiny_model("gpt2"), Circuit(EDGES)
    options = {"preset": "well-posed", "residual": "propagated", "mode": "exact"}
    calibration = eics.calibrate(model, circuit, PROMPTS, batch_size=3, **options)
    together = eics.score(model, circuit, PROMPTS, calibration=calibration, **options)
    alone = [eics.score(model, circuit, tokens, calibration=calibration, **options) for tokens in PROMPTS]
    for one, other in zip(together, alone, strict=True):
        assert one.c_sh == pytest.approx(other.c_sh, rel=1e-9)
        assert one.percentile == pytest.approx(other.percentile, abs=1e-4)
    assert together[0].c_sh != pytest.approx(eics.score(model, circuit, PROMPTS[0], **options).c_sh, rel=1e-3)


def test_percentiles_are_those_of_the_reference_set():
    draw = np.random.default_rng(0)
    for values in (draw.normal(size=500), draw.integers(0, 6, size=500) / 2.0, np.zeros(40)):
        quantiles = np.quantile(values, np.linspace(0, 1, 101)).tolist()
        for value in (*values[:20], values.min() - 1, values.max() + 1):
            truth = percentileofscore(values, value, kind="mean")
            assert percentile(float(value), quantiles) == pytest.approx(truth, abs=1.01)


@pytest.mark.parametrize("suffix", ["safetensors", "json"])
def test_a_file_gives_back_what_was_calibrated(tmp_path, suffix):
    model, circuit = tiny_model("llama"), Circuit(EDGES)
    calibration = eics.calibrate(model, circuit, PROMPTS, preset="well-posed", alpha="auto", residual="propagated")
    path = tmp_path / f"c.{suffix}"
    eics.save_calibration(calibration, path)
    again = eics.load_calibration(path)
    assert isinstance(again.means, Means)
    for part in ("writes", "reads"):
        ours, theirs = getattr(calibration.means, part), getattr(again.means, part)
        assert set(ours) == set(theirs)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert vars(again) | {"means": None} == vars(calibration) | {"means": None}
    options = {"preset": "well-posed", "residual": "propagated"}
    score = eics.score(model, circuit, PROMPTS[1], calibration=path, **options)
    assert score.alpha == calibration.alpha == calibration.chosen.alpha
    assert score.percentile == percentile(score.eics, calibration.quantiles["eics"])
    assert set(score.diagnostics["calibration"]["percentiles"]) == {"eics", "c_sh", "dei_norm", "emergence_ratio"}
    everyone = eics.score(model, circuit, PROMPTS, calibration=path, **options)
    assert sorted(s.percentile for s in everyone) == pytest.approx(
        THIRDS, abs=1.0
    )  # scored on the reference set itself


def test_another_model_circuit_or_option_is_refused():
    model, circuit = tiny_model("llama"), Circuit(EDGES)
    calibration = eics.calibrate(model, circuit, PROMPTS, preset="paper", alpha=0.3)
    assert eics.score(model, circuit, PROMPTS[0], calibration=calibration).alpha == 0.3
    assert len(repr(calibration)) < 120
    wrong = [
        ({"metric": "relative"}, r"same metric. The file has 'euclidean', this run 'relative'"),
        ({"alpha": 2.0}, r"same alpha. The file has 0.3, this run 2.0"),
        ({"alpha": 1.0}, r"same alpha. The file has 0.3, this run 1.0"),  # asked for, though the preset has it too
        ({"answer": -2}, r"same answer. The file has None, this run -2"),
        ({"mode": "fast"}, r"same mode"),
    ]
    for change, says in wrong:
        with pytest.raises(OptionError, match=says):
            eics.score(model, circuit, PROMPTS[0], calibration=calibration, **change)
    with pytest.raises(OptionError, match=r"same circuit. The file has '6 nodes"):
        eics.score(model, Circuit([*EDGES[:1], "a0.h1->logits"]), PROMPTS[0], calibration=calibration)
    renamed = type(model)(model.module, model.adapter, name="another")
    assert eics.score(renamed, circuit, PROMPTS[0], calibration=calibration).alpha == 0.3  # its weights are the same
    changed = tiny_module("llama")
    changed.model.norm.weight.data.mul_(2.0)
    with pytest.raises(OptionError, match=r"same model. The file has .*, this run .* with other weights"):
        eics.score(eics.adapt(changed, name="another"), circuit, PROMPTS[0], calibration=calibration)
    with pytest.raises(OptionError, match=r"must be an eics.Calibration or the path"):
        eics.score(model, circuit, PROMPTS[0], calibration=3)
    with pytest.raises(OptionError, match="A calibration belongs to a model"):
        eics.score(eics.LinearCircuit({"x->y": [[1.0]]}, {"x": [1.0], "y": [1.0]}), calibration=calibration)
    with pytest.raises(OptionError, match=r"at least 2 prompts that can be scored. It has 1. Prompt 1 failed"):
        eics.calibrate(model, circuit, [[1, 2, 3], [1, 2, 999]], preset="paper")
    with pytest.raises(OptionError, match=r"a prompt that the model can run. It has none: token ids must be"):
        eics.calibrate(model, circuit, [[999]], preset="paper")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibrate")
    tiny_module("llama").save_pretrained(path / "model")
    (path / "prompts.jsonl").write_text("\n".join(json.dumps({"tokens": tokens}) for tokens in PROMPTS))
    (path / "circuit.json").write_text(json.dumps({"format": "eics-circuit", "version": 1, "edges": EDGES}))
    return path


def command(name, folder, *arguments):
    inputs = ["--model", folder / "model", "--circuit", folder / "circuit.json", "--prompts", folder / "prompts.jsonl"]
    return CliRunner().invoke(main, [str(a) for a in (name, *inputs, "--dtype", "float64", *arguments)])


def test_calibrate_then_score(folder, tmp_path):
    out, records = tmp_path / "c.safetensors", tmp_path / "s.jsonl"
    how = ["--preset", "well-posed", "--residual", "propagated"]
    result = command("calibrate", folder, *how, "--alpha", "auto", "--out", out)
    assert result.exit_code == 0, result.output
    assert "4 prompts on" in " ".join(result.output.split())
    assert "a percentile is coarse" in " ".join(result.output.split())
    result = command("score", folder, *how, "--calibration", out, "--out", records)
    assert result.exit_code == 0, result.output
    scores = eics.read_records(records)
    assert {score.alpha for score in scores} == {eics.load_calibration(out).alpha}
    assert sorted(score.percentile for score in scores) == pytest.approx(THIRDS, abs=1.0)
    again = command("score", folder, *how, "--calibration", out, "--out", records, "--resume")
    assert again.exit_code == 0, again.output
    other = command("score", folder, *how, "--out", records, "--resume", "--alpha", scores[0].alpha)
    assert other.exit_code == 2
    assert "must continue with the same calibration" in other.output
    wrong = command("score", folder, "--calibration", out)
    assert wrong.exit_code == 2
    assert "A calibration must be of the same linearization" in wrong.output


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{broken", "must be a readable file of JSON"),
        ("[1]", "must have format 'eics-calibration', version 3 or 4. Got format None"),
        ('{"format": "eics-calibration", "version": 9}', "version 9"),
        ('{"format": "eics-calibration", "version": 1}', "must have every field"),
    ],
)
def test_a_file_that_is_no_calibration(folder, tmp_path, content, says):
    for name in ("c.json", "c.safetensors")[: 1 if content else 2]:
        if content:
            (tmp_path / name).write_text(content)
        result = command("score", folder, "--calibration", tmp_path / name)
        assert result.exit_code == 2
        assert says in " ".join(result.output.split())


def test_junk_and_missing_means_are_refused(folder, tmp_path):
    (tmp_path / "junk.safetensors").write_text("junk")
    assert command("score", folder, "--calibration", tmp_path / "junk.safetensors").exit_code == 2
    out = tmp_path / "c.json"
    assert (
        command("calibrate", folder, "--preset", "paper", "--residual", "propagated", "--out", out, "--quiet").output
        == ""
    )
    document = json.loads(out.read_text())
    for change, says in (
        ({"means": {"writes": {}, "reads": {}}}, "vectors of one width"),
        ({"alpha": -1}, "alpha that is a finite number > 0"),
        ({"quantiles": {"eics": [2, 1]}}, "that never fall"),
        ({"means": {"writes": {"input": [1.0]}, "reads": {"a0": [1.0]}}}, "the mean of"),
    ):
        out.write_text(json.dumps(document | change))
        result = command("score", folder, "--residual", "propagated", "--calibration", out)
        assert result.exit_code == 2
        assert says in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--out", "nowhere/c.json"], "must be a .safetensors or .json file in a folder that exists"),
        (["--out", "c.pt"], "must be a .safetensors or .json file"),
        (["--prompts", "nowhere.jsonl"], "must be a readable file"),
    ],
)
def test_wrong_calls_of_calibrate(folder, tmp_path, monkeypatch, change, says):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in change else ["--out", "c.json"]
    result = command("calibrate", folder, "--preset", "paper", *out, *change)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_a_learned_sheaf_needs_a_file_that_can_hold_it(folder, tmp_path):
    """Refused before anything is learned: six prompts would be too few."""
    result = command("calibrate", folder, "--out", tmp_path / "usual.json")
    assert result.exit_code == 2
    assert "must be a .safetensors file in a folder that exists" in " ".join(result.output.split())
    result = command("score", folder, "--preset", "calibrated")
    assert result.exit_code == 2
    assert "of --preset calibrated, needs --calibration FILE" in " ".join(result.output.split())
