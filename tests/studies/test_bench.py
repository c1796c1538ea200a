"""The benchmark: reference circuits, counts that must not grow, the straightforward version, the command."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils._python_dispatch import TorchDispatchMode

import eics
from eics.circuits.graph import Circuit, Kind, Node
from eics.circuits.load import save_circuit
from eics.cli import main
from eics.errors import CircuitError
from eics.linalg.operators import Dense, Product
from eics.scoring.options import PAPER
from eics.studies.bench.circuits import REFERENCES, heads_only, ioi, medium, random_circuit
from eics.studies.bench.growth import Point, expected_seconds, grow, growth_figure
from eics.studies.bench.measure import Counts, Spread, count, machine, peak_memory, timing
from eics.studies.bench.node_functions import PlainCircuit
from eics.studies.bench.rows import ROWS, Setting, chosen_rows, memory_target, targets
from eics.studies.bench.run import Bench, Plan, describe
from eics.studies.bench.shapes import SHAPES, random_model
from eics.studies.bench.straightforward import dense_seconds, straightforward
from eics.studies.bench.table import Report, markdown
from eics.transformer.forward import run
from support.tiny_models import FAMILIES, some_circuit, tiny_model

COUNTS = Path(__file__).with_name("bench_counts.json")
"""Counts of the rows at a reduced shape. After a change that is meant to alter them, rewrite the file from the root:

PYTHONPATH=src:tests:tests/studies python -c "import test_bench; test_bench.write_counts()"
"""
FAST = [row for row in ROWS if row.configurations and row.configurations[0].mode in ("fast", "limit")]
TINY = Setting("gpt2-tiny", "cpu", "float32", 2, 6)


def tiny_bench(plan: Plan | None = None, given: Circuit | None = None) -> Bench:
    return Bench(random_model(SHAPES["gpt2-tiny"], name="tiny"), TINY, plan or Plan(1, 0.0), given)


def row_counts(bench: Bench, row) -> Counts:
    _, _, work = bench.work(row)
    work()  # what is computed once per model does not count
    return count(work)


class Operations(TorchDispatchMode):
    """Counts torch operations: on a GPU, launching one takes longer than running it."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(bench: Bench, row) -> int:
    _, _, work = bench.work(row)
    work()  # what is computed once per model does not count
    with Operations() as counted:
        work()
    return counted.count


def write_counts() -> None:
    bench = tiny_bench()
    by_row = {row.name: vars(row_counts(bench, row)) for row in ROWS}
    launched = {row.name: operations(bench, row) for row in FAST}
    counts = {"forward": vars(count(bench.forward)), **by_row, "operations": launched}
    COUNTS.write_text(json.dumps(counts, indent=1) + "\n")


@pytest.fixture(scope="module")
def bench():
    return tiny_bench()


def kinds(circuit: Circuit) -> Counter:
    return Counter(Node.parse(name).kind for name in circuit.nodes)


# ---- reference circuits


def test_reference_circuits_have_the_sizes_named():
    assert len(medium(12, 12).edges) == 44
    assert kinds(medium(12, 12)) == {Kind.INPUT: 1, Kind.HEAD: 11, Kind.MLP: 3, Kind.LOGITS: 1}
    assert kinds(heads_only(12, 12)) == {Kind.INPUT: 1, Kind.HEAD: 11, Kind.LOGITS: 1}
    assert set(heads_only(12, 12).edges) < set(medium(12, 12).edges)
    assert len(ioi(12, 12).edges) == 756
    assert kinds(ioi(12, 12)) == {Kind.INPUT: 1, Kind.HEAD: 67, Kind.MLP: 12, Kind.LOGITS: 1}
    ports = Counter(edge.port for edge in ioi(12, 12).edges if Node.parse(edge.target).kind is Kind.HEAD)
    assert set(ports) == {"q", "k", "v"}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize(("layers", "heads"), [(12, 12), (16, 32), (30, 9), (32, 32)])
