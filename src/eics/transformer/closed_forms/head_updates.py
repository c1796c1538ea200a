"""A head's J J^T under `jacobian` as a Kronecker product and a low-rank update, for prompts shorter than its width.

With the terms of `head_terms.py`, values carry a Kronecker product and what queries and keys
add writes along the `u_ts` alone: `J = V + L M` with a column `e_t (x) u_ts` of L for each pair s <= t, and in M's row
of that pair k'_ts^T W_K N_s at position s and q'_ts^T W_Q N_t at position t. So, with C = V M^T and `f_ts = A_ts p_v`,

    J J^T = (A D^2 A^T) (x) (R G_vv R^T) + [f L C] diag(beta, [M M^T, I; I, 0]) [f L C]^T

in the basis where the Kronecker product is diagonal. A pattern's rows sum to 1, so `sum_s u_ts = 0` (without a cap on
scores): the pair with s = 0 goes into the others. That leaves T^2 columns where the Gram matrix has T e.
"""

import torch
from torch import Tensor

from eics.linalg.blocks import project
from eics.linalg.matrices import small_eigh
from eics.transformer.closed_forms.head_terms import HeadTerms


def head_update(terms: HeadTerms, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The diagonal k (H, B, T*e), the columns P (H, B, T*e, T^2) and the matrix S between them (H, B, T^2, T^2).

    `left` and `right` are scales by position, (H or 1, B or 1, T).
    """
    return _Update(terms, left, right).parts()


class _Update:
    def __init__(self, terms: HeadTerms, left: Tensor, right: Tensor) -> None:
        self.terms = terms
        heads, prompts, self.length, _ = terms.pattern.shape
        self.shape = (heads, prompts)
        self.inverse = (terms.inverse * right.square()).expand(heads, prompts, -1)
        self.beta = (terms.beta * right.square()).expand(heads, prompts, -1)
        self.pattern = left.unsqueeze(-1) * terms.pattern
        square = (self.pattern * self.inverse.unsqueeze(-2)) @ self.pattern.mT
        self.squares, self.basis = small_eigh(square)  # (H, B, T), (H, B, t, i)
        pairs = torch.tril_indices(self.length, self.length, device=square.device)
        self.t, self.s = pairs[:, pairs[1] > 0]
        self.left = left.expand(heads, prompts, -1)
        values, vectors = terms.value_eigen
        self.value_squares = values
        self.turn = vectors.mT @ terms.factor  # R, then the basis of R G_vv R^T

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        diagonal = self.squares.clamp(min=0).unsqueeze(-1) * self.value_squares[:, None, None]
        reads = self.basis.mT @ self.pattern  # (H, B, i, s)
        p = project(self.terms.p["v"], self.turn.mT)
        along = reads.unsqueeze(-2) * p.mT.unsqueeze(-3)  # (H, B, i, e, s)
        columns = torch.cat([along, self._written(), self._crossed(reads)], dim=-1)
        return diagonal.flatten(2), columns.flatten(2, 3), self._middle()

    def _written(self) -> Tensor:
        """L: (H, B, i, e, pairs)."""
        u = project(self.terms.u[:, :, self.t, self.s], self.turn.mT) * self.left[:, :, self.t, None]
        written: Tensor = self.basis.mT[..., self.t].unsqueeze(-2) * u.mT.unsqueeze(-3)
        return written

    def _crossed(self, reads: Tensor) -> Tensor:
        """C = V M^T: (H, B, i, e, pairs)."""
        total = torch.zeros_like(reads[..., :1].unsqueeze(-2))
        if "k" in self.terms.through:
            keys = self._met("k", self.terms.keys, self.inverse.unsqueeze(-2), self.beta.unsqueeze(-2), -3)
            own = reads[..., self.s].unsqueeze(-2) * keys[:, :, self.t, self.s].mT.unsqueeze(-3)
            first = reads[..., :1].unsqueeze(-2) * keys[:, :, self.t, 0].mT.unsqueeze(-3)
            total = total + own - first
        if "q" in self.terms.through:
            inverse, beta = (x[..., self.t] for x in (self.inverse, self.beta))
            queries = self._met("q", self._queries, inverse, beta, None)
            total = total + reads[..., self.t].unsqueeze(-2) * queries.mT.unsqueeze(-3)
        return total

    def _met(self, port: str, rows: Tensor, inverse: Tensor, beta: Tensor, spread: int | None) -> Tensor:
        """W_V N N^T W_a^T x in the basis of values, for x (H, B, ..., e) at the positions that scales are of."""
        p, p_v = self.terms.p[port], self.terms.p["v"]
        p, p_v = (x[:, :, self.t] if spread is None else x.unsqueeze(spread) for x in (p, p_v))
        along = (rows * p).sum(dim=-1, keepdim=True) * beta.unsqueeze(-1)
        return project(project(rows, self.terms.gram(port + "v")) * inverse.unsqueeze(-1) + along * p_v, self.turn.mT)

    @property
    def _queries(self) -> Tensor:
        """q'_ts - q'_t0 of the pairs, (H, B, pairs, e)."""
        queries = self.terms.queries
        return queries[:, :, self.t, self.s] - queries[:, :, self.t, 0]

    def _middle(self) -> Tensor:
        """diag(beta, [M M^T, I; I, 0])."""
        count = len(self.t)
        square = self._rows_squared()
        eye = torch.eye(count, dtype=square.dtype, device=square.device).expand_as(square)
        below = torch.cat([torch.cat([square, eye], dim=-1), torch.cat([eye, torch.zeros_like(eye)], dim=-1)], dim=-2)
        middle = below.new_zeros(*self.shape, self.length + 2 * count, self.length + 2 * count)
        middle[..., : self.length, : self.length] = torch.diag_embed(self.beta)
        middle[..., self.length :, self.length :] = below
        return middle

    def _rows_squared(self) -> Tensor:
        """M M^T, (H, B, pairs, pairs), from M by position with keys' and queries' numbers side by side."""
        ports = [port for port in "kq" if port in self.terms.through]
        width, count = self.terms.p[ports[0]].shape[-1], len(self.t)
        every = torch.arange(count, device=self.t.device)
        rows = self.beta.new_zeros(*self.shape, self.length, count, width * len(ports))
        for place, port in enumerate(ports):
            some = rows[..., place * width : (place + 1) * width]
            if port == "k":
                keys = self.terms.keys
                some[:, :, self.s, every] = keys[:, :, self.t, self.s]
                some[:, :, 0] = -keys[:, :, self.t, 0]
            else:
                some[:, :, self.t, every] = self._queries
        grams = [torch.cat([self.terms.gram(one + two) for two in ports], dim=-1) for one in ports]
        p = torch.cat([self.terms.p[port] for port in ports], dim=-1)  # (H, B, T, width)
        along = (rows @ p.unsqueeze(-1)) * self.beta[..., None, None]
        read = project(rows, torch.cat(grams, dim=-2)) * self.inverse[..., None, None] + along * p.unsqueeze(-2)
        flat = [x.transpose(2, 3).flatten(3) for x in (read, rows)]
        return flat[0] @ flat[1].mT
