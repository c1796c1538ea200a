"""The work of a computation, independent of the machine: products with maps and their transposes, and FLOPs.

A product is one vector through one map of one prompt: a block of k vectors for B prompts counts B*k. Only maps that
are computed from weights count, not sums, stacks and paths of them: of nested calls only the innermost. FLOPs are those
of matrix products (torch's own counter); factorizations, which that counter leaves out, are estimated by their textbook
leading terms and reported separately.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from math import prod
from typing import Any

from torch import Tensor

from eics.linalg.operators import LinearOperator


@dataclass(frozen=True)
class Counts:
    """Products J x and J^T y, FLOPs of matrix products, FLOPs of factorizations."""

    jvp: int
    vjp: int
    matmul_flops: int
    factorization_flops: int

    @property
    def flops(self) -> int:
        return self.matmul_flops + self.factorization_flops

    def to_json(self) -> dict[str, int]:
        return asdict(self)


def count(function: Callable[[], object]) -> Counts:
    """Runs the function once and counts its work."""
    from torch.utils.flop_counter import FlopCounterMode

    formulas = _factorizations() | _attention()
    with counted_products() as products, FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        function()
    by_operation = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    factorized = sum(flops for name, flops in by_operation.items() if "linalg" in name or "cholesky" in name)
    return Counts(products["mv"], products["rmv"], sum(by_operation.values()) - factorized, factorized)


@contextmanager
def counted_products() -> Iterator[dict[str, int]]:
    """Counts the calls of `mv` and `rmv` of every operator class inside the context."""
    counts = {"mv": 0, "rmv": 0}
    inner: list[bool] = []  # for each call in progress: whether it has called another operator
    originals: list[tuple[type, str, Any]] = []
    try:
        for kind in _subclasses(LinearOperator):
            for name in counts:
                if name in vars(kind):
                    originals.append((kind, name, vars(kind)[name]))
                    setattr(kind, name, _counting(vars(kind)[name], name, counts, inner))
        yield counts
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _counting(product: Any, name: str, counts: dict[str, int], inner: list[bool]) -> Any:
    @wraps(product)
    def counting(self: LinearOperator, block: Tensor) -> Tensor:
        if inner:
            inner[-1] = True
        inner.append(False)
        try:
            image: Tensor = product(self, block)
        finally:
            nested = inner.pop()
        if not nested:
            counts[name] += image.shape[0] * image.shape[2]
        return image

    return counting


def _subclasses(kind: type) -> set[type]:
    kinds = {kind}
    below: type
    for below in type.__subclasses__(kind):
        kinds |= _subclasses(below)
    return kinds


def _attention() -> dict[Any, Any]:
    """Fused attention, grouped queries included, which torch's counter lacks: two (T, S, e) products per query head."""
    import torch

    def flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
        batch, heads, length, width = query
        return int(2 * batch * heads * length * key[-2] * (width + value[-1]))

    names = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
    kernels = (getattr(torch.ops.aten, f"_scaled_dot_product_{name}", None) for name in names)
    return {kernel: flops for kernel in kernels if kernel is not None}


def _factorizations() -> dict[Any, Any]:
    """Factorizations, by the shape of the matrix; eigenvalues and singular values without vectors."""
    import torch

    aten = torch.ops.aten

    def batched(cost: Callable[[int, int], float]) -> Callable[..., int]:
        def flops(shape: Any, *_: Any, **__: Any) -> int:
            *batch, rows, columns = shape
            return int(prod(batch) * cost(max(rows, columns), min(rows, columns)))

        return flops

    # (n long side, m short side): Golub and Van Loan's leading terms
    return {
        aten.linalg_cholesky_ex: batched(lambda _, m: m**3 / 3),
        aten._linalg_eigh: batched(lambda _, m: 4 * m**3 / 3),
        aten._linalg_svd: batched(lambda n, m: 4 * n * m**2 - 4 * m**3 / 3),
        aten.linalg_qr: batched(lambda n, m: 4 * n * m**2 - 4 * m**3 / 3),
    }
