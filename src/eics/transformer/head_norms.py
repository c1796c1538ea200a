"""||J||_F^2 of a head's map in closed form, from e x e matrices: no products with vectors of length T*d.

With the terms of `eics.transformer.head_terms` and `S = W_O^T W_O` every term of
`||J_ts||^2 = tr(S [..] N N^T [..]^T)` is a product of small matrices.
"""

import torch
from torch import Tensor

from eics.transformer.blocks import project
from eics.transformer.head_terms import HeadTerms


def head_norms_squared(terms: HeadTerms) -> Tensor:
    """||J_ts||_F^2 for each head, prompt and pair of positions, (H, B, T, T); rows are written, columns read."""
    return _Norms(terms).by_position()


class _Norms:
    def __init__(self, terms: HeadTerms) -> None:
        self.terms, self.through = terms, terms.through
        self.inverse, self.beta, self.p = terms.inverse, terms.beta, terms.p
        self.s = terms.gram("oo") if terms.through != {"v"} or not terms.norm.frozen else terms.value_trace

    def by_position(self) -> Tensor:
        """The terms through the ports that are there."""
        pattern = self.terms.pattern
        values = "v" in self.through
        total = pattern.square() * self._vv().unsqueeze(-2) if values else torch.zeros_like(pattern)
        if "k" in self.through:
            total = total + self._with_keys(self.terms.u)
        if "q" in self.through:
            total = total + torch.diag_embed(self._with_queries(self.terms.u))
        return total

    def _vv(self) -> Tensor:
        """tr(S W_V N N^T W_V^T) at each position read, (H, B, S)."""
        trace = self.terms.value_trace
        if self.terms.norm.frozen:
            return trace * self.inverse
        return trace * self.inverse + self.beta * self._form(self.p["v"], self.p["v"])

    def _with_keys(self, u: Tensor) -> Tensor:
        keys = self.terms.keys
        su = project(u, self.s)
        along = (keys * self.p["k"].unsqueeze(-3)).sum(dim=-1)
        inner = (project(keys, self.terms.gram("kk")) * keys).sum(dim=-1)
        total = (su * u).sum(dim=-1) * (inner * self.inverse.unsqueeze(-2) + self.beta.unsqueeze(-2) * along.square())
        if "v" in self.through:
            cross = (project(su, self.terms.gram("vk")) * keys).sum(dim=-1) * self.inverse.unsqueeze(-2)
            cross = cross + self.beta.unsqueeze(-2) * (su * self.p["v"].unsqueeze(-3)).sum(dim=-1) * along
            total = total + 2.0 * self.terms.pattern * cross
        return total

    def _with_queries(self, u: Tensor) -> Tensor:
        """What queries add where a position reads itself, (H, B, T)."""
        queries, p = self.terms.queries, self.p["q"].unsqueeze(-1)  # B_t = u_t^T queries_t, by its factors (T, S, e)
        su, along = project(u, self.s), queries @ p
        total = self._trace(u, su, queries) * self.inverse
        bp, sbp = ((one.mT @ along).squeeze(-1) for one in (u, su))
        total = total + self.beta * (bp * sbp).sum(dim=-1)
        if "v" in self.through:
            cross = (project(queries, self.terms.gram("qv")) * su).sum(dim=(-2, -1)) * self.inverse
            cross = cross + self.beta * (sbp * self.p["v"]).sum(dim=-1)
            total = total + 2.0 * self.terms.pattern.diagonal(dim1=-2, dim2=-1) * cross
        if "k" in self.through:
            own, keys = (x.diagonal(dim1=-3, dim2=-2).mT for x in (u, self.terms.keys))  # s = t: (H, B, T, e)
            met = queries @ project(keys, self.terms.gram("kq")).unsqueeze(-1)
            read = (su.mT @ met).squeeze(-1) * self.inverse.unsqueeze(-1)
            read = read + (self.beta * (keys * self.p["k"]).sum(dim=-1)).unsqueeze(-1) * sbp
            total = total + 2.0 * (own * read).sum(dim=-1)
        return total

    def _trace(self, u: Tensor, su: Tensor, queries: Tensor) -> Tensor:
        """tr(S B G B^T) with B = u^T queries, (H, B, T), by whichever is smaller of B and the Gram matrices of its
        factors: `sum (u S u^T) * (queries G queries^T)`."""
        gram = self.terms.gram("qq")
        if u.shape[-2] < u.shape[-1]:
            return ((su @ u.mT) * (project(queries, gram) @ queries.mT)).sum(dim=(-2, -1))
        return (project(su.mT @ queries, gram) * (u.mT @ queries)).sum(dim=(-2, -1))

    def _form(self, one: Tensor, two: Tensor) -> Tensor:
        return (project(one, self.s) * two).sum(dim=-1)
