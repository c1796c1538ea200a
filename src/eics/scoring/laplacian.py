"""The sheaf itself: coboundary, global sections, Laplacian, and Proposition 2's bound.

    (delta s)_{u->v} = rho_{u->v} s_u - s_v            (equation 1)
    L = delta^T W delta (+ beta I)                      W = I, or 1/||rho_e||^2 on edge e

The kernel of delta is the space of global sections. A section is fixed by its values at the sources, so the
kernel is usually large and the literal second eigenvalue of L usually 0; what the bound of Proposition 2 needs
is the smallest eigenvalue above zero, the `spectral_gap`.

Small circuits are factorized; large ones never form delta: `eics.linalg.smallest_singular` finds the gap by Lanczos in
the row space, LSMR projects, and the kernel is counted at the sources.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.errors import OptionError
from eics.linalg.blocks import cat_blocks
from eics.linalg.operators import LinearOperator
from eics.linalg.probes import generator, signs
from eics.linalg.smallest_singular import least_squares, smallest_nonzero
from eics.linearized.circuit import LinearizedCircuit

DENSE_LIMIT = 2048
"""Coordinates up to which `method="auto"` factorizes."""

WEIGHTS = ("none", "operator_norm")
METHODS = ("auto", "dense", "matrix_free")


class Coboundary(LinearOperator):
    """delta: node assignments to edge disagreements, over the edges that carry something.

    Columns are the stalks in topological order, rows the edges as in `linearized.edges`, each scaled by the
    square root of its weight.
    """

    def __init__(self, linearized: LinearizedCircuit, weights: Tensor | None = None) -> None:
        self.linearized, self.weights = linearized, weights
        self.batch, self.dtype = linearized.batch, linearized.dtype
        self.device = linearized.stalks[linearized.circuit.order[0]].activation.device
        dims = [linearized.stalks[node].dim for node in linearized.circuit.order]
        self.cols = sum(dims)
        self._dims = dims
        self._edge_dims = [linearized.stalks[edge.target].dim for edge in linearized.edges]
        self.rows = sum(self._edge_dims)

    def mv(self, x: Tensor) -> Tensor:
        """rho_{u->v} s_u - s_v on each edge; an entry's parents go through its map in one block."""
        values = dict(zip(self.linearized.circuit.order, (x * self.keep).split(self._dims, dim=1), strict=True))
        rows: list[Tensor] = []
        for node in self.linearized.circuit.inner:
            for entry in self.linearized.entries[node]:
                parents = torch.cat([values[edge.source] for edge in entry.edges], dim=2)
                images = entry.operator.mv(parents).split(x.shape[2], dim=2)
                rows.extend(image - values[node] for image in images)
        return cat_blocks(rows) * self._scales

    def rmv(self, y: Tensor) -> Tensor:
        """rho^T y_e to the source of each edge, -y_e to its target."""
        parts = iter((y * self._scales).split(self._edge_dims, dim=1))
        total = {
            node: y.new_zeros(y.shape[0], dim, y.shape[2])
            for node, dim in zip(self.linearized.circuit.order, self._dims, strict=True)
        }
        for node in self.linearized.circuit.inner:
            for entry in self.linearized.entries[node]:
                cotangents = [next(parts) for _ in entry.edges]
                backs = entry.operator.rmv(torch.cat(cotangents, dim=2)).split(y.shape[2], dim=2)
                for edge, cotangent, back in zip(entry.edges, cotangents, backs, strict=True):
                    total[edge.source] = total[edge.source] + back
                    total[node] = total[node] - cotangent
        return cat_blocks(list(total.values())) * self.keep

    def double(self) -> "Coboundary":
        """The coboundary in float64."""
        return Coboundary(self.linearized.double(), None if self.weights is None else self.weights.double())

    def prompt(self, index: int) -> "Coboundary":
        """The coboundary of one prompt."""
        weights = None if self.weights is None else self.weights[index % self.weights.shape[0]].unsqueeze(0)
        return Coboundary(self.linearized.prompt(index), weights)

    @cached_property
    def keep(self) -> Tensor:
        """1 on coordinates that count, (B or 1, cols, 1)."""
        stalks = (self.linearized.stalks[node] for node in self.linearized.circuit.order)
        return cat_blocks([stalk.weights.unsqueeze(2) for stalk in stalks])

    @cached_property
    def _scales(self) -> Tensor:
        """Square roots of the edge weights by row, (B or 1, rows, 1)."""
        if self.weights is None:
            return torch.ones(1, 1, 1, dtype=self.dtype, device=self.device)
        repeats = torch.tensor(self._edge_dims, device=self.device)
        return self.weights.sqrt().repeat_interleave(repeats, dim=1).unsqueeze(2)


