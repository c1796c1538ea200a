"""The score as one would compute it first, with `torch.func`: what ours is faster than.

Prompt by prompt, one JVP for an edge; EI of nodes and macro map by JVPs and VJPs one vector at a time (`lanczos`:
stochastic quadrature, `fast`: Hutch++, with the probe counts of `eics.Options`), or from dense Jacobians by autograd
(`exact`). What one would compute first where no matrix fits is stochastic Lanczos; `fast` done the same way, of which
the small-alpha form is half the trick, is measured beside it. Nothing is shared between parents, prompts, heads or
entries, and no map has a closed form. Sheaf term: edge residuals, Euclidean; parts: nodes. Shares no code with the
score but the recorded forward pass and the weights.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from eics.linalg.probes import generator
from eics.scoring.options import Options
from eics.studies.bench.node_functions import Function, NodeFunction, PlainCircuit

_EPS = 1e-8


@dataclass(frozen=True)
class PlainScore:
    """One prompt's numbers; `ei_parts` by node."""

    c_sh: float
    ei_macro: float
    ei_parts: dict[str, float]

    @property
    def dei(self) -> float:
        """Signed."""
        return self.ei_macro - sum(self.ei_parts.values())


def straightforward(plain: PlainCircuit, options: Options) -> PlainScore:
    """Algorithm 1 for one prompt."""
    parts = {name: ei(jacobian, options, options.node_probes, name) for name, jacobian in node_jacobians(plain)}
    macro = ei(macro_jacobian(plain), options, options.probes_of_macro, "macro")
    return PlainScore(c_sh(plain), macro, parts)


def c_sh(plain: PlainCircuit) -> float:
    """Equation 2, one JVP an edge."""
    residual, energy = 0.0, 0.0
    for node in plain.nodes.values():
        for entry, edges in enumerate(node.entries):
            for edge in edges:
                predicted = _along(node, entry, plain.writes[edge.source])
                residual += float((predicted - node.write).square().sum())
                energy += float(plain.writes[edge.source].square().sum() + node.write.square().sum())
    return math.sqrt(residual) / (_EPS + math.sqrt(energy))


def _along(node: NodeFunction, entry: int, write: Tensor) -> Tensor:
    tangent = node.zero
    tangent[entry] = write
    image: Tensor = jvp(node.function, (node.zero,), (tangent,))[1]
    return image


@dataclass(frozen=True)
class Jacobian:
    """Of a function at a point, flattened on both sides, by products."""

    function: Function
    point: Tensor
    rows: int

    @property
    def columns(self) -> int:
        """How many numbers go in."""
        return self.point.numel()

    def mv(self, x: Tensor) -> Tensor:
        """J x."""
        image: Tensor = jvp(self.function, (self.point,), (x.view_as(self.point),))[1]
        return image.flatten()

    def rmv(self, y: Tensor) -> Tensor:
        """J^T y."""
        image, back = self.pullback
        return back(y.view_as(image))[0].flatten()

    def some_rows(self, first: int, last: int) -> Tensor:
        """Rows of the dense matrix, as `torch.func.jacrev` gets them: VJPs of unit vectors under `vmap`."""
        image, back = self.pullback
        units = torch.zeros(last - first, self.rows, dtype=self.point.dtype, device=self.point.device)
        units[:, first:last] = torch.eye(last - first, dtype=self.point.dtype, device=self.point.device)
        found: Tensor = vmap(lambda unit: back(unit.view_as(image))[0])(units)
        return found.flatten(1)

    @cached_property
    def pullback(self) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
        """The function's value and its VJP, which one pass through the function prepares."""
        found: Any = vjp(self.function, self.point)  # typed as if it had auxiliary output
        return found[0], found[1]


def node_jacobians(plain: PlainCircuit) -> Iterator[tuple[str, Jacobian]]:
    """J_v of every node with a parent, its entries side by side."""
    for name, node in plain.nodes.items():
        yield name, Jacobian(node.function, node.zero, node.write.numel())


def macro_jacobian(plain: PlainCircuit) -> Jacobian:
    """J_M: the derivative of the whole circuit's function, which is the sum over paths."""
    size = sum(plain.writes[name].numel() for name in plain.circuit.sources)
    point = next(iter(plain.writes.values())).new_zeros(size)
    return Jacobian(plain.macro, point, sum(plain.writes[name].numel() for name in plain.circuit.sinks))


