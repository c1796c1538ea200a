"""Every family's nodes against autograd, dense algebra and the model itself."""

import dataclasses
from itertools import product

import numpy as np
import pytest
import torch

import eics
from eics import Circuit, LinearCircuit
from eics.circuits.graph import Kind, Node
from eics.errors import CircuitError, ModelError
from eics.linalg.memory import memory_limit
from eics.linalg.spectrum import exact, exact_at
from eics.linalg.stacking import stack
from eics.linalg.structure import GramOnly, Kronecker, LowRankUpdate, structure, with_cached_blocks
from eics.linearized.sweep import PlainEngine
from eics.scoring import emergence
from eics.scoring.parts import Part, macro_part, node_parts
from eics.scoring.sheaf import sheaf_term
from eics.transformer.adapt import adapt
from eics.transformer.check import check_adapter
from eics.transformer.fast_sweep.answer_position import narrowed, read_position, restrict_to
from eics.transformer.fast_sweep.kronecker_paths import KroneckerPaths
from eics.transformer.fast_sweep.steps import StackedEntries
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.mlp import MLPMap
from support import brute as twin
from support import naive
from support.operators import check_operator, node_map
from support.taken import PROMPTS, taken
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model, tiny_module


def true_jacobian(model, state, node: Node, port, kind="final_norm", tokens=None):
    """The first prompt's Jacobian of a node through a port (None: all), by autograd of the naive functions."""
    spec = model.transformer
    if node.kind is Kind.MLP:
        x = state.mlp_reads[node.layer][0]
        return torch.func.jacrev(lambda y: naive.mlp(spec.blocks[node.layer].mlp, y).flatten())(x)
    if node.kind is Kind.LOGITS:
        x, at = state.final_read[0], int(state.answer[0])
        return torch.func.jacrev(lambda y: naive.readout(spec, y, at, kind, tokens).flatten())(x)
    attention = spec.blocks[node.layer].attention
    x = state.attention_reads[node.layer][0]
    post = None
    if attention.post_norm is not None:
        summed = state.summed[node.layer][0]
        post = attention.post_norm.weight / torch.sqrt((summed**2).mean(-1, keepdim=True) + attention.post_norm.eps)
    rotation = state.rotations.get(node.layer)

    def function(y):
        streams = [y if port in (None, name) else x for name in "qkv"]
        return naive.head(attention, node.head, rotation, post, *streams).flatten()

    return torch.func.jacrev(function)(x)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_node_and_port_against_autograd(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    state = run(model, PROMPTS[:1], circuit)
    linearized = TransformerRun(state, circuit).linearize("jacobian")
    for name in circuit.inner:
        for entry in linearized.entries[name]:
            truth = true_jacobian(model, state, Node.parse(name), entry.edges[0].port).flatten(1)
            dense = entry.operator.dense()[0]
            torch.testing.assert_close(dense, truth, rtol=1e-8, atol=1e-9 * float(truth.abs().max()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_every_operator_is_adjoint_batched_and_sliceable(family, linearization):
    model = tiny_model(family)
    for readout, tokens in (("final_norm", None), ("logits", None), ("tokens", (4, 9))):
        linearized = taken(model, some_circuit(model), readout=readout, tokens=tokens).linearize(linearization)
        for node in linearized.circuit.inner if readout == "final_norm" else ("logits",):
            for entry in linearized.entries[node]:
                check_operator(entry.operator)


def eigenvalues(grams):
    """Of the Gram matrices of a batch of maps, block by block, largest first."""
    return torch.linalg.eigvalsh(grams).flatten(1).sort(dim=1, descending=True).values


def padded(values, like):
    """As many as `like` has, with zeros or without the last ones, which must be nothing."""
    wide = torch.nn.functional.pad(values, (0, max(0, like.shape[1] - values.shape[1])))
    rest = wide[:, like.shape[1] :]
    torch.testing.assert_close(rest, torch.zeros_like(rest), rtol=0.0, atol=1e-9 * float(values.max()))
    return wide[:, : like.shape[1]]


def check_spectrum(operator, *, closed):
    """Singular values and Gram matrices in closed form against those of the dense matrix."""
    truth = torch.linalg.svdvals(operator.dense()).square()
    known = structure(operator)
    squares = known.singular_squares() if isinstance(known, Kronecker) else None
    gram = known.gram_matrix() if isinstance(known, GramOnly) else None
    assert ((gram if squares is None else squares) is not None) == closed
    for found in (squares, None if gram is None else eigenvalues(gram)):
        if found is not None:
            ordered = found.sort(dim=1, descending=True).values
            torch.testing.assert_close(ordered, padded(truth, ordered), rtol=1e-8, atol=1e-10 * float(truth.max()))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_spectra_in_closed_form(family, linearization):
    """Heads by ports, MLPs, read-outs and all paths to a read-out: padded, restricted, in relative units or not."""
    model = tiny_model(family)
    edges = ["input->a0.h1", "a0.h1->m0", "m0->a1.h2<k>", "a0.h1->a1.h2<q>", "input->a1.h2", "a0.h1->a2.h0<v>"]
    edges += ["a1.h2->m1", "m1->logits", "a1.h2->logits", "a2.h0->logits", "input->m1", "m0->logits"]
    only_heads = ["input->a0.h0", "a0.h0->a1.h1", "a0.h0->a2.h1", "a1.h1->a2.h1", "a0.h2->a1.h1<v>", "a0.h2->logits"]
    only_heads += ["a2.h1->logits", "input->a2.h1<v>", "a2.h1->m2", "m2->logits"]
    readouts = (("final_norm", None), ("logits", None), ("tokens", (4, 9)))
    for wired, (readout, tokens) in product((edges, [*edges, "input->logits"], only_heads), readouts):
        whole = taken(model, Circuit(wired), readout=readout, tokens=tokens).linearize(linearization)
        for linearized, relative in product((whole, whole.restrict("no_sink")), (False, True)):
            check_spectrum(macro_part(linearized.engine(), relative=relative).operator, closed=True)
            for part in node_parts(linearized.engine(), relative=relative):
                mlp = part.names[0].startswith("m")
                if wired is edges and (readout == "final_norm" or part.names == ("logits",)):
                    check_spectrum(part.operator, closed=not (mlp and "gemma" in family))


@pytest.mark.parametrize("family", FAMILIES)
def test_short_prompts_are_a_low_rank_update_of_a_kronecker_product(family):
    """As many columns as positions squared, for prompts half as long as a head is wide; EI as from the dense matrix."""
    model = tiny_model(family)
    wired = Circuit(["input->a0.h1", "input->a0.h3", "a0.h1->a1.h2", "input->a1.h2", "a1.h2->logits", "a0.h3->logits"])
    whole = taken(model, wired, [[3, 5, 7], [1, 2]]).linearize("jacobian")
    for linearized, relative in product((whole, whole.restrict("no_sink")), (False, True)):
        parts = {part.names[0]: part for part in node_parts(linearized.engine(), relative=relative)}
        stacked = Part.stacked([parts["a0.h1"], parts["a0.h3"]])
        for operator in (stacked.operator, parts["a1.h2"].operator):
            known = structure(operator)
            assert isinstance(known, LowRankUpdate) == ("gemma" not in family)  # a norm follows gemma's heads
            if isinstance(known, LowRankUpdate):
                assert known.parts()[1].shape[2] == known.columns == 9
            truth = torch.linalg.svdvals(operator.dense()).square()
            for alpha in (0.1, 1.0, 100.0):
                expected = 0.5 * torch.log1p(alpha * truth).sum(dim=1)
                torch.testing.assert_close(exact(operator).ei(alpha).value, expected, rtol=1e-9, atol=1e-11)
                torch.testing.assert_close(exact_at(operator, alpha).ei(alpha).value, expected, rtol=1e-9, atol=1e-11)


def test_paths_of_held_heads_are_sums_of_kronecker_products():
    """Products of weights alone, once for all prompts; not where there are more paths than memory for them."""
    model = tiny_model("gpt2")
    wired = ["input->a0.h0", "a0.h0->a1.h1", "a0.h0->a2.h1", "a1.h1->a2.h1", "a2.h1->logits"]
    linearized = taken(model, Circuit(wired)).linearize("frozen")
    places = read_position(linearized.entries["logits"][0].operator)
    found = KroneckerPaths.of(linearized, ("input",), places, ["a2.h1"])
    assert len(found.terms) == 2
    plain = structure(linearized.engine().macro_map()).gram_matrix()
    with memory_limit(1e-4):
        assert KroneckerPaths.of(linearized, ("input",), places, ["a2.h1"]) is None
        torch.testing.assert_close(structure(linearized.engine().macro_map()).gram_matrix(), plain)
    jacobian = taken(model, Circuit(wired)).linearize("jacobian")
    assert KroneckerPaths.of(jacobian, ("input",), places, ["a2.h1"]) is None


def test_low_rank_updates_go_prompt_by_prompt_where_memory_is_short():
    model = tiny_model("llama")
    wired = Circuit(["input->a0.h1", "a0.h1->logits"])
    linearized = taken(model, wired, [[3, 5, 7], [1, 2]]).linearize("jacobian")
    operator = node_parts(linearized.engine(), relative=False)[0].operator
    whole = exact_at(operator, 1.0, "cholesky").ei(1.0).value
    with memory_limit(1e-3):
        torch.testing.assert_close(exact_at(operator, 1.0, "cholesky").ei(1.0).value, whole)
        torch.testing.assert_close(exact(operator).ei(1.0).value, whole)


def test_a_circuit_that_ends_elsewhere_has_no_answer_position():
    model = tiny_model("gpt2")
    for wired in (["input->a0.h0", "a0.h0->m1"], ["input->m0", "m0->logits", "input->a1.h0"]):
        linearized = taken(model, Circuit(wired)).linearize("jacobian")
        assert structure(linearized.engine().macro_map()) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
def test_heads_of_a_layer_go_in_one_product(family, linearization):
    """Stacked maps are the single ones, padding and restricted positions included; and a layer is one product."""
    model = tiny_model(family)
    edges = [f"input->a1.h{head}{port}" for head in range(4) for port in ("", "<v>", "<q>")]
    edges += [f"a1.h{head}->logits" for head in range(4)]
    circuit = Circuit(edges, positions={"a1.h2": [0, 2]})
    linearized = taken(model, circuit).linearize(linearization)
    (level, _) = linearized.engine().levels()
    assert level.nodes == ("a1.h0", "a1.h1", "a1.h2", "a1.h3")
    assert len(level.steps) == (3 if linearization == "jacobian" else 2)
    draw = torch.Generator().manual_seed(0)
    for step in level.steps:
        assert isinstance(step, StackedEntries)
        assert len(step.entries) == 4
        check_operator(step.operator)
        drawn = torch.randn(5, 3, 6 * 24, 2, generator=draw, dtype=torch.float64)
        values, cotangents = {"input": drawn[4]}, {f"a1.h{head}": drawn[head] for head in range(4)}
        images, backs = dict(step.carry(values)), [back for _, back in step.pull(cotangents)]
        for entry, back in zip(step.entries, backs, strict=True):
            torch.testing.assert_close(images[entry.target], entry.operator.mv(values["input"]))
            torch.testing.assert_close(back, entry.operator.rmv(cotangents[entry.target]))
        single = torch.cat([entry.operator.dense() for entry in step.entries])
        torch.testing.assert_close(step.operator.dense(), single)
        for bound in (64, 0.01):  # all at once; one head and prompt at a time
            with memory_limit(bound):
                squared = structure(stack([entry.operator for entry in step.entries])).frobenius_squared()
            assert (squared is None) == ("gemma" in family)
            if squared is not None:
                torch.testing.assert_close(squared, single.square().sum(dim=(1, 2)))
        closed = eigenvalues(structure(step.operator).gram_matrix())
        torch.testing.assert_close(closed, padded(torch.linalg.svdvals(single).square(), closed))


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "llama"])
@pytest.mark.parametrize(("readout", "tokens"), [("logits", None), ("tokens", (4, 9))])
def test_readouts_against_autograd(family, readout, tokens):
    model = tiny_model(family)
    run_ = taken(model, Circuit(["input->logits"]), PROMPTS[:1], readout, tokens, answer=[3])
    truth = true_jacobian(model, run_.state, Node.parse("logits"), None, readout, tokens).flatten(1)
    linearized = run_.linearize("jacobian")
    torch.testing.assert_close(linearized.entries["logits"][0].operator.dense()[0], truth, rtol=1e-8, atol=1e-10)
    logits = run_.state.logits[0] - run_.state.logits[0].mean()
    torch.testing.assert_close(linearized.stalks["logits"].flat[0], logits if tokens is None else logits[list(tokens)])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("readout", ["final_norm", "logits", "tokens"])
def test_a_frozen_full_circuit_explains_itself(family, readout):
    """Every upstream node as parent and no damage: joint and propagated C_sh are 0 to the model's float32 norms."""
    model = tiny_model(family)
    linearized = taken(model, full_circuit(model), readout=readout, tokens=(4, 9)).linearize("frozen")
    for residual in ("joint", "propagated"):
        for metric in ("euclidean", "relative"):
            assert float(sheaf_term(linearized.engine(), residual=residual, metric=metric).c_sh.max()) < 5e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_annihilate_under_the_true_jacobian(family):
    """The spec's warning: with every parent in the circuit the edge terms sum to about nothing."""
    model = tiny_model(family)
    linearized = taken(model, full_circuit(model)).linearize("jacobian")
    assert float(sheaf_term(linearized.engine(), residual="joint").c_sh.min()) > 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_the_dense_circuit(family):
    """Every edge's map as a matrix from autograd, scored as an explicit circuit; node parts by slogdet."""
    model = tiny_model(family)
    circuit = some_circuit(model)
    run_ = taken(model, circuit, PROMPTS[:1])
    linearized = run_.linearize("jacobian")
    maps = {e: true_jacobian(model, run_.state, Node.parse(e.target), e.port).flatten(1) for e in circuit.edges}
    activations = {n: s.activation[0] if n != "logits" else s.flat[0] for n, s in linearized.stalks.items()}
    explicit = LinearCircuit(maps, activations)
    for options in (
        {},
        {"positions": "no_sink"},
        {"residual": "joint", "metric": "relative"},
        {"residual": "propagated"},
    ):
        ours = eics.score(model, circuit, PROMPTS[0], parts="branches", **options)
        dense = eics.score(explicit, parts="branches", **options)
        for name in ("eics", "c_sh", "dei", "ei_macro"):
            assert getattr(ours, name) == pytest.approx(getattr(dense, name), rel=1e-6, abs=1e-9)
        assert ours.ei_parts == pytest.approx(dense.ei_parts, rel=1e-6)
        assert {str(e): e.share for e in ours.edges} == pytest.approx({str(e): e.share for e in dense.edges}, rel=1e-6)
    by_node = eics.score(model, circuit, PROMPTS[0])
    for node in circuit.inner:
        ports = dict.fromkeys(edge.port for edge in circuit.parents[node])
        matrix = np.hstack([true_jacobian(model, run_.state, Node.parse(node), p).flatten(1).numpy() for p in ports])
        assert by_node.ei_parts[node] == pytest.approx(twin.ei(matrix, 1.0), rel=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["head", "mlp"])
def test_finite_differences_of_the_model_itself(family, kind):
    """Move what a layer reads (and nothing else) and see its write move as the map says."""
    model = tiny_model(family)
    node = "a1.h2" if kind == "head" else "m1"
    circuit = Circuit([f"input->{node}"])
    sites = model.adapter.sites(model.adapter.layers(model.module)[1])
    place = sites.attention_norm if kind == "head" else sites.mlp_norm
    linearized = taken(model, circuit, PROMPTS[:1]).linearize("jacobian")
    direction = torch.randn(1, 6, 24, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    moved = []
    for step in (1e-2, -1e-2):
        handle = place.register_forward_pre_hook(lambda _, args, s=step: (args[0] + s * direction,))
        try:
            state = run(model, PROMPTS[:1], circuit)
        finally:
            handle.remove()
        written = state.mlp_writes[1] if kind == "mlp" else state.z[1][..., 2 * _width(model) : 3 * _width(model)]
        moved.append(written)
    slope = (moved[0] - moved[1]) / 2e-2
    if kind == "head":
        attention = linearized.entries[node][0].operator.state
        slope = attention.write(slope.unsqueeze(0))[0]
    predicted = linearized.entries[node][0].operator.mv(direction.flatten(1).unsqueeze(2)).view_as(slope)
    assert float((predicted - slope).norm() / slope.norm()) < 2e-3  # central differences and float32 norms


def _width(model):
    return model.transformer.blocks[1].attention.w_o.shape[2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["exact", "lanczos", "fast"])
@pytest.mark.parametrize("preset", ["paper", "well-posed"])
def test_a_prompt_scores_the_same_alone_and_padded_in_a_batch(family, mode, preset):
    model = tiny_model(family)
    circuit = some_circuit(model)
    together = eics.score(model, circuit, PROMPTS, preset=preset, mode=mode)
    for score, prompt in zip(together, PROMPTS, strict=True):
        alone = eics.score(model, circuit, prompt, preset=preset, mode=mode)
        assert alone.forward_passes == score.forward_passes == 1
        for name in ("eics", "c_sh", "dei", "ei_macro"):
            assert getattr(alone, name) == pytest.approx(getattr(score, name), rel=1e-6, abs=1e-9)


def test_what_happened_is_what_is_scored():
    """A tampered write shows as inconsistent, and the shares point at it."""
    module = tiny_module("llama")
    model = adapt(module)
    circuit = full_circuit(model)
    noise = torch.randn(24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    handle = model.adapter.layers(module)[1].mlp.register_forward_hook(lambda _, __, out: out + noise)
    try:
        found = eics.score(model, circuit, PROMPTS, linearization="frozen", residual="joint", mode="fast")
    finally:
        handle.remove()
    for score in found:
        assert score.nodes[0].node == "m1"
        assert score.nodes[0].share > 0.999
        assert score.c_sh > 0.1
    calm = eics.score(model, circuit, PROMPTS, linearization="frozen", residual="joint", mode="fast")
    assert max(score.c_sh for score in calm) < 1e-5


def test_both_presets_share_one_pass():
    from eics.models.prompts import as_prompts
    from eics.scoring.batch import score_prompts

    model = tiny_model("gpt2")
    calls = []
    handle = model.module.register_forward_hook(lambda *_: calls.append(1))
    try:
        pairs = list(score_prompts(model, some_circuit(model), as_prompts(PROMPTS), [eics.PAPER, eics.WELL_POSED]))
    finally:
        handle.remove()
    assert len(calls) == 1
    assert [[score.metric for score in pair] for pair in pairs] == [["euclidean", "relative"]] * 3


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(family, dtype):
    model = adapt(tiny_module(family, dtype))
    assert model.dtype == torch.float32
    single, double = (eics.score(m, some_circuit(m), PROMPTS[0]) for m in (model, tiny_model(family)))
    assert single.status != "failed"
    assert single.c_sh == pytest.approx(double.c_sh, rel=1e-3 if dtype == torch.float32 else 0.1)
    if dtype == torch.float32:
        assert single.dei == pytest.approx(double.dei, rel=1e-3)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementations_agree(implementation):
    module = tiny_module("qwen3")
    module.set_attn_implementation(implementation)
    model = adapt(module)
    found = eics.score(model, some_circuit(model), PROMPTS[0])
    assert found.dei == pytest.approx(eics.score(tiny_model("qwen3"), some_circuit(model), PROMPTS[0]).dei, rel=1e-5)


def test_training_mode_and_hooks_are_left_as_they_were():
    model = adapt(tiny_module("gpt2"))
    model.module.train()
    eics.score(model, some_circuit(model), PROMPTS[0], mode="fast")
    assert model.module.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda b: dataclasses.replace(b, attention=dataclasses.replace(b.attention, scale=9.0)), "head 0 in layer 1"),
        (lambda b: dataclasses.replace(b, mlp=dataclasses.replace(b.mlp, activation=torch.tanh)), "the MLP in layer 1"),
        (lambda b: dataclasses.replace(b, parallel=not b.parallel), "what the MLP reads in layer 1"),
        (
            lambda b: dataclasses.replace(b, attention=dataclasses.replace(b.attention, b_o=None)),
            "MLP reads in layer 1",
        ),
    ],
)
def test_a_wrong_adapter_is_told_where_it_goes_wrong(break_it, says):
    model = adapt(tiny_module("gpt2"))
    blocks = list(model.transformer.blocks)
    blocks[1] = break_it(blocks[1])
    model._reading.transformer = dataclasses.replace(model.transformer, blocks=tuple(blocks))
    with pytest.raises(ModelError, match=says):
        check_adapter(model)


