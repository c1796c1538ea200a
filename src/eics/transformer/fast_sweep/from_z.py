"""Nodes that write `W z` at each position, z much shorter than the write, and maps that can read z directly.

A head writes `W_O z`: its readers apply `rho W_O`, and for an MLP or the read-out that product has a shorter way
than through the write.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import torch
from torch import Tensor

from eics.linalg.blocks import mix, project, scale_by_position
from eics.linalg.operators import LinearOperator
from eics.linalg.scaled import Scaled
from eics.transformer.head import HeadMap
from eics.transformer.mlp import MLPMap
from eics.transformer.readout import ReadoutMap

_TOGETHER = 8
"""Parents whose hidden layers go through W_out at once: more rows make a product no faster, and take more memory."""


@dataclass(frozen=True)
class OutputFactor:
    """W, (d, e), of a map J = (W at every position) K: what J writes can be carried as the image of K, z.

    `key` names W among the weights of its model, whatever the dtype; `origin` is the parameter that it was taken from.
    """

    weight: Tensor
    key: Hashable
    origin: Tensor


def output_factor(operator: LinearOperator) -> OutputFactor | None:
    """W_O of a single head without a post-norm; None for any other map."""
    head = operator.base if isinstance(operator, Scaled) else operator  # a circuit's scales are masks by position
    if not isinstance(head, HeadMap) or head.state.post is not None or len(head.places) > 1:
        return None
    spec = head.state.spec
    return OutputFactor(head.w_o[0], (id(spec), head.heads[0]), spec.w_o)


Read = tuple[OutputFactor, Tensor]
"""A parent's W and its z, (B, T, e)."""


@singledispatch
def apply_to_z(operator: LinearOperator, read: Sequence[Read]) -> Tensor | None:  # noqa: ARG001
    """J (W z) for each parent: (B, parents, T, n); None if J knows no shorter way than through W z."""
    return None


@apply_to_z.register
def _(operator: Scaled, read: Sequence[Read]) -> Tensor | None:
    """For z that are zero where the columns are masked, as a circuit's stalks are."""
    images = apply_to_z(operator.base, read)
    left = None if images is None else scale_by_position(operator.left, images.shape[2])
    return None if images is None or left is None else images * left[:, None, :, None]


@apply_to_z.register
def _(operator: ReadoutMap, read: Sequence[Read]) -> Tensor:
    """W_O at the answer position only."""
    prompts = torch.arange(operator.batch, device=operator.device)
    writes = [z[prompts, operator.answer] @ factor.weight.mT for factor, z in read]
    return operator.image(torch.stack(writes, dim=1)).unsqueeze(2)


@apply_to_z.register
def _(operator: MLPMap, read: Sequence[Read]) -> Tensor | None:
    """Norm and W_in after W_O in one: `W_in diag(w) P W_O`, (hidden, e), depends on weights alone.

    By the rank-one form of the norm's Jacobian, with `p = W_in diag(w) c`,
    `W_in N W_O z = (W_in diag(w) P W_O z) / s - p (c . W_O z) / (d s^3)`. None if these matrices would be larger than
    the MLP's own.
    """
    if sum(factor.weight.shape[1] for factor, _ in read) > 2 * operator.read.shape[2]:
        return None
    images = []
    for start in range(0, len(read), _TOGETHER):
        chunk = read[start : start + _TOGETHER]
        hidden = _hidden_change(operator, chunk, "u")
        if operator.by_gate is not None:
            hidden += _hidden_change(operator, chunk, "g")
        images.append(mix(hidden, operator.w_out.mT))  # (parents, B, T, d)
    out = torch.cat(images).transpose(0, 1)
    return out if operator.post is None else operator.post.mv(out)


def _hidden_change(mlp: MLPMap, read: Sequence[Read], side: str) -> Tensor:
    """The hidden layer's change through W_in (`u`) or W_gate (`g`), (parents, B, T, hidden)."""
    weight, bias, value, gain = {
        "u": (mlp.w_in, mlp.spec.b_in, mlp.up, mlp.by_up),
        "g": (mlp.w_gate, mlp.spec.b_gate, mlp.gate, mlp.by_gate),
    }[side]
    assert weight is not None
    assert gain is not None
    norm, factors = mlp.norm, [factor for factor, _ in read]
    z = torch.stack([z.expand(mlp.batch, -1, -1) for _, z in read])  # (parents, B, T, e)
    hidden = project(z, _virtual_weights(mlp, side, weight, factors)).mul_(gain / norm.scale)
    if not norm.frozen:
        assert value is not None
        along = mlp.along(weight, value, bias) * gain / (norm.point.shape[-1] * norm.scale**3)
        point = mix(norm.point, torch.cat([factor.weight for factor in factors], dim=1))
        points = point.unflatten(-1, (len(factors), -1)).movedim(-2, 0)
        hidden.addcmul_(along, (z * points).sum(dim=-1, keepdim=True), value=-1.0)
    return hidden


def _virtual_weights(mlp: MLPMap, side: str, weight: Tensor, factors: Sequence[OutputFactor]) -> Tensor:
    """(W diag(w) P W_O)^T for each parent, (parents, e, hidden): weights alone, and cached."""

    def make() -> Tensor:
        folded = mlp.norm.fold(weight)
        return torch.stack([factor.weight.mT @ folded.mT for factor in factors])

    own = [mlp.spec.w_in if side == "u" else mlp.spec.w_gate, mlp.spec.norm.weight]
    made_of = [w for w in (*own, *(factor.origin for factor in factors)) if w is not None]
    return mlp.spec.cache.get((side, tuple(factor.key for factor in factors), mlp.dtype), made_of, make)
