"""Attention heads: queries, keys, values and patterns at the observed state.

A head writes `z W_O` with `z = A v`, `A = softmax(scale q k^T)` over the positions that a query sees.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar
from weakref import ReferenceType

import torch
from torch import Tensor

from eics.linalg.host_device import filling_cache, keep_alive
from eics.linalg.rows import project
from eics.models.spec import Attention
from eics.transformer.norm import NormMap, held_scale

_Found = TypeVar("_Found")

Rotation = tuple[Tensor, Tensor]
"""cos and sin, (B or 1, T, r): rotary embeddings of the first r coordinates of queries and keys."""


class AttentionState:
    """One layer's attention at the observed state, for the heads that are asked for; in the working dtype.

    Tensors of all heads have them first: (H, B, T, e). A grouped-query model's keys and values are repeated for the
    query heads that share them.

    Args:
        spec: weights.
        read: the residual stream that the layer reads, (B, T, d).
        rotation: rotary embeddings, or None.
        summed: sum of the heads' outputs before the post-norm, (B, T, d), or None where there is no post-norm.
        frozen: whether norms are held.
        heads: which heads will be asked for; None: all.
    """

    def __init__(
        self,
        spec: Attention,
        read: Tensor,
        rotation: Rotation | None,
        summed: Tensor | None,
        frozen: bool,
        heads: Sequence[int] | None = None,
    ) -> None:
        self.spec, self.read, self.rotation, self.frozen = spec, read, rotation, frozen
        self.heads = tuple(range(spec.heads) if heads is None else heads)
        self.norm = NormMap.at(spec.norm, read, frozen)
        self.post = held_scale(spec.post_norm, summed) if spec.post_norm and summed is not None else None
        self.siblings: list[ReferenceType[AttentionState]] = []  # of all layers at the same pass; none keeps another
        self._known: dict[Hashable, Any] = {}

    def once(self, name: Hashable, make: Callable[[], _Found]) -> _Found:
        """What several maps of these heads need, computed once for all of them. It must not hold the state itself."""
        if name not in self._known:
            self._known[name] = make()
        found: _Found = self._known[name]
        return found

    @cached_property
    def held(self) -> "Held":
        """Queries, keys, values and patterns of all heads asked for; computed once, in a few products."""
        query, key, value = (self.raw + self._biases).chunk(3, dim=-1)
        return _held(self.spec, query, key, value, self.rotation, self.frozen)

    @cached_property
    def raw(self) -> Tensor:
        """W diag(w) P x / s through queries, keys and values, side by side: (H, B, T, 3*e)."""
        weight = self.weights_in(self.heads, "qkv")
        return project((self.norm.point / self.norm.scale).unsqueeze(0), weight.mT)

    def weights_in(self, heads: Sequence[int], ports: Sequence[str]) -> Tensor:
        """Weights of ports, one below another, with the norm's gain and centring in them: W diag(w) P, (H, ports*e, d);
        of weights alone, and kept."""
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            weight = torch.cat([_weight(spec, heads, port) for port in ports], dim=1).to(norm.weight.dtype)
            weight = weight * norm.weight
            return weight - weight.mean(dim=2, keepdim=True) if norm.spec.centred else weight

        weights = (spec.w_q, spec.w_k, spec.w_v, norm.spec.weight)
        return spec.kept.get((tuple(heads), "in", tuple(ports), norm.weight.dtype), weights, make)

    @property
    def _biases(self) -> Tensor:
        """What queries, keys and values are beside that: W bias + b, (H, 1, 1, 3*e); kept."""
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            weight = torch.cat([_weight(spec, self.heads, port) for port in "qkv"], dim=1).to(norm.weight.dtype)
            found = torch.zeros_like(weight[..., 0])
            if norm.spec.bias is not None:
                found = weight @ norm.spec.bias.to(weight.dtype)
            groups = [spec.group(head) for head in self.heads]
            rows = ((spec.b_q, self.heads), (spec.b_k, groups), (spec.b_v, groups))
            own = [
                part if b is None else part + pick(b, at) for part, (b, at) in zip(found.chunk(3, 1), rows, strict=True)
            ]
            return torch.cat(own, dim=1)[:, None, None]

        mine = (spec.w_q, spec.w_k, spec.w_v, spec.b_q, spec.b_k, spec.b_v, norm.spec.bias)
        weights = [weight for weight in mine if weight is not None]
        return spec.kept.get((self.heads, "biases", norm.weight.dtype), weights, make)

    def write(self, z: Tensor) -> Tensor:
        """What heads with these z, (H, B, T, e), write: (H, B, T, d); in the post-norm's held units."""
        out = project(z, pick(self.spec.w_o, self.heads).to(z.dtype).mT)
        return out if self.post is None else out * self.post

    @cached_property
    def function(self) -> Tensor:
        """What the model's own function writes at the observed state, (H, B, T, d)."""
        return self.write(self.held.pattern @ self.held.value)

    def constants(self, biases: Tensor, made_of: Sequence[Tensor]) -> Tensor:
        """`W_O (W_V bias + b_V)` and `W_O W_V diag(w) P biases` of the heads asked for, (2, H, 1, 1, d); kept.

        `made_of` are the weights that `biases` is the sum of.
        """
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            groups = [spec.group(head) for head in self.heads]
            w_v, w_o = pick(spec.w_v, groups).to(biases.dtype), pick(spec.w_o, self.heads).to(biases.dtype)
            own = norm.weight * (biases - biases.mean() if norm.spec.centred else biases)
            fixed = torch.zeros_like(own) if norm.spec.bias is None else norm.spec.bias.to(own.dtype)
            read = torch.stack([fixed, own], dim=1)  # (d, 2)
            found = w_v @ read  # (H, e, 2)
            if spec.b_v is not None:
                found[..., 0] += pick(spec.b_v, groups).to(own.dtype)
            return (w_o @ found).movedim(2, 0)[:, :, None, None].contiguous()

        mine = (spec.w_v, spec.b_v, spec.w_o, norm.spec.weight, norm.spec.bias)
        weights = [*(weight for weight in mine if weight is not None), *made_of]
        return spec.kept.get((self.heads, "constants", biases.dtype), weights, make)

    def at(self, read: Tensor, rows: slice = slice(None), heads: Sequence[int] | None = None) -> "AttentionState":
        """The same attention for some of the prompts and heads, or at the same state in another precision."""
        rotation = self.rotation
        if rotation is not None and rotation[0].shape[0] > 1:
            rotation = (rotation[0][rows], rotation[1][rows])
        state = AttentionState(self.spec, read[rows], rotation, None, self.frozen, heads or self.heads)
        state.post = None if self.post is None else self.post[rows].to(read.dtype)
        return state