def test_unknown_models_are_refused_by_name():
    import transformers

    config = transformers.OPTConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, ffn_dim=8)
    with pytest.raises(ModelError, match=r"one of gpt2, gpt_neox, llama.*Got 'opt'.*add-a-family"):
        adapt(transformers.AutoModelForCausalLM.from_config(config))
    with pytest.raises(ModelError, match="loaded transformers model"):
        adapt("smollm2")
    with pytest.raises(ModelError, match="folder or hub id"):
        eics.load_model("/nowhere/at/all")


@pytest.mark.parametrize(
    ("family", "edges", "says"),
    [
        ("gpt2", ["input->a99.h0"], "layers 0 to 2"),
        ("gpt2", ["input->a1.h7"], "heads 0 to 3"),
        ("gpt2", ["x->logits"], "Got 'x'"),
        ("gpt_neox", ["a1.h1->m1"], "run in parallel, so m1 does not read a1.h1"),
    ],
)
def test_a_circuit_that_the_model_does_not_have(family, edges, says):
    with pytest.raises(CircuitError, match=says):
        eics.score(tiny_model(family), Circuit(edges), PROMPTS[0])


def test_prompts_that_cannot_be_scored_do_not_stop_the_others():
    model = tiny_model("gpt2")
    prompts = [[1, 2, 3], [], [99], list(range(40)), [4], [5, 6], "text"]
    found = eics.score(model, some_circuit(model), prompts, preset="well-posed", ids=list("abcdefg"))
    assert [score.status == "failed" for score in found] == [False, True, True, True, True, False, True]
    reasons = {score.id: score.reason for score in found if score.status == "failed"}
    assert "empty" in reasons["b"]
    assert "0 to 60" in reasons["c"]
    assert "at most 32 tokens" in reasons["d"]
    assert "none left" in reasons["e"]
    assert "no tokenizer" in reasons["g"]
    assert [score.id for score in found] == list("abcdefg")
    alone = eics.score(model, some_circuit(model), [5, 6], preset="well-posed")
    assert found[5].eics == pytest.approx(alone.eics, rel=1e-9)


