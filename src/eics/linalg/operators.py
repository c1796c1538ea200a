"""Linear operators: `mv` applies J, `rmv` applies its transpose, both to blocks of vectors.

An operator is a *batch* of linear maps of one shape, one map for each prompt. A block of `k` vectors for each of `B`
prompts is a tensor `(B, n, k)`; a batch of 1 broadcasts. Everything downstream (sheaf term, effective information) is
written against this interface alone, so a map never has to exist as a matrix. Functions beside
the class know the rest: `structure` (norm and spectrum), `stacking` (several maps as one).

>>> import torch
>>> A, B = Dense(torch.tensor([[1.0, 2.0]])), Dense(torch.tensor([[3.0], [4.0]]))
>>> (A @ B).dense()
tensor([[[11.]]])
>>> hstack([A, A]).rmv(torch.ones(1, 1, 1)).flatten()
tensor([1., 2., 1., 2.])
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eics.linalg.blocks import add, cat_blocks
from eics.linalg.memory import chunk_width


class LinearOperator(ABC):
    """J: R^cols -> R^rows for each prompt of a batch.

    A subclass sets the five fields and implements `mv`, `rmv`, `prompt` and `double`; it overrides `dense` if it knows
    a shorter way than products with unit vectors. `eics.check_operator` checks all of them. `live` says how many blocks
    of vectors a product holds at once, if more than one.
    """

    batch: int
    rows: int
    cols: int
    dtype: torch.dtype
    device: torch.device
    live: int = 1

    @abstractmethod
    def mv(self, x: Tensor) -> Tensor:
        """J x for a block `x` of shape (B, cols, k): (B, rows, k)."""

    @abstractmethod
    def rmv(self, y: Tensor) -> Tensor:
        """J^T y for a block `y` of shape (B, rows, k): (B, cols, k)."""

    @abstractmethod
    def prompt(self, index: int) -> "LinearOperator":
        """The map of one prompt: a batch of 1."""

    @abstractmethod
    def double(self) -> "LinearOperator":
        """The same maps in float64."""

    def dense(self) -> Tensor:
        """The matrices, (batch, rows, cols), from products with the unit vectors of the smaller side."""
        if self.cols <= self.rows:
            return torch.cat([self.mv(unit) for unit in self.unit_blocks(self.cols)], dim=2)
        return torch.cat([self.rmv(unit).mT for unit in self.unit_blocks(self.rows)], dim=1)

    def unit_blocks(self, size: int) -> Iterator[Tensor]:
        """The unit vectors of R^size, in blocks whose images stay under the memory bound."""
        width = chunk_width(self.live * self.batch * max(self.rows, self.cols), self.dtype)
        for start in range(0, size, width):
            stop = min(start + width, size)
            block = torch.zeros(size, stop - start, dtype=self.dtype, device=self.device)
            block[start:stop] = torch.eye(stop - start, dtype=self.dtype, device=self.device)
            yield block.expand(self.batch, -1, -1)

    @property
    def T(self) -> "LinearOperator":
        """The transposed operator."""
        return Transposed(self)

    def __matmul__(self, other: "LinearOperator") -> "LinearOperator":
        return Product(self, other)

    def __add__(self, other: "LinearOperator") -> "LinearOperator":
        return Sum([self, other])

    def _like(self, other: "LinearOperator", rows: int, cols: int, batch: int) -> None:
        self.batch, self.rows, self.cols = batch, rows, cols
        self.dtype, self.device = other.dtype, other.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch={self.batch}, rows={self.rows}, cols={self.cols})"


class Dense(LinearOperator):
    """An explicit matrix (rows, cols), or one for each prompt (batch, rows, cols)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
        self.batch, self.rows, self.cols = self.matrix.shape
        self.dtype, self.device = matrix.dtype, matrix.device

    def mv(self, x: Tensor) -> Tensor:
        return self.matrix @ x

    def rmv(self, y: Tensor) -> Tensor:
        return self.matrix.mT @ y

    def prompt(self, index: int) -> "Dense":
        return Dense(self.matrix[index % self.batch])

    def double(self) -> "Dense":
        return Dense(self.matrix.double())

    def dense(self) -> Tensor:
        return self.matrix


