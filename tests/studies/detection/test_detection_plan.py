"""Which node of which prompt is damaged, and that each kind of damage does what it says and nothing else."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eics.errors import OptionError
from eics.studies.detection.observations import observe_batch
from eics.studies.detection.plan import KINDS, OFF, Damage, intervention, plan
from eics.studies.detection.ways import RecomputedWay
from eics.transformer.forward import run
from eics.transformer.interventions.donors import bind, with_writes
from support.detection import fitted, halves, people
from support.tiny_models import FAMILIES, some_circuit, tiny_model

NODES = ("m0", "a0.h1", "m1", "a1.h0", "a1.h3", "m2")
GROUPS = ["x", "y", "x", "z", "y", "x", "w", "z", "z", "x", "v"]
PROMPT, DONOR = (3, 5, 7, 11, 13, 17), (9, 8, 7, 6)


@given(
    st.lists(st.sampled_from("abcd"), min_size=2, max_size=30).filter(lambda groups: len(set(groups)) > 1),
    st.dictionaries(st.sampled_from(KINDS), st.integers(0, 9)),
    st.integers(0, 5),
)
def test_every_node_is_damaged_equally_often_and_donors_are_of_other_groups(groups, per_prompt, seed):
    damages = plan(groups, NODES, per_prompt, seed)
    mlps = [node for node in NODES if node.startswith("m")]
    for kind in KINDS:
        pool = mlps if kind == "read" else NODES
        of_kind = [damage for damage in damages if damage.kind == kind]
        by_prompt = Counter(damage.prompt for damage in of_kind)
        expected = min(per_prompt.get(kind, 0), len(pool))
        assert [by_prompt[prompt] for prompt in range(len(groups))] == [expected] * len(groups)
        by_node = Counter(damage.node for damage in of_kind)
        assert set(by_node) <= set(pool)
        assert max(by_node[node] for node in pool) - min(by_node[node] for node in pool) <= 1
    assert all(groups[damage.donor] != groups[damage.prompt] for damage in damages)
    assert len({(damage.prompt, damage.node, damage.kind) for damage in damages}) == len(damages)
    assert [damage.prompt for damage in damages] == sorted(damage.prompt for damage in damages)


def test_the_seed_decides_the_plan_and_nothing_else():
    per_prompt = {"write": 2, "read": 1, "steer": 1}
    once = plan(GROUPS, NODES, per_prompt, 7)
    assert plan(GROUPS, NODES, per_prompt, 7) == once
    assert plan(GROUPS, NODES, per_prompt, 8) != once
    assert len({damage.donor for damage in once}) > 3
    writes = [damage for damage in once if damage.kind == "write"]
    assert plan(GROUPS, NODES, {"write": 2}, 7) == writes  # a kind does not depend on the others


def test_where_nothing_can_be_damaged_nothing_is():
    assert plan(GROUPS, ("a0.h1",), {"read": 3}, 0) == []
    assert plan(GROUPS, (), {"write": 3}, 0) == []
    assert plan(["one", "one"], NODES, {}, 0) == []


@pytest.mark.parametrize("groups", [["one"], ["one", "one", "one"]])
def test_prompts_of_one_group_have_no_donors(groups):
    with pytest.raises(OptionError, match=r"at least two groups, because a donor is of another one. Got 1"):
        plan(groups, NODES, {"write": 1}, 0)


def test_unknown_kinds_are_refused():
    with pytest.raises(OptionError, match="per_prompt"):
        plan(GROUPS, NODES, {"writes": 1}, 0)
    with pytest.raises(AssertionError):
        intervention(Damage(0, "m1", "writes", 1), [PROMPT, DONOR], lambda _: torch.zeros(24))


def test_every_kind_has_its_intervention():
    names = {
        kind: intervention(Damage(0, "m1", kind, 1), [PROMPT, DONOR], lambda _: torch.zeros(24)).kind
        for kind in (*KINDS, OFF)
    }
    kinds = {"write": "patch", "read": "patch_read", "mean": "ablate", "noise": "noise", "steer": "steer"}
    assert names == kinds | {OFF: "patch"}


def damaged_state(model, circuit, damage, mean=lambda _: torch.zeros(24)):
    """A run with the damage, beside an undamaged prompt of another length."""
    tokens = [PROMPT, DONOR]
    rows, _ = with_writes(model, [bind(model, circuit, [intervention(damage, tokens, mean)]), ()])
    return run(model, tokens, None, interventions=rows)


def before_the_end(state):
    """What every position of both prompts but the last of the first read and wrote."""
    stores = (state.attention_reads, state.mlp_reads, state.mlp_writes, state.z)
    both = [tensor for store in stores for tensor in store.values()]
    first, second = (torch.cat([tensor[row, :stop] for tensor in both], dim=-1) for row, stop in ((0, -1), (1, 4)))
    return torch.cat([first.flatten(), second.flatten()])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("kind", "node"), [(k, n) for k in KINDS for n in ("m1", "a1.h2") if (k, n) != ("read", "a1.h2")]
)
def test_damage_is_at_the_last_position_of_its_prompt_alone(family, kind, node):
    model = tiny_model(family)
    circuit = some_circuit(model)
    mean = torch.linspace(-1, 1, 24).double()
    plain = run(model, [PROMPT, DONOR], None)
    state = damaged_state(model, circuit, Damage(0, node, kind, 1), lambda _: mean)
    torch.testing.assert_close(before_the_end(state), before_the_end(plain), rtol=0, atol=0)
    before, after = plain.write(node)[0, -1], state.write(node)[0, -1]
    change = after - before
    size = torch.linalg.vector_norm(before)
    assert float(torch.linalg.vector_norm(change)) > 1e-3
    if kind == "write":
        torch.testing.assert_close(after, plain.write(node)[1, len(DONOR) - 1])
    elif kind == "mean":
        torch.testing.assert_close(after, mean)
    elif kind == "steer":
        torch.testing.assert_close(torch.linalg.vector_norm(change), size)
    elif kind == "noise":
        assert 0.4 < float(torch.linalg.vector_norm(change) / size) < 1.8
    for name in ("input", "a0.h1", "m0", "a1.h0"):  # what comes before is untouched at the last position too
        assert torch.equal(state.write(name), plain.write(name))
    if node == "m1":  # what goes on is the stream with the change, no matter whether a read or a write was damaged
        grown = state.attention_reads[2][0, -1] - plain.attention_reads[2][0, -1]
        torch.testing.assert_close(grown, change, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_patched_read_takes_from_the_donor_what_does_not_come_from_parents(family):
    model = tiny_model(family)
    circuit = some_circuit(model)
    (parent,) = [edge.source for edge in circuit.parents["m2"]]
    state = damaged_state(model, circuit, Damage(0, "m2", "read", 1))
    plain = run(model, [PROMPT, DONOR], None)
    rest = plain.mlp_reads[2][1, len(DONOR) - 1] - plain.write(parent)[1, len(DONOR) - 1]
    torch.testing.assert_close(state.mlp_reads[2][0, -1], rest + state.write(parent)[0, -1])
    if family == "gpt2":  # and the module's own function of it is what the MLP writes
        block = model.module.transformer.h[2]
        own = block.mlp(block.ln_2(state.mlp_reads[2][0, -1]))
        torch.testing.assert_close(state.write("m2")[0, -1], own.detach())


def test_recomputing_sees_every_changed_write_and_no_read():
    (model, circuit), test = people(), halves()[1].pick(range(12))
    way, nodes = fitted().ways["recomputed"], fitted().nodes
    assert isinstance(way, RecomputedWay)
    for damage in plan(test.groups, fitted().targets, {"write": 1, "read": 1, "mean": 1, "noise": 1, "steer": 1}, 1):
        row = [intervention(damage, test.tokens, fitted().mean)]
        found = observe_batch(model, circuit, [test.tokens[damage.prompt]], [row])
        seen = [node for node, whole in zip(nodes, way.distances(found).whole[:, 0], strict=True) if whole > 0]
        assert seen == ([] if damage.kind == "read" else [damage.node])