def test_an_answer_elsewhere():
    model = tiny_model("llama")
    circuit = Circuit(["input->m1", "m1->logits"])
    early, cut = eics.score(model, circuit, PROMPTS[0], answer=3), eics.score(model, circuit, PROMPTS[0][:4])
    assert early.ei_macro == pytest.approx(cut.ei_macro, rel=1e-6)
    assert eics.score(model, circuit, PROMPTS[0], answer=-3).ei_macro == pytest.approx(early.ei_macro)
    assert "answer position" in eics.score(model, circuit, PROMPTS[0], answer=9).reason


def test_nodes_restricted_to_positions():
    model = tiny_model("llama")
    edges = ["input->a0.h1", "a0.h1->m1", "m1->logits"]
    kept = {"a0.h1": [2, 3], "m1": [5]}
    run_ = taken(model, Circuit(edges), PROMPTS[:1])
    maps = {Circuit(edges).edges[i]: run_.linearize("jacobian").entries[t][0].operator.dense()[0]
            for i, t in enumerate(["a0.h1", "m1", "logits"])}  # fmt: skip
    stalks = run_.linearize("jacobian").stalks
    given_as = {n: s.activation[0] if n != "logits" else s.flat[0] for n, s in stalks.items()}
    truth = eics.score(LinearCircuit(maps, given_as, positions=kept))
    found = eics.score(model, Circuit(edges, positions=kept), PROMPTS[0])
    assert found.c_sh == pytest.approx(truth.c_sh, rel=1e-9)
    assert found.ei_macro == pytest.approx(truth.ei_macro, rel=1e-9)


