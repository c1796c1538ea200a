"""Stochastic Lanczos quadrature (Ubaru, Chen, Saad 2017) and the largest singular values by block Krylov.

With A = J^T J (or J J^T) and Rademacher z, `E z^T log(I + alpha A) z = logdet(I + alpha A)`. `m` Lanczos steps
from z give a tridiagonal T whose eigenvalues and first eigenvector entries are the nodes and weights of the
Gauss rule for that quadratic form. The rule is exact for polynomials of degree 2m-1. Every even derivative of
log(1 + alpha x) is negative, so the Gauss rule is an upper bound on the form; the Gauss-Radau rule with a node at 0
(Golub, Meurant 1994), whose error term has odd derivatives, is a lower bound. Half their distance bounds the bias of
their mean, and enters the standard error beside the spread over probes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.matrices import small_eigh
from eics.linalg.probes import Stream
from eics.linalg.spectrum import Alpha, Estimate, Gram, SingularValues, Spectrum, trailing


@dataclass(frozen=True)
class Quadrature(Spectrum):
    """Nodes and weights of the Gauss and the Radau rule for each probe: (B, probes, steps) and one node more."""

    gauss: tuple[Tensor, Tensor]
    radau: tuple[Tensor, Tensor]
    method: str = "lanczos"
    exact: bool = False
    sampled: bool = True

    def ei(self, alpha: Alpha) -> Estimate:
        """The mean of the two rules over probes; its error combines the spread over probes and the distance of the
        rules."""
        upper, lower = (self._by_probe(rule, alpha) for rule in (self.gauss, self.radau))
        forms = 0.5 * (upper + lower)
        sampling = forms.std(dim=1) / forms.shape[1] ** 0.5
        bias = 0.5 * (upper - lower).mean(dim=1)
        return Estimate(forms.mean(dim=1), torch.hypot(sampling, bias))

    @staticmethod
    def _by_probe(rule: tuple[Tensor, Tensor], alpha: Alpha) -> Tensor:
        nodes, weights = rule
        return 0.5 * (weights * torch.log1p(trailing(alpha, 2) * nodes)).sum(dim=2)


def quadrature(gram: Gram, *, probes: int, steps: int, stream: Stream) -> Quadrature:
    """Runs `steps` Lanczos steps from each of `probes` Rademacher vectors, all in one block."""
    start = gram.probes(probes, stream)
    norm_squared = start.square().sum(dim=1)  # (B, k)
    diagonal, off_diagonal = _tridiagonalize(gram, start, steps)
    return Quadrature(
        gauss=_rule(diagonal, off_diagonal[..., :-1], norm_squared),
        radau=_rule(*_with_node_at_zero(diagonal, off_diagonal), norm_squared),
    )


def top_k(gram: Gram, *, k: int, steps: int, stream: Stream, oversample: int = 4) -> SingularValues:
    """The k largest squared singular values by randomized block Krylov iteration (Musco, Musco 2015).

    Ritz values never exceed the true ones, so the EI of the top-k directions is approached from below.
    """
    width = min(gram.size, k + oversample)
    block = torch.linalg.qr(gram.probes(width, stream)).Q
    blocks = [block]
    for _ in range(min(steps, -(-gram.size // width)) - 1):
        block = torch.linalg.qr(gram.mv(block)).Q  # each block on its own: powers of A are too ill-conditioned
        blocks.append(block)
    basis = torch.linalg.qr(torch.cat(blocks, dim=2)).Q
    half = gram.half(basis)
    ritz = torch.linalg.eigvalsh(half.mT @ half).clamp(min=0)
    return SingularValues(ritz.flip(dims=(1,))[:, :k], method="top-k", exact=False)


def _tridiagonalize(gram: Gram, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Lanczos with full reorthogonalization: diagonals and off-diagonals of T, (B, k, steps) each.

    The last off-diagonal entry leads out of T. When a Krylov space is exhausted its next vector is set to zero: the
    rest of T is then a zero block that the first unit vector does not see, so the rule stays exact.
    """
    tiny = 4 * torch.finfo(start.dtype).eps
    vector = start / start.norm(dim=1, keepdim=True).clamp(min=torch.finfo(start.dtype).tiny)
    basis, diagonal, off_diagonal = [], [], []
    for _ in range(steps):
        basis.append(vector)
        image = gram.mv(vector)
        diagonal.append((vector * image).sum(dim=1))
        for _ in range(2):  # "twice is enough"
            for earlier in basis:
                image = image - earlier * (earlier * image).sum(dim=1, keepdim=True)
        norm = image.norm(dim=1, keepdim=True)
        alive = norm > tiny * torch.stack(diagonal).amax(dim=0).unsqueeze(1)
        vector = torch.where(alive, image / torch.where(alive, norm, 1.0), 0.0)
        off_diagonal.append(torch.where(alive, norm, 0.0).squeeze(1))
    return torch.stack(diagonal, dim=2), torch.stack(off_diagonal, dim=2)


def _rule(diagonal: Tensor, off_diagonal: Tensor, norm_squared: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the quadrature rule of T."""
    matrix = torch.diag_embed(diagonal)
    matrix = matrix + torch.diag_embed(off_diagonal, offset=1) + torch.diag_embed(off_diagonal, offset=-1)
    good = matrix.flatten(2).isfinite().all(dim=2)  # eigh would refuse the whole batch for one prompt's overflow
    nodes, vectors = small_eigh(torch.where(good[..., None, None], matrix, 0.0))
    weights = vectors[..., 0, :].square() * norm_squared.unsqueeze(2)
    return nodes.clamp(min=0), torch.where(good.unsqueeze(2), weights, torch.nan)


def _with_node_at_zero(diagonal: Tensor, off_diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """T with one more row, whose diagonal entry makes it singular: the last pivot of its factorization is zero.

    If the space is exhausted, or T is singular to rounding already, the row is cut off and the rule stays Gauss.
    """
    pivot = diagonal[..., 0]
    for step in range(1, diagonal.shape[-1]):
        below = torch.where(pivot > 0, pivot, 1.0)
        pivot = diagonal[..., step] - off_diagonal[..., step - 1].square() / below
    usable = pivot > torch.finfo(pivot.dtype).eps * diagonal.amax(dim=-1)
    leading_out = torch.where(usable, off_diagonal[..., -1], 0.0)
    last = leading_out.square() / torch.where(usable, pivot, 1.0)
    changed = torch.cat([off_diagonal[..., :-1], leading_out.unsqueeze(-1)], dim=-1)
    return torch.cat([diagonal, last.unsqueeze(-1)], dim=-1), changed
