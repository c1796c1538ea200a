"""What an ablated node writes instead: its write on the corrupted prompt, its mean over the task, or zero.

Heads are stored as `z`, as in the forward state: memory then grows with layers rather than with heads, and writes are
made from `z` one layer at a time.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.host_device import map_tensors
from eics.models.spec import Attention
from eics.transformer.attention import head_writes
from eics.transformer.forward import ForwardState

ABLATIONS = ("corrupted", "mean", "zero")


@dataclass(frozen=True)
class Writes:
    """The writes of every node: `input` (B, T, d); by layer, `z` (B, T, H*e) of the heads and `mlps` (B, T, d).

    Means and zeros are the same at every prompt and position: there, B = T = 1.
    """

    input: Tensor
    z: dict[int, Tensor]
    mlps: dict[int, Tensor]

    @classmethod
    def of(cls, state: ForwardState) -> "Writes":
        """The writes of a recorded pass, without what nodes read: that can be freed."""
        assert state.input is not None
        return cls(state.input, state.z, state.mlp_writes)

    def zero(self) -> "Writes":
        """Zeros for every node."""
        zeros: Writes = map_tensors(lambda x: torch.zeros_like(x[:1, :1]), self)
        return zeros


def mean_writes(states: Iterable[ForwardState]) -> Writes:
    """The mean of every node over prompts and positions, padding excluded."""
    total: Writes | None = None
    count = 0
    for state in states:
        sums = map_tensors(lambda x, mask=state.mask: _sum_over_positions(x, mask), Writes.of(state))
        total = sums if total is None else map_tensors(torch.add, total, sums)
        count += int(state.lengths.sum())
    assert total is not None
    means: Writes = map_tensors(lambda x: x / count, total)
    return means


def _sum_over_positions(x: Tensor, mask: Tensor | None) -> Tensor:
    return (x if mask is None else x * mask.unsqueeze(2)).sum(dim=(0, 1), keepdim=True)


def head_differences(spec: Attention, z: Tensor, ablated: Tensor, heads: list[int]) -> Tensor:
    """What heads write with `z` minus what they write with `ablated` in its place, (H, B, T, d)."""
    if spec.post_norm is None:  # linear in z: one projection instead of two
        return head_writes(spec, z - ablated, heads)
    return head_writes(spec, z, heads) - head_writes(spec, ablated, heads)
