"""Heads carried as z: the same sweeps and edge terms as with their writes, for every family."""

import dataclasses

import pytest
import torch

from eics import Circuit
from eics.circuits.graph import Edge
from eics.linalg.memory import memory_limit
from eics.linearized.junctions import Bundle, Images, Widened, joined
from eics.linearized.paths import PathMap
from eics.scoring.sheaf import sheaf_term
from eics.transformer.adapt import adapt
from eics.transformer.fast_sweep.head_junction import HeadJunction, _Core
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


def pair(family, linearization, restrict="all"):
    """The circuit linearized, and the same without knowing any z: every value is a write there. With `no_sink` some
    heads are kept to some positions, too."""
    circuit = Circuit(EDGES, positions={"a1.h2": [1, 2], "a0.h1": [1, 3]} if restrict == "no_sink" else {})
    short = taken(tiny_model(family), circuit).linearize(linearization).restrict(restrict)
    stalks = {node: dataclasses.replace(stalk, z=None) for node, stalk in short.stalks.items()}
    return short, dataclasses.replace(short, stalks=stalks, shared={})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", LINEARIZATIONS)
@pytest.mark.parametrize("restrict", ["all", "no_sink"])
def test_sweeps_by_z_are_those_by_writes(family, linearization, restrict):
    short, wide = pair(family, linearization, restrict)
    heads = {node for node in short.circuit.inner if node.startswith("a") and short.entries[node]}
    assert set(short.writers) == (set() if "gemma" in family else heads)  # a norm follows gemma's heads
    assert not wide.writers
    for targets in (short.circuit.sinks, ["a1.h2"], ["m2"]):
        one, other = PathMap(short, targets), PathMap(wide, targets)
        torch.testing.assert_close(one.dense(), other.dense())
        check_operator(one)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", LINEARIZATIONS)
@pytest.mark.parametrize("metric", ["euclidean", "relative"])
@pytest.mark.parametrize("restrict", ["all", "no_sink"])
def test_edge_terms_by_z_are_those_by_writes(family, linearization, metric, restrict):
    short, wide = pair(family, linearization, restrict)
    one, other = (sheaf_term(linearized, metric=metric) for linearized in (short, wide))
    assert set(one.names) == set(other.names) == set(short.edges)
    order = [other.names.index(name) for name in one.names]
    torch.testing.assert_close(one.c_sh, other.c_sh)
    torch.testing.assert_close(one.residual, other.residual[:, order])
    torch.testing.assert_close(one.first_position, other.first_position)
    assert one.cosine is not None
    assert other.cosine is not None
    # The Jacobian of a norm annihilates what it was taken at: the first layer's cosines are those of rounding errors.
    kept = [place for place, edge in enumerate(one.names) if not str(edge).startswith("input->a0")]
    torch.testing.assert_close(one.cosine[:, kept], other.cosine[:, order][:, kept], equal_nan=True)


@pytest.mark.parametrize("family", [family for family in FAMILIES if "gemma" not in family])
@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_each_way_is_taken(family, linearization):
    """Heads by virtual weights, all ports of a layer at once; MLPs and the read-out know a way after W_O."""
    short, wide = pair(family, linearization)
    kinds = {level.nodes: [type(junction) for junction in level.junctions] for level in short.levels(short=True)}
    assert kinds[("a1.h2", "a1.h3")] == [HeadJunction]
    assert kinds[("m0",)] == [Bundle]
    assert kinds[("m2",)] == kinds[("logits",)] == [Widened]
    assert all(isinstance(j, Bundle) for level in wide.levels(short=True) for j in level.junctions)
    for node in ("m2", "logits"):
        operator, head = short.entries[node][0].operator, short.stalks["a1.h3"]
        after = operator.after([(short.writers["a1.h3"], head.z)])
        assert after is not None
        torch.testing.assert_close(after.flatten(1), operator.mv(head.flat.unsqueeze(2)).squeeze(2))
    macro = PathMap(short, short.circuit.sinks)
    assert short.narrowed(short.circuit.sinks).shared is short.shared
    assert macro._levels[0].junctions[0] is next(iter(short.junctions))