def ei(jacobian: Jacobian, options: Options, probes: int, name: str) -> float:
    """EI of one Jacobian, as the mode says."""
    alpha = float(options.alpha)
    if options.mode == "exact":
        return dense_ei(jacobian, alpha)
    gram, half, size = _gram(jacobian)
    drawn = torch.randint(0, 2, (probes, size), generator=generator(options.seed, f"straightforward {name}"))
    signs = (2 * drawn - 1).to(jacobian.point)
    if options.mode == "fast":
        return 0.5 * alpha * _hutchpp(gram, half, signs)
    return 0.5 * sum(_quadrature(gram, sign, options.steps, alpha) for sign in signs) / probes


def dense_ei(jacobian: Jacobian, alpha: float, *, chunk: int = 64) -> float:
    """1/2 logdet(I + alpha J J^T) of the dense matrix, or of J^T J where that is smaller."""
    starts = range(0, jacobian.rows, chunk)
    matrix = torch.cat([jacobian.some_rows(start, min(start + chunk, jacobian.rows)) for start in starts]).double()
    gram = matrix @ matrix.T if jacobian.rows <= jacobian.columns else matrix.T @ matrix
    return log_det(gram, alpha)


def log_det(gram: Tensor, alpha: float) -> float:
    """1/2 logdet(I + alpha G) by Cholesky."""
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.cholesky(eye + alpha * gram).diagonal().log().sum())


def _gram(jacobian: Jacobian) -> tuple[Function, Function, int]:
    """x to A x and to the vector whose squared norm is x^T A x, with A the smaller of J J^T and J^T J."""
    if jacobian.rows <= jacobian.columns:
        return (lambda x: jacobian.mv(jacobian.rmv(x))), jacobian.rmv, jacobian.rows
    return (lambda x: jacobian.rmv(jacobian.mv(x))), jacobian.mv, jacobian.columns


def _hutchpp(gram: Function, half: Function, signs: Tensor) -> float:
    """tr(A): on the range of A times half of the probes exactly, on the rest by the other half."""
    sketch, samples = signs.split([len(signs) // 2, len(signs) - len(signs) // 2])
    basis = torch.linalg.qr(torch.stack([gram(x) for x in sketch], dim=1)).Q
    captured = sum(float(half(x).square().sum()) for x in basis.T)
    rest = samples - (samples @ basis) @ basis.T
    return captured + sum(float(half(x).square().sum()) for x in rest) / len(rest)


def _quadrature(gram: Function, start: Tensor, steps: int, alpha: float) -> float:
    """z^T log(I + alpha A) z by Lanczos from z, every vector made orthogonal to all before it."""
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
    tridiagonal = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside[: len(diagonal) - 1], dtype=torch.float64)
    tridiagonal += torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return float(norm.square()) * float((vectors[0].square() * torch.log1p(alpha * values.clamp(min=0))).sum())


def lanczos_seconds(plain: PlainCircuit, options: Options, clock: Callable[[Callable[[], object]], float]) -> float:
    """What stochastic Lanczos quadrature takes for one prompt: one probe of each map is timed and counted for all."""
    chosen = options.with_(mode="lanczos")
    total = clock(partial(c_sh, plain))
    for name, jacobian in node_jacobians(plain):
        total += chosen.node_probes * clock(partial(ei, jacobian, chosen, 1, name))
    return total + chosen.probes_of_macro * clock(partial(ei, macro_jacobian(plain), chosen, 1, "macro"))


def dense_seconds(plain: PlainCircuit, clock: Callable[[Callable[[], object]], float], *, chunk: int = 64) -> float:
    """What `exact` would take for one prompt where the matrices are too large to be made, from samples of the work.

    A chunk of each Jacobian's rows is timed and counted for all of them; so is a product and a factorization of a
    smaller Gram matrix, by the cube of its side.
    """
    total = clock(partial(c_sh, plain))
    for jacobian in [*(found for _, found in node_jacobians(plain)), macro_jacobian(plain)]:
        some = min(chunk, jacobian.rows)
        jacobian.some_rows(0, some)  # warm
        total += clock(partial(jacobian.some_rows, 0, some)) * jacobian.rows / some
        total += _factorization_seconds(jacobian, clock)
    return total


def _factorization_seconds(
    jacobian: Jacobian, clock: Callable[[Callable[[], object]], float], most: int = 768
) -> float:
    short, long = sorted((jacobian.rows, jacobian.columns))
    side = min(short, most)
    matrix = torch.randn(side, side, dtype=torch.float64, device=jacobian.point.device)
    product = clock(lambda: matrix @ matrix.T) * (short / side) ** 2 * long / side
    gram = matrix @ matrix.T
    return product + clock(lambda: log_det(gram, 1.0)) * (short / side) ** 3