def test_reference_circuits_fit_other_depths_and_lie_on_paths(name, layers, heads):
    circuit = REFERENCES[name](layers, heads)
    assert len(circuit.nodes) == len(REFERENCES[name](12, 12).nodes)
    assert (circuit.sources, circuit.sinks) == (("input",), ("logits",))
    assert max(Node.parse(n).layer or 0 for n in circuit.nodes) < layers
    assert max(Node.parse(n).head or 0 for n in circuit.nodes) < heads


def test_reference_circuits_are_the_same_everywhere():
    hashes = {name: REFERENCES[name](12, 12).sha256[:12] for name in REFERENCES}
    assert hashes == {"medium": "31b4c70636fe", "heads": "33eea64c07e5", "ioi": "c9d99a911aa5"}


@pytest.mark.parametrize(
    ("nodes", "edges", "ports"), [(6, 9, False), (16, 44, False), (150, 444, False), (6, 10, True), (150, 10000, True)]
)
def test_random_circuits(nodes, edges, ports):
    circuit = random_circuit(nodes, edges, 3, ports=ports)
    assert (len(circuit.nodes), len(circuit.edges)) == (nodes, edges)
    assert (circuit.sources, circuit.sinks) == (("input",), ("logits",))
    assert circuit == random_circuit(nodes, edges, 3, ports=ports)
    assert circuit != random_circuit(nodes, edges, 4, ports=ports)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: medium(6, 12), "at least 12 layers"),
        (lambda: ioi(12, 4), "6 heads"),
        (lambda: random_circuit(10, 3), "must have .* edges. Got 3"),
        (lambda: random_circuit(10, 500), "edges. Got 500"),
        (lambda: random_circuit(1000, 5000), "must have 3 to 158 nodes"),
        (lambda: random_circuit(2, 1), "Got 2"),
    ],
)
def test_impossible_circuits_are_refused(make, says):
    with pytest.raises(CircuitError, match=says):
        make()


# ---- counts


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_counts_of_the_reference_rows(bench, row):
    """Products and FLOPs rather than times: a regression shows on any machine."""
    assert vars(row_counts(bench, row)) == json.loads(COUNTS.read_text())[row.name]


@pytest.mark.parametrize("row", FAST, ids=lambda row: row.name)
def test_operations_of_the_fast_rows_do_not_grow(bench, row):
    most = json.loads(COUNTS.read_text())["operations"][row.name]
    assert operations(bench, row) <= 1.05 * most  # another version of torch may launch slightly more


def test_operations_do_not_grow_with_the_prompts(bench):
    row = chosen_rows(ROWS, ["medium-fast-frozen"])[0]
    more = Bench(bench.model, replace(TINY, batch=6), Plan(1, 0.0))
    assert operations(more, row) == operations(bench, row)


def test_counts_of_the_forward_pass(bench):
    counts = count(bench.forward)
    assert vars(counts) == json.loads(COUNTS.read_text())["forward"]
    weights = 12 * (3 + 1 + 8) * 48 * 48 * 2 * 12 + 97 * 48 * 2 * 2  # 12 tokens; logits at the last one of each prompt
    attention = 12 * 2 * 2 * 12 * 6 * 6 * (4 + 4)  # two products of 6 x 6 for each of 2 prompts and 12 heads
    assert counts.matmul_flops == weights + attention
    assert (counts.jvp, counts.vjp) == (0, 0)


def test_products_are_counted_once_however_nested():
    left, right = Dense(torch.ones(3, 4, 5)), Dense(torch.ones(5, 2))
    both = Product(left, right)
    counts = count(lambda: (both.mv(torch.ones(1, 2, 7)), left.rmv(torch.ones(3, 4, 2))))
    assert (counts.jvp, counts.vjp) == (3 * 7 + 1 * 7, 3 * 2)
    assert counts.matmul_flops == 2 * (5 * 2 * 7 + 3 * 4 * 5 * 7 + 3 * 5 * 4 * 2)
    assert not hasattr(Dense.mv, "__wrapped__")


def test_factorizations_are_counted_separately():
    matrix = torch.eye(30)
    counts = count(lambda: (torch.linalg.cholesky(matrix), torch.linalg.eigvalsh(matrix), torch.linalg.qr(matrix)))
    assert counts.matmul_flops == 0
    assert counts.factorization_flops == 30**3 // 3 + 4 * 30**3 // 3 + (4 * 30**3 - 4 * 30**3 // 3)


