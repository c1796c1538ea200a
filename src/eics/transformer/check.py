"""Checks for people who extend eics: does an adapter describe its model?"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.errors import ModelError
from eics.models.base import Model
from eics.transformer.attention import AttentionState, by_head
from eics.transformer.forward import ForwardState, run
from eics.transformer.mlp import MLPMap
from eics.transformer.readout import ReadoutMap

_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def check_adapter(model: Model, tokens: Sequence[Sequence[int]] | None = None) -> None:
    """Proves an adapter on a short input (random tokens if none are given), or says at which layer it goes wrong.

    At every layer the nodes' writes and the biases add up to the residual stream; what our own code computes for
    each head and MLP from what it read is what it wrote; and our logits are the model's. Tolerances are wide: models
    compute norms and patterns in float32 whatever their dtype.
    """
    if tokens is None:
        stream = torch.Generator().manual_seed(0)
        tokens = [torch.randint(0, model.vocabulary, (length,), generator=stream).tolist() for length in (7, 5)]
    state = run(model, tokens, logits=True)
    tolerance = _TOLERANCE[model.transformer.unembed.dtype]
    assert state.input is not None
    stream_now = state.input
    for layer, block in enumerate(model.transformer.blocks):
        where = f"layer {layer} of {model.module.config.model_type}"
        _same(stream_now, state.attention_reads[layer], state, tolerance, f"the residual stream read by {where}")
        attention = AttentionState(
            block.attention, state.attention_reads[layer], state.rotations.get(layer), state.summed.get(layer), False
        )
        before = stream_now
        written = attention.write(by_head(state.z[layer], block.attention.heads))
        for head in range(block.attention.heads):
            _same(attention.function[head], written[head], state, tolerance, f"head {head} in {where}")
        stream_now = stream_now + written.sum(dim=0)
        if block.attention.b_o is not None:
            stream_now = stream_now + block.attention.b_o.to(stream_now.dtype)
        mlp_reads = before if block.parallel else stream_now
        _same(mlp_reads, state.mlp_reads[layer], state, tolerance, f"what the MLP reads in {where}")
        own = MLPMap(block.mlp, state.mlp_reads[layer], False).function
        _same(own, state.mlp_writes[layer], state, tolerance, f"the MLP in {where}")
        stream_now = stream_now + state.mlp_writes[layer]
    assert state.final_read is not None
    assert state.logits is not None
    _same(stream_now, state.final_read, state, tolerance, "the residual stream read by the final norm")
    readout = ReadoutMap(model.transformer, state.final_read, state.answer, "logits", None, False)
    _close(readout.function, readout.select(state.logits), tolerance, "the logits")


def check_replaced(model: Model) -> None:
    """Proves the adapter of a model after one of its modules, parameters or settings was replaced."""
    replaced = model.unproven
    try:
        with model.proving():
            check_adapter(model)
    except ModelError as error:
        raise ModelError(f"After {replaced} was replaced: {error}") from None


def _same(ours: Tensor, theirs: Tensor, state: ForwardState, tolerance: float, what: str) -> None:
    """Compares on the prompts' own positions."""
    mask = state.mask
    if mask is not None:
        ours, theirs = ours * mask.unsqueeze(2), theirs * mask.unsqueeze(2)
    _close(ours, theirs, tolerance, what)


def _close(ours: Tensor, theirs: Tensor, tolerance: float, what: str) -> None:
    error = float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))
    if not error <= tolerance:
        raise ModelError(f"The adapter must reproduce {what}. It is off by {error:.1e} (relative), first here.")
