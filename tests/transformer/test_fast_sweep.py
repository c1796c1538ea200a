"""The tricks of the transformer's engine, each seen to be used; that they change no number: `test_engines.py`."""

import pytest
import torch

from eics import Circuit
from eics.circuits.graph import Edge
from eics.linalg.memory import memory_limit
from eics.linalg.structure import structure
from eics.linearized.sweep import PlainEngine
from eics.scoring.sheaf import sheaf_term
from eics.transformer.adapt import adapt
from eics.transformer.fast_sweep.from_z import apply_to_z
from eics.transformer.fast_sweep.head_step import HeadStep, _Core
from eics.transformer.fast_sweep.steps import EntryFromZ, StackedEntries, StepPredictions, merged
from eics.transformer.head import HeadMap
from support.operators import check_operator
from support.taken import PROMPTS, taken
from support.tiny_models import FAMILIES, tiny_model, tiny_module

LINEARIZATIONS = ["jacobian", "frozen"]
EDGES = [
    "input->a0.h1<q>", "input->a0.h1<v>", "input->a0.h0", "input->m0", "m0->a1.h2<k>", "m0->a1.h2", "a0.h1->a1.h2",
    "a0.h1->a1.h2<v>", "a0.h0->a1.h2<v>", "a0.h0->a1.h3<q>", "a0.h1->a1.h3<k>", "a0.h3->a1.h3<v>", "a1.h2->m2",
    "a1.h3->m2", "m0->m2", "a1.h2->a2.h0<v>", "a0.h1->a2.h0<k>", "m2->logits", "a1.h3->logits", "a2.h0->logits",
]  # fmt: skip
"""Plain entries and ports, both on one head and from one parent, a source that is a head, MLPs on both sides."""


def swept(family, linearization):
    """The circuit's engine, and the definition."""
    linearized = taken(tiny_model(family), Circuit(EDGES)).linearize(linearization)
    return linearized.engine(), PlainEngine(linearized)


@pytest.mark.parametrize("family", [family for family in FAMILIES if "gemma" not in family])
@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_each_trick_is_used(family, linearization):
    """Heads by virtual weights, all ports of a layer at once; MLPs and the read-out apply their maps to z."""
    engine, _ = swept(family, linearization)
    stalks = engine.linearized.stalks
    heads = {node for node, _ in engine.node_maps() if node.startswith("a")}
    assert set(engine.output_factors) == heads
    kinds = {level.nodes: [type(step) for step in level.steps] for level in engine.levels(by_z=True)}
    assert kinds[("a1.h2", "a1.h3")] == [HeadStep]
    assert kinds[("m0",)] == [StackedEntries]
    assert kinds[("m2",)] == kinds[("logits",)] == [EntryFromZ]
    for node in ("m2", "logits"):
        operator, head = engine.linearized.entries[node][0].operator, stalks["a1.h3"]
        image = apply_to_z(operator, [(engine.output_factors["a1.h3"], head.z)])
        assert image is not None
        torch.testing.assert_close(image.flatten(1), operator.mv(head.flat.unsqueeze(2)).squeeze(2))
    macro = engine.macro_map()
    assert macro.engine is not engine  # cut down to the answer position
    assert macro.engine.levels(by_z=True)[0].steps[0] is engine.levels(by_z=True)[0].steps[0]


@pytest.mark.parametrize("family", [family for family in FAMILIES if "gemma" in family])
def test_heads_before_a_norm_are_carried_as_writes(family):
    engine, _ = swept(family, "jacobian")
    assert not engine.output_factors
    assert {type(step) for level in engine.levels(by_z=True) for step in level.steps} == {StackedEntries}


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_more_parents_than_an_mlp_keeps_matrices_for(linearization):
    """4 heads a layer of 6 numbers each, twice the width is 48: the ninth parent is too many, and goes by its write."""
    edges = [f"input->a{layer}.h{head}" for layer in range(3) for head in range(4)]
    edges += [f"a{layer}.h{head}->m2" for layer in range(3) for head in range(3)] + ["m2->logits"]
    linearized = taken(tiny_model("gpt2"), Circuit(edges)).linearize(linearization)
    engine, entry = linearized.engine(), linearized.entries["m2"][0]
    read = [(engine.output_factors[edge.source], linearized.stalks[edge.source].z) for edge in entry.edges]
    assert apply_to_z(entry.operator, read) is None
    assert apply_to_z(entry.operator, read[:8]) is not None
    torch.testing.assert_close(sheaf_term(engine).c_sh, sheaf_term(PlainEngine(linearized)).c_sh)


