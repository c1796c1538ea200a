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

from eics.linalg.blocks import project
from eics.linalg.host_device import filling_cache, keep_alive
from eics.models.spec import Attention, Norm
from eics.transformer.norm import NormMap, held_scale

Value = TypeVar("Value")

Rotation = tuple[Tensor, Tensor]
"""cos and sin, (B or 1, T, r): rotary embeddings of the first r coordinates of queries and keys."""


class AttentionState:
    """One layer's attention at the observed state, for some of its heads; in the working dtype.

    Tensors have the heads first: (H, B, T, e). Keys and values of a grouped-query model are repeated for the query
    heads that share them.

    Args:
        spec: weights.
        read: the residual stream that the layer reads, (B, T, d).
        rotation: rotary embeddings, or None.
        summed: sum of the heads' outputs before the post-norm, (B, T, d), or None without a post-norm.
        frozen: whether norms are frozen.
        heads: which heads; None: all.
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
        self.siblings: list[ReferenceType[AttentionState]] = []  # all layers of the same pass; none keeps another alive
        self._shared: dict[Hashable, Any] = {}

    def once(self, name: Hashable, make: Callable[[], Value]) -> Value:
        """Computes what several maps of these heads need once for all of them. It must not hold the state itself."""
        if name not in self._shared:
            self._shared[name] = make()
        value: Value = self._shared[name]
        return value

    @cached_property
    def activations(self) -> "AttentionActivations":
        """Queries, keys, values and patterns of all heads, in a few products."""
        query, key, value = (self.raw + self.biases).chunk(3, dim=-1)
        return _activations(self.spec, query, key, value, self.rotation, self.frozen)

    @cached_property
    def raw(self) -> Tensor:
        """Queries, keys and values before their constants, side by side: W diag(w) P x / s, (H, B, T, 3*e)."""
        weight = self.weights_in(self.heads, "qkv")
        return project((self.norm.point / self.norm.scale).unsqueeze(0), weight.mT)

    def weights_in(self, heads: Sequence[int], ports: Sequence[str]) -> Tensor:
        """W diag(w) P of the ports, one below another, (H, ports*e, d): weights alone, and cached."""
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            return norm.fold(torch.cat([port_weight(spec, heads, port) for port in ports], dim=1).to(norm.weight.dtype))

        weights = (spec.w_q, spec.w_k, spec.w_v, norm.spec.weight)
        return spec.cache.get((tuple(heads), "in", tuple(ports), norm.weight.dtype), weights, make)

    @property
    def biases(self) -> Tensor:
        """The constant part of queries, keys and values, W bias + b, (H, 1, 1, 3*e): weights alone, and cached."""
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            weight = torch.cat([port_weight(spec, self.heads, port) for port in "qkv"], dim=1).to(norm.weight.dtype)
            through = torch.zeros_like(weight[..., 0])
            if norm.spec.bias is not None:
                through = weight @ norm.spec.bias.to(weight.dtype)
            biases = [port_bias(spec, self.heads, port) for port in "qkv"]
            parts = zip(through.chunk(3, dim=1), biases, strict=True)
            return torch.cat([part if own is None else part + own for part, own in parts], dim=1)[:, None, None]

        made_of = (spec.w_q, spec.w_k, spec.w_v, spec.b_q, spec.b_k, spec.b_v, norm.spec.bias)
        weights = [weight for weight in made_of if weight is not None]
        return spec.cache.get((self.heads, "biases", norm.weight.dtype), weights, make)

    def write(self, z: Tensor) -> Tensor:
        """What the heads write given their z, (H, B, T, e): (H, B, T, d); a post-norm's denominator is held."""
        out = project(z, pick(self.spec.w_o, self.heads).to(z.dtype).mT)
        return out if self.post is None else out * self.post

    @cached_property
    def function(self) -> Tensor:
        """What the model's own function writes at the observed state, (H, B, T, d)."""
        return self.write(self.activations.pattern @ self.activations.value)

    def constants(self, biases: Tensor, made_of: Sequence[Tensor]) -> Tensor:
        """`W_O (W_V bias + b_V)` and `W_O W_V diag(w) P biases` of the heads, (2, H, 1, 1, d): weights alone, and
        cached.

        `made_of` are the weights that `biases` is the sum of.
        """
        spec, norm = self.spec, self.norm

        def make() -> Tensor:
            groups = [spec.group(head) for head in self.heads]
            w_v, w_o = pick(spec.w_v, groups).to(biases.dtype), pick(spec.w_o, self.heads).to(biases.dtype)
            own = norm.weight * (biases - biases.mean() if norm.spec.centred else biases)
            fixed = torch.zeros_like(own) if norm.spec.bias is None else norm.spec.bias.to(own.dtype)
            values = w_v @ torch.stack([fixed, own], dim=1)  # (H, e, 2)
            if spec.b_v is not None:
                values[..., 0] += pick(spec.b_v, groups).to(own.dtype)
            return (w_o @ values).movedim(2, 0)[:, :, None, None].contiguous()

        mine = (spec.w_v, spec.b_v, spec.w_o, norm.spec.weight, norm.spec.bias)
        weights = [*(weight for weight in mine if weight is not None), *made_of]
        return spec.cache.get((self.heads, "constants", biases.dtype), weights, make)

    def at(self, read: Tensor, rows: slice = slice(None), heads: Sequence[int] | None = None) -> "AttentionState":
        """The same attention for some of the prompts and heads, or at the same state in another precision."""
        rotation = self.rotation
        if rotation is not None and rotation[0].shape[0] > 1:
            rotation = (rotation[0][rows], rotation[1][rows])
        state = AttentionState(self.spec, read[rows], rotation, None, self.frozen, heads or self.heads)
        state.post = None if self.post is None else self.post[rows].to(read.dtype)
        return state


