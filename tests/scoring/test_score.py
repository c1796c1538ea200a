import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import eics
from eics import PAPER, WELL_POSED, CircuitError, LinearCircuit, OptionError, Options
from eics.scoring.options import CHOICES
from eics.scoring.result import EdgeTerm, EdgeTerms, Score
from support import brute as twin
from support.brute import Brute, brute_eigenvalues, brute_parts
from support.circuits import build, circuits

RECORD = {
    "id", "eics", "c_sh", "consistency", "dei", "dei_norm", "ei_macro", "emergence_ratio", "percentile", "ei_parts",
    "edges", "alpha", "mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout",
    "dtype", "seed", "diagnostics", "stderr", "status", "reason", "model", "circuit", "norms", "node_positions",
    "tokens", "answer", "label",
}  # fmt: skip
EDGE = {"source", "target", "port", "residual", "share", "cosine", "attribution"}


@given(circuits(batch=None, scale=1.0), st.sampled_from([0.1, 1.0, 10.0]))
@pytest.mark.parametrize("parts", ["nodes", "branches"])
def test_the_literal_score_is_equation_seven(parts, circuit, alpha):
    result = eics.score(circuit, alpha=alpha, parts=parts)
    truth = {name: twin.ei(m, alpha) for name, (m, _) in brute_parts(circuit, parts, False).items()}
    whole = truth.pop("J_M")
    dei = whole - sum(truth.values())
    c_sh = Brute(circuit).c_sh("edge", "euclidean")
    assert result.eics == pytest.approx(max(0, dei) / (1e-8 + whole) / (1 + c_sh), rel=1e-6, abs=1e-9)
    assert result.dei == pytest.approx(dei, rel=1e-7, abs=1e-9)
    assert result.consistency == pytest.approx(1 / (1 + c_sh))
    assert result.ei_parts == pytest.approx(truth, rel=1e-8, abs=1e-11)
    assert result.status == ("clipped" if result.dei < 0 else "ok")
    assert (result.reason is not None) == (result.status == "clipped" or result.ei_macro == 0)


@given(circuits(scale=1.0))
@pytest.mark.parametrize("preset", ["paper", "well-posed"])
@pytest.mark.parametrize("mode", ["exact", "lanczos", "fast"])
def test_a_score_is_in_zero_one_and_its_record_is_whole(preset, mode, circuit):
    options = {"positions": "all"} if any(a.shape[1] == 1 for a in circuit.activations.values()) else {}
    scores = eics.score(circuit, preset=preset, mode=mode, **options)
    for score in [scores] if isinstance(scores, Score) else scores:
        assert score.status in ("ok", "clipped")
        assert 0 <= score.eics < 1
        assert 0 <= score.dei_norm < 1
        assert score.c_sh >= 0
        assert score.eics == pytest.approx(score.dei_norm * score.consistency)
        record = score.to_record()
        assert set(record) >= RECORD
        assert record["edges"] == sorted(record["edges"], key=lambda edge: -edge["share"])
        assert all(set(edge) == EDGE for edge in record["edges"])
        assert Score.from_record(record) == score
        assert (score.emergence_ratio is None) == (preset == "paper")
        assert bool(score.nodes) == (preset == "well-posed")
        if mode == "exact":
            assert score.stderr == {}
        else:
            assert {"eics", "dei", "dei_norm"} <= set(score.stderr)
            assert all(error >= 0 for error in score.stderr.values())


def test_presets_are_those_of_the_spec():
    assert Options(
        alpha=1.0, mode="exact", linearization="jacobian", residual="edge", parts="nodes", metric="euclidean",
        emergence="difference", positions="all", readout="final_norm", seed=0,
    ) == PAPER  # fmt: skip
    changed = {f.name for f in dataclasses.fields(Options) if PAPER[f.name] != WELL_POSED[f.name]}
    assert changed == {"metric", "emergence", "positions", "linearization", "residual"}
    assert Options(
        metric="relative", emergence="intensive", positions="no_sink", linearization="frozen", residual="joint",
        parts="nodes", alpha=1.0,
    ) == WELL_POSED  # fmt: skip


def test_a_preset_can_be_named_unpacked_or_changed():
    circuit = build(1, positions=3)
    named = eics.score(circuit, preset="well-posed")
    assert named == eics.score(circuit, **WELL_POSED) == eics.score(circuit, preset=WELL_POSED)
    assert eics.score(circuit, preset="well-posed", alpha=2.0).alpha == 2.0
    assert (named.metric, named.emergence, named.positions) == ("relative", "intensive", "no_sink")