@dataclass(frozen=True)
class Held:
    """Heads at the observed state: query, key and value (H, B, T, e), pattern and soft-cap's slope (H, B, T, T)."""

    query: Tensor
    key: Tensor
    pattern: Tensor
    slope: Tensor | None
    value: Tensor
    q_norm: NormMap | None
    k_norm: NormMap | None

    def pick(self, places: Sequence[int]) -> "Held":
        """Some of the heads."""

        def some(tensor: Tensor) -> Tensor:
            return pick(tensor, places)

        return Held(
            some(self.query),
            some(self.key),
            some(self.pattern),
            None if self.slope is None else some(self.slope),
            some(self.value),
            None if self.q_norm is None else self.q_norm.each(some),
            None if self.k_norm is None else self.k_norm.each(some),
        )


def hold(
    spec: Attention,
    heads: Sequence[int],
    normed: tuple[Tensor, Tensor, Tensor],
    rotation: Rotation | None,
    frozen: bool,
) -> Held:
    """Heads at what they read through queries, keys and values, after the norm: (B, T, d) or by head (H, B, T, d)."""
    at, groups = list(heads), [spec.group(head) for head in heads]
    raw_query = _project(normed[0], pick(spec.w_q, at), None if spec.b_q is None else pick(spec.b_q, at))
    raw_key = _project(normed[1], pick(spec.w_k, groups), None if spec.b_k is None else pick(spec.b_k, groups))
    value = _project(normed[2], pick(spec.w_v, groups), None if spec.b_v is None else pick(spec.b_v, groups))
    return _held(spec, raw_query, raw_key, value, rotation, frozen)


def _held(
    spec: Attention, raw_query: Tensor, raw_key: Tensor, value: Tensor, rotation: Rotation | None, frozen: bool
) -> Held:
    """From queries and keys before their norms and rotation."""
    q_norm, k_norm = (
        None if norm is None else NormMap.at(norm, raw, frozen)
        for norm, raw in ((spec.q_norm, raw_query), (spec.k_norm, raw_key))
    )
    query = rotate(raw_query if q_norm is None else q_norm.value, rotation)
    key = rotate(raw_key if k_norm is None else k_norm.value, rotation)
    return Held(query, key, *_pattern(spec, query, key), value, q_norm, k_norm)