class Transposed(LinearOperator):
    """J^T."""

    def __init__(self, base: LinearOperator) -> None:
        self.base = base
        self._like(base, rows=base.cols, cols=base.rows, batch=base.batch)

    def mv(self, x: Tensor) -> Tensor:
        return self.base.rmv(x)

    def rmv(self, y: Tensor) -> Tensor:
        return self.base.mv(y)

    def prompt(self, index: int) -> LinearOperator:
        return Transposed(self.base.prompt(index))

    def double(self) -> LinearOperator:
        return Transposed(self.base.double())

    def dense(self) -> Tensor:
        return self.base.dense().mT

    @property
    def T(self) -> LinearOperator:
        return self.base


class Product(LinearOperator):
    """left right: first `right`, then `left`."""

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        check_same("columns of the left factor and rows of the right one", left.cols, right.rows)
        self.left, self.right = left, right
        self._like(left, rows=left.rows, cols=right.cols, batch=_common_batch([left, right]))

    def mv(self, x: Tensor) -> Tensor:
        return self.left.mv(self.right.mv(x))

    def rmv(self, y: Tensor) -> Tensor:
        return self.right.rmv(self.left.rmv(y))

    def prompt(self, index: int) -> LinearOperator:
        return Product(self.left.prompt(index), self.right.prompt(index))

    def double(self) -> LinearOperator:
        return Product(self.left.double(), self.right.double())


class Sum(LinearOperator):
    """The sum of operators of one shape."""

    def __init__(self, terms: Sequence[LinearOperator]) -> None:
        self.terms = tuple(terms)
        first = self.terms[0]
        for term in self.terms:
            check_same("shapes of the terms", (term.rows, term.cols), (first.rows, first.cols))
        self._like(first, rows=first.rows, cols=first.cols, batch=_common_batch(self.terms))

    def mv(self, x: Tensor) -> Tensor:
        return add(term.mv(x) for term in self.terms)

    def rmv(self, y: Tensor) -> Tensor:
        return add(term.rmv(y) for term in self.terms)

    def prompt(self, index: int) -> LinearOperator:
        return Sum([term.prompt(index) for term in self.terms])

    def double(self) -> LinearOperator:
        return Sum([term.double() for term in self.terms])


class HStack(LinearOperator):
    """[J_1 J_2 ...]: side by side, reading stacked inputs into one output."""

    def __init__(self, parts: Sequence[LinearOperator]) -> None:
        self.parts = tuple(parts)
        first = self.parts[0]
        for part in self.parts:
            check_same("rows of the parts", part.rows, first.rows)
        cols = sum(part.cols for part in self.parts)
        self._like(first, rows=first.rows, cols=cols, batch=_common_batch(self.parts))

    def mv(self, x: Tensor) -> Tensor:
        pieces = x.split([part.cols for part in self.parts], dim=1)
        return add(part.mv(piece) for part, piece in zip(self.parts, pieces, strict=True))

    def rmv(self, y: Tensor) -> Tensor:
        return cat_blocks([part.rmv(y) for part in self.parts])

    def prompt(self, index: int) -> LinearOperator:
        return HStack([part.prompt(index) for part in self.parts])

    def double(self) -> LinearOperator:
        return HStack([part.double() for part in self.parts])

    def dense(self) -> Tensor:
        return cat_blocks([part.dense() for part in self.parts], dim=2)


def hstack(parts: Sequence[LinearOperator]) -> LinearOperator:
    """[J_1 J_2 ...]; a single part stays itself."""
    return parts[0] if len(parts) == 1 else HStack(parts)


def _common_batch(operators: Sequence[LinearOperator]) -> int:
    batches = {operator.batch for operator in operators} - {1}
    assert len(batches) <= 1, f"operators of different batches: {sorted(batches)}"
    return batches.pop() if batches else 1


def check_same(what: str, left: object, right: object) -> None:
    """Asserts that two operators fit together."""
    assert left == right, f"the {what} must agree: {left} and {right}"