def test_non_finite_activations_fail_their_prompt_alone():
    model = adapt(tiny_module("gpt2"))

    def poison(_, __, out):
        out[1] = float("nan")
        return out

    circuit = some_circuit(model)
    plain = eics.score(model, circuit, PROMPTS)
    handle = model.adapter.layers(model.module)[0].mlp.register_forward_hook(poison)
    try:
        found = eics.score(model, circuit, PROMPTS)
    finally:
        handle.remove()
    assert [score.status == "failed" for score in found] == [False, True, False]
    assert "not finite" in found[1].reason
    assert found[0].dei == pytest.approx(plain[0].dei, rel=1e-9)


def test_readout_tokens_must_be_given():
    model = tiny_model("gpt2")
    with pytest.raises(eics.OptionError, match="'tokens' option must be a list of ids from 0 to 60"):
        eics.score(model, some_circuit(model), PROMPTS[0], readout="tokens")
    assert eics.score(model, some_circuit(model), PROMPTS[0], readout="tokens", tokens=[3, 4]).readout == "tokens"


def test_memory_is_cut_into_chunks_without_changing_numbers():
    model = tiny_model("gemma3")
    whole, cut = (eics.score(model, some_circuit(model), PROMPTS, memory=m) for m in (256, 0.02))
    for a, b in zip(whole, cut, strict=True):
        assert a.dei == pytest.approx(b.dei, rel=1e-9)