def test_virtual_weights_follow_weights_that_change():
    """Of the reader, of the head that is read, and of the norm between them."""
    circuit = Circuit(EDGES)
    module = tiny_module("gpt2")
    model = adapt(module)

    def found(some):
        engine = taken(some, circuit).linearize("jacobian").engine()
        return torch.cat([sheaf_term(engine).residual, engine.macro_map().dense().flatten(1)], dim=1)

    before = found(model)
    blocks = module.transformer.h
    weights = [block.attn.c_proj.weight for block in blocks[:2]]
    for weight in (*weights, blocks[1].attn.c_attn.weight, blocks[1].ln_1.weight, blocks[2].ln_2.weight):
        with torch.no_grad():
            weight.mul_(1.5)
        after = found(model)
        assert not torch.allclose(after, before)
        torch.testing.assert_close(after, found(adapt(module)))
        before = after


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_what_heads_do_between_reading_and_writing_is_an_operator(linearization):
    engine, _ = swept("llama", linearization)
    (step,) = (step for level in engine.levels(by_z=True) for step in level.steps if level.nodes[0] == "a1.h2")
    assert isinstance(step, HeadStep)
    check_operator(_Core(step.heads))


@pytest.mark.parametrize("length", [3, 6, 9])
@pytest.mark.parametrize("ports", [None, "q", "k", "v"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_closed_norms_of_prompts_shorter_and_longer_than_a_head_is_wide(family, ports, length):
    """6 numbers a head, 8 in qwen3."""
    into = "" if ports is None else f"<{ports}>"
    circuit = Circuit([f"input->a1.h2{into}", "a1.h2->logits"])
    prompts = [list(range(2, 2 + length)), list(range(20, 20 + length))]
    operator = taken(tiny_model(family), circuit, prompts).linearize("jacobian").entries["a1.h2"][0].operator
    assert isinstance(operator, HeadMap)
    torch.testing.assert_close(structure(operator).frobenius_squared(), operator.dense().square().sum(dim=(1, 2)))


def test_a_head_that_was_tampered_with_is_read_by_its_write():
    """Its write is not W_O z: the circuit must not take it for that."""
    from eics.transformer.forward import run
    from eics.transformer.interventions import as_interventions
    from eics.transformer.linearize import TransformerRun

    circuit = Circuit(EDGES)
    model = tiny_model("gpt2")
    change = as_interventions([{"kind": "noise", "node": "a0.h1", "strength": 0.5}])
    state = run(model, PROMPTS, circuit, interventions=[change] * len(PROMPTS))
    linearized = TransformerRun(state, circuit).linearize("jacobian")
    engine, plain = linearized.engine(), PlainEngine(linearized)
    assert linearized.stalks["a0.h1"].z is None
    assert "a0.h1" not in engine.output_factors
    assert "a1.h2" in engine.output_factors
    torch.testing.assert_close(sheaf_term(engine).c_sh, sheaf_term(plain).c_sh)
    torch.testing.assert_close(engine.macro_map().dense(), plain.macro_map().dense())


def test_predictions_wait_for_each_other_within_the_memory_bound():
    """Ten steps' predictions for 3 edges, (2, 3, 4, 5) in float32: 160 bytes an edge, 80 for what it predicts."""
    seen = []

    def predictions():
        for place in range(10):
            seen.append(place)
            edges = tuple(Edge(f"a{place}.h{head}", "logits") for head in range(3))
            predicted, observed = torch.full((2, 3, 4, 5), float(place)), torch.ones(2, 1, 4, 5)
            yield StepPredictions(edges, predicted, observed, are_writes=False)

    with memory_limit(8 * 320 / (1 << 20)):
        chunks = merged(predictions())
        first = next(chunks)
        assert (len(first.edges), seen) == (6, [0, 1, 2])  # two wait, the third does not fit
        rest = list(chunks)
    assert [len(chunk.edges) for chunk in rest] == [6, 6, 6, 6]
    whole = list(merged(predictions()))
    assert [len(chunk.edges) for chunk in whole] == [30]
    torch.testing.assert_close(whole[0].predicted, torch.cat([first.predicted, *(c.predicted for c in rest)], dim=1))
    assert whole[0].observed.shape == whole[0].predicted.shape
    own = StepPredictions((Edge("m0", "m1"),), torch.ones(2, 1, 4, 5), torch.ones(2, 1, 4, 5))
    assert next(merged([own, *predictions()])) is own
