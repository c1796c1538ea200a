"""Tracking: families of one size, faithfulness by prompt against its mean, correlations against scipy."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import scipy.stats
import torch
from click.testing import CliRunner

import eics
from eics.circuits.formats import prune
from eics.circuits.graph import Circuit, Node
from eics.cli import main
from eics.errors import OptionError, RecordError
from eics.scoring.sheaf import propagated_c_sh, sheaf_term
from eics.studies.bench.measure import Spread, Timing
from eics.studies.discovery.eap import How, attribute
from eics.studies.discovery.faithfulness import faithfulness as mean_faithfulness
from eics.studies.discovery.full_graph import FullGraph
from eics.studies.discovery.select import select
from eics.studies.discovery.task import Pair, Task
from eics.studies.statistics import CorrectedInterval
from eics.studies.tracking import run as tracking_run
from eics.studies.tracking import words
from eics.studies.tracking.analysis import POOLED, OverPrompts, faithfulness, over_circuits, over_prompts
from eics.studies.tracking.families import family, perturb, random_like, rewire
from eics.studies.tracking.measure import ABLATION, Subject, costs, measure_subject, references
from eics.studies.tracking.scores import SCORES
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.tiny_models import tiny_model, tiny_module


def some_pairs(count=12):
    draw = np.random.default_rng(5)
    pairs = []
    for place in range(count):
        clean = draw.integers(1, 60, size=4 + place % 3).tolist()
        corrupted = [*clean[:1], int(draw.integers(1, 60)), *clean[2:]]
        pairs.append(Pair(tuple(clean), tuple(corrupted), (4 + place % 7,), (20,), "ab"[place % 2]))
    return tuple(pairs)


TASK = Task("twelve pairs", some_pairs())


def discovered(family_name="llama", edges=30):
    model = tiny_model(family_name)
    return model, select(attribute(model, TASK, How(method="eap")), edges)[0]


@pytest.mark.parametrize("family_name", ["llama", "gpt_neox"])
def test_circuits_of_one_size_that_run_by_themselves(family_name):
    model, circuit = discovered(family_name)
    graph = FullGraph.of(model)
    found = family(circuit, graph, perturbed=4, controls=2, seed=3)
    assert [member.kind for member in found] == ["discovered"] + ["perturbed"] * 4 + ["rewired"] * 2 + ["random"] * 2
    for member in found:
        one = member.circuit
        model.check_circuit(one)
        assert len(one.edges) == len(circuit.edges)
        assert (one.sources, one.sinks) == (("input",), ("logits",))
        assert prune(one)[1].edges == 0
        assert member.overlap == len({*one.edges} & {*circuit.edges}) / len(circuit.edges)
    overlaps = [member.overlap for member in found[:5]]
    assert overlaps == sorted(overlaps, reverse=True)
    assert overlaps[1] <= 0.9
    assert found == family(circuit, graph, perturbed=4, controls=2, seed=3)
    assert found[5].circuit != family(circuit, graph, perturbed=4, controls=2, seed=4)[5].circuit


def test_rewiring_keeps_degrees_and_order():
    model, circuit = discovered(edges=60)
    graph = FullGraph.of(model)
    for seed in range(5):
        one = rewire(circuit, graph, np.random.default_rng(seed))
        assert one != circuit
        assert Counter(e.source for e in one.edges) == Counter(e.source for e in circuit.edges)
        assert Counter((e.target, e.port) for e in one.edges) == Counter((e.target, e.port) for e in circuit.edges)
        assert all(Node.parse(e.source).rank < Node.parse(e.target).rank for e in one.edges)
        assert len({*one.edges} & {*circuit.edges}) < len(circuit.edges)


def test_random_circuits_have_as_many_heads_and_mlps():
    model, circuit = discovered()
    graph = FullGraph.of(model)
    for seed in range(5):
        one = random_like(circuit, graph, np.random.default_rng(seed))
        for kind in ("a", "m"):
            assert sum(n[0] == kind for n in one.order) == sum(n[0] == kind for n in circuit.order)
    plain = Circuit(["input->a0.h1", "a0.h1->m1", "m1->logits", "input->m1"])
    assert {e.port for e in random_like(plain, graph, np.random.default_rng(0)).edges} == {None}
    heads = [f"a{layer}.h0" for layer in range(12)]
    dense = Circuit([f"{u}->{v}" for place, v in enumerate([*heads, "logits"]) for u in ["input", *heads[:place]]])
    with pytest.raises(OptionError, match=r"leave room to draw others of its size. It has 91 edges between 14 nodes"):
        random_like(dense, FullGraph(12, 12, parallel=False), np.random.default_rng(0))


def test_a_perturbed_circuit_keeps_its_nodes():
    model, circuit = discovered(edges=60)
    for share in (0.0, 0.2, 0.5):
        one = perturb(circuit, FullGraph.of(model), share, np.random.default_rng(1))
        assert one.order == circuit.order
        assert len({*one.edges} - {*circuit.edges}) == pytest.approx(share * len(circuit.edges), abs=3)


@pytest.fixture(scope="module")
def measured():
    model, circuit = discovered()
    members = family(circuit, FullGraph.of(model), perturbed=3, controls=1)
    subject = Subject(TASK, members, TASK, family_prompts=5)
    known = references(model, subject, 4)
    rows = [row for some in measure_subject(model, subject, known, batch_size=4) for row in some]
    return model, subject, known, rows


def test_prompts_by_prompt_is_the_mean_faithfulness(measured):
    model, subject, _, rows = measured
    assert len(rows) == subject.rows == 5 * 6 + 7 * 3
    circuits = {member.name: member.circuit for member in subject.everywhere}
    assert list(circuits) == ["discovered", "rewired-0", "random-0"]
    for ablation in ("corrupted", "mean", "zero"):
        for metric in ("logit_diff", "kl"):
            truth = mean_faithfulness(model, TASK, circuits, metric=metric, ablation=ablation)
            for point in truth.points:
                some = [row for row in rows if row["circuit"] == point.name]
                assert [row["prompt"] for row in sorted(some, key=lambda row: row["prompt"])] == list(range(12))
                if metric == "kl":
                    continue
                full, empty, own = (
                    np.mean([row[name] for row in some])
                    for name in ("metric_full", f"metric_empty_{ablation}", f"metric_circuit_{ablation}")
                )
                assert (own - empty) / (full - empty) == pytest.approx(point.faithfulness.value, rel=1e-9)


def test_rows_hold_what_one_prompt_alone_gives(measured):
    model, subject, known, rows = measured
    for row in (rows[0], rows[-1]):
        member = next(m for m in subject.members if m.name == row["circuit"])
        pair = TASK.pairs[row["prompt"]]
        state = run(model, [pair.clean], logits=True)
        at = TransformerRun(state, member.circuit, means=known.means).linearize("frozen")
        assert row["propagated_mean"] == pytest.approx(
            float(sheaf_term(at.engine(), residual="propagated").c_sh), rel=1e-9
        )
        assert float(propagated_c_sh(at.engine())) == pytest.approx(row["propagated_mean"], rel=1e-9)
        alone = sheaf_term(at.without_reference().engine(), residual="propagated").c_sh
        assert row["propagated"] == pytest.approx(float(alone), rel=1e-9)
        scores = [
            eics.score(model, member.circuit, list(pair.clean), preset=p, mode="fast") for p in ("paper", "well-posed")
        ]
        assert row["edge"] == pytest.approx(scores[0].c_sh, rel=1e-9)
        assert row["joint"] == pytest.approx(scores[1].c_sh, rel=1e-9)
        chances = state.logits.softmax(dim=-1)
        assert row["max_probability"] == pytest.approx(float(chances.max()))
        assert row["entropy"] == pytest.approx(float(torch.distributions.Categorical(probs=chances).entropy()))
        assert row["group"] == pair.group
    first = rows[0]
    score = eics.score(
        model, subject.members[0].circuit, list(TASK.pairs[first["prompt"]].clean), preset="well-posed", mode="fast",
        node_probes=4, macro_probes=8,
    )  # fmt: skip
    assert first["eics_well_posed"] == pytest.approx(score.eics, rel=1e-9)
    assert "eics_paper" not in rows[-1]


def test_correlations_over_prompts_and_circuits(measured):
    *_, rows = measured
    found = over_prompts(rows)
    one = next(
        f for f in found
        if (f.task, f.circuit, f.ablation, f.target, f.score) == (TASK.name, "discovered", "mean", "kl", "propagated")
    )  # fmt: skip
    own, other = (
        sorted((row for row in rows if row["circuit"] == name), key=lambda row: row["prompt"])
        for name in ("discovered", "random-0")
    )
    by_hand = scipy.stats.spearmanr([r["propagated"] for r in own], [r["kl_mean"] for r in own]).statistic
    assert one.raw.value == pytest.approx(by_hand)  # both turned around
    crossed = scipy.stats.spearmanr([r["propagated"] for r in own], [r["kl_mean"] for r in other]).statistic
    assert one.other.value == pytest.approx(crossed)
    assert one.less_other.value == pytest.approx(by_hand - crossed)
    assert {f.circuit for f in found} == {"discovered", "rewired", "random"}
    pooled = [f for f in found if f.task == POOLED and f.circuit == "discovered" and f.score == "propagated"]
    assert any(f.raw.value == pytest.approx(by_hand) for f in pooled)  # of one task, the mean is it
    across = over_circuits(rows)
    some = next(
        f for f in across
        if (f.task, f.circuits, f.ablation, f.target, f.score) == (TASK.name, "with controls", "zero", "kl", "joint")
    )  # fmt: skip
    each = []
    for prompt in range(5):
        here = [row for row in rows if row["prompt"] == prompt]
        assert len(here) == 6
        each.append(scipy.stats.spearmanr([r["joint"] for r in here], [r["kl_zero"] for r in here]).statistic)
    assert some.raw.value == pytest.approx(np.mean(each))
    assert (some.prompts, some.members) == (5, 6)


def test_a_quotient_of_noise_is_no_faithfulness():
    rows = [{"metric_full": f, "metric_empty_zero": e, "metric_circuit_zero": c} for f, e, c in
            ((4.0, 0.0, 1.0), (4.0, 3.9, 1.0), (1.0, 2.0, 0.0), (8.0, 2.0, 5.0))]  # fmt: skip
    np.testing.assert_allclose(faithfulness(rows, "zero"), [0.25, np.nan, np.nan, 0.5])


def test_costs_have_a_row_for_ablation_and_each_score(measured):
    model, subject, known, _ = measured
    found = costs(model, subject, known, batch_size=4, repeats=1)
    assert [name for name, _ in found][2:] == list(SCORES)
    assert found[0][0] == ABLATION
    assert all(timing.ratio.median > 0 for _, timing in found)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model, a task and a circuit for it."""
    folder = tmp_path_factory.mktemp("tracking")
    tiny_module("llama").save_pretrained(folder / "model")
    lines = [
        {"clean": p.clean, "corrupted": p.corrupted, "answer": p.answers[0], "foil": p.foils[0], "relation": p.group}
        for p in TASK.pairs
    ]
    (folder / "task.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "few.jsonl").write_text("\n".join(map(json.dumps, lines[:5])))
    bare = [{name: line[name] for name in ("clean", "answer")} for line in lines]
    (folder / "bare.jsonl").write_text("\n".join(map(json.dumps, bare)))
    edges = [str(edge) for edge in discovered()[1].edges]
    for name, some in (("circuit", edges), ("loose", [*edges, "a1.h0->a2.h3<q>", "m0->a1.h1<v>"])):
        document = {"format": "eics-circuit", "version": 1, "edges": sorted({*some})}
        (folder / f"{name}.json").write_text(json.dumps(document))
    return folder


def track(place, *arguments, task="task.jsonl", circuit="circuit.json"):
    about = ["--model", place / "model", "--task", place / task, "--circuit", place / circuit, "--dtype", "float64"]
    return CliRunner().invoke(main, [str(a) for a in ("track", *about, *arguments)])


def test_track_writes_rows_findings_page_and_figure(place, tmp_path):
    out = tmp_path / "found"
    how = ["--family-prompts", 4, "--perturbed", 3, "--controls", 1, "--out", out]
    result = track(place, *how)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "Over prompts, with the circuit fixed (1 task)" in said
    assert "ablating everything off the circuit" in said
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 4 * 6 + 8 * 3
    assert pyarrow.parquet.read_table(out / "rows.parquet").num_rows == len(rows)
    found = json.loads((out / "track.json").read_text())
    assert found["about"]["seed"] == 0
    assert {one["task"] for one in found["over_prompts"]} == {str(place / "task.jsonl"), POOLED}
    assert [one["what"] for one in found["costs"]][2:] == list(SCORES)
    page = (out / "track.md").read_text()
    for heading in ("## Over prompts", "## Over circuits of one size", "## Circuits of each kind", "## Cost"):
        assert heading in page
    assert (out / "track.png").read_bytes()[:4] == b"\x89PNG"
    again = track(place, *how)
    assert again.exit_code == 2
    assert "already holds a run" in again.output


@pytest.mark.parametrize(("killed_after", "torn"), [(1, 0), (2, 30), (7, 700)])
def test_a_killed_run_is_resumed(measured, tmp_path, monkeypatch, killed_after, torn):
    """Every row exists exactly once and equals that of an uninterrupted run."""
    model, subject, _, _ = measured
    monkeypatch.setattr(tracking_run, "costs", lambda *_, **__: [])  # timings differ from run to run
    how = {"batch_size": 4, "seed": 0}
    tracking_run.track(model, [subject], {"seed": 0}, tmp_path / "whole", **how)
    done = []

    def tick(count):
        done.append(count)
        if len(done) > killed_after:
            raise KeyboardInterrupt

    halved = tmp_path / "halved"
    with pytest.raises(KeyboardInterrupt):
        tracking_run.track(model, [subject], {"seed": 0}, halved, tick=tick, **how)
    lines = (halved / "rows.jsonl").read_bytes()
    assert 0 < len(lines.splitlines()) < subject.rows
    (halved / "rows.jsonl").write_bytes(lines[: len(lines) - torn])
    tracking_run.track(model, [subject], {"seed": 0}, halved, resume=True, **how)
    for name in ("rows.jsonl", "track.json", "track.md"):
        assert (halved / name).read_text() == (tmp_path / "whole" / name).read_text()
    other = replace(subject, family_prompts=4)
    with pytest.raises(RecordError, match="must continue with the same subjects"):
        tracking_run.track(model, [other], {"seed": 0}, halved, resume=True, **how)
    with pytest.raises(OptionError, match="already holds a run"):
        tracking_run.track(model, [subject], {"seed": 0}, halved, **how)


def test_track_resumes_from_the_command_line(place, tmp_path):
    how = ["--family-prompts", 4, "--perturbed", 0, "--controls", 1, "--out", tmp_path / "found"]
    assert track(place, *how, "--quiet").exit_code == 0
    rows = (tmp_path / "found" / "rows.jsonl").read_text()
    (tmp_path / "found" / "rows.jsonl").write_text(rows[: len(rows) // 2])
    result = track(place, *how, "--resume", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert (tmp_path / "found" / "rows.jsonl").read_text() == rows
    other = track(place, *how, "--resume", "--seed", 1)
    assert (other.exit_code, "has 0, this run 1" in other.output) == (2, True)


@pytest.mark.parametrize(
    ("files", "change", "says"),
    [
        ({"task": "few.jsonl"}, [], "at least 8 prompts that the model can run"),
        ({"task": "bare.jsonl"}, [], "needs a corrupted prompt on every line"),
        ({"task": "nowhere.jsonl"}, [], "must be a readable file, or one of"),
        ({"circuit": "nowhere.json"}, [], "must be a readable file, or one of"),
        ({"circuit": "loose.json"}, [], "must run from 'input' to 'logits'"),
        ({}, ["--circuit", "another"], "--circuit must be given once for each --task. Got 2 for 1"),
        ({}, ["--reference", "a", "--reference", "b"], "--reference must be given once for each --task. Got 2 for 1"),
    ],
)
def test_wrong_calls_of_track(place, tmp_path, files, change, says):
    result = track(place, *change, "--out", tmp_path / "found", **files)
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
    assert not (tmp_path / "found").exists()


def pooled(score, raw, given, target="kl", ablation="mean", less=0.0):
    def near(value):
        return CorrectedInterval(value, value - 0.1, value + 0.1, value - 0.15, value + 0.15)

    none = CorrectedInterval(*[float("nan")] * 5)
    known = [none if value is None else near(value) for value in (raw, raw, given, raw, less)]
    return OverPrompts(POOLED, "discovered", ablation, target, score, 30, *known)


def test_the_words_follow_the_rules():
    assert words.verdict(pooled("joint", None, None)) == words.CONSTANT
    assert words.verdict(pooled("joint", 0.5, 0.3)) == words.TRACKS
    assert words.verdict(pooled("joint", 0.5, 0.1)) == words.CONFOUNDED
    assert words.verdict(pooled("joint", 0.5, None)) == words.UNDECIDED
    assert words.verdict(pooled("joint", -0.5, -0.3)) == words.AGAINST
    assert words.verdict(pooled("joint", 0.1, 0.0)) == words.NO_EVIDENCE
    found = [
        pooled("edge", None, None),
        pooled("joint", 0.1, 0.0),
        pooled("propagated", 0.5, 0.1),
        pooled("propagated_mean", 0.6, 0.4, less=0.3),
    ]
    second = Spread.of([1.0])
    prices = [
        (name, Timing(second, second, Spread.of([1.5 if name == ABLATION else 3.0]))) for name in (ABLATION, *SCORES)
    ]
    lines = list(words.sentences(found, [], prices))
    assert any("under all three ablations is not compared" in line for line in lines)
    assert "C_sh by edge has one value on every prompt of a task and ranks nothing." in lines
    assert "C_sh by node: no evidence that it tracks the KL divergence under mean ablation." in lines
    assert "Propagated C_sh: follows the KL divergence under mean ablation, but no more than its confounds do." in lines
    assert "Propagated C_sh with means: tracks the KL divergence under mean ablation beyond the confounds." in lines
    others = next(line for line in lines if line.startswith("No evidence that the predicted divergence is specific"))
    assert "propagated C_sh (mean" in others
    assert "with means" not in others  # it says more of this circuit than of the other
    assert lines[-1].endswith("use `eics circuit faithfulness`.")
