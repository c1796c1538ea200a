"""The functions of a model's parts, evaluated at what they, or the same parts of another model, have read.

    head    f_v(x) = z W_O^h,  z = softmax(scale q k^T) v   of norm(x), times the held scale of a norm after the heads
    MLP     f_v(x)             the norm that it reads through, and the norm after it, included
    logits  f_v(x)             final norm, unembedding, soft cap; mean-centred, since softmax ignores the mean

A head's value is kept as z, e numbers a position, and written out when it is compared.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.models.spec import Attention, Transformer
from eics.transformer.attention import AttentionState, Rotation
from eics.transformer.readout import ReadoutMap


def heads_value(spec: Attention, read: Tensor, rotation: Rotation | None, heads: Sequence[int]) -> Tensor:
    """z of some heads of a layer that reads (B, T, d): (H, B, T, e); as many at a time as the memory bound allows."""
    batch, length, _ = read.shape
    together = chunk_width(batch * length * max(4 * length, 4 * spec.head_width), read.dtype)
    parts = []
    for start in range(0, len(heads), together):
        state = AttentionState(spec, read, rotation, None, frozen=True, heads=heads[start : start + together])
        parts.append(state.activations.pattern @ state.activations.value)
    return torch.cat(parts)


def readout_value(spec: Transformer, read: Tensor) -> Tensor:
    """Centred logits, (B, V), of the final residual stream at the answer position, (B, d)."""
    here = torch.zeros(len(read), dtype=torch.long, device=read.device)
    return ReadoutMap(spec, read.unsqueeze(1), here, "logits", None, frozen=True).function