@given(circuits(batch=2, scale=1.0))
@pytest.mark.parametrize("mode", ["exact", "lanczos", "fast"])
def test_a_prompt_scores_the_same_alone_and_in_a_batch(mode, circuit):
    together = eics.score(circuit, mode=mode)
    for prompt in range(2):
        alone = LinearCircuit(
            {e: m[prompt] for e, m in circuit.maps.items()},
            {n: circuit.as_given(n, a)[prompt] for n, a in circuit.activations.items()},
        )
        one = eics.score(alone, mode=mode)
        assert one.eics == pytest.approx(together[prompt].eics, abs=1e-9)
        assert one.c_sh == pytest.approx(together[prompt].c_sh, rel=1e-9, abs=1e-12)
        assert one.dei == pytest.approx(together[prompt].dei, rel=1e-9, abs=1e-9)


@given(st.integers(0, 200))
@example(158)  # two sketch vectors of Hutch++ are the same
@pytest.mark.parametrize("mode", ["exact", "lanczos", "fast"])
@pytest.mark.parametrize("preset", [PAPER, WELL_POSED.with_(positions="all")])
def test_a_padded_prompt_scores_the_same(preset, mode, seed):
    """Two more positions, masked out, with arbitrary maps and activations there."""
    circuit = build(seed, density=0.5, positions=3, ports=False)
    rng = np.random.default_rng(seed)
    padded = {n for n, a in circuit.activations.items() if a.shape[1] == 3}

    def pad(matrix, edge):
        grown = matrix.numpy()
        if edge.target in padded:
            extra = 2 * circuit.activations[edge.target].shape[2]
            grown = np.vstack([grown, rng.normal(size=(extra, grown.shape[1]))])
        if edge.source in padded:
            extra = 2 * circuit.activations[edge.source].shape[2]
            grown = np.hstack([grown, rng.normal(size=(len(grown), extra))])
        return grown

    activations = {
        n: torch.cat([a[0], torch.ones(2, a.shape[2], dtype=a.dtype)]) if n in padded else circuit.as_given(n, a)
        for n, a in circuit.activations.items()
    }
    longer = LinearCircuit(
        {e: pad(m, e) for e, m in circuit.maps.items()}, activations, positions={n: [0, 1, 2] for n in padded}
    )
    plain, other = (eics.score(c, preset=preset, mode=mode) for c in (circuit, longer))
    for name in ("eics", "c_sh", "dei", "ei_macro", "dei_norm"):
        assert getattr(other, name) == pytest.approx(getattr(plain, name), rel=1e-8, abs=1e-9)


def test_scores_are_deterministic_given_the_seed():
    circuit = build(3, density=0.8)
    for mode in ("lanczos", "fast"):
        assert eics.score(circuit, mode=mode, seed=5) == eics.score(circuit, mode=mode, seed=5)
    assert eics.score(circuit, mode="lanczos", seed=5).dei != eics.score(circuit, mode="lanczos", seed=6).dei


def test_a_zero_macro_map_scores_zero_and_says_why():
    maps = {"x->y": [[1.0, 0.0], [0.0, 0.0]], "y->z": [[0.0, 1.0]]}
    circuit = LinearCircuit(maps, {"x": [1.0, 1.0], "y": [1.0, 0.0], "z": [1.0]})
    for preset in ("paper", "well-posed"):
        results = eics.score(circuit, preset=preset)
        assert results.eics == 0.0
        assert results.ei_macro == 0.0
        assert "macro map is zero" in results.reason
    nothing = LinearCircuit({"x->y": [[0.0]]}, {"x": [1.0], "y": [1.0]})
    for preset in ("paper", "well-posed"):
        assert eics.score(nothing, preset=preset).eics == 0.0


def test_clipping_is_reported():
    circuit = LinearCircuit({"x->y": [[1.0]], "y->z": [[1.0]]}, {n: [1.0] for n in "xyz"})
    results = eics.score(circuit)
    assert results.status == "clipped"
    assert results.eics == 0.0
    assert results.dei == pytest.approx(0.5 * math.log(2) - math.log(2))
    assert results.diagnostics["dei"] == results.dei
    assert "clipped to 0" in results.reason
    assert "clipped" in repr(results)
    batch = LinearCircuit({"x->y": [[1.0]], "y->z": [[1.0]]}, {n: [[1.0], [2.0]] for n in "xyz"}, batched=True)
    assert "Every score is 0" in " ".join(eics.score(batch).summary())


