"""A head's map as small matrices: what its norm and its Gram matrix are made of, in closed form.

With `u_ts = scale A_ts (v_s - z_t)` a head's map from position s to position t is

    J_ts = W_O (A_ts W_V + u_ts k'_ts^T W_K + [s = t] B_t W_Q) N_s

where `k'_ts` is query t pulled back through the rotation and norm of key s, `B_t = sum_s u_ts q'_ts^T` likewise for
queries,
and `W_a N_s N_s^T W_b^T = G_ab / sigma_s^2 + beta_s p_a p_b^T` by the rank-one form of the norm's Jacobian, with
weights-only `G_ab` and `p_a = W_a diag(w) c_s`. Under `frozen` only `A_ts W_V` is there, the Kronecker form.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from eics.transformer.attention import AttentionActivations, AttentionState, pick, port_weight, rotate
from eics.transformer.norm import NormMap


class HeadTerms:
    """The terms of the maps of several heads of a layer, through some of their ports."""

    def __init__(
        self, state: AttentionState, activations: AttentionActivations, heads: Sequence[int], through: set[str]
    ) -> None:
        self.state, self.activations, self.through = state, activations, through
        self.heads, self.norm = list(heads), state.norm
        self.pattern = activations.pattern
        self.inverse = self.norm.inverse  # (B, T)
        self.beta = torch.zeros_like(self.inverse) if self.norm.beta is None else self.norm.beta
        self.p = {} if self.norm.frozen else {name: self._p(name) for name in through}

    @cached_property
    def weight(self) -> Tensor:
        """w_ts of `u_ts = w_ts (v_s - z_t)`, (H, B, T, S)."""
        weight = self.state.spec.scale * self.pattern
        return weight if self.activations.slope is None else weight * self.activations.slope

    @cached_property
    def u(self) -> Tensor:
        """u_ts, (H, B, T, S, e)."""
        z = self.pattern @ self.activations.value
        return self.weight.unsqueeze(-1) * (self.activations.value.unsqueeze(-3) - z.unsqueeze(-2))

    @cached_property
    def keys(self) -> Tensor:
        """k'_ts, (H, B, T, S, e)."""
        wide = self.activations.query.unsqueeze(-2).expand(*self.pattern.shape, -1)  # query t in place of key s
        return self._back(wide.transpose(-3, -2), self.activations.k_norm).transpose(-3, -2)

    @cached_property
    def queries(self) -> Tensor:
        """q'_ts, (H, B, T, S, e)."""
        wide = self.activations.key.unsqueeze(-3).expand(*self.pattern.shape, -1)  # key s in place of query t
        return self._back(wide, self.activations.q_norm)

    @cached_property
    def b(self) -> Tensor:
        """B_t, (H, B, T, e, e)."""
        return self.u.mT @ self.queries

    def gram(self, pair: str) -> Tensor:
        """G_ab by ports, or `oo`: W_O^T W_O, for these heads; (H, e, e)."""
        if pair in ("qv", "kv", "kq"):
            return self.gram(pair[::-1]).mT
        return self.state.spec.cache.get(
            (tuple(self.heads), pair, self.norm.weight.dtype),
            self.state.spec.weights,
            lambda: torch.stack([self._of_weights(head, pair, self._gram_of(head, pair)) for head in self.heads]),
        )

    def _gram_of(self, head: int, pair: str) -> Callable[[], Tensor]:
        def make() -> Tensor:
            if pair == "oo":
                output = self.state.spec.w_o[head].to(self.norm.weight.dtype)
                return output.mT @ output
            first, second = (self.folded(head, port) for port in pair)
            return first @ second.mT

        return make

    def folded(self, head: int, port: str) -> Tensor:
        """W diag(w) P of one head's port, (e, d)."""
        return self.norm.fold(port_weight(self.state.spec, [head], port)[0].to(self.norm.weight.dtype))

    @property
    def value_trace(self) -> Tensor:
        """tr(W_O^T W_O G_vv), (H, 1, 1)."""
        return self._of_weights(
            tuple(self.heads),
            "trace",
            lambda: (self.gram("oo") * self.gram("vv").mT).sum(dim=(-2, -1))[:, None, None],
        )

    @property
    def factor(self) -> Tensor:
        """R in W_O = Q R, (H, e, e)."""
        spec, dtype = self.state.spec, self.norm.weight.dtype
        return self._by_head("factor", lambda head: torch.linalg.qr(spec.w_o[head].to(dtype)).R)

    @property
    def value_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of R G_vv R^T, (H, e) and (H, e, e)."""
        factors = dict(zip(self.heads, zip(self.factor, self.gram("vv"), strict=True), strict=True))

        def make(head: int) -> Tensor:
            factor, gram = factors[head]
            values, vectors = torch.linalg.eigh(factor @ gram @ factor.mT)
            return torch.cat([values.clamp(min=0).unsqueeze(0), vectors])

        both = self._by_head("eigen", make)
        return both[:, 0], both[:, 1:]

    @property
    def value_squares(self) -> Tensor:
        """Squared singular values of W_O W_V diag(w) P, (H, e)."""
        factors = dict(zip(self.heads, self.factor, strict=True))

        def make(head: int) -> Tensor:
            singular: Tensor = torch.linalg.svdvals(factors[head] @ self.folded(head, "v"))
            return singular.square()

        return self._by_head("squares", make)

    def port_factor(self, port: str) -> Tensor:
        """R_a in diag(w) P W_a^T = Q_a R_a, (H, r, e), r the smaller of width and e."""
        return self._by_head(f"{port} factor", lambda head: torch.linalg.qr(self.folded(head, port).mT).R)

    def _by_head(self, name: str, make: Callable[[int], Tensor]) -> Tensor:
        """A matrix of each head's weights alone, stacked; each is cached."""
        return torch.stack([self._of_weights(head, name, partial(make, head)) for head in self.heads])

    def _of_weights(self, heads: Hashable, name: str, make: Callable[[], Tensor]) -> Tensor:
        """A matrix of weights alone, cached."""
        return self.state.spec.cache.get((heads, name, self.norm.weight.dtype), self.state.spec.weights, make)

    def turned(self, vectors: Tensor, port: str) -> Tensor:
        """M_s x_s at each position: queries or keys, (H, B, T, e), through their norm and rotation."""
        norm = self._inner_norm(port)
        normed = vectors if norm is None else norm.mv(vectors.unsqueeze(-3)).squeeze(-3)
        return rotate(normed, self.state.rotation)

    def turned_back(self, vectors: Tensor, port: str) -> Tensor:
        """M_s^T x_s at each position."""
        norm, rows = self._inner_norm(port), rotate(vectors, self.state.rotation, back=True)
        return rows if norm is None else norm.rmv(rows.unsqueeze(-3)).squeeze(-3)

    def taken(self, rows: Tensor, port: str) -> Tensor:
        """M_s x for rows (H, r, e) at every position s, (H, B or 1, r, S or 1, e); once if no prompt or position
        matters."""
        norm = self._inner_norm(port)
        wide = rows[:, None, :, None]
        if norm is None and self.state.rotation is None:
            return wide
        wide = wide.expand(-1, -1, -1, self.pattern.shape[-1], -1)
        return rotate(wide if norm is None else norm.mv(wide), self.state.rotation)

    def _inner_norm(self, port: str) -> NormMap | None:
        return self.activations.q_norm if port == "q" else self.activations.k_norm

    def _p(self, name: str) -> Tensor:
        """p_a = W_a diag(w) c_s, (H, B, T, e)."""
        width = self.activations.value.shape[-1]
        raw = pick(self.state.raw, [self.state.heads.index(head) for head in self.heads])
        start = "qkv".index(name) * width
        return raw[..., start : start + width] * self.norm.scale

    def _back(self, wide: Tensor, norm: NormMap | None) -> Tensor:
        """Rotated and normed back, for (H, B, place, others, e)."""
        rows = rotate(wide.transpose(-3, -2), self.state.rotation, back=True)  # (H, B, others, place, e)
        return (rows if norm is None else norm.rmv(rows)).transpose(-3, -2)


