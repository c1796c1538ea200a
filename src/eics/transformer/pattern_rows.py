"""Rows of heads' attention patterns: from some positions to all that they see, without the other queries.

    A_t = softmax_s(scale q_t . k_s)        over the positions s that t sees

Keys of a grouped-query model are computed once for each group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.blocks import project
from eics.models.spec import Attention, Norm
from eics.transformer.attention import AttentionState, Rotation, pick, rotate
from eics.transformer.norm import NormMap


def answer_pattern(state: AttentionState, answer: Tensor) -> Tensor:
    """The pattern from each prompt's answer position, (H, B, T), for the heads of the state."""
    rows = torch.arange(len(answer), device=answer.device)
    read = (state.norm.point / state.norm.scale)[rows, answer].unsqueeze(1)
    query = queries(state, read, _rotation_at(state.rotation, rows, answer))  # (H, B, 1, e)
    return pattern_rows(state.spec, query, keys(state), answer.unsqueeze(1)).squeeze(2)


@dataclass(frozen=True)
class Keys:
    """Keys of groups, (G, B, T, e), and for each head the place of its group among them."""

    by_group: Tensor
    places: tuple[int, ...]

    def and_then(self, other: "Keys") -> "Keys":
        """Those of later positions too."""
        return Keys(torch.cat([self.by_group, other.by_group], dim=2), self.places)


def queries(state: AttentionState, read: Tensor, rotation: Rotation | None) -> Tensor:
    """Queries of the state's heads at some positions, (H, B, P, e), from what they read there before the gain."""
    bias = state.biases.chunk(3, dim=-1)[0]
    query = project(read.unsqueeze(0), state.weights_in(state.heads, "q").mT) + bias
    return rotate(_normed(state.spec.q_norm, query), rotation)


def keys(state: AttentionState) -> Keys:
    """Keys of the state's heads at all its positions."""
    first, places = _groups(state.spec, state.heads)
    read, bias = state.norm.point / state.norm.scale, state.biases.chunk(3, dim=-1)[1]
    key = project(read.unsqueeze(0), state.weights_in([state.heads[place] for place in first], "k").mT)
    return Keys(rotate(_normed(state.spec.k_norm, key + pick(bias, first)), state.rotation), tuple(places))


def pattern_rows(spec: Attention, query: Tensor, key: Keys, at: Tensor) -> Tensor:
    """The pattern from the positions `at`, (B or 1, P), of queries (H, B, P, e): (H, B, P, T)."""
    scores = spec.scale * (query @ pick(key.by_group, key.places).mT)
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    return scores.masked_fill(_hidden(spec.window, at, scores.shape[3]), float("-inf")).softmax(dim=-1)


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


def _hidden(window: int | None, at: Tensor, length: int) -> Tensor:
    """Positions that those in `at`, (B or 1, P), do not see, (B or 1, P, T)."""
    back = at.unsqueeze(2) - torch.arange(length, device=at.device)
    return (back < 0) if window is None else (back < 0) | (back >= window)
