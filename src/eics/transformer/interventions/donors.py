"""Activation patching from other prompts: the donor prompts run once, undamaged, and give the patches their writes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.transformer.forward import run
from eics.transformer.interventions.hooks import Rows
from eics.transformer.interventions.kinds import Intervention, Patch


def bind(model: Model, interventions: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """The interventions, checked against the model, with donor prompts tokenized."""
    return tuple(_bound(model, intervention) for intervention in interventions)


def with_writes(model: Model, rows: Rows) -> tuple[Rows, int]:
    """The same interventions with each patch's activation filled in, and the number of forward passes this took."""
    patches = [patch for row in rows for patch in row if _needs_donor(patch)]
    if not patches:
        return rows, 0
    donors = list(dict.fromkeys(tuple(patch.tokens or ()) for patch in patches))
    state = run(model, donors, nodes={patch.node for patch in patches})

    def filled(intervention: Intervention) -> Intervention:
        if not _needs_donor(intervention):
            return intervention
        tokens = tuple(intervention.tokens or ())
        return replace(intervention, write=state.write(intervention.node)[donors.index(tokens), : len(tokens)])

    return [[filled(intervention) for intervention in row] for row in rows], state.forward_passes


def _bound(model: Model, intervention: Intervention) -> Intervention:
    model.shape.check_node(intervention.node)
    intervention.check_width(model.transformer.width)
    if not _needs_donor(intervention):
        return intervention
    tokens = None if intervention.tokens is None else tuple(intervention.tokens)
    try:
        donor = tokenize(model, Prompt("patch", text=intervention.prompt, tokens=tokens))
    except PromptError as error:
        raise OptionError(f"The other prompt of a patch must be one that the model takes: {error}.") from None
    return replace(intervention, tokens=donor)


def _needs_donor(intervention: Intervention) -> TypeGuard[Patch]:
    return isinstance(intervention, Patch) and intervention.write is None
