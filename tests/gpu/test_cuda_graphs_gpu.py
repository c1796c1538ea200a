"""On a GPU everything after a forward pass is replayed as a CUDA graph, with the results of computing without one.

These tests need a GPU: `make gpu-test`.
"""

from contextlib import nullcontext

import pytest
import torch

import eics
from eics.scoring.cuda_graphs import graph_cache, without_cuda_graphs
from eics.scoring.options import PAPER, WELL_POSED
from eics.transformer.adapt import adapt
from support.tiny_models import FAMILIES, some_circuit, tiny_module

SAME = [[5, 17, 3, 42, 8, 1], [9, 2, 33, 7, 12, 40]]
MIXED = [[5, 17, 3, 42, 8, 1], [9, 2, 33]]
OTHER = [[1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]]


def _on_gpu(family, dtype=torch.float32):
    return adapt(tiny_module(family, dtype).to("cuda"), check=False)


def _records(model, circuit, prompts, **options):
    return [score.to_record() for score in eics.score(model, circuit, prompts, mode="fast", **options)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("preset", ["paper", "well-posed"])
@pytest.mark.parametrize("linearization", ["frozen", "jacobian"])
@pytest.mark.parametrize("prompts", [SAME, MIXED], ids=["same", "padded"])
def test_replayed_results_are_the_computed_ones(family, preset, linearization, prompts):
    model = _on_gpu(family)
    circuit = some_circuit(model)
    how = {"preset": preset, "linearization": linearization}
    others = [[token + 1 for token in prompt] for prompt in prompts]
    for batch in (prompts, others, prompts, others):
        records = _records(model, circuit, batch, **how)
        with without_cuda_graphs():
            assert records == _records(model, circuit, batch, **how)
    assert graph_cache(model).replayed == 3


def test_presets_of_one_pass_are_replayed_together():
    from eics.models.prompts import as_prompts
    from eics.scoring.batch import score_prompts

    model = _on_gpu("llama")
    circuit = some_circuit(model)
    configurations = [PAPER.with_(mode="fast"), WELL_POSED.with_(mode="fast")]
    for batch in (SAME, OTHER, SAME):
        both = [list(row) for row in score_prompts(model, circuit, as_prompts(batch), configurations)]
        with without_cuda_graphs():
            assert both == [list(row) for row in score_prompts(model, circuit, as_prompts(batch), configurations)]
    assert graph_cache(model).replayed == 2


def test_a_graph_does_not_outlive_its_weights():
    model = _on_gpu("gpt2")
    circuit = some_circuit(model)
    for batch in (SAME, OTHER, SAME):
        _records(model, circuit, batch)
    assert graph_cache(model).replayed == 2
    with torch.no_grad():
        model.module.transformer.h[1].attn.c_attn.weight.mul_(1.5)
    for _ in range(4):
        records = _records(model, circuit, SAME)
        with without_cuda_graphs():
            assert records == _records(model, circuit, SAME)
    assert graph_cache(model).replayed > 2


def test_a_batch_that_is_not_finite_is_not_replayed():
    model = _on_gpu("gpt2")
    circuit = some_circuit(model)
    for batch in (SAME, OTHER, SAME):
        good = _records(model, circuit, batch)

    def poison(_, __, out):
        out[1] = float("nan")
        return out

    handle = model.adapter.layers(model.module)[0].mlp.register_forward_hook(poison)
    records = _records(model, circuit, SAME)
    handle.remove()
    assert [record["status"] for record in records] == [good[0]["status"], "failed"]
    assert records[0]["dei"] == good[0]["dei"]
    assert _records(model, circuit, SAME) == good


def test_graphs_are_bounded_and_share_their_memory():
    model = _on_gpu("gpt2")
    circuit = some_circuit(model)
    for length in range(2, 14):
        for _ in range(2):
            _records(model, circuit, [list(range(length)), list(range(1, length + 1))])
    assert len(graph_cache(model).entries) == 8
    assert graph_cache(model).replayed == 12
    with without_cuda_graphs():
        want = _records(model, circuit, [list(range(13)), list(range(1, 14))])
    assert _records(model, circuit, [list(range(13)), list(range(1, 14))]) == want


def test_graphs_are_freed_when_memory_runs_out(monkeypatch):
    from eics.scoring import batch as conductor

    model = _on_gpu("gpt2")
    circuit = some_circuit(model)
    for batch in (SAME, OTHER, SAME):
        want = _records(model, circuit, batch)
    plain, short = conductor._linearize_and_compute, [True]

    def compute(*arguments):
        if short.pop():
            short.append(False)
            raise torch.OutOfMemoryError
        return plain(*arguments)

    monkeypatch.setattr(conductor, "_linearize_and_compute", compute)
    with without_cuda_graphs():
        assert _records(model, circuit, SAME) == want
    assert not graph_cache(model).entries


def test_batches_are_computed_if_recording_fails(monkeypatch):
    model = _on_gpu("gpt2")
    circuit = some_circuit(model)

    def refuse(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    for batch in (SAME, OTHER, SAME):
        records = _records(model, circuit, batch)
        with without_cuda_graphs():
            assert records == _records(model, circuit, batch)
    assert graph_cache(model).replayed == 0


def test_products_of_half_precision_models_are_rounded_and_records_say_so(monkeypatch):
    model = _on_gpu("llama", torch.bfloat16)
    circuit = some_circuit(model)
    rounded = _records(model, circuit, SAME)
    monkeypatch.setattr("eics.scoring.batch.products", lambda *_: nullcontext())
    with without_cuda_graphs():
        unrounded = _records(model, circuit, SAME)
    for one, other in zip(rounded, unrounded, strict=True):
        assert one["diagnostics"]["products"] == "tf32; for norms of maps bfloat16"
        assert "products" not in other["diagnostics"]
        assert one["ei_macro"] == pytest.approx(other["ei_macro"], rel=2e-2)
        assert one["ei_macro"] != other["ei_macro"]
        assert one["c_sh"] == pytest.approx(other["c_sh"], rel=2e-3)
        for name, part in one["ei_parts"].items():
            assert part == pytest.approx(other["ei_parts"][name], rel=1e-2)
