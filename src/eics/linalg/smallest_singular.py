"""The smallest non-zero singular values of an operator with a large kernel.

*Bidiagonalization* (Golub, Kahan 1965) `D V = U B`, started in the row space of D, stays in it: the kernel, which would
swamp a search for the smallest eigenvalues of D^T D, has no part in B, and the smallest singular value of B falls to
the smallest non-zero one of D. Rounding lets the kernel in at 1e-16, and each step may amplify it. Values are accurate
to the square of the residual, so a residual of 1e-6 is enough, and it is usually reached long before the kernel shows.
If the kernel shows first (nearly equal smallest values), the smallest value of B drops to rounding; this is detected,
and we fall back to inversion.

*Inversion*: the pseudo-inverse D^+ turns the smallest non-zero singular values of D into its largest, and the kernel of
D contributes only zeros. Each product with D^+ is a least-squares problem (LSMR).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

RESIDUAL = 1e-6
MAX_STEPS = 2000
_CHECK_EVERY = 16
_EXHAUSTED = 1e-8
_LEAKED = 1e-7


def smallest_nonzero(operator: Any, starts: Any, count: int) -> list[float]:
    """The `count` (1 or 2) smallest non-zero singular values of a scipy operator, equal ones counted twice.

    `starts` holds a start vector of the rows' length in each of its two columns.
    """
    first = bidiagonalize(operator, starts[:, 0])
    if first is None:
        return by_inversion(operator, starts[:, 0], count)
    if count == 1:
        return [first[0]]
    # A Krylov space sees equal values once: look again beside the direction that was found.
    second = bidiagonalize(operator, starts[:, 1], without=first[1])
    return by_inversion(operator, starts[:, 0], count) if second is None else [first[0], second[0]]


def bidiagonalize(operator: Any, start: Any, *, without: Any = None) -> tuple[float, Any] | None:
    """(sigma, v) of the smallest non-zero singular value, or None if rounding let the kernel in.

    `without` is a right singular vector to leave out.
    """
    outside = [] if without is None else [without]
    rights = [_unit(_clean(operator.rmatvec(start), outside))]
    lefts: list[Any] = []
    bidiagonal: list[tuple[float, float]] = []
    scale = 0.0
    steps = min(operator.shape) - len(outside)
    for step in range(1, min(steps, MAX_STEPS) + 1):
        left = _clean(operator.matvec(rights[-1]), lefts)
        alpha = float(np.linalg.norm(left))
        scale = max(scale, alpha)
        lefts.append(_unit(left))
        right = _clean(operator.rmatvec(lefts[-1]), rights + outside)
        beta = float(np.linalg.norm(right))
        bidiagonal.append((alpha, beta))
        exhausted = beta <= _EXHAUSTED * scale or step == steps
        if exhausted or beta <= 1e-2 * scale or step % _CHECK_EVERY == 0:
            sigma, last, combination = _smallest_of(bidiagonal)
            if sigma <= _LEAKED * scale:
                return None
            if exhausted or beta * last <= RESIDUAL * sigma:
                return sigma, np.stack(rights, axis=1) @ combination
        rights.append(right / beta)
    return None


def by_inversion(operator: Any, start: Any, count: int) -> list[float]:
    """1 over the largest singular values of the pseudo-inverse, by Lanczos with inner least squares."""
    from scipy.sparse.linalg import LinearOperator, svds

    if min(operator.shape) <= count + 1:  # too small for Lanczos, which needs room beside what it looks for
        values = np.linalg.svd(operator @ np.eye(operator.shape[1]), compute_uv=False)
        return sorted(float(value) for value in values if value > 1e-12 * values[0])[:count]
    inverse = LinearOperator(
        shape=operator.shape[::-1],
        matvec=least_squares(operator),
        rmatvec=least_squares(operator.T),
        dtype=np.float64,
    )
    first = start if len(start) == min(operator.shape) else operator.rmatvec(start)
    # To machine precision, the default, Lanczos would chase the rounding of its inner solves.
    largest = svds(inverse, k=count, v0=_unit(first), tol=1e-10, return_singular_vectors=False)
    return sorted(1.0 / float(value) for value in largest)


def least_squares(operator: Any) -> Callable[[Any], Any]:
    """x -> operator^+ x: the least-squares solution of least norm, by LSMR."""
    from scipy.sparse.linalg import lsmr

    def solve(right: Any) -> Any:
        most = 20 * sum(operator.shape)
        return lsmr(operator, np.ravel(right), atol=1e-13, btol=1e-13, conlim=1e12, maxiter=most)[0]

    return solve


def _smallest_of(bidiagonal: list[tuple[float, float]]) -> tuple[float, float, Any]:
    """Smallest singular value of B, the last entry of its left vector (for the residual), its right vector."""
    diagonal = np.array([alpha for alpha, _ in bidiagonal])
    above = np.array([beta for _, beta in bidiagonal[:-1]])
    left, values, right = np.linalg.svd(np.diag(diagonal) + np.diag(above, 1))
    return float(values[-1]), abs(float(left[-1, -1])), right[-1]


def _clean(vector: Any, basis: list[Any]) -> Any:
    """The vector without its parts along the basis; twice is enough."""
    if basis:
        known = np.stack(basis)
        for _ in range(2):
            vector = vector - known.T @ (known @ vector)
    return vector


def _unit(vector: Any) -> Any:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector
