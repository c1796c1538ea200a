"""The score as one would compute it first, with `torch.func`: the baseline that ours is compared with.

Prompt by prompt, one JVP per edge; EI of nodes and macro map by JVPs and VJPs one vector at a time (`lanczos`:
stochastic quadrature, `fast`: moments, `limit`: Hutch++, with the probe counts of `eics.Options`), or from dense
Jacobians by autograd (`exact`). If no matrix fits, the first choice would be stochastic Lanczos; the estimate of
`fast`, whose small-alpha form is half the trick, is also measured when computed this way. Nothing is shared between
parents, prompts, heads or entries, and no map has a closed form. Sheaf term: edge residuals, Euclidean; parts: nodes.
The only code in common with the score is the recorded forward pass and the attention function.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor
from torch.func import jvp, vjp, vmap

from eics.linalg.moment_estimates import from_images
from eics.linalg.moments import Moments
from eics.linalg.probes import generator
from eics.scoring.options import Options
from eics.scoring.sheaf import EPS
from eics.studies.bench.node_functions import Function, NodeFunction, PlainCircuit

Clock = Callable[[Callable[[], object]], float]
"""Runs a function and returns the seconds it took."""


@dataclass(frozen=True)
class PlainScore:
    """The numbers of one prompt; `ei_parts` by node."""

    c_sh: float
    ei_macro: float
    ei_parts: dict[str, float]


def straightforward(plain: PlainCircuit, options: Options) -> PlainScore:
    """Algorithm 1 for one prompt."""
    values = {name: ei(jacobian, options, _probes(options, name), name) for name, jacobian in jacobians(plain)}
    return PlainScore(c_sh(plain), values.pop("macro"), values)


def c_sh(plain: PlainCircuit) -> float:
    """Equation (2), one JVP per edge."""
    residual, energy = 0.0, 0.0
    for node in plain.nodes.values():
        for entry, edges in enumerate(node.entries):
            for edge in edges:
                predicted = _along(node, entry, plain.writes[edge.source])
                residual += float((predicted - node.write).square().sum())
                energy += float(plain.writes[edge.source].square().sum() + node.write.square().sum())
    return math.sqrt(residual) / (EPS + math.sqrt(energy))


def _along(node: NodeFunction, entry: int, write: Tensor) -> Tensor:
    tangent = torch.zeros_like(node.zero)
    tangent[entry] = write
    image: Tensor = jvp(node.function, (node.zero,), (tangent,))[1]
    return image


@dataclass(frozen=True)
class Jacobian:
    """The Jacobian of a function at a point, flattened on both sides, as matrix-vector products."""

    function: Function
    point: Tensor
    rows: int

    @property
    def columns(self) -> int:
        return self.point.numel()

    def mv(self, x: Tensor) -> Tensor:
        image: Tensor = jvp(self.function, (self.point,), (x.view_as(self.point),))[1]
        return image.flatten()

    def rmv(self, y: Tensor) -> Tensor:
        image, back = self.pullback
        return back(y.view_as(image))[0].flatten()

    def dense_rows(self, first: int, last: int) -> Tensor:
        """Rows of the dense matrix as `torch.func.jacrev` computes them: VJPs of unit vectors under `vmap`."""
        image, back = self.pullback
        units = torch.zeros(last - first, self.rows, dtype=self.point.dtype, device=self.point.device)
        units[:, first:last] = torch.eye(last - first, dtype=self.point.dtype, device=self.point.device)
        rows: Tensor = vmap(lambda unit: back(unit.view_as(image))[0])(units)
        return rows.flatten(1)

    @cached_property
    def pullback(self) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        """The value of the function and its VJP, both from one pass."""
        result: Any = vjp(self.function, self.point)  # typed as if it had auxiliary output
        return result[0], result[1]


def jacobians(plain: PlainCircuit) -> Iterator[tuple[str, Jacobian]]:
    """J_v of every node that has a parent, with its entries side by side; then J_M, under the name `macro`.

    J_M is the derivative of the whole circuit as one function, which equals the sum over paths.
    """
    for name, node in plain.nodes.items():
        yield name, Jacobian(node.function, node.zero, node.write.numel())
    size = sum(plain.writes[name].numel() for name in plain.circuit.sources)
    point = next(iter(plain.writes.values())).new_zeros(size)
    yield "macro", Jacobian(plain.macro, point, sum(plain.writes[name].numel() for name in plain.circuit.sinks))


def _probes(options: Options, name: str) -> int:
    return options.probes_of_macro if name == "macro" else options.node_probes


def ei(jacobian: Jacobian, options: Options, probes: int, name: str) -> float:
    """EI of one Jacobian, computed as `options.mode` says."""
    alpha = float(options.alpha)
    if options.mode == "exact":
        return dense_ei(jacobian, alpha)
    gram, half, size = _gram(jacobian)
    drawn = torch.randint(0, 2, (probes, size), generator=generator(options.seed, f"straightforward {name}"))
    signs = (2 * drawn - 1).to(jacobian.point)
    if options.mode == "limit":
        return 0.5 * alpha * _hutchpp(gram, half, signs)
    if options.mode == "fast":
        images = torch.stack([half(x) for x in signs], dim=1)
        moments = Moments(*from_images(images[None, None]), rank=min(jacobian.rows, jacobian.columns))
        return float(moments.ei(alpha).value)
    return 0.5 * sum(_quadrature(gram, sign, options.steps, alpha) for sign in signs) / probes


def dense_ei(jacobian: Jacobian, alpha: float, *, chunk: int = 64) -> float:
    """1/2 logdet(I + alpha J J^T) of the dense matrix, or with J^T J if that is smaller."""
    starts = range(0, jacobian.rows, chunk)
    matrix = torch.cat([jacobian.dense_rows(start, min(start + chunk, jacobian.rows)) for start in starts]).double()
    gram = matrix @ matrix.T if jacobian.rows <= jacobian.columns else matrix.T @ matrix
    return log_det(gram, alpha)


def log_det(gram: Tensor, alpha: float) -> float:
    """1/2 logdet(I + alpha G) by Cholesky."""
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.cholesky(eye + alpha * gram).diagonal().log().sum())


def _gram(jacobian: Jacobian) -> tuple[Function, Function, int]:
    """With A the smaller of J J^T and J^T J: the maps x -> A x and x -> h with |h|^2 = x^T A x, and the size of A."""
    if jacobian.rows <= jacobian.columns:
        return (lambda x: jacobian.mv(jacobian.rmv(x))), jacobian.rmv, jacobian.rows
    return (lambda x: jacobian.rmv(jacobian.mv(x))), jacobian.mv, jacobian.columns


def _hutchpp(gram: Function, half: Function, signs: Tensor) -> float:
    """tr(A): exactly on the range of A times half of the probes, estimated from the other half on the rest."""
    sketch, samples = signs.split([len(signs) // 2, len(signs) - len(signs) // 2])
    basis = torch.linalg.qr(torch.stack([gram(x) for x in sketch], dim=1)).Q
    captured = sum(float(half(x).square().sum()) for x in basis.T)
    rest = samples - (samples @ basis) @ basis.T
    return captured + sum(float(half(x).square().sum()) for x in rest) / len(rest)


def _quadrature(gram: Function, start: Tensor, steps: int, alpha: float) -> float:
    """z^T log(I + alpha A) z by Lanczos from z, with full reorthogonalization."""
    norm = start.norm()
    basis, diagonal, beside = [start / norm], [], []
    for _ in range(steps):
        image = gram(basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for vector in (*basis, *basis):  # twice is enough
            image = image - (image @ vector) * vector
        size = float(image.norm())
        if size <= 1e-6 * abs(diagonal[0]) or len(diagonal) == steps:
            break
        beside.append(size)
        basis.append(image / size)
    values, vectors = eigh_tridiagonal(diagonal, beside)
    return float(norm.square()) * float((vectors[0] ** 2 * np.log1p(alpha * values.clip(min=0))).sum())


def lanczos_seconds(plain: PlainCircuit, options: Options, clock: Clock) -> float:
    """Seconds of stochastic Lanczos quadrature for one prompt, extrapolated from one timed probe per map."""
    chosen = options.with_(mode="lanczos")
    total = clock(partial(c_sh, plain))
    for name, jacobian in jacobians(plain):
        total += _probes(chosen, name) * clock(partial(ei, jacobian, chosen, 1, name))
    return total


def dense_seconds(plain: PlainCircuit, clock: Clock, *, chunk: int = 64) -> float:
    """Seconds of `exact` for one prompt whose matrices are too large to make, extrapolated from samples of the work.

    A chunk of each Jacobian's rows is timed and scaled to all rows; the product and the factorization of a smaller Gram
    matrix are scaled by the cube of its side.
    """
    total = clock(partial(c_sh, plain))
    for _, jacobian in jacobians(plain):
        count = min(chunk, jacobian.rows)
        jacobian.dense_rows(0, count)  # warm-up
        total += clock(partial(jacobian.dense_rows, 0, count)) * jacobian.rows / count
        total += _factorization_seconds(jacobian, clock)
    return total


def _factorization_seconds(jacobian: Jacobian, clock: Clock, most: int = 768) -> float:
    short, long = sorted((jacobian.rows, jacobian.columns))
    side = min(short, most)
    matrix = torch.randn(side, side, dtype=torch.float64, device=jacobian.point.device)
    product = clock(lambda: matrix @ matrix.T) * (short / side) ** 2 * long / side
    gram = matrix @ matrix.T
    return product + clock(lambda: log_det(gram, 1.0)) * (short / side) ** 3