class JoinedTerms(HeadTerms):
    """The terms of heads of several layers whose queries and keys are treated alike: one operation serves them all."""

    def __init__(self, some: Sequence[HeadTerms]) -> None:
        first = some[0]
        self.some, self.state, self.through, self.norm = some, first.state, first.through, first.norm
        layers = [terms.activations for terms in some]
        query, key, pattern, value = (
            torch.cat([getattr(layer, name) for layer in layers]) for name in ("query", "key", "pattern", "value")
        )
        slopes = [layer.slope for layer in layers if layer.slope is not None]
        slope = torch.cat(slopes) if slopes else None
        self.activations = AttentionActivations(query, key, pattern, slope, value, None, None)
        self.pattern = pattern
        self.inverse, self.beta = (
            torch.cat([getattr(t, name).expand(len(t.heads), *t.inverse.shape) for t in some])
            for name in ("inverse", "beta")
        )
        self.p = {name: torch.cat([terms.p[name] for terms in some]) for name in first.p}

    @staticmethod
    def alike(one: AttentionState, other: AttentionState) -> bool:
        """Whether the terms of two layers can be joined."""
        specs = one.spec, other.spec
        plain = all(spec.q_norm is None and spec.k_norm is None and spec.post_norm is None for spec in specs)
        rotations = [(None, None) if state.rotation is None else state.rotation for state in (one, other)]
        turned = all(a is b for a, b in zip(*rotations, strict=True))
        shapes = one.read.shape == other.read.shape and specs[0].w_o.shape[1:] == specs[1].w_o.shape[1:]
        numbers = specs[0].scale == specs[1].scale and specs[0].softcap == specs[1].softcap
        return plain and turned and shapes and numbers

    def gram(self, pair: str) -> Tensor:
        return torch.cat([terms.gram(pair) for terms in self.some])

    @property
    def value_trace(self) -> Tensor:
        return torch.cat([terms.value_trace for terms in self.some])

    @property
    def factor(self) -> Tensor:
        return torch.cat([terms.factor for terms in self.some])

    def port_factor(self, port: str) -> Tensor:
        return torch.cat([terms.port_factor(port) for terms in self.some])