def operator_norm_weights(linearized: LinearizedCircuit) -> Tensor:
    """1/||rho_e||^2 for each carrying edge, (B, edges); 1 for a map that is zero, which no weight normalizes."""
    norms: dict[tuple[int, ...], Tensor] = {}  # edges of an entry share their norm, unless their masks differ
    weights = []
    for node in linearized.circuit.inner:
        for entry in linearized.entries[node]:
            for edge in entry.edges:
                key = (id(entry), id(linearized.stalks[edge.source].mask))
                if key not in norms:
                    norms[key] = operator_norm(linearized.edge_map(edge)).square().expand(linearized.batch)
                squared = norms[key]
                weights.append(torch.where(squared > 0, 1.0 / torch.where(squared > 0, squared, 1.0), 1.0))
    return torch.stack(weights, dim=1)


def operator_norm(operator: LinearOperator) -> Tensor:
    """||J||, the largest singular value, for each prompt: (batch,)."""
    if min(operator.rows, operator.cols) <= DENSE_LIMIT:
        largest: Tensor = torch.linalg.svdvals(operator.dense()).amax(dim=1)
        return largest
    from scipy.sparse.linalg import svds

    start = _start_vectors(min(operator.rows, operator.cols), "operator norm")[:, 0]
    norms = [
        svds(_scipy(operator.prompt(b)), k=1, v0=start, return_singular_vectors=False)[0] for b in range(operator.batch)
    ]
    return torch.tensor(np.array(norms), dtype=operator.dtype, device=operator.device)


@dataclass(frozen=True)
class Projection:
    """The global section nearest to the observed activations.

    Attributes:
        section: s_hat by node, shaped like the activation (T, d).
        distance: ||a - s_hat|| / ||a||, in [0, 1].
    """

    section: dict[str, Tensor]
    distance: float


def project(linearized: LinearizedCircuit, *, method: str = "auto") -> list[Projection]:
    """Orthogonal projection of `a` onto ker(delta), for each prompt.

    `s_hat = a - delta^+ delta a`. (The paper's argmin over s is solved by s = 0; the nearest section is meant.)
    """
    _check_choice("method", method, METHODS)
    wide = linearized.double()
    return [_project_one(wide.prompt(b), method) for b in range(wide.batch)]


def _project_one(linearized: LinearizedCircuit, method: str) -> Projection:
    from scipy.linalg import qr

    delta = Coboundary(linearized)
    stalks = {node: linearized.stalks[node] for node in linearized.circuit.order}
    observed = torch.cat([stalk.flat for stalk in stalks.values()], dim=1).double().flatten()
    if _is_dense(delta, method):
        # Pivoted QR: a basis of the row space that, unlike an SVD, never fails to converge.
        basis, triangle, _ = qr(delta.dense()[0].double().mT.cpu().numpy(), mode="economic", pivoting=True)
        sizes = np.abs(np.diag(triangle))
        rows = torch.from_numpy(basis[:, sizes > _tolerance(delta) * sizes[0]]).to(observed)
        section = observed - rows @ (rows.mT @ observed)
    else:
        scipy_delta = _scipy(delta)
        values = observed.cpu().numpy()
        section = torch.from_numpy(values - least_squares(scipy_delta)(scipy_delta @ values)).to(observed)
    parts = section.split([stalk.dim for stalk in stalks.values()])
    shaped = {
        node: part.to(stalk.activation.dtype).view(stalk.activation.shape[1:])
        for (node, stalk), part in zip(stalks.items(), parts, strict=True)
    }
    norm = observed.norm()
    distance = float((observed - section).norm() / norm) if norm > 0 else 0.0
    return Projection(shaped, distance)


