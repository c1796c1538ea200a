"""Activation patching from other prompts: the donor prompts run once, undamaged, and give the patches what they need.

A patched read also needs to know which of the writes that the node reads are its parents' in the circuit: `bind` says.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any, TypeGuard

from torch import Tensor

from eics.circuits.graph import Circuit, Node
from eics.errors import ModelError, OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions.hooks import Rows
from eics.transformer.interventions.kinds import Donated, Intervention, PatchRead


def bind(model: Model, circuit: Circuit, interventions: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """The interventions, checked against the model, with donor prompts tokenized and parents taken from the circuit.

    Parents that are known already stay: the same damage can be looked at through another circuit.
    """
    return tuple(_bound(model, circuit, intervention) for intervention in interventions)


def with_writes(model: Model, rows: Rows) -> tuple[Rows, int]:
    """The same interventions with each patch's activation filled in, and the number of forward passes this took."""
    patches = [patch for row in rows for patch in row if _needs_donor(patch)]
    if not patches:
        return rows, 0
    donors = list(dict.fromkeys(tuple(patch.tokens or ()) for patch in patches))
    state = run(model, donors, nodes={name for patch in patches for name in (patch.node, *_parents(patch))})
    rest = cache(lambda node, parents: _rest(state, node, parents))

    def filled(intervention: Intervention) -> Intervention:
        if not _needs_donor(intervention):
            return intervention
        node, tokens = intervention.node, tuple(intervention.tokens or ())
        donated = rest(node, _parents(intervention)) if isinstance(intervention, PatchRead) else state.write(node)
        known: dict[str, Any] = {intervention.activation: donated[donors.index(tokens), : len(tokens)]}
        return replace(intervention, **known)

    return [[filled(intervention) for intervention in row] for row in rows], state.forward_passes


def _rest(state: ForwardState, node: str, parents: tuple[str, ...]) -> Tensor:
    """What an MLP read that its parents did not write, (B, T, d)."""
    layer = Node.parse(node).layer
    assert layer is not None
    read = state.mlp_reads[layer]
    for parent in parents:
        read = read - state.write(parent)
    return read


def _bound(model: Model, circuit: Circuit, intervention: Intervention) -> Intervention:
    model.shape.check_node(intervention.node)
    intervention.check_width(model.transformer.width)
    if isinstance(intervention, PatchRead):
        intervention = _with_parents(model, circuit, intervention)
    if not _needs_donor(intervention):
        return intervention
    tokens = None if intervention.tokens is None else tuple(intervention.tokens)
    try:
        donor = tokenize(model, Prompt("patch", text=intervention.prompt, tokens=tokens))
    except PromptError as error:
        raise OptionError(f"The other prompt of a patch must be one that the model takes: {error}.") from None
    return replace(intervention, tokens=donor)


def _with_parents(model: Model, circuit: Circuit, intervention: PatchRead) -> PatchRead:
    _check_own_read(model, intervention.node)
    if intervention.parents is None:
        return replace(intervention, parents=tuple(edge.source for edge in circuit.parents.get(intervention.node, ())))
    if intervention.parents:  # edges of a circuit say best which nodes are upstream
        model.check_circuit(Circuit(f"{parent}->{intervention.node}" for parent in intervention.parents))
    return intervention


def _check_own_read(model: Model, node: str) -> None:
    """Refuses a model in which the heads would see the change too."""
    layer = Node.parse(node).layer
    assert layer is not None
    sites = model.adapter.sites(model.adapter.layers(model.module)[layer])
    if sites.mlp_norm is sites.attention_norm:
        family = getattr(model.module.config, "model_type", type(model.module).__name__)
        raise ModelError(
            f"The read of {node} cannot be patched in {family}: its MLPs and heads read through one norm, and the "
            "heads would see the change. Patch what nodes write instead."
        )


def _parents(intervention: Intervention) -> tuple[str, ...]:
    return tuple(intervention.parents or ()) if isinstance(intervention, PatchRead) else ()


def _needs_donor(intervention: Intervention) -> TypeGuard[Donated]:
    return isinstance(intervention, Donated) and intervention.donated is None
