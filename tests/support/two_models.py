"""Pairs of tiny models: a copy with some weights changed, and hybrids of both."""

import copy

import torch

from eics.models.prompts import Prompt
from eics.studies.comparison.attribution import HeadOutputs
from eics.studies.comparison.batches import Item, Step
from eics.studies.comparison.parts import Parts
from eics.transformer.adapt import adapt
from support.tiny_models import tiny_module

TOKENS = [[5, 17, 3, 42, 8, 1], [9, 2, 33], [4, 4, 4, 9, 2], [1, 2]]


def pair(family, dtype=torch.float32, noise=0.05, change=None):
    """A model and a copy of it: with noise in all weights, or changed by `change(module)`."""
    first = tiny_module(family, dtype)
    second = copy.deepcopy(first)
    torch.manual_seed(1)
    with torch.no_grad():
        if change is not None:
            change(second)
        else:
            for parameter in second.parameters():
                parameter.mul_(1 + noise * torch.randn_like(parameter))
    return adapt(first, name="base"), adapt(second, name="tuned")


def nothing(_):
    """No change."""


def hybrid(model, other, layer, part):
    """`model` with the attention (and the norms around it) or the MLP (likewise) of one layer taken from `other`."""
    module = copy.deepcopy(model.module)
    names = model.adapter.modules
    chosen = {
        "attention": (names.attention_norm, names.attention, names.attention_post_norm),
        "mlp": (names.mlp_norm, names.mlp, names.mlp_post_norm),
    }[part]
    own, theirs = model.adapter.layers(module)[layer], model.adapter.layers(other.module)[layer]
    for name in filter(None, chosen):
        parent, _, last = name.rpartition(".")
        setattr(own.get_submodule(parent), last, copy.deepcopy(theirs.get_submodule(name)))
    return adapt(module)


def runs(model, against, circuit=None, tokens=TOKENS, metric="kl", draws=0):
    """The step, the batch, both runs, and what B's heads write through."""
    step = Step(Parts.of(model.transformer, circuit), metric)
    batch = [Item(Prompt(i, tokens=ids), ids, draws) for i, ids in enumerate(tokens)]
    ours = step.ours(model, batch)
    theirs = step.theirs(against, batch, ours["logits"])
    return step, batch, ours, theirs, HeadOutputs.of(against, step.parts)