@pytest.mark.parametrize("linearization", LINEARIZATIONS)
def test_more_parents_than_an_mlp_keeps_matrices_for(linearization):
    """4 heads a layer of 6 numbers each, twice the width is 48: the ninth parent is too many, and goes by its write."""
    edges = [f"input->a{layer}.h{head}" for layer in range(3) for head in range(4)]
    edges += [f"a{layer}.h{head}->m2" for layer in range(3) for head in range(3)] + ["m2->logits"]
    linearized = taken(tiny_model("gpt2"), Circuit(edges)).linearize(linearization)
    operator = linearized.entries["m2"][0].operator
    read = [
        (linearized.writers[edge.source], linearized.stalks[edge.source].z)
        for edge in linearized.entries["m2"][0].edges
    ]
    assert operator.after(read) is None
    assert operator.after(read[:8]) is not None
    stalks = {node: dataclasses.replace(stalk, z=None) for node, stalk in linearized.stalks.items()}
    wide = dataclasses.replace(linearized, stalks=stalks, shared={})
    torch.testing.assert_close(sheaf_term(linearized).c_sh, sheaf_term(wide).c_sh)


def test_virtual_weights_follow_weights_that_change():
    """Of the reader, of the head that is read, and of the norm between them."""
    circuit = Circuit(EDGES)
    module = tiny_module("gpt2")
    model = adapt(module)

    def found(some):
        linearized = taken(some, circuit).linearize("jacobian")
        return torch.cat([sheaf_term(linearized).residual, PathMap(linearized, ["logits"]).dense().flatten(1)], dim=1)

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
    linearized = taken(tiny_model("llama"), Circuit(EDGES)).linearize(linearization)
    (junction,) = (j for level in linearized.levels(short=True) for j in level.junctions if level.nodes[0] == "a1.h2")
    assert isinstance(junction, HeadJunction)
    check_operator(_Core(junction.heads))


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
    torch.testing.assert_close(operator.frobenius_squared(), operator.dense().square().sum(dim=(1, 2)))


def test_a_head_that_was_tampered_with_is_read_by_its_write():
    """Its write is not W_O z: the circuit must not take it for that."""
    from eics.transformer.forward import run
    from eics.transformer.interventions import as_interventions
    from eics.transformer.linearize import TransformerRun

    circuit = Circuit(EDGES)
    model = tiny_model("gpt2")
    change = as_interventions([{"kind": "noise", "node": "a0.h1", "strength": 0.5}])
    state = run(model, PROMPTS, circuit, interventions=[change] * len(PROMPTS))
    short = TransformerRun(state, circuit).linearize("jacobian")
    assert short.stalks["a0.h1"].z is None
    assert "a0.h1" not in short.writers
    assert "a1.h2" in short.writers
    stalks = {node: dataclasses.replace(stalk, z=None) for node, stalk in short.stalks.items()}
    wide = dataclasses.replace(short, stalks=stalks, shared={})
    torch.testing.assert_close(sheaf_term(short).c_sh, sheaf_term(wide).c_sh)
    torch.testing.assert_close(PathMap(short, ["logits"]).dense(), PathMap(wide, ["logits"]).dense())


def test_images_wait_for_each_other_within_the_memory_bound():
    """Ten junctions' images of 3 edges, (2, 3, 4, 5) in float32: 160 bytes an edge, 80 for what it predicts."""
    seen = []

    def images():
        for place in range(10):
            seen.append(place)
            edges = tuple(Edge(f"a{place}.h{head}", "logits") for head in range(3))
            predicted, observed = torch.full((2, 3, 4, 5), float(place)), torch.ones(2, 1, 4, 5)
            yield Images(edges, predicted, observed, written=False)

    with memory_limit(8 * 320 / (1 << 20)):
        chunks = joined(images())
        first = next(chunks)
        assert (len(first.edges), seen) == (6, [0, 1, 2])  # two wait, the third does not fit
        rest = list(chunks)
    assert [len(chunk.edges) for chunk in rest] == [6, 6, 6, 6]
    whole = list(joined(images()))
    assert [len(chunk.edges) for chunk in whole] == [30]
    torch.testing.assert_close(whole[0].predicted, torch.cat([first.predicted, *(c.predicted for c in rest)], dim=1))
    assert whole[0].observed.shape == whole[0].predicted.shape
    own = Images((Edge("m0", "m1"),), torch.ones(2, 1, 4, 5), torch.ones(2, 1, 4, 5))
    assert next(joined([own, *images()])) is own