def test_diagnostics():
    circuit = build(9, density=0.8, positions=3)
    result = eics.score(circuit, laplacian=True, curve=True)
    d = result.diagnostics
    assert d["length"] == 3
    assert 0 <= d["share_position_0"] <= 1
    assert d["share_top_edge"] == result.edges[0].share
    assert d["share_largest_part"] == pytest.approx(max(result.ei_parts.values()) / sum(result.ei_parts.values()))
    assert d["edges_left_out"] == 0
    assert d["ei_methods"]["macro"] == "svd"
    assert set(d["ei_methods"]["parts"]) == set(result.ei_parts)
    assert d["spectral_gap"] == pytest.approx(brute_eigenvalues(circuit)[0][d["kernel_dim"]], rel=1e-6)
    assert 0 <= d["projection_distance"] <= 1
    assert set(result.curve) == {"alpha", "dei", "ei_macro", "zeros"}
    frozen = eics.score(circuit, linearization="frozen")
    assert frozen.diagnostics["edges_left_out"] == sum(e.port in ("q", "k") for e in circuit.circuit.edges)
    assert eics.score(circuit, positions="no_sink").diagnostics["share_position_0"] == 0.0
    assert eics.score(circuit, positions="no_sink").diagnostics["length"] == 2


def test_fast_reports_how_far_it_is_from_its_limit():
    circuit = build(9, density=0.8)
    exact = eics.score(circuit)
    for seed in range(20):
        bounds = eics.score(circuit, mode="fast", seed=seed).diagnostics["ei_bounds"]
        for name, value in exact.ei_parts.items():
            assert bounds["parts"][name][0] - 1e-9 <= value <= bounds["parts"][name][1] + 1e-9
        for name, value in {"macro": exact.ei_macro, "dei": exact.dei}.items():
            assert bounds[name][0] - 1e-9 <= value <= bounds[name][1] + 1e-9
    # a sketch as wide as the map has its norm without error
    tight = eics.score(circuit, mode="limit", alpha=1e-7, macro_probes=48).diagnostics["ei_bounds"]
    assert tight["dei"][1] - tight["dei"][0] < 1e-3 * abs(tight["dei"][0])


def test_alpha_auto_is_stored_and_reused():
    circuit = build(5, batch=7, density=0.6)
    results = eics.score(circuit, alpha="auto", target=0.3)
    calibration = results[0].diagnostics["alpha_calibration"]
    rows = sum(circuit.activations[n][0].numel() for n in circuit.circuit.sinks)
    assert np.median([score.ei_macro / rows for score in results]) == pytest.approx(0.3, rel=1e-9)
    assert calibration["median"] == pytest.approx(0.3, rel=1e-9)
    assert calibration["quartiles"][0] < 0.3 < calibration["quartiles"][1]
    again = eics.score(circuit, alpha=results[0].alpha)
    assert [score.eics for score in again] == [score.eics for score in results]


def test_length_correlation_over_a_batch():
    scores = eics.Scores(
        Score(id=i, status="ok", eics=e, diagnostics={"length": n})
        for i, (e, n) in enumerate([(0.1, 4), (0.2, 7), (0.3, 9)])
    )
    assert "positions: 1.00" in " ".join(scores.summary())


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_unknown_choices_are_refused_with_the_known_ones(name):
    with pytest.raises(OptionError) as error:
        eics.score(build(0), **{name: "other"})
    assert str(error.value) == f"The {name!r} option must be one of {', '.join(CHOICES[name])}. Got 'other' instead."


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0}, {"alpha": -1.0}, {"alpha": math.nan}, {"alpha": math.inf}, {"alpha": "high"}, {"alpha": True},
        {"node_probes": 0}, {"macro_probes": 0}, {"node_probes": 3}, {"steps": 0}, {"seed": -1}, {"seed": 0.5},
        {"top_k": 0, "mode": "lanczos"}, {"top_k": 3}, {"target": 0.0},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(options):
    with pytest.raises(OptionError) as error:
        eics.score(build(0), **options)
    assert f"{next(iter(options))!r} option must be" in str(error.value)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("node_probes", 4, 10_000), ("macro_probes", 4, 10_000), ("steps", 1, 10_000), ("seed", 0, 2**63 - 1)],
)
def test_whole_numbers_have_bounds_that_the_error_names(name, least, most):
    for value in (least, most):
        assert eics.Options(**{name: value})[name] == value
    for value in (least - 1, most + 1, float(least), str(least), True):
        with pytest.raises(OptionError) as error:
            eics.Options(**{name: value})
        must = f"a whole number >= {least} and <= {most:,}"
        assert str(error.value) == f"The {name!r} option must be {must}. Got {value!r} instead."