@dataclass(frozen=True)
class LaplacianSpectrum:
    """The three numbers that the spec asks for, of one prompt.

    Attributes:
        kernel_dim: dimension of the space of global sections (of L itself, whatever beta is). None where it
            is at least 2 but too large to count without a factorization.
        lambda2: the second-smallest eigenvalue of L + beta I, literally.
        spectral_gap: the smallest eigenvalue of L above the tolerance, plus beta: what Proposition 2 needs.
        dim: how many coordinates all stalks have together.
        method: `dense` or `matrix_free`.
    """

    kernel_dim: int | None
    lambda2: float
    spectral_gap: float
    dim: int
    method: str


def laplacian_spectrum(
    linearized: LinearizedCircuit, *, weights: str = "none", beta: float = 0.0, method: str = "auto"
) -> list[LaplacianSpectrum]:
    """Kernel dimension, lambda2 and spectral gap of L = delta^T W delta + beta I, for each prompt."""
    _check_choice("weights", weights, WEIGHTS)
    _check_choice("method", method, METHODS)
    if not 0.0 <= beta < float("inf"):
        raise OptionError.of("beta", "a finite number >= 0", beta)
    linearized = linearized.double()  # what counts as zero is a matter of rounding
    scale = operator_norm_weights(linearized) if weights == "operator_norm" else None
    delta = Coboundary(linearized, scale)
    one = [delta.prompt(b) for b in range(linearized.batch)]
    return [_dense_spectrum(d, beta) if _is_dense(d, method) else _free_spectrum(d, beta) for d in one]


def _dense_spectrum(delta: Coboundary, beta: float) -> LaplacianSpectrum:
    keep = delta.keep[0, :, 0] > 0
    matrix = delta.dense()[0].double()[:, keep]
    singular = torch.linalg.svdvals(matrix)
    dim = matrix.shape[1]
    tolerance = _tolerance(delta) * singular[0]
    squares = singular[singular > tolerance].square().sort().values
    kernel = dim - len(squares)
    eigenvalues = [0.0] * min(kernel, 2) + squares[:2].tolist()
    return LaplacianSpectrum(kernel, eigenvalues[1] + beta, float(squares[0]) + beta, dim, "dense")


def _free_spectrum(delta: Coboundary, beta: float) -> LaplacianSpectrum:
    forward = _scipy(delta)
    kernel = _count_sections(delta, forward)
    starts = _start_vectors(delta.rows, "spectral gap")
    smallest = [value**2 for value in smallest_nonzero(forward, starts, count=2 if kernel == 0 else 1)]
    lambda2 = 0.0 if kernel is None or kernel >= 2 else smallest[1 - kernel]
    dim = int(delta.keep.sum())
    return LaplacianSpectrum(kernel, lambda2 + beta, smallest[0] + beta, dim, "matrix_free")


def _count_sections(delta: Coboundary, forward: Any) -> int | None:
    """dim ker(delta) without a factorization of delta.

    A section is its values x at the sources: give every other node the value that one of its edges (its
    tree edge) carries to it, and the remaining edges demand K x = 0. So dim ker = sources - rank(K), and K is
    no wider than the sources. Where even that is too wide, random vectors are projected onto the kernel to
    tell 0 and 1 from more; None means 2 or more.
    """
    linearized = delta.linearized
    sources = [node for node in linearized.circuit.order if not linearized.entries.get(node)]
    width = sum(linearized.stalks[node].dim for node in sources)
    if width <= DENSE_LIMIT:
        return _source_sections(delta, sources, width)
    probes = _start_vectors(delta.cols, "kernel") * delta.keep[0].cpu().numpy()
    solve = least_squares(forward)
    inside = np.stack([probe - solve(forward @ probe) for probe in probes.T])
    rank = int(np.linalg.matrix_rank(inside, tol=1e-6 * float(np.linalg.norm(probes))))
    return rank if rank < 2 else None