# ---- the straightforward version


@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dense_autograd_agrees_with_the_score(family, linearization):
    model = tiny_model(family)
    circuit, tokens = some_circuit(model), [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1]]
    options = PAPER.with_(linearization=linearization)
    state = run(model, tokens, circuit)
    for row, score in enumerate(eics.score(model, circuit, tokens, preset=options)):
        plain = straightforward(PlainCircuit(state, circuit, row, linearization), options)
        assert plain.c_sh == pytest.approx(score.c_sh, rel=1e-9)
        assert plain.ei_macro == pytest.approx(score.ei_macro, rel=1e-8)
        assert plain.ei_parts == pytest.approx(score.ei_parts, rel=1e-8)
        assert plain.ei_macro - sum(plain.ei_parts.values()) == pytest.approx(score.dei, rel=1e-8)


@pytest.mark.parametrize("mode", ["limit", "lanczos"])
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_straightforward_estimates_agree_within_errors(mode, linearization):
    model = tiny_model("gpt2")
    circuit, tokens = some_circuit(model), [3, 1, 4, 1, 5]
    probes = 48 if mode == "limit" else 8  # with few samples, the standard error of Hutch++ is meaningless
    options = PAPER.with_(mode=mode, linearization=linearization, node_probes=probes, macro_probes=probes, steps=5)
    score = eics.score(model, circuit, tokens, preset=options)
    plain = straightforward(PlainCircuit(run(model, [tokens], circuit), circuit, 0, linearization), options)
    assert plain.c_sh == pytest.approx(score.c_sh, rel=1e-6)
    pairs = {"ei_macro": (plain.ei_macro, score.ei_macro)}
    pairs |= {f"ei_parts.{name}": (plain.ei_parts[name], ei) for name, ei in score.ei_parts.items()}
    for name, (ours, theirs) in pairs.items():
        # both use the same number of probes, so the unknown standard error is close to the known one
        assert ours == pytest.approx(theirs, rel=0.05, abs=6 * score.stderr.get(name, 0.0)), name


def test_straightforward_refuses_restricted_positions():
    model = tiny_model("gpt2")
    circuit = Circuit(["input->m0", "m0->logits"], {"m0": [1]})
    with pytest.raises(CircuitError, match="restricted positions"):
        PlainCircuit(run(model, [[1, 2, 3]], circuit), circuit, 0, "frozen")


def test_dense_cost_is_extrapolated_from_samples():
    model = tiny_model("gpt2")
    circuit = some_circuit(model)
    plain = PlainCircuit(run(model, [[1, 2, 3, 4]], circuit), circuit, 0, "jacobian")
    calls = []
    seconds = dense_seconds(plain, lambda work: (work(), calls.append(work), 1.0)[2], chunk=4)
    stalks = [96] * 5 + [24, 24 + 2 * 96]  # five nodes of 4 x 24, the read-out, the macro map's two sinks
    assert len(calls) == 1 + 3 * len(plain.nodes) + 3
    assert seconds > sum(stalks) / 4 - 100


# ---- measuring


def test_a_cost_is_relative_to_the_passes_around_it():
    times = timing([6.0, 30.0], [1.0, 3.0, 7.0])
    assert (times.ratio.low, times.ratio.high) == (3.75, 5.25)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="resident memory is read from /proc")
def test_peak_memory_sees_what_is_freed_again():
    megabytes, seconds = peak_memory(lambda: torch.ones(16 << 20).sum(), torch.device("cpu"))
    if megabytes is None:
        pytest.skip("the kernel does not allow resetting the peak here")
    assert 50 < megabytes < 200
    assert seconds > 0


def test_rows_are_written_as_they_are_measured(tmp_path, monkeypatch):
    """A row that breaks the run does not take the earlier rows with it."""
    measure = Bench.measure

    def fails(self, row, plain):
        if row.name == "medium-fast-jacobian":
            raise RuntimeError("the device is gone")
        return measure(self, row, plain)

    monkeypatch.setattr(Bench, "measure", fails)
    out = tmp_path / "bench.json"
    rows = "medium-fast-frozen,medium-fast-jacobian"
    result = invoke("--rows", rows, "--repeats", "1", "--out", str(out))
    assert result.exit_code != 0
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["medium-fast-frozen"]


