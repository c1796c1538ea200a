"""Patches by prompt become patches by activation: the other prompts run once, undamaged."""

from collections.abc import Iterable
from dataclasses import replace

from eics.errors import OptionError, PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.transformer.forward import run
from eics.transformer.interventions.hooks import Rows
from eics.transformer.interventions.kinds import Intervention, Patch


def bind(model: Model, interventions: Iterable[Intervention]) -> tuple[Intervention, ...]:
    """Checked against the model; other prompts as token ids."""
    return tuple(_bound(model, one) for one in interventions)


def _bound(model: Model, one: Intervention) -> Intervention:
    model.check_node(one.node)
    one.check_width(model.transformer.width)
    if not isinstance(one, Patch) or one.write is not None:
        return one
    tokens = None if one.tokens is None else tuple(one.tokens)
    try:
        return replace(one, tokens=tokenize(model, Prompt("patch", text=one.prompt, tokens=tokens)))
    except PromptError as error:
        raise OptionError(f"The other prompt of a patch must be one that the model takes: {error}.") from None


def with_writes(model: Model, rows: Rows) -> tuple[Rows, int]:
    """The same with each patch's activation, from one pass over all other prompts; and how many passes that took."""
    patches = [one for row in rows for one in row if isinstance(one, Patch) and one.write is None]
    if not patches:
        return rows, 0
    others = list(dict.fromkeys(tuple(one.tokens or ()) for one in patches))
    state = run(model, others, nodes={one.node for one in patches})

    def filled(one: Intervention) -> Intervention:
        if not isinstance(one, Patch) or one.write is not None:
            return one
        tokens = tuple(one.tokens or ())
        return replace(one, write=state.write(one.node)[others.index(tokens), : len(tokens)])

    return [[filled(one) for one in row] for row in rows], state.forward_passes