def test_other_bad_calls():
    with pytest.raises(OptionError, match="Unknown option 'alfa'"):
        eics.score(build(0), alfa=1.0)
    with pytest.raises(OptionError, match="'preset' option must be one of paper, well-posed"):
        eics.score(build(0), preset="best")
    with pytest.raises(OptionError, match="'ids' option must be a list with one for each of the 2 prompts"):
        eics.score(build(0, batch=2), ids=["a"])
    with pytest.raises(OptionError, match=r"Node 'a0\.h0' has none left"):
        eics.score(build(0, positions=1, edges=["a0.h0->logits"]), positions="no_sink")
    with pytest.raises(CircuitError, match="At least one edge must carry something"):
        eics.score(build(0, edges=["input->a0.h0<q>"]), linearization="frozen")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"maps": {"x->y": np.ones((2, 3))}}, "The map of edge x->y must be"),
        ({"maps": {"x->y": [[1.0, math.nan]]}}, "The map of edge x->y must be finite. Got nan at index [0, 1]"),
        ({"maps": {"x->y": "text"}}, "The map of edge x->y must be an array of numbers"),
        ({"maps": {"x->y": [[1j, 0]]}}, "real numbers"),
        ({"activations": {"x": [1.0, math.inf], "y": [1.0]}}, "The activation of node 'x' must be finite"),
        ({"activations": {"x": [1.0, 2.0]}}, "Node 'y' has none"),
        ({"activations": {"x": [1.0, 2.0], "y": [1.0], "w": [1.0]}}, "Got 'w'"),
        ({"activations": {"x": 1.0, "y": [1.0]}}, "must be (d,) or (T, d)"),
        ({"activations": {"x": [], "y": [1.0]}}, "not empty"),
        ({"constants": {"y": [1.0, 2.0]}}, "The constant of node 'y' must be shaped like"),
        ({"positions": {"x": [0]}}, "has no positions"),
        ({"batched": True}, "must be (B, d) or (B, T, d)"),
    ],
)
def test_bad_circuits_name_the_node_or_edge(change, says):
    plain = {"maps": {"x->y": np.ones((1, 2))}, "activations": {"x": [1.0, 2.0], "y": [1.0]}}
    with pytest.raises(CircuitError) as error:
        LinearCircuit(**(plain | change))
    assert says in str(error.value)


def test_batches_must_agree():
    with pytest.raises(CircuitError, match=r"same batch\. Node 'y' has 3"):
        LinearCircuit({"x->y": [[1.0]]}, {"x": [[1.0], [2.0]], "y": [[1.0], [2.0], [3.0]]}, batched=True)


def test_numbers_too_large_fail_the_prompt_and_not_the_batch():
    maps = {"x->y": np.array([[[1.0]], [[1e200]]])}
    results = eics.score(LinearCircuit(maps, {"x": [[1.0], [1.0]], "y": [[1.0], [1.0]]}, batched=True))
    assert [score.status for score in results] == ["ok", "failed"]
    assert "too large for float64" in results[1].reason
    assert results[1].eics is None
    assert "failed" in repr(results[1])
    assert "1 of 2 prompts failed" in " ".join(results.summary())


def test_float32_agrees_with_float64():
    plain = build(4, density=0.6)
    single = LinearCircuit(
        plain.maps, {n: plain.as_given(n, a) for n, a in plain.activations.items()}, dtype=torch.float32
    )
    one, two = eics.score(plain), eics.score(single)
    assert two.dtype == "float32"
    assert two.c_sh == pytest.approx(one.c_sh, rel=1e-5)
    assert two.dei == pytest.approx(one.dei, rel=1e-4)


