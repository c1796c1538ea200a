"""A text that grows: passes over its new tokens alone, while the model keeps the keys and values of the earlier ones.

The hooks are those of a whole pass (`forward.py`), so what they record is what a whole pass would have recorded at the
new positions. They are there during a pass only: between two tokens the model is as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit, Kind, Node
from eics.linalg.host_device import to_device
from eics.models.base import Model
from eics.transformer.forward import ForwardState, evaluating, read_weights, recording
from eics.transformer.interventions.hooks import Rows, in_force, parents_of
from eics.transformer.next_token import answer_logits

Follow = Callable[[ForwardState], Callable[[int], None]]


class GrowingText:
    """One text in the model's own cache; `advance` adds tokens to it. The weights are those of its first pass."""

    def __init__(self, model: Model, circuit: Circuit) -> None:
        from transformers import DynamicCache

        self.model, self.circuit, self.length = model, circuit, 0
        self._cache = DynamicCache(config=model.module.config)
        read_weights(model)
        self._activations = _activations(model, circuit)
        self._evaluates = not any(part.training for part in model.module.modules())

    def advance(
        self, tokens: Sequence[int], interventions: Rows | None = None, follow: Follow | None = None
    ) -> ForwardState:
        """Runs the model on the next tokens: what it left behind at their positions, and the logits after the last.

        `interventions`, for the first pass, are on its tokens. `follow` is given the state before the pass, and what it
        returns is called with every layer that is finished.
        """
        model, count = self.model, len(tokens)
        ids, lengths = to_device([list(tokens)], model.device), to_device([count], model.device)
        state = ForwardState(model, lengths, lengths - 1, count, padded=False)
        mask = torch.ones(1, self.length + count, dtype=ids.dtype, device=model.device)
        names = [*self.circuit.order, *parents_of(interventions)]
        with (
            in_force(model, [tokens], interventions, state.applied, state.write),
            recording(state, names, logits=True),
            _hidden(self._activations, state),
            _followed(model, follow, state),
            nullcontext() if self._evaluates and not model.module.training else evaluating(model.module),
            torch.no_grad(),
        ):
            output = model.module(
                input_ids=ids, attention_mask=mask, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
        self.length += count
        state.logits = answer_logits(output.logits, state.answer).to(model.dtype)
        return state


def _activations(model: Model, circuit: Circuit) -> dict[int, Any]:
    """The activations of the circuit's MLPs that can be watched, by layer; one that layers share cannot."""
    layers = model.adapter.layers(model.module)
    nodes = [node for node in map(Node.parse, circuit.inner) if node.kind is Kind.MLP]
    found = {n.layer: model.adapter.sites(layers[n.layer]).mlp_activation for n in nodes if n.layer is not None}
    every = [id(model.adapter.sites(layer).mlp_activation) for layer in layers]
    return {i: module for i, module in found.items() if module is not None and every.count(id(module)) == 1}


@contextmanager
def _followed(model: Model, follow: Follow | None, state: ForwardState) -> Iterator[None]:
    """Says of each layer that it is finished, when all of it has been recorded."""
    layers = [] if follow is None else model.adapter.layers(model.module)
    done = None if follow is None else follow(state)

    def hook(layer: int) -> Callable[..., None]:
        return lambda *_: done(layer) if done is not None else None

    handles = [part.register_forward_hook(hook(layer)) for layer, part in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _hidden(activations: dict[int, Any], state: ForwardState) -> Iterator[None]:
    """Records what the activations take, which saves computing it again: a third of a gated MLP."""

    def keep(layer: int) -> Callable[[Any, tuple[Tensor, ...]], None]:
        return lambda _, arguments: state.mlp_hidden.__setitem__(layer, arguments[0].detach().to(state.model.dtype))

    handles = [module.register_forward_pre_hook(keep(layer)) for layer, module in activations.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