@dataclass(frozen=True)
class AttentionActivations:
    """Heads at the observed state: query, key and value (H, B, T, e), pattern and soft-cap's slope (H, B, T, T)."""

    query: Tensor
    key: Tensor
    pattern: Tensor
    slope: Tensor | None
    value: Tensor
    q_norm: NormMap | None
    k_norm: NormMap | None

    def pick(self, places: Sequence[int]) -> "AttentionActivations":
        """The activations of some of the heads."""

        def some(tensor: Tensor) -> Tensor:
            return pick(tensor, places)

        return AttentionActivations(
            some(self.query),
            some(self.key),
            some(self.pattern),
            None if self.slope is None else some(self.slope),
            some(self.value),
            None if self.q_norm is None else self.q_norm.map_tensors(some),
            None if self.k_norm is None else self.k_norm.map_tensors(some),
        )


def activations_at(
    spec: Attention,
    heads: Sequence[int],
    normed: tuple[Tensor, Tensor, Tensor],
    rotation: Rotation | None,
    frozen: bool,
) -> AttentionActivations:
    """Heads that read these through queries, keys and values, after the norm: (B, T, d), or by head (H, B, T, d)."""
    read = [
        _project(x, port_weight(spec, heads, port), port_bias(spec, heads, port))
        for x, port in zip(normed, "qkv", strict=True)
    ]
    return _activations(spec, read[0], read[1], read[2], rotation, frozen)


def _activations(
    spec: Attention, raw_query: Tensor, raw_key: Tensor, value: Tensor, rotation: Rotation | None, frozen: bool
) -> AttentionActivations:
    """From queries and keys before their norms and rotation."""
    q_norm, k_norm = (
        None if norm is None else NormMap.at(norm, raw, frozen)
        for norm, raw in ((spec.q_norm, raw_query), (spec.k_norm, raw_key))
    )
    query = rotate(raw_query if q_norm is None else q_norm.value, rotation)
    key = rotate(raw_key if k_norm is None else k_norm.value, rotation)
    return AttentionActivations(query, key, *_pattern(spec, query, key), value, q_norm, k_norm)


