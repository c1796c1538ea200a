"""||J||_F^2 of a head's map in closed form, from e x e matrices: no products with vectors of length T*d.

With `u_ts = scale A_ts (v_s - z_t)` a head's map from position s to position t is

    J_ts = W_O (A_ts W_V + u_ts k'_ts^T W_K + [s = t] B_t W_Q) N_s

where `k'_ts` is query t as key s meets it before rotation and norm, `B_t = sum_s u_ts q'_ts^T` the same for queries,
and `W_a N_s N_s^T W_b^T = G_ab / sigma_s^2 + beta_s p_a p_b^T` by the rank-one form of the norm's Jacobian, with
weights-only `G_ab` and `p_a = W_a diag(w) c_s`. So with `S = W_O^T W_O` every term of
`||J_ts||^2 = tr(S [..] N N^T [..]^T)` is a product of small matrices. Under `frozen` only `A_ts W_V` is there, the
Kronecker form.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from eics.transformer.attention import AttentionState, Held, pick, rotate
from eics.transformer.blocks import project
from eics.transformer.norm import NormMap
from eics.transformer.spec import Attention


def head_norms_squared(state: AttentionState, held: Held, heads: Sequence[int], through: set[str]) -> Tensor:
    """||J_ts||_F^2 for each head, prompt and pair of positions, (H, B, T, T); rows are written, columns read."""
    return _Norms(state, held, heads, through).by_position()


class _Norms:
    def __init__(self, state: AttentionState, held: Held, heads: Sequence[int], through: set[str]) -> None:
        self.state, self.held, self.through = state, held, through
        self.heads, self.norm = list(heads), state.norm
        self.inverse = 1.0 / self.norm.scale.squeeze(-1).square()  # (B, T)
        self.beta = torch.zeros_like(self.inverse)
        if not self.norm.frozen:
            size = self.norm.point.square().sum(dim=-1)
            width = self.norm.point.shape[-1]
            self.beta = -2.0 * self.inverse**2 / width + size * self.inverse**3 / width**2
        self.grams = {pair: self._gram(pair) for pair in self._pairs()}
        self.s = self._gram("oo")
        self.p = {name: self._p(name) for name in through}

    def by_position(self) -> Tensor:
        """The terms through the ports that are there."""
        pattern = self.held.pattern
        total = torch.zeros_like(pattern)
        if "v" in self.through:
            total = total + pattern.square() * self._vv().unsqueeze(-2)
        if self.through & {"q", "k"}:
            z = pattern @ self.held.value
            slope = 1.0 if self.held.slope is None else self.held.slope
            weight = (self.state.spec.scale * pattern * slope).unsqueeze(-1)
            u = weight * (self.held.value.unsqueeze(-3) - z.unsqueeze(-2))  # (H, B, T, S, e)
            if "k" in self.through:
                total = total + self._with_keys(u)
            if "q" in self.through:
                total = total + torch.diag_embed(self._with_queries(u))
        return total

    def _vv(self) -> Tensor:
        """tr(S W_V N N^T W_V^T) at each position read, (H, B, S)."""
        trace = (self.s * self.grams["vv"].mT).sum(dim=(-2, -1))[:, None, None]
        return trace * self.inverse + self.beta * self._form(self.p["v"], self.p["v"])

    def _with_keys(self, u: Tensor) -> Tensor:
        keys = self._met("k")  # (H, B, T, S, e)
        su = project(u, self.s)
        along = (keys * self.p["k"].unsqueeze(-3)).sum(dim=-1)
        inner = (project(keys, self.grams["kk"]) * keys).sum(dim=-1)
        total = (su * u).sum(dim=-1) * (inner * self.inverse.unsqueeze(-2) + self.beta.unsqueeze(-2) * along.square())
        if "v" in self.through:
            cross = (project(su, self.grams["vk"]) * keys).sum(dim=-1) * self.inverse.unsqueeze(-2)
            cross = cross + self.beta.unsqueeze(-2) * (su * self.p["v"].unsqueeze(-3)).sum(dim=-1) * along
            total = total + 2.0 * self.held.pattern * cross
        return total

    def _with_queries(self, u: Tensor) -> Tensor:
        """What queries add where a position reads itself, (H, B, T)."""
        queries, p = self._met("q"), self.p["q"].unsqueeze(-1)  # B_t = u_t^T queries_t, by its factors (T, S, e)
        su, along = project(u, self.s), queries @ p
        total = self._trace(u, su, queries) * self.inverse
        bp, sbp = ((one.mT @ along).squeeze(-1) for one in (u, su))
        total = total + self.beta * (bp * sbp).sum(dim=-1)
        if "v" in self.through:
            cross = (project(queries, self.grams["vq"].mT) * su).sum(dim=(-2, -1)) * self.inverse
            cross = cross + self.beta * (sbp * self.p["v"]).sum(dim=-1)
            total = total + 2.0 * self.held.pattern.diagonal(dim1=-2, dim2=-1) * cross
        if "k" in self.through:
            own, keys = (x.diagonal(dim1=-3, dim2=-2).mT for x in (u, self._met("k")))  # s = t: (H, B, T, e)
            met = queries @ project(keys, self.grams["qk"].mT).unsqueeze(-1)
            read = (su.mT @ met).squeeze(-1) * self.inverse.unsqueeze(-1)
            read = read + (self.beta * (keys * self.p["k"]).sum(dim=-1)).unsqueeze(-1) * sbp
            total = total + 2.0 * (own * read).sum(dim=-1)
        return total

    def _trace(self, u: Tensor, su: Tensor, queries: Tensor) -> Tensor:
        """tr(S B G B^T) with B = u^T queries, (H, B, T), by whichever is smaller of B and the Gram matrices of its
        factors: `sum (u S u^T) * (queries G queries^T)`."""
        gram = self.grams["qq"]
        if u.shape[-2] < u.shape[-1]:
            return ((su @ u.mT) * (project(queries, gram) @ queries.mT)).sum(dim=(-2, -1))
        return (project(su.mT @ queries, gram) * (u.mT @ queries)).sum(dim=(-2, -1))

    def _met(self, port: str) -> Tensor:
        """What multiplies a key's (a query's) own change: the other side, rotated and normed back; (H, B, T, S, e)."""
        if port == "k":  # query t at the place of key s
            wide = self.held.query.unsqueeze(-2).expand(*self.held.pattern.shape, -1)
            return self._back(wide.transpose(-3, -2), self.held.k_norm).transpose(-3, -2)
        wide = self.held.key.unsqueeze(-3).expand(*self.held.pattern.shape, -1)  # key s at the place of query t
        return self._back(wide, self.held.q_norm)

    def _back(self, wide: Tensor, norm: NormMap | None) -> Tensor:
        """Rotated and normed back, for (H, B, place, others, e)."""
        rows = rotate(wide.transpose(-3, -2), self.state.rotation, back=True)  # (H, B, others, place, e)
        return (rows if norm is None else norm.rmv(rows)).transpose(-3, -2)

    def _form(self, one: Tensor, two: Tensor) -> Tensor:
        return (project(one, self.s) * two).sum(dim=-1)

    def _pairs(self) -> list[str]:
        names = [name for name in "vkq" if name in self.through]
        found = [one + two for place, one in enumerate(names) for two in names[place:]]
        return [("qk" if pair == "kq" else pair) for pair in found]

    def _gram(self, pair: str) -> Tensor:
        """G_ab or S for these heads, (H, e, e)."""
        spec = self.state.spec
        return torch.stack([_kept(spec, head, pair, self.norm.weight, self.norm.spec.centred) for head in self.heads])

    def _p(self, name: str) -> Tensor:
        """W_a diag(w) c_s, (H, B, T, e)."""
        point = self.norm.weight * self.norm.point
        return project(point.unsqueeze(0), _weight(self.state.spec, self.heads, name).to(point.dtype).mT)


def _kept(spec: Attention, head: int, pair: str, gain: Tensor, centred: bool) -> Tensor:
    def make() -> Tensor:
        one, two = (_weight(spec, [head], name)[0].to(gain.dtype) for name in pair)
        if pair == "oo":
            return one.mT @ two
        one, two = one * gain, two * gain
        gram = one @ two.mT
        if centred:  # P takes out the mean over the width
            gram = gram - one.sum(dim=1, keepdim=True) @ two.sum(dim=1, keepdim=True).mT / one.shape[1]
        return gram

    weights = (spec.w_q, spec.w_k, spec.w_v, spec.w_o, spec.norm.weight)
    return spec.kept.get((head, pair, gain.dtype), weights, make)


def _weight(spec: Attention, heads: Sequence[int], name: str) -> Tensor:
    groups = [spec.group(head) for head in heads]
    return {
        "q": lambda: pick(spec.w_q, heads),
        "k": lambda: pick(spec.w_k, groups),
        "v": lambda: pick(spec.w_v, groups),
        "o": lambda: pick(spec.w_o, heads),
    }[name]()