def _source_sections(delta: Coboundary, sources: list[str], width: int) -> int:
    """width - rank(K), the rows of K folded into a triangle by QR as they come."""
    linearized = delta.linearized
    like = linearized.stalks[sources[0]].activation
    eye = torch.eye(width, dtype=like.dtype, device=like.device).unsqueeze(0)
    values: dict[str, Tensor] = {}
    rows = eye.split([linearized.stalks[node].dim for node in sources], dim=1)
    for node, block in zip(sources, rows, strict=True):
        values[node] = block * linearized.stalks[node].weights.unsqueeze(2)
    triangle = torch.zeros(0, width, dtype=torch.float64, device=like.device)
    for node in linearized.circuit.order:
        for entry in linearized.entries.get(node, ()):
            for edge in entry.edges:
                image = entry.operator.mv(values[edge.source])
                if node not in values:
                    values[node] = image
                    continue
                demand = (image - values[node])[0].double()
                triangle = torch.linalg.qr(torch.cat([triangle, demand]), mode="r").R
    counted = sum(int(linearized.stalks[node].size[0]) for node in sources)
    if not len(triangle):
        return counted
    singular = torch.linalg.svdvals(triangle)
    scale = max([float(singular[0]), 1.0])  # values at the sources have scale 1
    return counted - int((singular > _tolerance(delta) * scale).sum())


@dataclass(frozen=True)
class StabilityBound:
    """Proposition 2: `||s_hat - s*|| <= section`, `||dy|| <= output`."""

    section: float
    output: float


def stability_bound(spectral_gap: float, gamma: float, eta: float, *, kappa: float = 1.0) -> StabilityBound:
    """How far an off-circuit perturbation can move the circuit's section and its outputs.

    The section that fits offsets g on the edges best, `min_s ||delta s - g||_W`, solves `L s = delta^T W g`. A
    perturbation `eta` from outside the circuit changes the right-hand side by at most `gamma ||eta||`, where
    gamma is the operator norm of its coupling into that equation, `||delta^T W B||` for offsets `B eta`. Off
    the kernel (on which nothing acts) L is at least its spectral gap, so

        ||s_hat - s*|| <= gamma / gap ||eta||,    ||dy|| <= kappa ||s_hat - s*||

    with kappa a Lipschitz constant of the outputs, 1 where the outputs are the sinks' stalks themselves.

    >>> stability_bound(0.5, gamma=2.0, eta=0.1)
    StabilityBound(section=0.4, output=0.4)
    """
    for name, value in {"spectral_gap": spectral_gap, "gamma": gamma, "eta": eta, "kappa": kappa}.items():
        positive = name == "spectral_gap"
        if not (value > 0 or (value == 0 and not positive)) or value == float("inf"):
            raise OptionError.of(name, f"a finite number {'> 0' if positive else '>= 0'}", value)
    section = gamma / spectral_gap * eta
    return StabilityBound(section, kappa * section)


def _tolerance(delta: Coboundary) -> float:
    """What counts as zero, relative to the largest singular value: rounding in a matrix of this shape."""
    return max(delta.rows, delta.cols) * torch.finfo(delta.dtype).eps


def _is_dense(delta: LinearOperator, method: str) -> bool:
    return method == "dense" or (method == "auto" and max(delta.rows, delta.cols) <= DENSE_LIMIT)


def _scipy(operator: LinearOperator) -> Any:
    """A scipy operator for a batch of one, in float64 on its side and the operator's own dtype on ours."""
    from scipy.sparse.linalg import LinearOperator as ScipyOperator

    def through(product: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
        def apply(x: Any) -> Any:
            block = torch.as_tensor(np.ascontiguousarray(x).reshape(1, -1, 1), dtype=operator.dtype)
            return product(block.to(operator.device)).flatten().double().cpu().numpy()

        return apply

    shape = (operator.rows, operator.cols)
    return ScipyOperator(shape=shape, matvec=through(operator.mv), rmatvec=through(operator.rmv), dtype=np.float64)


def _start_vectors(size: int, purpose: str) -> Any:
    """Two start vectors, always the same ones, as columns."""
    return signs(size, 2, generator(0, purpose), torch.empty(0, dtype=torch.float64))[0].numpy()


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError.of(name, f"one of {', '.join(choices)}", value)
