"""||J||_F^2 of a head's map in closed form, from e x e matrices: no products with vectors of length T*d.

With the terms of `head_terms.py`, the factors `W_O = Q R` and `diag(w) P W_a^T = Q_a R_a` of weights alone, and M_s the
map of a query or key at position s through its norm and rotation, every term of `||J_ts||^2 = ||R [..] N||^2` is a
product of small matrices:

    R u_ts = w_ts (R v_s - R z_t)          k'_ts = M_s^T q_t           R B_t = E_t M_t,   E_t = sum_s R u_ts k_s^T

The only tensors of positions x positions x width are R u_ts and, with rotary embeddings, the product of each query with
`M_s [R_k^T, G_kv R^T]`.
"""

from functools import cached_property

import torch
from torch import Tensor

from eics.linalg.blocks import project
from eics.transformer.closed_forms.head_terms import HeadTerms


def head_norms_squared(terms: HeadTerms) -> Tensor:
    """||J_ts||_F^2 for each head, prompt and pair of positions, (H, B, T, T); rows are written, columns read."""
    return _Norms(terms).by_position()


class _Norms:
    def __init__(self, terms: HeadTerms) -> None:
        self.terms, self.through, self.activations = terms, terms.through, terms.activations
        self.inverse, self.beta, self.p = terms.inverse, terms.beta, terms.p

    def by_position(self) -> Tensor:
        """The terms through the ports that are there."""
        pattern = self.terms.pattern
        values = "v" in self.through
        total = pattern.square() * self._vv().unsqueeze(-2) if values else torch.zeros_like(pattern)
        if "k" in self.through:
            total = total + self._with_keys()
        if "q" in self.through:
            total = total + torch.diag_embed(self._with_queries())
        return total

    @cached_property
    def r(self) -> Tensor:
        """R^T of W_O = Q R, (H, e, r)."""
        return self.terms.factor.mT

    @cached_property
    def ru(self) -> Tensor:
        """R u_ts, (H, B, T, S, r)."""
        z = self.terms.pattern @ self.activations.value
        difference = project(self.activations.value, self.r).unsqueeze(-3) - project(z, self.r).unsqueeze(-2)
        return difference.mul_(self.terms.weight.unsqueeze(-1))

    def _vv(self) -> Tensor:
        """tr(S W_V N N^T W_V^T) at each position read, (H, B, S)."""
        trace = self.terms.value_trace
        if self.terms.norm.frozen:
            return trace * self.inverse
        return trace * self.inverse + self.beta * _squares(project(self.p["v"], self.r))

    def _with_keys(self) -> Tensor:
        """What keys add, (H, B, T, S)."""
        query, inverse, beta = self.activations.query, self.inverse.unsqueeze(-2), self.beta.unsqueeze(-2)
        own, rank = self.terms.port_factor("k"), self.terms.port_factor("k").shape[1]
        rows = torch.cat([own, project(self.terms.gram("kv"), self.r).mT], dim=1) if "v" in self.through else own
        met = _met(query, self.terms.taken(rows, "k"))  # R_k k'_ts and R G_vk k'_ts: (H, B, T, S or 1, .)
        along = query @ self.terms.turned(self.p["k"], "k").mT
        total = _squares(self.ru) * (_squares(met[..., :rank]) * inverse + beta * along.square())
        if "v" in self.through:
            cross = _inner(self.ru, met[..., rank:]) * inverse
            p = project(self.p["v"], self.r)
            cross = cross + beta * _inner(self.ru, p.unsqueeze(-3)) * along
            total = total + 2.0 * self.terms.pattern * cross
        return total

    def _with_queries(self) -> Tensor:
        """What queries add where a position reads itself, (H, B, T)."""
        key, p = self.activations.key, self.terms.turned(self.p["q"], "q")
        along = p @ key.mT  # p_t . q'_ts: (H, B, T, S)
        bp = (along.unsqueeze(-2) @ self.ru).squeeze(-2)  # R B_t p_t
        total = self.beta * _squares(bp)
        own = self.terms.taken(self.terms.port_factor("q"), "q")
        rows = project(self.terms.gram("qv"), self.r).mT if "v" in self.through else None  # R G_vq
        through = None if rows is None else self.terms.taken(rows, "q")
        if self.ru.shape[-2] < self.ru.shape[-1]:  # by its factors R u_t and R_q q'_t, each shorter than B_t is
            met = _met(key, own).transpose(-3, -2)  # (H, B, T or 1, S, .)
            total = total + ((self.ru @ self.ru.mT) * (met @ met.mT)).sum(dim=(-2, -1)) * self.inverse
            crossed = None if through is None else _inner(self.ru, _met(key, through).transpose(-3, -2)).sum(dim=-1)
        else:
            e = self.ru.mT @ key.unsqueeze(-3)  # (H, B, T, r, e)
            total = total + _squares((e @ own.movedim(-2, -3).mT).flatten(-2)) * self.inverse
            crossed = None if through is None else _inner(e.flatten(-2), through.movedim(-2, -3).flatten(-2))
        if crossed is not None:
            cross = crossed * self.inverse + self.beta * (bp * project(self.p["v"], self.r)).sum(dim=-1)
            total = total + 2.0 * self.terms.pattern.diagonal(dim1=-2, dim2=-1) * cross
        if "k" in self.through:
            keys = self.terms.turned_back(self.activations.query, "k")  # k'_tt: (H, B, T, e)
            met = self.terms.turned(project(keys, self.terms.gram("kq")), "q") @ key.mT  # (H, B, T, S)
            read = (met.unsqueeze(-2) @ self.ru).squeeze(-2) * self.inverse.unsqueeze(-1)
            read = read + (self.beta * (keys * self.p["k"]).sum(dim=-1)).unsqueeze(-1) * bp
            total = total + 2.0 * (self.ru.diagonal(dim1=-3, dim2=-2).mT * read).sum(dim=-1)
        return total


def _met(vectors: Tensor, rows: Tensor) -> Tensor:
    """Vectors (H, B, T, e) with every row at every position, (H, B or 1, r, S, e): (H, B, T, S, r)."""
    heads, batch, count, places, width = rows.shape
    flat = rows.reshape(heads, batch, count * places, width).mT
    if batch == 1:
        image = torch.bmm(vectors.flatten(1, 2), flat.squeeze(1)).view(*vectors.shape[:3], count, places)
    else:
        image = (vectors @ flat).unflatten(-1, (count, places))
    return image.mT


def _squares(vectors: Tensor) -> Tensor:
    """Squared norms over the last axis."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths.square()


def _inner(one: Tensor, two: Tensor) -> Tensor:
    """Inner products over the last axis."""
    return (one * two).sum(dim=-1)
