"""What a circuit explains of its nodes' writes: the answer position alone against the maps of all positions."""

import numpy as np
import pytest
import torch

import eics
from eics.circuits.graph import Circuit, Node
from eics.circuits.random_circuits import random_like
from eics.transformer.explained import observe
from eics.transformer.forward import run
from eics.transformer.linearize import Linearizer, TransformerRun
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model

PROMPTS = [[5, 9, 2, 40, 7, 11], [3, 1, 8], [17, 4, 4, 22, 60, 9, 33]]


def state_of(model, circuit, answer=None, interventions=None):
    return run(model, PROMPTS, circuit, answer=answer, interventions=interventions)


def drawn_circuits(model):
    rng = np.random.default_rng(0)
    return [some_circuit(model), *(random_like(some_circuit(model), _Shape(model), rng) for _ in range(3))]


class _Shape:
    def __init__(self, model):
        self.layers, self.heads, self.parallel = (
            model.shape.n_layers,
            model.shape.n_heads,
            model.shape.parallel_attn_mlp,
        )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("answer", [None, [3, 0, 5]])
def test_the_answer_position_alone_has_the_numbers_of_all_positions(family, answer):
    model = tiny_model(family)
    for circuit in [*drawn_circuits(model), full_circuit(model)]:
        state = state_of(model, circuit, answer)
        one, every = (observe(TransformerRun(state, circuit), at) for at in ("answer", "all"))
        for name in circuit.order:
            for kind in ("writes", "explained"):
                here, there = getattr(one, kind).get(name), getattr(every, kind).get(name)
                if here is None:
                    assert there is None
                    assert not circuit.parents[name]
                    continue
                rows = there if name == "logits" else there[torch.arange(3), state.answer].unsqueeze(1)
                torch.testing.assert_close(here, rows, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_explained_is_the_dense_sum_over_parents(family):
    """Every edge's matrix, times what its parent wrote at all positions, plus the constant."""
    model = tiny_model(family)
    circuit = some_circuit(model)
    state = state_of(model, circuit)
    made = TransformerRun(state, circuit)
    maps, observed = Linearizer(made, frozen=True), observe(made)
    writes = {name: maps.written(Node.parse(name)) for name in circuit.order}
    for name in circuit.inner:
        node = Node.parse(name)
        total = maps.constant(node).expand_as(writes[name]).clone()
        for edge in circuit.parents[name]:
            if edge.port in ("q", "k"):
                continue
            dense = maps.map(node, edge.port).dense()
            total += (dense @ writes[edge.source].flatten(1).unsqueeze(2)).reshape(total.shape)
        at_answer = total if name == "logits" else total[torch.arange(3), state.answer].unsqueeze(1)
        torch.testing.assert_close(observed.explained[name], at_answer, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_full_graph_explains_every_write(family):
    model = tiny_model(family)
    circuit = full_circuit(model)
    observed = observe(TransformerRun(state_of(model, circuit), circuit))
    for name in circuit.inner:
        torch.testing.assert_close(
            observed.explained[name], observed.writes[name], rtol=1e-4, atol=1e-5
        )  # norms of transformers round to float32


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_intervention_changes_the_write_and_what_reads_it(family):
    model = tiny_model(family)
    circuit = full_circuit(model)
    noise = [[eics.Noise("a1.h2", 1.0)] for _ in PROMPTS]
    observed = observe(TransformerRun(state_of(model, circuit, interventions=noise), circuit))
    for name in circuit.inner:
        gap = (observed.explained[name] - observed.writes[name]).norm()
        assert (gap > 1e-3) == (name == "a1.h2"), name


def test_a_head_that_only_queries_and_keys_enter_is_explained_by_its_constant():
    model = tiny_model("llama")
    circuit = Circuit(["input->a0.h1<q>", "input->m0", "m0->logits", "a0.h1->logits"])
    made = TransformerRun(state_of(model, circuit), circuit)
    constant = Linearizer(made, frozen=True).constant(Node.parse("a0.h1"))
    expected = constant.expand(3, 7, -1)[torch.arange(3), made.state.answer].unsqueeze(1)
    torch.testing.assert_close(observe(made).explained["a0.h1"], expected)


def test_a_restricted_circuit_is_judged_by_its_own_positions():
    model = tiny_model("llama")
    edges = ["input->a0.h1<v>", "a0.h1->m1", "m1->logits"]
    plain, restricted = Circuit(edges), Circuit(edges, {"input": [0]})
    one, other = (observe(TransformerRun(state_of(model, c), c)).explained["a0.h1"] for c in (plain, restricted))
    assert (one - other).norm() > 1e-3
