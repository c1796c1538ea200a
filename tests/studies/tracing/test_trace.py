"""Tracing whole texts: the numbers, alone and in a batch, what is found, and what is refused."""

import json
import math

import numpy as np
import pytest
import torch

import eics
from eics.errors import OptionError
from eics.scoring.calibration.sheaf.bases import coordinates
from eics.scoring.calibration.sheaf.samples import sample
from eics.studies.tracing.result import Trace
from eics.transformer.adapt import adapt
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from support.learned import pooled_calibration, random_prompts, small
from support.tiny_models import tiny_module


@pytest.fixture(scope="module")
def texts():
    return random_prompts(7, seed=5)


@pytest.fixture(scope="module")
def traces(texts):
    model, circuit = small()
    return eics.trace(model, circuit, texts, calibration=pooled_calibration())


def test_z_is_that_of_the_definition(texts, traces):
    """log d_v^2 of every row, computed at all positions at once, over the mean and deviation of the reference."""
    model, circuit = small()
    learned = pooled_calibration().learned
    mean, deviation = learned.positions.usual
    for tokens, trace in zip(texts, traces, strict=True):
        samples = sample(TransformerRun(run(model, [tokens], circuit), circuit), learned.sheaf.layout, "all")
        allowed = learned.sheaf.regressions.distances(coordinates(learned.sheaf.bases, samples)).allowed
        z = (((allowed + 1e-9).log() - mean.unsqueeze(1)) / deviation.unsqueeze(1)).numpy()
        z[samples.counts.numpy() == 0] = np.nan
        z[~learned.reference.judged.numpy()] = np.nan
        np.testing.assert_allclose(trace.table[1:, 1:], z[1:], atol=1e-3)
        np.testing.assert_allclose(trace.table[0, 1:], z[0], atol=1e-2)  # explained to the last digits: rounding alone
        assert np.isnan(trace.table[:, 0]).all()


def test_a_text_is_traced_the_same_alone_in_a_batch_and_padded(texts, traces):
    model, circuit = small()
    for tokens, together in zip(texts, traces, strict=True):
        alone = eics.trace(model, circuit, tokens, calibration=pooled_calibration())
        np.testing.assert_allclose(alone.table, together.table, atol=1e-3)
        assert alone.p_value == pytest.approx(together.p_value, abs=0.05)
    fewer = eics.trace(model, circuit, texts, calibration=pooled_calibration(), batch_size=2, memory=0.01)
    for one, other in zip(fewer, traces, strict=True):
        np.testing.assert_allclose(one.table, other.table, atol=1e-3)


def test_a_trace_is_one_result_for_each_position(texts, traces):
    trace = traces[0]
    assert len(trace) == len(texts[0]) == len(list(trace))
    first, last = trace[0], trace[-1]
    assert (first.largest, first.node, first.suspects, first.position) == (None, None, (), 0)
    assert set(first.z.values()) == {None}
    assert last.token_id == texts[0][-1]
    assert last.z["logits"] is not None
    assert trace[1].z["logits"] is None
    known = {node: z for node, z in last.z.items() if z is not None}
    assert last.largest == max(known.values()) == known[last.node]
    assert [one.position for one in trace[1:3]] == [1, 2]
    assert "\n" not in repr(trace)
    assert "\n" not in repr(last)
    assert "\n" not in repr(traces)


def test_suspects_are_what_reaches_the_threshold():
    """A level at which there are some; the p-value says the same as the threshold."""
    model, circuit = small()
    found = eics.trace(model, circuit, random_prompts(40, seed=6), calibration=pooled_calibration(), level=0.4)
    threshold = found.header.threshold
    assert 0 < sum(bool(trace.suspects) for trace in found) < 40
    for trace in found:
        expected = {(v, t) for v, t in zip(*np.nonzero(np.nan_to_num(trace.table, nan=-9) >= threshold), strict=True)}
        assert {(found.header.nodes.index(s.node), s.position) for s in trace.suspects} == expected
        assert bool(trace.suspects) == (trace.p_value <= 0.4)
        assert [s.z for s in trace.suspects] == sorted((s.z for s in trace.suspects), reverse=True)
        assert {s.position for s in trace.suspects} == {one.position for one in trace if one.suspects}
        if trace.suspects:
            assert trace.sentence.startswith(f"{trace.most_unusual.node} wrote something unusual at token")


def test_lines_are_json_and_read_back_as_they_were(traces):
    for trace in traces:
        line = json.loads(json.dumps(trace.to_record(), allow_nan=False))
        again = Trace.from_record(traces.header, line)
        assert again.to_record() == trace.to_record()
        assert line["largest"] == [one.largest for one in trace]
        assert line["at"] == [one.node for one in trace]
        assert len(line["z"]) == len(traces.header.nodes)
        assert {len(row) for row in line["z"]} == {len(line["tokens"])}
    header = json.loads(json.dumps(traces.header.to_record(), allow_nan=False))
    assert (header["format"], header["version"], header["level"]) == ("eics-trace", 1, 0.05)
    assert header["nodes"] == list(pooled_calibration().learned.sheaf.layout.judged)
    with pytest.raises(eics.RecordError, match="trace of text 3"):
        Trace.from_record(traces.header, traces[3].to_record() | {"z": [[1.0]]})


