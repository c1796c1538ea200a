"""Stochastic Lanczos quadrature (Ubaru, Chen, Saad 2017) and the largest singular values by block Krylov.

With A = J^T J (or J J^T) and Rademacher z, `E z^T log(I + alpha A) z = logdet(I + alpha A)`. `m` Lanczos steps
from z give a tridiagonal T whose eigenvalues and first eigenvector entries are the nodes and weights of the
Gauss rule for that quadratic form. The rule is exact for polynomials of degree 2m-1. Every even derivative of
log(1 + alpha x) is negative, so the Gauss rule is an upper bound on the form; the Gauss-Radau rule with a node at 0
(Golub, Meurant 1994), whose error term has odd derivatives, is a lower bound.

The truth lies between them, nearer to the one that moves less from step to step: with `d` what a rule moved in the last
step, the value is `(d_radau gauss + d_gauss radau) / (d_radau + d_gauss)`. Its standard error has two parts.

*Sampling.* The spread over probes, wider by Student's t (2 standard errors of 8 probes cover 91%, not 95%). Where one
eigenvalue dominates, forms are chi-squared with one degree of freedom, and a few of them often understate their own
spread: there the variance of a form, `2 ||f(A) - mean||_F^2` for eigenvectors in general position, is read off the rule
itself and counts as well, the more the fewer eigenvalues dominate, up to 3.5 times the observed variance (eigenvectors
along the axes have less).

*Bias.* What the value itself moved in the last step, and a tenth of the distance of the two rules: about what is left
on steep spectra, 0 to 15% (`tests/linalg/test_coverage.py`). Half the distance would bound it, many times too wide.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.linalg.matrices import small_eigh
from eics.linalg.probes import Stream, student
from eics.linalg.spectrum import Alpha, Estimate, Gram, SingularValues, Spectrum, trailing

_LEVELS = 3  # rules of the last step and of the two before
_MOST_UNDERSTATED = 3.5
_LEFT_OF_DISTANCE = 0.1
_UNIFORM = 12**-0.5  # the standard deviation of a uniform distribution over the distance


@dataclass(frozen=True)
class Quadrature(Spectrum):
    """Nodes and weights of quadrature rules for each probe, (B, probes, rules, steps + 1).

    The first half are the Gauss rules of the last steps, the last one first, the other half the Radau rules. A rule
    with fewer nodes has nodes of weight 0.
    """

    nodes: Tensor
    weights: Tensor
    method: str = "lanczos"
    exact: bool = False
    sampled: bool = True

    @property
    def gauss(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the Gauss rule of all steps, (B, probes, steps + 1)."""
        return self.nodes[:, :, 0], self.weights[:, :, 0]

    @property
    def radau(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the Radau rule of all steps, (B, probes, steps + 1)."""
        levels = self.nodes.shape[2] // 2
        return self.nodes[:, :, levels], self.weights[:, :, levels]

    def ei(self, alpha: Alpha) -> Estimate:
        """Between the Gauss and the Radau rule, with the standard error of sampling and of too few steps."""
        function = 0.5 * torch.log1p(trailing(alpha, 3) * self.nodes)
        by_probe = (self.weights * function).sum(dim=3)  # (B, probes, rules)
        upper, lower = by_probe.chunk(2, dim=2)
        share, value = _between(upper.mean(dim=1), lower.mean(dim=1))  # (B, levels)
        forms = share[:, None, 0] * upper[..., 0] + (1.0 - share[:, None, 0]) * lower[..., 0]
        distance = (upper - lower)[..., 0].mean(dim=1).clamp(min=0)
        bias = distance * _UNIFORM
        if value.shape[1] > 1:
            bias = 0.75 * _UNIFORM * distance
        if value.shape[1] > 2:  # so far that there is a step before to compare with
            bias = torch.hypot(_LEFT_OF_DISTANCE * distance, value[:, 0] - value[:, 1])
        sampling = sampling_error(forms, function[:, :, 0], self.weights[:, :, 0])
        return Estimate(value[:, 0], torch.hypot(sampling, bias))

    @staticmethod
    def _by_probe(rule: tuple[Tensor, Tensor], alpha: Alpha) -> Tensor:
        nodes, weights = rule
        return 0.5 * (weights * torch.log1p(trailing(alpha, 2) * nodes)).sum(dim=2)


def _between(upper: Tensor, lower: Tensor) -> tuple[Tensor, Tensor]:
    """The upper rules' shares, and the values between the rules, (B, levels) each, from the last step backwards.

    Of the first step there is nothing to compare with: its share is one half, as of a rule that has converged.
    """
    falling = (upper[:, 1:] - upper[:, :-1]).clamp(min=0)
    rising = (lower[:, :-1] - lower[:, 1:]).clamp(min=0)
    moved = falling + rising
    known = torch.where(moved > 0, rising / torch.where(moved > 0, moved, 1.0), 0.5)
    share = torch.cat([known, torch.full_like(upper[:, :1], 0.5)], dim=1)
    return share, share * upper + (1.0 - share) * lower


def sampling_error(
    forms: Tensor, function: Tensor, weights: Tensor, most_understated: float = _MOST_UNDERSTATED
) -> Tensor:
    """The standard error of the mean of forms (B, k), from their spread and the rule f, w (B, k, nodes) of each, or of
    some of them. The fewer forms, the more they may understate their own variance."""
    probes = forms.shape[1]
    observed = forms.var(dim=1) / probes
    size = weights.sum(dim=2).mean(dim=1)  # every probe's squared length: how many coordinates count
    mean = forms.mean(dim=1) / size.clamp(min=1)
    # With m2 and m4 the sums over eigenvalues of (f - mean)^2 and ^4: a form has the variance 2 m2, and m2^2 / m4
    # eigenvalues dominate. The variance over the root of that number:
    fourth = (weights * (function - mean[:, None, None]).pow(4)).sum(dim=2).mean(dim=1)
    implied = 2.0 / probes * fourth.sqrt()
    understated = torch.minimum(implied, most_understated * observed)
    return torch.maximum(student(probes) ** 2 * observed, understated).sqrt()


def quadrature(gram: Gram, *, probes: int, steps: int, stream: Stream) -> Quadrature:
    """Runs `steps` Lanczos steps from each of `probes` Rademacher vectors, all in one block."""
    steps = min(steps, gram.size + _LEVELS)  # every Krylov space is exhausted after `size` steps
    start = gram.probes(probes, stream)
    norm_squared = start.square().sum(dim=1)  # (B, k)
    diagonal, off_diagonal = _tridiagonalize(gram, start, steps)
    levels = range(steps, max(0, steps - _LEVELS), -1)
    gauss = [_padded(diagonal[..., :m], off_diagonal[..., : m - 1], steps + 1) for m in levels]
    radau = [_padded(*_with_node_at_zero(diagonal[..., :m], off_diagonal[..., :m]), steps + 1) for m in levels]
    diagonals, off_diagonals = (torch.stack(tensors, dim=2) for tensors in zip(*gauss, *radau, strict=True))
    return Quadrature(*_rule(diagonals, off_diagonals, norm_squared.unsqueeze(2)))


def _padded(diagonal: Tensor, off_diagonal: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """T with rows of zeros, which the first unit vector does not see, up to this size."""
    more = size - diagonal.shape[-1]
    return torch.nn.functional.pad(diagonal, (0, more)), torch.nn.functional.pad(off_diagonal, (0, more))


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
    """Nodes and weights of the quadrature rule of T, any number of them along the leading axes."""
    matrix = torch.diag_embed(diagonal)
    matrix = matrix + torch.diag_embed(off_diagonal, offset=1) + torch.diag_embed(off_diagonal, offset=-1)
    good = matrix.flatten(-2).isfinite().all(dim=-1)  # eigh would refuse the whole batch for one prompt's overflow
    nodes, vectors = small_eigh(torch.where(good[..., None, None], matrix, 0.0))
    weights = vectors[..., 0, :].square() * norm_squared.unsqueeze(-1)
    return nodes.clamp(min=0), torch.where(good.unsqueeze(-1), weights, torch.nan)


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
