"""Attention heads: queries, keys, values and patterns at the observed state, and a head's linear map.

A head writes `z W_O` with `z = A v`, `A = softmax(scale q k^T)` over the positions that a query sees. Its Jacobian is

    dz = A dv + dA v,    dA = A * (dS - sum_j A dS),    dS = scale (dq k^T + q dk^T)

and under `frozen` (A held) only `A dv`. An entry through one port has that port's differential alone.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eics.operators import LinearOperator
from eics.transformer.norm import NormMap, held_scale
from eics.transformer.spec import Attention

Rotation = tuple[Tensor, Tensor]
"""cos and sin, (B or 1, T, r): rotary embeddings of the first r coordinates of queries and keys."""


class AttentionState:
    """One layer's attention at the observed state, all heads; computed once, in the working dtype.

    Args:
        spec: weights.
        read: the residual stream that the layer reads, (B, T, d).
        rotation: rotary embeddings, or None.
        summed: sum of the heads' outputs before the post-norm, (B, T, d), or None where there is no post-norm.
        frozen: whether norms are held.
    """

    def __init__(
        self, spec: Attention, read: Tensor, rotation: Rotation | None, summed: Tensor | None, frozen: bool
    ) -> None:
        self.spec, self.read, self.rotation, self.frozen = spec, read, rotation, frozen
        self._held: dict[int, Held] = {}
        self.norm = NormMap.at(spec.norm, read, frozen)
        self.post = held_scale(spec.post_norm, summed) if spec.post_norm and summed is not None else None

    @cached_property
    def raw_queries(self) -> Tensor:
        """Before norm and rotation, (B, H, T, e)."""
        return _project(self.norm.value, self.spec.w_q, self.spec.b_q)

    @cached_property
    def raw_keys(self) -> Tensor:
        """Before norm and rotation, (B, G, T, e)."""
        return _project(self.norm.value, self.spec.w_k, self.spec.b_k)

    @cached_property
    def values(self) -> Tensor:
        """(B, G, T, e)."""
        return _project(self.norm.value, self.spec.w_v, self.spec.b_v)

    def rotated(self, raw: Tensor, query: bool) -> Tensor:
        """Queries or keys as they meet: normed, then rotated."""
        norm = self.spec.q_norm if query else self.spec.k_norm
        normed = raw if norm is None else NormMap.at(norm, raw, self.frozen).value
        return rotate(normed, self.rotation)

    def held(self, head: int) -> "Held":
        """What a head's maps need of the observed state; computed once, whatever ports it is entered through."""
        if head not in self._held:
            self._held[head] = Held(*self._pattern(head), self.values[:, self.spec.group(head)])
        return self._held[head]

    def _pattern(self, head: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        query = self.rotated(self.raw_queries[:, head], query=True)
        key = self.rotated(self.raw_keys[:, self.spec.group(head)], query=False)
        scores = self.spec.scale * query @ key.mT
        slope = None
        if self.spec.softcap is not None:
            capped = torch.tanh(scores / self.spec.softcap)
            scores, slope = self.spec.softcap * capped, 1.0 - capped.square()
        scores = scores.masked_fill(~self.visible, float("-inf"))
        return query, key, scores.softmax(dim=-1), slope

    @cached_property
    def visible(self) -> Tensor:
        """Which keys a query sees: itself and earlier ones, as far back as the window. (T, T)."""
        place = torch.arange(self.read.shape[1], device=self.read.device)
        back = place.unsqueeze(1) - place
        return (back >= 0) if self.spec.window is None else (back >= 0) & (back < self.spec.window)

    def write(self, head: int, z: Tensor) -> Tensor:
        """What a head with this z (B, ..., T, e) writes, (B, ..., T, d); in the post-norm's held units."""
        out = z @ self.spec.w_o[head].to(z.dtype).mT
        if self.post is None:
            return out
        return out * (self.post if z.ndim == 3 else self.post.unsqueeze(1))

    def function(self, head: int) -> Tensor:
        """What the model's own function writes at the observed state, (B, T, d)."""
        held = self.held(head)
        return self.write(head, held.pattern @ held.value)


@dataclass(frozen=True)
class Held:
    """A head at the observed state: query, key and value (B, T, e), pattern and soft-cap's slope (B, T, T)."""

    query: Tensor
    key: Tensor
    pattern: Tensor
    slope: Tensor | None
    value: Tensor


class HeadMap(LinearOperator):
    """A head's linear map from the residual stream to its write, through all ports or one."""

    def __init__(self, state: AttentionState, head: int, port: str | None) -> None:
        self.state, self.head, self.port = state, head, port
        batch, length, width = state.read.shape
        self.batch, self.rows, self.cols = batch, length * width, length * width
        self.dtype, self.device = state.read.dtype, state.read.device
        self.through = {port} if port else ({"v"} if state.frozen else {"q", "k", "v"})
        spec, group = state.spec, state.spec.group(head)
        self.w = {"q": spec.w_q[head], "k": spec.w_k[group], "v": spec.w_v[group]}
        self.w = {name: weight.to(self.dtype) for name, weight in self.w.items()}
        self.held = state.held(head)
        self.inner = {
            "q": _inner_norm(spec.q_norm, state.raw_queries[:, head], state.frozen),
            "k": _inner_norm(spec.k_norm, state.raw_keys[:, group], state.frozen),
        }

    def mv(self, x: Tensor) -> Tensor:
        """Norm, projections, pattern, W_O."""
        return to_columns(self.state.write(self.head, self.z_change(x)))

    def rmv(self, y: Tensor) -> Tensor:
        """The same road back."""
        back = to_rows(y, self.state.read)
        if self.state.post is not None:
            back = back * self.state.post.unsqueeze(1)
        return self.z_back(back @ self.state.spec.w_o[self.head].to(self.dtype))

    def z_change(self, x: Tensor) -> Tensor:
        """dz, (B, k, T, e), for a block (B, T*d, k)."""
        normed = self.state.norm.mv(to_rows(x, self.state.read))
        out = torch.zeros((), dtype=self.dtype, device=self.device)
        if "v" in self.through:
            out = out + self.held.pattern.unsqueeze(1) @ (normed @ self.w["v"].mT)
        if self.through & {"q", "k"}:
            out = out + self._pattern_change(normed) @ self.held.value.unsqueeze(1)
        return out

    def z_back(self, back: Tensor) -> Tensor:
        """The transpose of `z_change`: (B, k, T, e) to (B, T*d, k)."""
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        if "v" in self.through:
            total = total + (self.held.pattern.mT.unsqueeze(1) @ back) @ self.w["v"]
        if self.through & {"q", "k"}:
            total = total + self._pattern_back(back)
        return to_columns(self.state.norm.rmv(total))

    def reduced(self, left: Tensor | None = None) -> LinearOperator:
        """R z instead of W_O z, with W_O = Q R at each position: e rows a position instead of d."""
        weight = self.state.spec.w_o[self.head].to(self.dtype)  # (d, e)
        if weight.shape[0] <= weight.shape[1]:
            return super().reduced(left)
        by_position = weight.expand(1, self.state.read.shape[1], *weight.shape)
        for scale in (self.state.post, None if left is None else left.view(left.shape[0], -1, weight.shape[0])):
            by_position = by_position if scale is None else by_position * scale.unsqueeze(-1)
        return _HeadCore(self, torch.linalg.qr(by_position).R)

    @property
    def left_factor(self) -> object:
        """The head: whatever port it is entered through, it writes through the same W_O."""
        return (id(self.state), self.head)

    def prompt(self, index: int) -> "HeadMap":
        """The head's map for one prompt: everything is linear algebra on slices."""
        return HeadMap(slice_state(self.state, index), self.head, self.port)

    def double(self) -> "HeadMap":
        """The head's map at the same state, computed in float64."""
        state = self.state
        wide = AttentionState(state.spec, state.read.double(), state.rotation, None, state.frozen)
        wide.post = None if state.post is None else state.post.double()
        return HeadMap(wide, self.head, self.port)

    def _pattern_change(self, normed: Tensor) -> Tensor:
        """dA, (B, k, T, T)."""
        held = self.held
        scores = torch.zeros((), dtype=self.dtype, device=self.device)
        if "q" in self.through:
            scores = scores + self._turn(normed @ self.w["q"].mT, "q") @ held.key.mT.unsqueeze(1)
        if "k" in self.through:
            scores = scores + held.query.unsqueeze(1) @ self._turn(normed @ self.w["k"].mT, "k").mT
        return self._softmax_change(self.state.spec.scale * self._capped(scores))

    def _pattern_back(self, back: Tensor) -> Tensor:
        held = self.held
        scores = self._softmax_change_back(back @ held.value.mT.unsqueeze(1))
        scores = self.state.spec.scale * self._capped(scores)
        total = torch.zeros((), dtype=self.dtype, device=self.device)
        if "q" in self.through:
            total = total + self._turn_back(scores @ held.key.unsqueeze(1), "q") @ self.w["q"]
        if "k" in self.through:
            total = total + self._turn_back(scores.mT @ held.query.unsqueeze(1), "k") @ self.w["k"]
        return total

    def _softmax_change(self, scores: Tensor) -> Tensor:
        pattern = self.held.pattern.unsqueeze(1)
        weighted = pattern * scores
        return weighted - pattern * weighted.sum(dim=-1, keepdim=True)

    _softmax_change_back = _softmax_change  # a softmax's Jacobian is symmetric

    def _capped(self, scores: Tensor) -> Tensor:
        return scores if self.held.slope is None else scores * self.held.slope.unsqueeze(1)

    def _turn(self, raw: Tensor, port: str) -> Tensor:
        inner = self.inner[port]
        return rotate(raw if inner is None else inner.mv(raw), self.state.rotation)

    def _turn_back(self, turned: Tensor, port: str) -> Tensor:
        inner = self.inner[port]
        raw = rotate(turned, self.state.rotation, back=True)
        return raw if inner is None else inner.rmv(raw)


class _HeadCore(LinearOperator):
    """A head's map with the orthonormal part of its write divided out: rows are T*e. `factor` is (B or 1, T, e, e)."""

    def __init__(self, head: HeadMap, factor: Tensor) -> None:
        self.head, self.factor = head, factor
        self.batch, self.cols, self.dtype, self.device = head.batch, head.cols, head.dtype, head.device
        self.rows = factor.shape[1] * factor.shape[2]

    def mv(self, x: Tensor) -> Tensor:
        """R dz."""
        z = self.head.z_change(x).unsqueeze(-1)
        return to_columns((self.factor.unsqueeze(1) @ z).squeeze(-1))

    def rmv(self, y: Tensor) -> Tensor:
        """The transpose."""
        rows = y.reshape(y.shape[0], *self.factor.shape[1:3], y.shape[2]).permute(0, 3, 1, 2).unsqueeze(-1)
        return self.head.z_back((self.factor.mT.unsqueeze(1) @ rows).squeeze(-1))

    def prompt(self, index: int) -> "_HeadCore":
        """One prompt's."""
        rows = index % self.factor.shape[0]
        return _HeadCore(self.head.prompt(index), self.factor[rows : rows + 1])

    def double(self) -> "_HeadCore":
        """In float64."""
        return _HeadCore(self.head.double(), self.factor.double())


def rotate(x: Tensor, rotation: Rotation | None, *, back: bool = False) -> Tensor:
    """Rotary embedding of (B, ..., T, e), or its transpose; coordinates past cos and sin's width pass."""
    if rotation is None:
        return x
    cos, sin = (_spread_rotation(part.to(x.dtype), x) for part in rotation)
    width = cos.shape[-1]
    turned, passed = x[..., :width], x[..., width:]
    other = _unhalf(turned * sin) if back else _half(turned) * sin
    return torch.cat([turned * cos + other, passed], dim=-1)


def _spread_rotation(part: Tensor, x: Tensor) -> Tensor:
    """(B, T, r) with axes of 1 before T, as many as x has there."""
    return part.reshape(part.shape[0], *[1] * (x.ndim - 3), *part.shape[1:])


def _half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _unhalf(x: Tensor) -> Tensor:
    """The transpose of `_half`."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([second, -first], dim=-1)


def to_rows(block: Tensor, like: Tensor) -> Tensor:
    """(B, T*d, k) to (B, k, T, d), where `like` is (B, T, d)."""
    _, length, width = like.shape
    return block.reshape(block.shape[0], length, width, block.shape[2]).permute(0, 3, 1, 2)


def to_columns(rows: Tensor) -> Tensor:
    """(B, k, T, d) to (B, T*d, k)."""
    return rows.permute(0, 2, 3, 1).flatten(1, 2)


def slice_state(state: AttentionState, index: int) -> AttentionState:
    """One prompt's attention state."""
    rows = slice(index, index + 1)
    rotation = state.rotation
    if rotation is not None and rotation[0].shape[0] > 1:
        rotation = (rotation[0][rows], rotation[1][rows])
    one = AttentionState(state.spec, state.read[rows], rotation, None, state.frozen)
    one.post = None if state.post is None else state.post[rows]
    return one


def _inner_norm(spec: object, raw: Tensor, frozen: bool) -> NormMap | None:
    return None if spec is None else NormMap.at(spec, raw, frozen)  # type: ignore[arg-type]


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(B, T, d) through (H, e, d): (B, H, T, e)."""
    out = x.unsqueeze(1) @ weight.to(x.dtype).mT
    return out if bias is None else out + bias.to(x.dtype).unsqueeze(1)