def test_every_measurement_of_a_row():
    bench = tiny_bench(Plan(2, 1.0, straightforward=True))
    plain = bench.measure_forward()
    for name in ("medium-fast-both", "heads-exact-frozen"):
        (row,) = chosen_rows(ROWS, [name])
        result = bench.measure(row, plain)
        assert result.timing.ratio.low > 0  # no upper bound: this machine may be under load
        assert result.flop_ratio > 1
        assert result.compared is not None
        assert result.compared.times_slower > 0
        assert (result.compared.same_estimate_times_slower is not None) == ("fast" in result.row.name)
        assert not result.compared.extrapolated
        assert all(score.status in ("ok", "clipped") for score in bench.score(bench.circuit(row.circuit), row))


def test_the_first_batch_of_a_shape_has_a_column_if_later_ones_are_replayed(bench):
    plain = bench.measure_forward()
    (row,) = chosen_rows(ROWS, ["medium-fast-frozen"])
    result = bench.measure(row, plain)
    assert result.unrecorded is None
    context = machine(bench.device), describe(bench.model, TINY), TINY, plain
    assert "| first |" not in markdown(Report(*context, [result]))
    replayed = replace(result, unrecorded=timing([6.0], [1.0, 1.0]))
    table = markdown(Report(*context, [result, replayed]))
    assert "| row | cost | first |" in table
    assert "later batches are replayed from a recording" in table
    assert table.splitlines()[5].split("|")[3].strip() == "6.00"
    assert Report(*context, [replayed]).to_json()["rows"][0]["unrecorded_forward_equivalents"]["median"] == 6.0


def test_targets():
    row = chosen_rows(ROWS, ["medium-fast-frozen"])[0]
    assert targets(row, Setting("gpt2", "cpu", "float32", 8, 16)) == (4, 1.5)
    assert targets(row, Setting("gpt2", "cuda", "float32", 64, 16)) == (8, 1.5)
    assert targets(row, Setting("llama-8b", "cuda", "bfloat16", 8, 128)) == (3.0, 1.3)
    assert targets(row, Setting("gpt2", "cpu", "float32", 4, 16)) == (None, None)
    assert targets(row, TINY) == (None, None)
    other = chosen_rows(ROWS, ["ioi-fast-frozen"])[0]
    assert targets(other, Setting("llama-8b", "cuda", "bfloat16", 8, 128)) == (None, None)
    assert memory_target(Setting("gpt2", "cpu", "float32", 8, 16)) == 1024
    assert memory_target(TINY) is None


# ---- shapes


def test_a_random_model_has_its_dtype_and_leaves_the_random_state_alone():
    before = torch.random.get_rng_state()
    model = random_model(SHAPES["llama-tiny"], name="x", dtype="bfloat16")
    assert torch.equal(before, torch.random.get_rng_state())
    assert {parameter.dtype for parameter in model.module.parameters()} == {torch.bfloat16}
    again, other = (random_model(SHAPES["llama-tiny"], name="x", dtype="bfloat16", seed=seed) for seed in (0, 1))
    assert torch.equal(again.transformer.unembed, model.transformer.unembed)
    assert not torch.equal(other.transformer.unembed, model.transformer.unembed)


def test_large_shapes_have_their_sizes():
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"gpt2": 124_439_808, "llama-1b": 1_235_814_400, "llama-8b": 8_030_261_248}
    for name, size in sizes.items():
        config = AutoConfig.for_model(**SHAPES[name])
        with torch.device("meta"):
            module = AutoModelForCausalLM.from_config(config)
        assert sum(parameter.numel() for parameter in module.parameters()) == size


# ---- the command


def invoke(*arguments: str):
    return CliRunner().invoke(main, ["bench", "--shape", "gpt2-tiny", "--batch", "2", "--tokens", "6", *arguments])