def test_ports_of_a_head_share_a_gram_matrix_of_its_width_prompt_by_prompt():
    model = tiny_model("llama")
    circuit = some_circuit(model)
    linearized = TransformerRun(run(model, PROMPTS, circuit), circuit).linearize("jacobian")
    for one in (linearized, linearized.prompt(1), linearized.double().restrict("no_sink")):
        operator = node_map(one, "a0.h1")  # entered through <q> and <v>
        for map_ in (operator, operator.prompt(0), operator.double()):
            known = structure(map_)
            assert known.side == 6 * 6  # positions x a head's width
            values = torch.linalg.eigvalsh(known.gram_matrix()[:, 0]).flip(-1)
            squares = torch.linalg.svdvals(map_.dense().double())[:, :36].square()
            torch.testing.assert_close(values.clamp(min=0), squares, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("linearization", ["frozen", "jacobian"])
def test_maps_that_remember_are_the_same_maps(family, linearization):
    model = tiny_model(family)
    circuit = some_circuit(model)
    linearized = TransformerRun(run(model, PROMPTS, circuit), circuit).linearize(linearization)
    cached = linearized.with_operators(with_cached_blocks)
    places = torch.tensor([len(prompt) - 1 for prompt in PROMPTS])
    for node in ("m0", "m2"):
        plain, knows = (one.entries[node][0].operator for one in (linearized, cached))
        check_operator(knows)
        torch.testing.assert_close(knows.dense(), plain.dense())
        of_plain, of_cached = structure(plain), structure(knows)
        torch.testing.assert_close(of_cached.diagonal_blocks(), of_plain.diagonal_blocks())
        by_hand = plain.dense().unflatten(1, (6, -1)).unflatten(3, (6, -1)).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        torch.testing.assert_close(of_plain.diagonal_blocks(), by_hand)
        torch.testing.assert_close(restrict_to(knows, places).dense(), restrict_to(plain, places).dense())
        if of_plain.gram_matrix() is not None:
            torch.testing.assert_close(of_cached.gram_matrix(), of_plain.gram_matrix())
    torch.testing.assert_close(cached.engine().macro_map().dense(), linearized.engine().macro_map().dense())


@pytest.mark.parametrize("options", [{}, {"alpha": "auto"}, {"metric": "relative"}, {"positions": "no_sink"}])
def test_prompts_apart_and_together_and_without_memory_have_the_same_information(options, monkeypatch):
    """Matrices of all prompts are kept where 4 x 64 MB hold them, or of one prompt after another, or none."""
    model = tiny_model("llama")
    circuit = some_circuit(model)
    found = []
    for most in (4, 1.5e-3, 1e-9):
        monkeypatch.setattr(emergence, "_CACHED_BLOCKS", most)
        found.append([score.to_record() for score in eics.score(model, circuit, PROMPTS, mode="exact", **options)])
    made = []
    plain = MLPMap._middle
    monkeypatch.setattr(MLPMap, "_middle", lambda self, *weights: made.append(self.batch) or plain(self, *weights))
    for most, batches in ((4, {3}), (1.5e-3, {1})):
        monkeypatch.setattr(emergence, "_CACHED_BLOCKS", most)
        made.clear()
        eics.score(model, circuit, PROMPTS, mode="exact", **options)
        assert set(made) == batches
        assert len(made) == 2 * 3 // max(batches)  # two MLPs, each once for a prompt
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one["ei_macro"] == pytest.approx(other["ei_macro"], rel=1e-9)
            assert one["ei_parts"] == pytest.approx(other["ei_parts"], rel=1e-9)


def test_alpha_is_calibrated_once_for_all_prompts():
    model = tiny_model("gpt2")
    prompts = [[i, i + 1, i + 2, i + 3] for i in range(1, 12)]
    few, all_ = (
        eics.score(model, some_circuit(model), prompts, alpha="auto", batch_size=size, preset="well-posed")
        for size in (3, 11)
    )
    assert len({score.alpha for score in few}) == 1
    assert few[0].alpha == pytest.approx(all_[0].alpha, rel=1e-9)
    assert few[0].diagnostics["alpha_calibration"]["prompts"] == 11


def test_out_of_memory_halves_the_batch():
    """The model itself refuses batches of more than two: all prompts are scored all the same."""
    model = adapt(tiny_module("gpt2"))
    sizes = []

    def refuse(_, __, keywords):
        sizes.append(len(keywords["input_ids"]))
        if len(keywords["input_ids"]) > 2:
            raise torch.OutOfMemoryError("too large")

    handle = model.module.register_forward_pre_hook(refuse, with_kwargs=True)
    prompts = [*PROMPTS, [2, 4, 6]]
    try:
        with pytest.warns(RuntimeWarning, match="A batch of 4 prompts ran out of memory and was cut; 2 fit"):
            found = eics.score(model, some_circuit(model), prompts, mode="fast")
    finally:
        handle.remove()
    assert sizes == [4, 2, 2]
    plain = eics.score(model, some_circuit(model), prompts, mode="fast")
    assert [s.dei for s in found] == pytest.approx([s.dei for s in plain], rel=1e-9)


def test_out_of_memory_alone_fails_that_prompt():
    model = adapt(tiny_module("gpt2"))

    def refuse(_, __, keywords):
        if keywords["input_ids"].shape[1] > 4:
            raise torch.OutOfMemoryError("too large")

    handle = model.module.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        with pytest.warns(RuntimeWarning, match="1 fit"):
            found = eics.score(model, some_circuit(model), PROMPTS, mode="fast")
    finally:
        handle.remove()
    assert [score.status == "failed" for score in found] == [True, False, True]
    assert "out of memory" in found[0].reason


@pytest.mark.parametrize("linearization", ["jacobian", "frozen"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sweeps_that_compute_the_answer_alone_are_the_same_maps(family, linearization):
    """m1 and m2 are read by the read-out and each other only; m0 by a head, at every position."""
    model = tiny_model(family)
    edges = ["input->m0", "m0->a1.h1", "a1.h1->m2", "input->m1", "m1->m2", "m1->logits", "m2->logits"]
    circuit = Circuit(edges)
    linearized = TransformerRun(run(model, PROMPTS, circuit), circuit).linearize(linearization)
    cut = narrowed(linearized, circuit.sinks)
    alone = {node for node in circuit.inner if read_position(cut.entries[node][0].operator) is not None}
    assert alone == {"m1", "m2", "logits"}
    whole, narrow = PlainEngine(linearized).macro_map(), cut.engine().macro_map(circuit.sinks)
    torch.testing.assert_close(narrow.dense(), whole.dense())
    x = torch.randn(narrow.batch, narrow.cols, 3, dtype=narrow.dtype, generator=torch.Generator().manual_seed(0))
    y = torch.randn(narrow.batch, narrow.rows, 3, dtype=narrow.dtype, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(narrow.mv(x), whole.mv(x))
    torch.testing.assert_close((narrow.mv(x) * y).sum(), (x * narrow.rmv(y)).sum())
    for place in range(narrow.batch):
        some = slice(place, place + 1)
        torch.testing.assert_close(narrow.prompt(place).double().mv(x[some].double()), whole.mv(x)[some].double())
    entry = cut.entries["m2"][0].operator
    z = torch.randn(entry.batch, entry.cols, 2, dtype=entry.dtype, generator=torch.Generator().manual_seed(2))
    w = torch.randn(entry.batch, entry.rows, 2, dtype=entry.dtype, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close((entry.mv(z) * w).sum(), (z * entry.rmv(w)).sum())


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_a_short_prompt_beside_one_longer_than_the_window(family):
    """Its padding fills whole windows, in which nothing can be attended to; it scores as it does alone."""
    model = tiny_model(family)
    prompts = [list(range(7, 19)), [20, 21, 22]]
    together = eics.score(model, some_circuit(model), prompts, mode="fast")[1]
    alone = eics.score(model, some_circuit(model), prompts[1], mode="fast")
    assert together.status == alone.status == "clipped"
    assert (together.c_sh, together.dei) == pytest.approx((alone.c_sh, alone.dei), rel=1e-9)