def test_representations_read_well_and_escape():
    circuit = LinearCircuit({"x->y": [[1.0]]}, {"x": [1.0], "y": [1.0]})
    score = eics.score(circuit, ids=["<script>alert(1)</script>"])
    assert "eics=" in repr(score)
    assert "<script>" not in score._repr_html_()
    assert "&lt;script&gt;" in score._repr_html_()
    both = eics.Scores([score])
    assert "<script>" not in both._repr_html_()


def test_an_overflow_fails_only_its_own_prompt():
    """Activations too large to square: in every mode and metric the other prompt is scored as if it were alone."""
    circuit = build(12, density=0.6, batch=2)
    activations = {n: circuit.as_given(n, a).clone() for n, a in circuit.activations.items()}
    for tensor in activations.values():
        tensor[1] *= 1e200
    spoilt = LinearCircuit(circuit.maps, activations, batched=True)
    for options in ({"metric": "relative"}, {"metric": "relative", "mode": "lanczos"}, {"preset": "well-posed"}):
        results = eics.score(spoilt, **options)
        assert [score.status == "failed" for score in results] == [False, True], options
        assert results[0].eics == pytest.approx(eics.score(circuit, **options)[0].eics)


def test_silent_nodes_are_named():
    eye = np.eye(2)
    maps = {"x->y": eye, "y->z": eye}
    silent_sink = LinearCircuit(maps, {"x": [1.0, 0], "y": [1.0, 0], "z": [0.0, 0]})
    assert "z writes nothing" in eics.score(silent_sink, preset="well-posed").reason
    silent_middle = LinearCircuit(maps, {"x": [1.0, 0], "y": [0.0, 0], "z": [1.0, 0]})
    assert "y is zero" in eics.score(silent_middle, preset="well-posed").reason


def test_top_k_is_a_bound_and_not_a_sample():
    circuit = build(9, density=0.8)
    exact = eics.score(circuit, parts="branches")
    result = eics.score(circuit, parts="branches", mode="lanczos", top_k=1)
    assert result.stderr == {}
    assert result.ei_macro < exact.ei_macro
    assert result.diagnostics["ei_methods"]["macro"] == "top-k"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda _: eics.score(None), "'circuit' option must be given"),
        (lambda c: eics.score(c.circuit), "'circuit' option must be given"),
        (lambda c: eics.score(c, preset=None), "'preset' option must be"),
        (lambda c: eics.score(c, ids=5), "'ids' option must be a list"),
        (lambda c: eics.score(c, alpha=10**400), "'alpha' option must be"),
        (lambda c: eics.score(c, alpha=np.array([1.0, 2.0])), "'alpha' option must be"),
        (lambda _: LinearCircuit({"x->y": [[1.0]]}, {"x": [1.0], "y": [1.0]}, dtype=torch.int64), "'dtype' option"),
        (lambda _: LinearCircuit({"x->y": [[1.0]]}, {"x": [1.0], "y": [1.0]}, dtype="float32"), "'dtype' option"),
    ],
)
def test_odd_calls_are_refused_in_one_line(call, says):
    with pytest.raises(eics.EICSError) as error:
        call(build(0))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_numpy_numbers_and_views_are_welcome(tmp_path):
    matrix = np.arange(4.0).reshape(2, 2)
    circuit = LinearCircuit(
        {"x->y": matrix[::-1]}, {"x": np.ones(2)[::-1], "y": np.ones((1, 2))}, positions={"y": np.array([0])}
    )
    result = eics.score(circuit, alpha=np.float32(1), seed=np.int64(3), ids=[np.int64(7)])
    assert result.id == 7
    eics.write_records(result, tmp_path / "one.jsonl")
    assert eics.read_records(tmp_path / "one.jsonl") == [result]
    sparse = LinearCircuit({"x->y": torch.eye(2).to_sparse()}, {"x": [1.0, 1], "y": [1.0, 1]})
    assert eics.score(sparse).c_sh == 0.0


def test_lazy_edge_terms_behave_like_a_tuple():
    terms = EdgeTerms([("a", "b", None), ("a", "c", "q")], [1.0, 3.0], [0.25, 0.75], [math.nan, 0.5], [None, 2.0])
    truth = (EdgeTerm("a", "c", "q", 3.0, 0.75, 0.5, 2.0), EdgeTerm("a", "b", None, 1.0, 0.25, None, None))
    assert (len(terms), tuple(terms), terms[0], terms[-1:]) == (2, truth, truth[0], truth[1:])
    assert terms == truth
    assert truth == terms
    assert hash(terms) == hash(truth)
    assert terms != truth[:1]
