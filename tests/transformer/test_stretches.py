"""What a circuit explains, stretch by stretch, against the maps of all positions at once."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import eics
from eics.circuits.graph import Circuit
from eics.circuits.random_circuits import random_like
from eics.linalg.memory import memory_limit
from eics.transformer.explained import observe
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun
from eics.transformer.stretches import Stretches, stretches
from support.live_bytes import LiveBytes
from support.tiny_models import FAMILIES, full_circuit, some_circuit, tiny_model

PROMPTS = [[5, 9, 2, 40, 7, 11], [3, 1, 8], [17, 4, 4, 22, 60, 9, 33, 2, 19]]
CUTS = (0, 3, 4, 5, 9)


def in_stretches(made, cuts=CUTS):
    """Writes and explained parts by name, of all positions, and the read-out of each prompt's own stretch."""
    whole, parts = Stretches(made.circuit, made.readout, made.tokens), []
    for start, stop in pairwise(cuts):
        parts.append((start, stop, whole.advance(made.state.stretch(start, stop))))
    found = {"writes": {}, "explained": {}}
    for kind, by_name in found.items():
        for name in getattr(parts[0][2], kind):
            own = [getattr(observed, kind)[name] for *_, observed in parts]
            if name == "logits":
                within = [[start <= a < stop for start, stop, _ in parts].index(True) for a in made.state.answer]
                by_name[name] = torch.stack([own[place][row] for row, place in enumerate(within)])
            else:
                by_name[name] = torch.cat(own, dim=1)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_stretches_have_the_numbers_of_all_positions(family):
    model, rng = tiny_model(family), np.random.default_rng(0)
    drawn = [random_like(some_circuit(model), _Shape(model), rng) for _ in range(2)]
    for circuit in [some_circuit(model), full_circuit(model), *drawn]:
        made = TransformerRun(run(model, PROMPTS, circuit, answer=[5, 0, 4]), circuit)
        every, valid = observe(made, "all"), made.state.valid
        for kind, by_name in in_stretches(made).items():
            assert list(by_name) == list(getattr(every, kind))
            for name, there in getattr(every, kind).items():
                here, rows = by_name[name], ... if name == "logits" else valid
                torch.testing.assert_close(here[rows], there.expand_as(here)[rows], rtol=1e-8, atol=1e-9)


class _Shape:
    def __init__(self, model):
        shape = model.shape
        self.layers, self.heads, self.parallel = shape.n_layers, shape.n_heads, shape.parallel_attn_mlp


def test_a_node_is_explained_and_explains_at_its_own_positions_alone():
    model = tiny_model("llama")
    circuit = Circuit(["input->a0.h1<v>", "a0.h1->m1", "m1->logits"], {"input": [0], "m1": [1, 2]})
    made = TransformerRun(run(model, PROMPTS, circuit), circuit)
    every = observe(made, "all").explained
    for name, here in in_stretches(made)["explained"].items():
        rows = slice(None) if name == "logits" else made.state.valid
        torch.testing.assert_close(here[rows], every[name].expand_as(here)[rows], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_interventions_are_cut_with_their_stretch(family):
    model = tiny_model(family)
    circuit = full_circuit(model)
    noise = [[eics.Noise("a1.h2", 1.0, at=(1,))] for _ in PROMPTS]
    made = TransformerRun(run(model, PROMPTS, circuit, interventions=noise), circuit)
    found = in_stretches(made)
    gap = (found["explained"]["a1.h2"] - found["writes"]["a1.h2"]).norm(dim=2) > 1e-3
    assert torch.equal(gap & made.state.valid, (torch.arange(9) == 1).expand(3, 9))


def test_a_long_text_holds_no_square_of_its_length():
    model = tiny_model("gpt_neox")  # its rotations know no limit
    circuit = full_circuit(model)
    texts = [np.random.default_rng(0).integers(0, 61, size=1500).tolist()]
    made = TransformerRun(run(model, texts, circuit), circuit)
    with memory_limit(1), LiveBytes() as live:
        assert sum(part.longest for _, part, _ in stretches(made)) == 1500
    assert live.peak < 4 * 1500 * 1500 * 8 / 2  # half of the patterns of a layer's four heads
