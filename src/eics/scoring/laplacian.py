"""The sheaf Laplacian: global sections, kernel dimension, spectral gap, and the bound of Proposition 2.

    L = delta^T W delta (+ beta I)                      W = I, or 1/||rho_e||^2 on edge e

The kernel of the coboundary delta is the space of global sections. A section is fixed by its values at the sources, so
the kernel is usually large and the literal second eigenvalue of L usually 0; what the bound of Proposition 2 needs is
the smallest eigenvalue above zero, the `spectral_gap`.

Small circuits are factorized; large ones never form delta: `eics.linalg.smallest_singular` finds the gap by Lanczos in
the row space, LSMR projects, and the kernel is counted at the sources.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.errors import OptionError
from eics.linalg.operators import LinearOperator
from eics.linalg.smallest_singular import least_squares, smallest_nonzero
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.coboundary import (
    DENSE_LIMIT,
    Coboundary,
    operator_norm,  # noqa: F401 - for users of eics.laplacian
    operator_norm_weights,
    scipy_operator,
    start_vectors,
)

WEIGHTS = ("none", "operator_norm")
METHODS = ("auto", "dense", "matrix_free")


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

    `s_hat = a - delta^+ delta a`. (The paper's argmin over s is solved by s = 0; it means the nearest section.)
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
        scipy_delta = scipy_operator(delta)
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
    """The low end of the spectrum for one prompt.

    Attributes:
        kernel_dim: dimension of the space of global sections (of L itself, whatever beta is). None if it is at
            least 2 but too large to count without a factorization.
        lambda2: the second-smallest eigenvalue of L + beta I, literally.
        spectral_gap: the smallest eigenvalue of L above the tolerance, plus beta: what Proposition 2 needs.
        dim: coordinates of all stalks together.
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
    linearized = linearized.double()  # rounding decides what counts as zero
    scale = operator_norm_weights(linearized) if weights == "operator_norm" else None
    delta = Coboundary(linearized, scale)
    prompts = [delta.prompt(b) for b in range(linearized.batch)]
    return [_dense_spectrum(d, beta) if _is_dense(d, method) else _free_spectrum(d, beta) for d in prompts]


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
    forward = scipy_operator(delta)
    kernel = _count_sections(delta, forward)
    starts = start_vectors(delta.rows, "spectral gap")
    smallest = [value**2 for value in smallest_nonzero(forward, starts, count=2 if kernel == 0 else 1)]
    lambda2 = 0.0 if kernel is None or kernel >= 2 else smallest[1 - kernel]
    dim = int(delta.keep.sum())
    return LaplacianSpectrum(kernel, lambda2 + beta, smallest[0] + beta, dim, "matrix_free")


def _count_sections(delta: Coboundary, forward: Any) -> int | None:
    """dim ker(delta) without a factorization of delta.

    A section is determined by its values x at the sources: give every other node the value that one of its edges (its
    tree edge) carries to it, and the remaining edges demand K x = 0. So dim ker = sources - rank(K), and K is no wider
    than the sources. If even that is too wide, random vectors projected onto the kernel tell 0 and 1 from more; None
    means 2 or more.
    """
    linearized = delta.linearized
    sources = linearized.circuit.sources
    width = sum(linearized.stalks[node].dim for node in sources)
    if width <= DENSE_LIMIT:
        return _source_sections(delta, sources, width)
    probes = start_vectors(delta.cols, "kernel") * delta.keep[0].cpu().numpy()
    solve = least_squares(forward)
    inside = np.stack([probe - solve(forward @ probe) for probe in probes.T])
    rank = int(np.linalg.matrix_rank(inside, tol=1e-6 * float(np.linalg.norm(probes))))
    return rank if rank < 2 else None


def _source_sections(delta: Coboundary, sources: Sequence[str], width: int) -> int:
    """width - rank(K), with the rows of K folded into a triangle by QR as they come."""
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
    gamma is the operator norm of its coupling into that equation, `||delta^T W B||` for offsets `B eta`. Off the
    kernel, which the perturbation does not reach, L is at least its spectral gap, so

        ||s_hat - s*|| <= gamma / gap ||eta||,    ||dy|| <= kappa ||s_hat - s*||

    with kappa a Lipschitz constant of the outputs: 1 if the outputs are the stalks of the sinks themselves.

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
    """Singular values below this, relative to the largest, are rounding errors in a matrix of this shape."""
    return max(delta.rows, delta.cols) * torch.finfo(delta.dtype).eps


def _is_dense(delta: LinearOperator, method: str) -> bool:
    return method == "dense" or (method == "auto" and max(delta.rows, delta.cols) <= DENSE_LIMIT)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise OptionError.of(name, f"one of {', '.join(choices)}", value)