def _pattern(spec: Attention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor | None]:
    scores = spec.scale * query @ key.mT
    slope = None
    if spec.softcap is not None:
        capped = torch.tanh(scores / spec.softcap)
        scores, slope = spec.softcap * capped, 1.0 - capped.square()
    hidden = keep_alive(_hidden_keys(spec.window, query.shape[-2], query.device))
    return scores.masked_fill(hidden, float("-inf")).softmax(dim=-1), slope


@lru_cache(maxsize=64)
def _hidden_keys(window: int | None, length: int, device: torch.device) -> Tensor:
    """Keys that a query does not see, (T, T): later ones, and those further back than the window."""
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
    """(B, T, r) with an axis of 1 for each axis of x, (H, B, ..., T, e), between B and T."""
    return part.reshape(part.shape[0], *[1] * (x.ndim - 4), *part.shape[1:])


def _half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _unhalf(x: Tensor) -> Tensor:
    """The transpose of `_half`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([second, -first], dim=-1)


def pick(tensor: Tensor, places: Sequence[int]) -> Tensor:
    """The rows at these places; neighbouring rows without a copy."""
    first, count = places[0], len(places)
    if list(places) == list(range(first, first + count)):
        return tensor if count == len(tensor) else tensor[first : first + count]
    return tensor.index_select(0, keep_alive(place_index(tuple(places), tensor.device)))


def port_weight(spec: Attention, heads: Sequence[int], port: str) -> Tensor:
    """The weights of a port (`q`, `k`, `v`) of some heads, (H, e, d); those of keys and values repeated by group."""
    if port == "q":
        return pick(spec.w_q, heads)
    return pick(spec.w_k if port == "k" else spec.w_v, [spec.group(head) for head in heads])


def port_bias(spec: Attention, heads: Sequence[int], port: str) -> Tensor | None:
    """The bias of a port of some heads, (H, e), or None."""
    bias = {"q": spec.b_q, "k": spec.b_k, "v": spec.b_v}[port]
    return None if bias is None else pick(bias, heads if port == "q" else [spec.group(head) for head in heads])


@lru_cache(maxsize=1 << 12)
def place_index(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Places as a tensor; cached, because copying an index to a GPU for each use synchronises with it."""
    with torch.inference_mode(False), filling_cache():
        return torch.tensor(places).to(device, non_blocking=True)


def by_head(z: Tensor, heads: int) -> Tensor:
    """Heads side by side, (B, T, H*e), as (H, B, T, e)."""
    return z.reshape(*z.shape[:2], heads, -1).movedim(2, 0)


def head_writes(spec: Attention, z: Tensor, heads: Sequence[int], summed: Tensor | None = None) -> Tensor:
    """What heads write given the z of the whole layer, (B, T, H*e): (H, B, T, d).

    A post-norm's denominator is that of the sum of all heads, `summed`, which is computed if it is not given.
    """
    if spec.post_norm is not None and summed is None:
        summed = heads_sum(spec, z)
    return written_out(spec.w_o, spec.post_norm, pick(by_head(z, spec.heads), heads), heads, summed)


def written_out(w_o: Tensor, post_norm: Norm | None, z: Tensor, heads: Sequence[int], summed: Tensor | None) -> Tensor:
    """What these heads write given their z, (H, B, T, e): (H, B, T, d); `summed` as in `head_writes`."""
    out = project(z, pick(w_o, heads).to(z.dtype).mT)
    if post_norm is None:
        return out
    assert summed is not None
    return out * held_scale(post_norm, summed)


def heads_sum(spec: Attention, z: Tensor) -> Tensor:
    """Sum of all heads' outputs before any post-norm, output bias included, (B, T, d)."""
    weight = spec.w_o.to(z.dtype).permute(0, 2, 1).flatten(0, 1)  # (H*e, d)
    out: Tensor = z @ weight
    return out if spec.b_o is None else out + spec.b_o.to(z.dtype)


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, T, d), or by head (H, B, T, d), through (H, e, d): (H, B, T, e)."""
    out = project(x if x.ndim == 4 else x.unsqueeze(0), weight.to(x.dtype).mT)
    return out if bias is None else out + bias.to(x.dtype)[:, None, None]
