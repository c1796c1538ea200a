"""What stands in for an ablated node: its write on the corrupted prompt, its mean over the task, or zero.

A node's reference is kept as the forward state keeps it, heads as `z`, so that memory goes with layers and not with
heads, and is turned into writes layer by layer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from eics.models.base import Model
from eics.transformer.attention import head_writes
from eics.transformer.forward import ForwardState

ABLATIONS = ("corrupted", "mean", "zero")


@dataclass
class Writes:
    """What every node of a model wrote: `input`, (B or 1, T or 1, d), and by layer `z`, (.., H*e), and MLPs' writes."""

    model: Model
    input: Tensor
    z: dict[int, Tensor] = field(default_factory=dict)
    mlps: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, state: ForwardState) -> "Writes":
        """Those of a recorded pass."""
        assert state.input is not None
        return cls(state.model, state.input, state.z, state.mlp_writes)

    def heads(self, layer: int, heads: list[int]) -> Tensor:
        """Writes of some heads of a layer, (H, B, T, d)."""
        return head_writes(self.model.transformer.blocks[layer].attention, self.z[layer], heads)

    def heads_less(self, other: "Writes", layer: int, heads: list[int]) -> Tensor:
        """Writes of some heads less what they are in the other, (H, B, T, d)."""
        spec = self.model.transformer.blocks[layer].attention
        if spec.post_norm is None:  # linear in z: one projection instead of two
            return head_writes(spec, self.z[layer] - other.z[layer], heads)
        return self.heads(layer, heads) - other.heads(layer, heads)

    def zero(self) -> "Writes":
        """Zero for every node, (1, 1, ...)."""
        return Writes(
            self.model,
            torch.zeros_like(self.input[:1, :1]),
            {layer: torch.zeros_like(z[:1, :1]) for layer, z in self.z.items()},
            {layer: torch.zeros_like(write[:1, :1]) for layer, write in self.mlps.items()},
        )


def mean_writes(states: Iterable[ForwardState]) -> Writes:
    """Every node's mean over prompts and positions, (1, 1, ...); padding does not count."""
    total: Writes | None = None
    count = 0
    for state in states:
        place = torch.arange(int(state.lengths.max()), device=state.lengths.device)
        valid = (place < state.lengths.unsqueeze(1)).unsqueeze(2)
        count += int(valid.sum())
        sums = _map(Writes.of(state), partial(_sum_where, valid))
        total = sums if total is None else _add(total, sums)
    assert total is not None
    return _map(total, lambda x: x / count)


def _sum_where(valid: Tensor, x: Tensor) -> Tensor:
    return (x * valid).sum(dim=(0, 1), keepdim=True)


def _map(writes: Writes, function: Callable[[Tensor], Tensor]) -> Writes:
    return Writes(
        writes.model,
        function(writes.input),
        {layer: function(z) for layer, z in writes.z.items()},
        {layer: function(write) for layer, write in writes.mlps.items()},
    )


def _add(one: Writes, two: Writes) -> Writes:
    return Writes(
        one.model,
        one.input + two.input,
        {layer: z + two.z[layer] for layer, z in one.z.items()},
        {layer: write + two.mlps[layer] for layer, write in one.mlps.items()},
    )
