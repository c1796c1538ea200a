"""Attribution, selection and ablation against explicit patching, finite differences and affine algebra."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eics
from eics.circuits.cuts import prune
from eics.circuits.graph import Circuit, Edge
from eics.errors import OptionError
from eics.studies.discovery.ablate import circuit_logits
from eics.studies.discovery.eap import Attribution, How, attribute
from eics.studies.discovery.faithfulness import faithfulness
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.metrics import Targets, measure, slope
from eics.studies.discovery.reference import Writes, mean_writes
from eics.studies.discovery.select import select
from eics.studies.discovery.task import Pair, Task, read_task
from eics.transformer.attention import head_writes
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.operators import node_map
from support.patching import run_edges
from support.tiny_models import FAMILIES, tiny_model

PAIRS = (
    Pair((3, 5, 7, 11, 13, 17), (3, 5, 2, 11, 9, 17), (4,), (9,)),
    Pair((1, 2, 3, 4), (1, 8, 3, 4), (6, 7), (2,)),
    Pair((9, 8, 7, 6, 5), (9, 8, 1, 6, 5), (3,), (8, 12)),
)
TASK = Task("three pairs", PAIRS)
ONE = Task("one pair", PAIRS[:1])


def ablated_writes(model, pair, kind):
    if kind == "corrupted":
        return Writes.of(run(model, [pair.corrupted]))
    if kind == "zero":
        return Writes.of(run(model, [pair.clean])).zero()
    return mean_writes([run(model, [each.clean]) for each in PAIRS])


def by_name(model, writes, length):
    """The ablated write of each node, (T, d)."""
    by_node = {"input": writes.input}
    for layer, block in enumerate(model.transformer.blocks):
        heads = head_writes(block.attention, writes.z[layer], list(range(block.attention.heads)))
        by_node |= {f"a{layer}.h{head}": write for head, write in enumerate(heads)}
        by_node[f"m{layer}"] = writes.mlps[layer]
    return {name: write[0].expand(length, -1) for name, write in by_node.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["corrupted", "mean", "zero"])
def test_a_circuit_alone_is_what_patching_gives(family, kind):
    model, pair = tiny_model(family), PAIRS[0]
    graph = FullGraph.of(model)
    clean = run(model, [pair.clean], logits=True)
    writes = ablated_writes(model, pair, kind)
    draw = torch.Generator().manual_seed(3)
    mask = (torch.rand(graph.valid.shape, generator=draw) < 0.6) & graph.valid
    mask[0] = graph.valid[0]  # every head and MLP has a parent: without one, a node has no live value to compare
    mask[:, -1] = True  # and is read: in the sum before a post-norm, a head that nothing reads stays ablated
    ours = circuit_logits(clean, writes, graph, mask)[0]
    theirs = run_edges(model, pair.clean, by_name(model, writes, 6), mask.double(), graph, clean)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["corrupted", "mean", "zero"])
def test_all_edges_give_the_full_model_and_none_the_ablated_model(family, kind):
    model = tiny_model(family)
    graph = FullGraph.of(model)
    prompts = [pair.clean for pair in PAIRS]
    clean = run(model, prompts, logits=True)
    means = mean_writes([run(model, prompts)])
    corrupted = run(model, [pair.corrupted for pair in PAIRS], logits=True)
    writes = {"corrupted": Writes.of(corrupted), "mean": means, "zero": means.zero()}[kind]
    centred = clean.logits - clean.logits.mean(dim=1, keepdim=True)
    whole = circuit_logits(clean, writes, graph, graph.valid)
    assert float((whole - centred).norm() / centred.norm()) < 1e-4  # the models compute norms in float32
    if kind == "corrupted":
        nothing = circuit_logits(clean, writes, graph, torch.zeros_like(graph.valid))
        theirs = corrupted.logits - corrupted.logits.mean(dim=1, keepdim=True)
        assert float((nothing - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_eap_is_the_slope_of_patching_an_edge(family):
    """Moving one edge slightly towards its corrupted write changes the metric as the score predicts."""
    model, pair = tiny_model(family), PAIRS[0]
    graph = FullGraph.of(model)
    attribution = attribute(model, ONE, How(method="eap"))
    clean = run(model, [pair.clean])
    ablated = by_name(model, ablated_writes(model, pair, "corrupted"), 6)
    draw = np.random.default_rng(0)
    for column in draw.choice(len(graph.readers), 6, replace=False):
        row = int(draw.integers(graph.prefix[column]))
        moved = []
        for step in (1e-4, -1e-4):
            weights = torch.ones(graph.valid.shape, dtype=torch.float64)
            weights[row, column] -= step
            logits = run_edges(model, pair.clean, ablated, weights, graph, clean)
            moved.append(float(logits[4] - logits[9]))
        slope_by_hand = -(moved[0] - moved[1]) / 2e-4
        assert float(attribution.scores[row, column]) == pytest.approx(slope_by_hand, rel=2e-3, abs=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_frozen_scores_are_exact_for_the_affine_model(family):
    """If every node is affine, patching an edge changes the metric by exactly its score."""
    model, pair = tiny_model(family), PAIRS[0]
    graph = FullGraph.of(model)
    attribution = attribute(model, ONE, How(method="eap", linearization="frozen"))
    edges = [graph.edge(row, column) for column, upto in enumerate(graph.prefix) for row in range(upto)]
    circuit = Circuit([edge for edge in edges if edge.port not in ("q", "k")])
    state = run(model, [pair.clean], circuit, logits=True)
    linearized = TransformerRun(state, circuit, "logits").linearize("frozen")
    clean = {node: stalk.flat[0] for node, stalk in linearized.stalks.items()}
    corrupted = by_name(model, ablated_writes(model, pair, "corrupted"), 6)
    maps = {node: node_map(linearized, node).dense()[0] for node in circuit.inner}

    def metric(patched=None):
        values = {"input": clean["input"]}
        for node in circuit.inner:
            read = sum(values[edge.source] for edge in circuit.parents[node])
            if patched is not None and patched.target == node:
                read = read + corrupted[patched.source].flatten() - clean[patched.source]
            values[node] = maps[node] @ read + linearized.stalks[node].constant.flatten(1)[0]
        logits = values["logits"]
        return float(logits[4] - logits[9])

    draw = np.random.default_rng(1)
    base = metric()
    for index in draw.choice(len(circuit.edges), 8, replace=False):
        edge = circuit.edges[index]
        assert attribution[edge] == pytest.approx(base - metric(edge), rel=1e-5, abs=1e-6)
    assert all(score == 0 for edge, score in attribution.edges() if edge.port in ("q", "k"))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("ablation", "metric"), [("corrupted", "logit_diff"), ("mean", "log_prob"), ("corrupted", "kl")]
)
def test_integrated_gradients_add_up(family, ablation, metric):
    """The scores of the edges out of `input` add up to the difference of the metric."""
    attribution = attribute(tiny_model(family), TASK, How(metric=metric, ablation=ablation, steps=60), batch_size=2)
    total = float(attribution.scores[0].sum())
    assert total == pytest.approx(attribution.clean - attribution.ablated, rel=0.02, abs=0.02)


@pytest.mark.parametrize("memory", [512, 0.001])
def test_batches_padding_and_memory_change_nothing(memory):
    model = tiny_model("gemma2")
    single = [attribute(model, Task("one", (pair,)), How(steps=3)) for pair in PAIRS]
    together = attribute(model, TASK, How(steps=3), batch_size=3, memory=memory)
    torch.testing.assert_close(together.scores, sum(each.scores for each in single) / 3, rtol=1e-5, atol=1e-7)
    assert together.clean == pytest.approx(sum(each.clean for each in single) / 3)


def test_metrics_and_their_slopes():
    logits = torch.randn(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    answers, foils = torch.zeros(2, 7, dtype=torch.float64), torch.zeros(2, 7, dtype=torch.float64)
    answers[:, 1] = 0.5
    answers[:, 2] = 0.5
    foils[:, 4] = 1.0
    targets = Targets(answers, foils, full=logits.flip(0))
    probabilities = logits.softmax(dim=1)
    torch.testing.assert_close(measure("logit_diff", logits, targets), logits[:, 1:3].mean(dim=1) - logits[:, 4])
    torch.testing.assert_close(measure("log_prob", logits, targets), probabilities[:, 1:3].sum(dim=1).log())
    full = logits.flip(0).softmax(dim=1)
    torch.testing.assert_close(measure("kl", logits, targets), -(full * (full / probabilities).log()).sum(dim=1))
    for metric in ("logit_diff", "log_prob", "kl"):
        step = torch.zeros_like(logits)
        step[:, 3] = 1e-6
        above, below = (measure(metric, logits + sign * step, targets) for sign in (1, -1))
        torch.testing.assert_close(slope(metric, logits, targets)[:, 3], (above - below) / 2e-6, rtol=1e-5, atol=1e-7)


@given(st.integers(0, 10_000), st.sampled_from([False, True]), st.integers(1, 60))
def test_selection(seed, parallel, count):
    graph = FullGraph(3, 2, parallel)
    scores = torch.randn(graph.valid.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    attribution = Attribution(graph, scores * graph.valid, 1.0, 0.0, 1)
    ranked = sorted(attribution.edges(), key=lambda pair: -abs(pair[1]))
    try:
        circuit, dropped = select(attribution, count, "top")
    except eics.CircuitError:
        with pytest.raises(eics.CircuitError):
            prune(Circuit([edge for edge, _ in ranked[:count]]))
    else:
        assert {*circuit.edges} <= {edge for edge, _ in ranked[:count]}
        assert len(circuit.edges) + dropped.edges == min(count, graph.edges)
        assert circuit.scores == {edge: attribution[edge] for edge in circuit.edges}
    try:
        circuit, dropped = select(attribution, count, "greedy")
    except eics.CircuitError:
        return
    assert len(circuit.edges) + dropped.edges == min(count, graph.edges)
    assert circuit.sinks == ("logits",)
    assert "input" not in circuit.order or circuit.sources == ("input",)
    best = max((pair for pair in attribution.edges() if pair[0].target == "logits"), key=lambda pair: abs(pair[1]))
    assert dropped.edges or best[0] in circuit.edges


def test_masks_of_circuits():
    graph = FullGraph(2, 2, parallel=False)
    mask = graph.mask(Circuit(["input->a0.h1", "a0.h1->a1.h0<k>", "a1.h0->logits"]))
    named = {str(graph.edge(row, column)) for row, column in mask.nonzero().tolist()}
    assert named == {"input->a0.h1<q>", "input->a0.h1<k>", "input->a0.h1<v>", "a0.h1->a1.h0<k>", "a1.h0->logits"}
    assert int(graph.valid.sum()) == graph.edges == len(list(Attribution(graph, graph.valid * 1.0, 0, 0, 1).edges()))
    assert FullGraph(12, 12, parallel=False).edges == 32_491  # GPT-2 small, as EAP-IG counts them


@pytest.mark.parametrize("ablation", ["corrupted", "mean", "zero"])
def test_faithfulness_of_the_full_graph_is_one(ablation):
    model = tiny_model("llama")
    graph = FullGraph.of(model)
    every = Circuit([graph.edge(row, column) for column, upto in enumerate(graph.prefix) for row in range(upto)])
    attribution = attribute(model, TASK, How(ablation=ablation))
    circuits = {f"{n} edges": select(attribution, n, "greedy")[0] for n in (30, 120)} | {"all": every}
    curve = faithfulness(model, TASK, circuits, ablation=ablation, batch_size=2)
    assert [point.name for point in curve.points] == ["30 edges", "120 edges", "all"]
    assert curve.points[-1].share == 1.0
    assert curve.points[-1].faithfulness.value == pytest.approx(1.0, abs=1e-4)
    x = [point.share for point in curve.points]
    y = [point.faithfulness.value for point in curve.points]
    by_hand = sum((x[i + 1] - x[i]) * (y[i] + y[i + 1]) / 2 for i in range(2))
    distance = sum((x[i + 1] - x[i]) * (abs(1 - y[i]) + abs(1 - y[i + 1])) / 2 for i in range(2))
    assert curve.cpr.value == pytest.approx(by_hand)
    assert curve.cmd.value == pytest.approx(distance)
    assert all(p.faithfulness.low <= p.faithfulness.value + 1e-9 for p in curve.points)
    assert json.dumps(curve.to_record())


def test_faithfulness_refuses_what_it_cannot_measure():
    model = tiny_model("gpt2")
    with pytest.raises(eics.CircuitError, match=r"must have whole nodes.*'m0'"):
        faithfulness(model, TASK, {"circuit": Circuit(["input->m0", "m0->logits"], positions={"m0": [1]})})
    same = Task("same", tuple(Pair(pair.clean, pair.clean, pair.answers, pair.foils) for pair in PAIRS))
    with pytest.raises(OptionError, match="must change the metric"):
        faithfulness(model, same, {"circuit": Circuit(["input->m0", "m0->logits"])})


def test_a_task_without_what_the_options_need_is_refused():
    model = tiny_model("gpt2")
    bare = Task("bare", (Pair((1, 2, 3), None, (4,), ()),))
    with pytest.raises(OptionError, match="needs a corrupted prompt on every line of 'bare'"):
        attribute(model, bare, How(metric="log_prob"))
    with pytest.raises(OptionError, match="needs a foil on every line"):
        attribute(model, bare, How(ablation="zero"))
    with pytest.raises(OptionError, match="no gradient at the clean prompt"):
        How(metric="kl", method="eap")
    with pytest.raises(OptionError, match="'metric' option must be one of"):
        attribute(model, bare, How(metric="accuracy"))
    with pytest.raises(OptionError, match="'steps' option must be"):
        How(steps=0)
    assert attribute(model, bare, How(metric="log_prob", ablation="mean")).pairs == 1


def test_task_files(tmp_path):
    model = tiny_model("gpt2")
    lines = [
        {"clean": [1, 2, 3], "corrupted": [1, 5, 3], "answer": 4, "foil": [5, 6]},
        {"clean": [1, 2, 3], "corrupted": [1, 5], "answer": 4},
        {"clean": [1, 2, 999], "answer": 4},
        {"clean": [1, 2]},
        {"clean": "text", "answer": 3},
        {"clean": [1, 2], "answer": " word"},
    ]
    path = tmp_path / "task.jsonl"
    path.write_text("\n".join([*map(json.dumps, lines), "{broken", ""]))
    task = read_task(path, model)
    assert task.pairs == (Pair((1, 2, 3), (1, 5, 3), (4,), (5, 6)),)
    reasons = ["as many tokens", "0 to 60", "'clean' and 'answer'", "no tokenizer", "as a token id", "Expecting"]
    assert len(task.skipped) == len(reasons)
    for number, (line, reason) in enumerate(zip(task.skipped, reasons, strict=True), start=2):
        assert line.startswith(f"line {number}: ")
        assert reason in line
    path.write_text(json.dumps(lines[1]))
    with pytest.raises(OptionError, match="has none: line 1: the corrupted prompt must have as many tokens"):
        read_task(path, model)
    with pytest.raises(OptionError, match="must be a readable file, or one of"):
        read_task(tmp_path / "nowhere.jsonl", model)


def test_edges_by_name():
    attribution = attribute(tiny_model("gpt2"), ONE, How(method="eap"))
    assert attribution["input->a1.h2<k>"] == float(attribution.scores[0, attribution.graph.columns["a1.h2", "k"]])
    assert attribution[Edge("m0", "logits")] == dict(attribution.edges())[Edge("m0", "logits")]