def test_texts_that_cannot_be_traced_say_why_and_the_others_go_on():
    model, circuit = small()
    given = [[5, 6, 7], [3], [1, 99999], list(range(33)), [], [8, 9]]
    found = eics.trace(model, circuit, given, calibration=pooled_calibration())
    assert [trace.status for trace in found] == ["ok", "failed", "failed", "failed", "failed", "ok"]
    reasons = ["two tokens", "token ids must be 0 to 60", "at most 32 tokens", "this one is empty"]
    for trace, reason in zip(found[1:5], reasons, strict=True):
        assert reason in trace.reason
        assert len(trace) == 0
        assert list(trace) == []
        assert (trace.p_value, trace.suspects, trace.most_unusual) == (None, (), None)
        assert json.loads(json.dumps(trace.to_record(), allow_nan=False))["z"] == []
        assert Trace.from_record(found.header, trace.to_record()).reason == trace.reason


@pytest.mark.parametrize("generate", [0, 2])
def test_a_text_on_which_the_model_overflows_fails_alone(generate):
    module = tiny_module("llama", torch.float32)
    model, circuit = adapt(module), small()[1]
    calibration = eics.calibrate(model, circuit, random_prompts(160), terms="sheaf", at="all")
    with torch.no_grad():
        module.get_input_embeddings().weight[11] = math.inf  # a token of no text but one
    found = eics.trace(
        model, circuit, [[5, 6, 7], [5, 11, 7], [8, 9]], calibration=calibration, allow_changed_weights=True,
        generate=generate,
    )  # fmt: skip
    assert [trace.status for trace in found] == ["ok", "failed", "ok"]
    assert found[1].reason == "the model's activations are not finite on this text"
    assert all(np.isfinite(trace.table[0, 1:]).all() for trace in (found[0], found[2]))


def test_a_text_longer_than_all_of_the_reference_has_a_note():
    model, circuit = small()
    short, long = eics.trace(model, circuit, [[5, 6, 7, 8], list(range(20))], calibration=pooled_calibration())
    assert not short.notes
    assert "20 tokens, the texts of the calibration 4 to 8" in long.notes[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"level": 0.001}, "'level' option must be at least"),
        ({"level": 2.0}, "'level' option must be a number > 0 and < 1"),
        ({"generate": -1}, "'generate' option must be a whole number >= 0"),
        ({"temperature": 1.0}, "'temperature' option must be given with generate"),
        ({"generate": 2, "temperature": -1.0}, "'temperature' option must be a finite number >= 0"),
        ({"batch_size": 0}, "'batch_size' option must be a whole number >= 1"),
        ({"generate": 2, "interventions": [eics.Noise("m0", 1.0)]}, "'at' option must be a list of the prompt's own"),
        ({"out": "traces.csv"}, "'out' option must be a .jsonl file"),
    ],
)
def test_options_out_of_range_are_one_line(given, message):
    model, circuit = small()
    with pytest.raises(OptionError, match=message):
        eics.trace(model, circuit, [5, 6, 7], calibration=pooled_calibration(), **given)


def test_other_weights_and_circuits_are_refused():
    model, circuit = small()
    with pytest.raises(OptionError, match="same circuit"):
        eics.trace(model, eics.Circuit(["input->m0", "m0->logits"]), [5, 6], calibration=pooled_calibration())
    other = adapt(tiny_module("llama", torch.float32), name="another")
    other.module.model.norm.weight.data += 0.1
    with pytest.raises(OptionError, match="same model"):
        eics.trace(other, circuit, [5, 6], calibration=pooled_calibration())
    quantiles = eics.calibrate(model, circuit, random_prompts(5), preset="paper", mode="limit")
    with pytest.raises(OptionError, match="must have a learned sheaf to trace"):
        eics.trace(model, circuit, [5, 6], calibration=quantiles)


def test_resumed_is_as_uninterrupted(tmp_path, texts):
    model, circuit = small()
    how = {"calibration": pooled_calibration()}
    eics.trace(model, circuit, texts, out=tmp_path / "whole.jsonl", **how)
    whole = (tmp_path / "whole.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    part = tmp_path / "part.jsonl"
    for kept in (0, 1, 4, len(lines)):
        part.write_bytes(b"".join(lines[:kept]) + (lines[kept][:30] if kept < len(lines) else b""))
        found = eics.trace(model, circuit, texts, out=part, resume=True, **how)
        assert part.read_bytes() == whole
        assert [trace.id for trace in found] == list(range(len(texts)))
    with pytest.raises(OptionError, match="exists"):
        eics.trace(model, circuit, texts, out=part, **how)
    with pytest.raises(eics.RecordError, match="same level"):
        eics.trace(model, circuit, texts, out=part, resume=True, level=0.1, **how)
    with pytest.raises(eics.RecordError, match="same tokens of 0"):
        eics.trace(model, circuit, [[1, 2, 3], *texts[1:]], out=part, resume=True, **how)
    (tmp_path / "other.jsonl").write_text('{"format": "eics-circuit"}\n')
    with pytest.raises(eics.RecordError, match="`eics trace` wrote"):
        eics.trace(model, circuit, texts, out=tmp_path / "other.jsonl", resume=True, **how)
    assert part.read_bytes() == whole


def test_a_notebook_shows_tokens_and_escapes_them(traces):
    shown = traces[0]._repr_html_()
    assert traces[0].sentence.partition(" (p")[0] in shown
    failed = Trace(traces.header, "<b>", None, reason="a <script>")
    assert "<script>" not in failed._repr_html_()
    assert "&lt;b&gt;" in failed._repr_html_()
