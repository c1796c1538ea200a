"""One run of a model on a batch, as named tensors: kept in memory, or written to a file.

| name | holds |
|---|---|
| `read.a3`, `read.m3`, `summed.3`, `final` | what heads and MLP of a layer and the final norm read; the heads' sum |
| `z.3`, `write.m3`, `write.input`, `logits` | what was observed: heads' z, writes, logits at the answer position |
| `cos.3`, `sin.3` | rotary embeddings |
| `own.a3`, `own.m3`, `own.logits` | the model's own functions of what it read |
| `gradient.a3`, `sampled0.m3`, ... | gradients of the metric and of sampled directions at these sites |
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eics.models.base import Model
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.studies.comparison.parts import Parts
from eics.transformer.attention import Rotation, by_head, pick
from eics.transformer.forward import ForwardState, run
from eics.transformer.mlp import mlp_value
from eics.transformer.node_functions import heads_value, readout_value
from eics.transformer.write_sites import GradientTape

Tensors = dict[str, Tensor]


def observe(model: Model, tokens: Sequence[Sequence[int]], parts: Parts) -> Tensors:
    """A plain run."""
    return _tensors(run(model, tokens, None, nodes=parts.recorded, logits=True), parts)


def observe_with_gradients(
    model: Model,
    tokens: Sequence[Sequence[int]],
    parts: Parts,
    directions: Callable[[Tensor], dict[str, Tensor]],
) -> Tensors:
    """A run, the model's own functions of what it read, and gradients of `sum(direction * logits)` at every site.

    `directions` makes named directions, (B, V), of the logits; gradients are called `NAME.SITE`.
    """
    tape = GradientTape(model, parts.sites)
    state = run(model, tokens, None, nodes=parts.recorded, logits=True, tape=tape)
    assert state.logits is not None
    towards = directions(state.logits)
    gradients = dict(zip(towards, tape.by_site(*towards.values()), strict=True)) if parts.sites else {}
    tensors = _tensors(state, parts)
    tensors |= own_functions(model, tensors, parts, tensors) | {f"{name}.logits": way for name, way in towards.items()}
    return tensors | {f"{name}.{site}": gradient for name, own in gradients.items() for site, gradient in own.items()}


def own_functions(model: Model, read: Tensors, parts: Parts, rotations: Tensors) -> Tensors:
    """The model's functions of what a run has read, its own or another model's; `rotations` come from its own."""
    spec, own = model.transformer, {}
    with torch.no_grad():
        for layer, heads in parts.heads.items():
            rotation = rotation_of(rotations, layer)
            own[f"own.a{layer}"] = heads_value(spec.blocks[layer].attention, read[f"read.a{layer}"], rotation, heads)
        for layer in parts.mlps:
            own[f"own.m{layer}"] = mlp_value(spec.blocks[layer].mlp, read[f"read.m{layer}"])
        if parts.logits:
            own["own.logits"] = readout_value(spec, read["final"])
    return own


def own_functions_of_both(model: Model, ours: Tensors, theirs: Tensors, parts: Parts) -> tuple[Tensors, Tensors]:
    """A model's functions of what its own run has read, and of what another model's run has.

    In full precision what the model wrote is its function of what it read, and need not be computed again. In half
    precision the model's own code rounds on the way, which would be taken for a change.
    """
    at_theirs = own_functions(model, theirs, parts, ours)
    if model.transformer.unembed.dtype.itemsize < 4:
        return own_functions(model, ours, parts, ours), at_theirs
    return _observed(model, ours, theirs, parts, at_theirs), at_theirs


def _observed(model: Model, ours: Tensors, theirs: Tensors, parts: Parts, at_theirs: Tensors) -> Tensors:
    """What the parts of a run wrote, in the form of `own_functions`; where both runs read the same, exactly what they
    make of the other's read."""

    def of(read: str, own: str, observed: Tensor) -> Tensor:
        return at_theirs[own] if torch.equal(ours[read], theirs[read]) else observed

    found = {}
    for layer, heads in parts.heads.items():
        z = pick(by_head(ours[f"z.{layer}"], model.transformer.blocks[layer].attention.heads), heads)
        found[f"own.a{layer}"] = of(f"read.a{layer}", f"own.a{layer}", z)
    for layer in parts.mlps:
        found[f"own.m{layer}"] = of(f"read.m{layer}", f"own.m{layer}", ours[f"write.m{layer}"])
    if parts.logits:
        centred = ours["logits"] - ours["logits"].mean(dim=1, keepdim=True)
        found["own.logits"] = of("final", "own.logits", centred)
    return found


def rotation_of(tensors: Tensors, layer: int) -> Rotation | None:
    """cos and sin of a layer, if it has them."""
    cos, sin = tensors.get(f"cos.{layer}"), tensors.get(f"sin.{layer}")
    return None if cos is None or sin is None else (cos, sin)


def _tensors(state: ForwardState, parts: Parts) -> Tensors:
    broken = zero_nonfinite_rows(state)
    assert state.logits is not None
    finite = torch.ones(len(state.lengths), dtype=torch.bool, device=state.logits.device)
    finite[sorted(broken)] = False
    tensors = {"logits": state.logits, "valid": state.valid, "finite": finite}
    for layer in parts.attention_layers:
        tensors |= {f"read.a{layer}": state.attention_reads[layer], f"z.{layer}": state.z[layer]}
        if layer in state.summed:
            tensors[f"summed.{layer}"] = state.summed[layer]
        if layer in state.rotations:
            tensors[f"cos.{layer}"], tensors[f"sin.{layer}"] = state.rotations[layer]
    for layer in parts.mlps:
        tensors |= {f"read.m{layer}": state.mlp_reads[layer], f"write.m{layer}": state.mlp_writes[layer]}
    if parts.input and state.input is not None:
        tensors["write.input"] = state.input
    if state.final_read is not None:
        rows = torch.arange(len(state.answer), device=state.answer.device)
        tensors["final"] = state.final_read[rows, state.answer]
        if parts.whole:
            tensors["stream"] = state.final_read
    return tensors