def test_command_writes_json_and_markdown(tmp_path):
    out, page = tmp_path / "bench.json", tmp_path / "bench.md"
    rows = "medium-fast-frozen,heads-exact-frozen"
    result = invoke("--rows", rows, "--repeats", "2", "--straightforward", "--out", str(out), "--markdown", str(page))
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines()[:8])
    report = json.loads(out.read_text())
    assert (report["format"], report["version"]) == ("eics-bench", 1)
    assert [row["name"] for row in report["rows"]] == rows.split(",")
    assert {"cpu", "cores", "torch", "device"} <= set(report["machine"])
    row = report["rows"][0]
    assert row["forward_equivalents"]["median"] > 0
    assert row["counts"] == json.loads(COUNTS.read_text())["medium-fast-frozen"]
    assert row["straightforward"]["times_slower"] > 0
    assert "| medium-fast-frozen |" in page.read_text()
    assert f"torch {report['machine']['torch']}" in page.read_text()


def test_command_on_a_circuit_file(tmp_path):
    path, out = tmp_path / "c.json", tmp_path / "bench.json"
    save_circuit(Circuit(["input->a0.h1", "a0.h1->m2", "m2->logits"]), path)
    result = invoke("--circuit", str(path), "--rows", "given-fast-frozen", "--out", str(out), "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert json.loads(out.read_text())["rows"][0]["circuit"] == {"name": "given", "nodes": 4, "edges": 3}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--rows", "medium-slow"], "'rows' option must be names from medium-fast-frozen"),
        (["--circuit", "medium", "--rows", "ioi-fast-frozen"], "'rows' option"),
        (["--circuit", "nowhere.json"], "circuit must be a readable file"),
        (["--shape", "gpt5"], "shape must be one of gpt2"),
        (["--model", "x"], "given without --model"),
        (["--device", "abacus"], "'device' option must be"),
        (["--dtype", "int8"], "'dtype' option must be"),
        (["--tokens", "65"], "at most the model's 64"),
        (["--out", "nowhere/b.json"], "folder of nowhere/b.json must exist"),
        (["--picture", "growth.xlsx"], ".png, .pdf or .svg file in a folder that exists"),
    ],
)
def test_command_refuses_in_one_line(arguments, says):
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr


def test_a_circuit_that_does_not_fit_the_model_is_refused(tmp_path):
    save_circuit(Circuit(["input->a40.h1", "a40.h1->logits"]), tmp_path / "c.json")
    result = invoke("--circuit", str(tmp_path / "c.json"))
    assert result.exit_code == 2
    assert "a40.h1 must lie in the model's layers" in result.stderr


# ---- growth


def test_growth_curves_are_measured_and_drawn(bench, tmp_path):
    sizes = {"positions": (4,), "nodes": (4, 8), "edges": (10,), "width": (256,), "batch": (1,)}
    ticks = []
    points = grow(bench.model, TINY, limit=60.0, repeats=1, sizes=sizes, tick=lambda: ticks.append(1))
    assert len(points) == len(ticks) == 4 * 6
    assert all(point.forward_equivalents.median > 0 and point.flop_ratio > 1 for point in points)
    figure = growth_figure(points)
    assert [panel.get_xlabel() for panel in figure.axes] == list(sizes)
    figure.savefig(tmp_path / "growth.svg")
    assert json.dumps([point.to_json() for point in points])


def test_a_curve_ends_once_it_takes_too_long(bench):
    reported = []
    points = grow(bench.model, TINY, limit=0.0, sizes={"batch": (1, 2)}, done=reported.append)
    assert {point.size for point in points} == {1}
    assert reported[0] == points  # points are reported before the end


def test_a_point_that_would_take_too_long_is_not_started():
    def point(size, seconds):
        return Point("positions", size, "exact", "frozen", Spread.of([1.0]), seconds, 1.0)

    assert expected_seconds([], 8) == 0.0
    assert expected_seconds([point(8, 0.5)], 32) == pytest.approx(2.0)
    assert expected_seconds([point(8, 0.5), point(32, 32.0)], 128) == pytest.approx(2048.0)
    assert expected_seconds([point(8, 0.5), point(32, 0.4)], 128) == pytest.approx(0.4)
