"""The spectrum of a head's map from e x e matrices: T e x T e Gram matrices without a product of length T*d.

With the terms of `head_terms.py`, `f_ts = A_ts p_v + u_ts (k'_ts . p_k) + [s = t] B_t p_q`
and W_O = Q R, the blocks of `R^-1 Q^T J J^T Q R^-T` are

    G_tt' = sum_s (M_ts G M_t's^T / sigma_s^2 + beta_s f_ts f_t's^T),     M_ts = [A_ts I, u_ts k'_ts^T, [s = t] B_t]

Masks and relative units scale whole positions: `right` goes into 1/sigma^2 and beta, `left` into R.
"""

import torch
from torch import Tensor

from eics.linalg.blocks import project
from eics.linalg.memory import chunk_width
from eics.transformer.closed_forms.head_terms import HeadTerms


def head_grams(terms: HeadTerms, factor: Tensor, right: Tensor) -> Tensor:
    """R G R^T, (H, B, T*e, T*e), with R by position, (H, B or 1, T or 1, e, e), and `right` the scales of positions
    read."""
    return _Gram(terms, factor, right).whole()


class _Gram:
    """Blocks are (H, B, t, e, t', e): written at t and t', with R_t and R_t' in them."""

    def __init__(self, terms: HeadTerms, factor: Tensor, right: Tensor) -> None:
        self.terms, self.through, self.factor = terms, terms.through, factor
        heads, prompts, self.length, _ = terms.pattern.shape
        self.inverse = (terms.inverse * right.square()).expand(heads, prompts, -1)
        self.beta = (terms.beta * right.square()).expand(heads, prompts, -1)
        if self.through & {"q", "k"}:
            self.u = self._write(terms.u)
        if "q" in self.through:
            self.b = factor @ terms.b

    def whole(self) -> Tensor:
        """The sum of all terms."""
        gram = self._along()
        blocks = gram.unflatten(-1, (self.length, -1)).unflatten(-3, (self.length, -1))
        if "v" in self.through:
            self._add_values(blocks)
        if "k" in self.through:
            self._add_outer(blocks)
        if "q" in self.through:
            self._add_queries(blocks)
        return gram

    def _along(self) -> Tensor:
        """sum_s beta_s f_ts f_t's^T, (H, B, T*e, T*e)."""
        terms, width = self.terms, self.factor.shape[-1]
        f = terms.pattern.new_zeros(*terms.pattern.shape, width)
        if terms.norm.frozen:
            return f.new_zeros(*f.shape[:2], self.length * width, self.length * width)
        if "v" in self.through:
            f = f + terms.pattern.unsqueeze(-1) * self._write(terms.p["v"].unsqueeze(2))
        if "k" in self.through:
            f = f + self.u * (terms.keys * terms.p["k"].unsqueeze(-3)).sum(dim=-1, keepdim=True)
        if "q" in self.through:
            own = (self.b @ terms.p["q"].unsqueeze(-1)).squeeze(-1)
            f = f + torch.diag_embed(own.mT).movedim(2, -1)
        rows = f.mT.flatten(2, 3)  # (H, B, T*e, S)
        return (rows * self.beta.unsqueeze(-2)) @ rows.mT

    def _add_values(self, blocks: Tensor) -> None:
        """(sum_s A_ts A_t's / sigma_s^2) R_t G_vv R_t'^T."""
        shared = (self.terms.pattern * self.inverse.unsqueeze(-2)) @ self.terms.pattern.mT
        middle = self.factor.unsqueeze(3) @ self.terms.gram("vv")[:, None, None, None] @ self.factor.mT.unsqueeze(2)
        blocks.addcmul_(shared[:, :, :, None, :, None], middle.transpose(3, 4))

    def _add_outer(self, blocks: Tensor) -> None:
        """Every term that is an outer product with u: keys with keys, values and queries.

        sum_s ((A_ts G_vk + [s = t] B_t G_qk + u_ts k'_ts^T G_kk) k'_t's u_t's^T / sigma_s^2, and its transpose but for
        the last term, which is symmetric.
        """
        terms, width = self.terms, self.factor.shape[-1]
        step = chunk_width(4 * self.inverse.numel() * self.length * width, self.inverse.dtype)
        keys = terms.keys * self.inverse[..., None, :, None]
        met = project(keys, terms.gram("kk"))  # by t, s
        inner = (met.transpose(-3, -2) @ terms.keys.transpose(-3, -2).mT).permute(0, 1, 3, 4, 2)  # (H, B, t, t', s)
        if "v" in self.through:
            value = project(keys, terms.gram("kv"))
        if "q" in self.through:
            every = torch.arange(self.length, device=keys.device)
            queries = project(keys, terms.gram("kq")).transpose(2, 3) @ self.b.mT  # of k'_ts for B_s, by s, t
        for start in range(0, self.length, step):
            some = slice(start, start + step)
            one = inner[:, :, some].unsqueeze(-1) * self.u[:, :, some].unsqueeze(-3)  # (H, B, t, t', s, e)
            other = torch.zeros_like(one)
            if "v" in self.through:
                one += terms.pattern[:, :, some, None, :, None] * self._write(value.unsqueeze(2), some)
                written = self._write(value[:, :, some].unsqueeze(2)).transpose(2, 3)
                other += terms.pattern[:, :, None, :, :, None] * written
            if "q" in self.through:
                one[:, :, every[some] - start, :, every[some]] += queries[:, :, some].movedim(2, 0)  # s = t
                other[:, :, :, every, every] += queries[:, :, :, some].transpose(2, 3)  # s = t'
            u = self.u.unsqueeze(2).expand_as(one)
            own = self.u[:, :, some].unsqueeze(3).expand_as(one)
            found = torch.cat([one, own], dim=-2).mT @ torch.cat([u, other], dim=-2)
            blocks[:, :, some] += found.transpose(3, 4)

    def _add_queries(self, blocks: Tensor) -> None:
        """A_t't B_t G_qv R_t'^T / sigma_t^2 with its transpose, and B_t G_qq B_t^T / sigma_t^2 where t = t'."""
        scaled = self.b * self.inverse[..., None, None]
        own = project(scaled, self.terms.gram("qq")) @ self.b.mT
        blocks.diagonal(dim1=2, dim2=4).add_(own.permute(0, 1, 3, 4, 2))
        if "v" in self.through:
            middle = project(scaled, self.terms.gram("qv")).unsqueeze(3) @ self.factor.mT.unsqueeze(2)  # t, t' or 1
            pattern = self.terms.pattern
            blocks.addcmul_(pattern.mT[:, :, :, None, :, None], middle.transpose(3, 4))
            back = middle.mT.transpose(2, 3)  # of t', written at t
            blocks.addcmul_(pattern[:, :, :, None, :, None], back.transpose(3, 4))

    def _write(self, rows: Tensor, some: slice = slice(None)) -> Tensor:
        """R_t x for rows (H, B, t or 1, ..., e), at some of the positions t."""
        if self.factor.shape[1:3] == (1, 1):
            return project(rows, self.factor[:, 0, 0].mT)
        factor = self.factor if self.factor.shape[2] == 1 else self.factor[:, :, some]
        return rows @ factor.mT.reshape(*factor.shape[:3], *[1] * (rows.ndim - 5), *factor.shape[3:])
