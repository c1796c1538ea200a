"""One row of each head's attention pattern: from the answer position, without the other queries.

    A_t = softmax_s(scale q_t . k_s)        over the positions s that t sees

Keys of a grouped-query model are computed once for each group.
"""

import torch
from torch import Tensor

from eics.linalg.blocks import project
from eics.models.spec import Attention, Norm
from eics.transformer.attention import AttentionState, Rotation, pick, rotate
from eics.transformer.norm import NormMap


def answer_pattern(state: AttentionState, answer: Tensor) -> Tensor:
    """The pattern from each prompt's answer position, (H, B, T), for the heads of the state."""
    spec, rows = state.spec, torch.arange(len(answer), device=answer.device)
    normed = state.norm.point / state.norm.scale  # (B, T, d), before the gain
    bias_q, bias_k, _ = state.biases.chunk(3, dim=-1)
    query = project(normed[rows, answer][None, :, None], state.weights_in(state.heads, "q").mT) + bias_q
    query = rotate(_normed(spec.q_norm, query), _rotation_at(state.rotation, rows, answer))  # (H, B, 1, e)
    first, places = _groups(spec, state.heads)
    key = project(normed.unsqueeze(0), state.weights_in([state.heads[place] for place in first], "k").mT)
    key = rotate(_normed(spec.k_norm, key + pick(bias_k, first)), state.rotation)  # (G, B, T, e)
    scores = spec.scale * (query @ pick(key, places).mT).squeeze(2)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    return scores.masked_fill(_hidden(spec.window, answer, scores.shape[2]), float("-inf")).softmax(dim=-1)


def _groups(spec: Attention, heads: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """The place of the first head of each key/value group, and for each head the place of its group among these."""
    groups = [spec.group(head) for head in heads]
    kept = list(dict.fromkeys(groups))
    return [groups.index(group) for group in kept], [kept.index(group) for group in groups]


def _normed(norm: Norm | None, raw: Tensor) -> Tensor:
    return raw if norm is None else NormMap.at(norm, raw, frozen=True).value


def _rotation_at(rotation: Rotation | None, rows: Tensor, answer: Tensor) -> Rotation | None:
    if rotation is None:
        return None
    cos, sin = (part.expand(len(rows), -1, -1)[rows, answer].unsqueeze(1) for part in rotation)
    return cos, sin


def _hidden(window: int | None, answer: Tensor, length: int) -> Tensor:
    """Positions that the answer position does not see, (B, T)."""
    back = answer.unsqueeze(1) - torch.arange(length, device=answer.device)
    return (back < 0) if window is None else (back < 0) | (back >= window)