def _pattern(spec: Attention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
    scores = spec.scale * query @ key.mT
    slope = None
    if spec.softcap is not None:
        capped = torch.tanh(scores / spec.softcap)
        scores, slope = spec.softcap * capped, 1.0 - capped.square()
    hidden = keep_alive(_hidden(spec.window, query.shape[-2], query.device))
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1), slope


@lru_cache(maxsize=64)
def _hidden(window: int | None, length: int, device: torch.device) -> Tensor:
    """Which keys a query does not see: later ones, and those further back than the window. (T, T)."""
    with torch.inference_mode(False), filling_cache():
        place = torch.arange(length, device=device)
        back = place.unsqueeze(1) - place
        return (back < 0) if window is None else (back < 0) | (back >= window)


def rotate(x: Tensor, rotation: Rotation | None, *, back: bool = False) -> Tensor:
    """Rotary embedding of (H, B, ..., T, e), or its transpose; coordinates past cos and sin's width pass."""
    if rotation is None:
        return x
    cos, sin = (_spread_rotation(part.to(x.dtype), x) for part in rotation)
    width = cos.shape[-1]
    turned = x[..., :width]
    if back:
        image = torch.addcmul(_unhalf(turned * sin), turned, cos)
    else:
        image = torch.addcmul(_half(turned) * sin, turned, cos)
    return image if width == x.shape[-1] else torch.cat([image, x[..., width:]], dim=-1)


def _spread_rotation(part: Tensor, x: Tensor) -> Tensor:
    """(B, T, r) with axes of 1 before T, as many as x, (H, B, ..., T, e), has there."""
    return part.reshape(part.shape[0], *[1] * (x.ndim - 4), *part.shape[1:])


def _half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _unhalf(x: Tensor) -> Tensor:
    """The transpose of `_half`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([second, -first], dim=-1)


def pick(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """Some rows; neighbours, all of them among others, without a copy."""
    first, count = places[0], len(places)
    if list(places) == list(range(first, first + count)):
        return tensor if count == len(tensor) else tensor[first : first + count]
    return tensor.index_select(0, keep_alive(_index(tuple(places), tensor.device)))


def _weight(spec: Attention, heads: Sequence[int], port: str) -> Tensor:
    """Of a port of some heads, (H, e, d)."""
    if port == "q":
        return pick(spec.w_q, heads)
    return pick(spec.w_k if port == "k" else spec.w_v, [spec.group(head) for head in heads])


@lru_cache(maxsize=1 << 12)
def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept: sent anew for each use, a list of places makes a GPU wait."""
    with torch.inference_mode(False), filling_cache():
        return torch.tensor(places).to(device, non_blocking=True)


def by_head(z: Tensor, heads: int) -> Tensor:
    """Heads side by side, (B, T, H*e), as (H, B, T, e)."""
    return z.reshape(*z.shape[:2], heads, -1).movedim(2, 0)


def head_writes(spec: Attention, z: Tensor, heads: list[int], summed: Tensor | None = None) -> Tensor:
    """What heads write given the whole layer's z, (B, T, H*e): (H, B, T, d); a post-norm is that of their sum.

    `summed` is that sum as it was observed; computed if not given.
    """
    split = by_head(z, spec.heads)
    out = project(pick(split, heads), pick(spec.w_o, heads).to(z.dtype).mT)
    if spec.post_norm is None:
        return out
    return out * held_scale(spec.post_norm, heads_sum(spec, z) if summed is None else summed)


def heads_sum(spec: Attention, z: Tensor) -> Tensor:
    """Sum of all heads' outputs before any post-norm, output bias included, (B, T, d)."""
    weight = spec.w_o.to(z.dtype).permute(0, 2, 1).flatten(0, 1)  # (H*e, d)
    out: Tensor = z @ weight
    return out if spec.b_o is None else out + spec.b_o.to(z.dtype)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, T, d), or by head (H, B, T, d), through (H, e, d): (H, B, T, e)."""
    out = project(x if x.ndim == 4 else x.unsqueeze(0), weight.to(x.dtype).mT)
    return out if bias is None else out + bias.to(x.dtype)[:, None, None]
