"""Linear operators: `mv` applies J, `rmv` applies its transpose, both to blocks of vectors.

An operator is a *batch* of linear maps of one shape, one map for each prompt. A block of `k` vectors for
each of `B` prompts is a tensor `(B, n, k)`; a batch of 1 broadcasts. Everything downstream (sheaf term,
effective information) is written against this interface alone, so a map never has to exist as a matrix.

>>> import torch
>>> A, B = Dense(torch.tensor([[1.0, 2.0]])), Dense(torch.tensor([[3.0], [4.0]]))
>>> (A @ B).dense()
tensor([[[11.]]])
>>> hstack([A, A]).rmv(torch.ones(1, 1, 1)).flatten()
tensor([1., 2., 1., 2.])
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eics.linalg.blocks import add, by_coordinate, cat_blocks, scale_by_position
from eics.linalg.memory import chunk_width

if TYPE_CHECKING:
    from eics.linearized.circuit import Entry, Stalk
    from eics.linearized.junctions import Junction


@dataclass(frozen=True)
class Writer:
    """W, (d, e), of a map J = (W at every position) K: what J writes can be carried as K's image, z.

    `key` names W among those of its model, whatever the dtype; `origin` is the parameter that it was taken from.
    """

    weight: Tensor
    key: Hashable
    origin: Tensor


class LinearOperator(ABC):
    """J: R^cols -> R^rows for each prompt of a batch.

    A subclass sets the five fields and gives `mv`, `rmv`, `prompt` and `double`; it overrides `dense`,
    `frobenius_squared`, `singular_squares`, `gram` and `reduced` where it knows a shorter way than products with unit
    vectors, sets `blocks` where it is block diagonal with so many blocks of one shape (an MLP acts position by
    position), and `live` where a product holds so many blocks of vectors at once.
    """

    batch: int
    rows: int
    cols: int
    dtype: torch.dtype
    device: torch.device
    blocks: int = 1
    live: int = 1

    @abstractmethod
    def mv(self, x: Tensor) -> Tensor:
        """J x for a block `x` of shape (B, cols, k); gives (B, rows, k)."""

    @abstractmethod
    def rmv(self, y: Tensor) -> Tensor:
        """J^T y for a block `y` of shape (B, rows, k); gives (B, cols, k)."""

    @abstractmethod
    def prompt(self, index: int) -> "LinearOperator":
        """The map of one prompt alone: a batch of 1."""

    @abstractmethod
    def double(self) -> "LinearOperator":
        """The same maps in float64."""

    def dense(self) -> Tensor:
        """The matrices, (batch, rows, cols), from products with the unit vectors of the smaller side."""
        if self.cols <= self.rows:
            return torch.cat([self.mv(unit) for unit in self.unit_blocks(self.cols)], dim=2)
        return torch.cat([self.rmv(unit).mT for unit in self.unit_blocks(self.rows)], dim=1)

    def frobenius_squared(self) -> Tensor | None:
        """||J||_F^2 for each prompt where a closed form exists, else None."""
        return None

    def scaled_frobenius_squared(self, left: Tensor, right: Tensor) -> Tensor | None:  # noqa: ARG002
        """||diag(left) J diag(right)||_F^2 for each prompt where a closed form exists, else None."""
        return None

    def diagonal_blocks(self) -> Tensor:
        """The diagonal blocks, (batch, blocks, rows / blocks, cols / blocks): one product serves all blocks at once."""
        if self.blocks == 1:
            return self.dense().unsqueeze(1)
        width = self.cols // self.blocks
        images = []
        for unit in self.unit_blocks(width):
            images.append(self.mv(unit.repeat(1, self.blocks, 1)))
        return torch.cat(images, dim=2).reshape(self.batch, self.blocks, self.rows // self.blocks, width)

    def singular_squares(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        """Squared singular values of diag(left) J diag(right), (batch, r) in float64, where a closed form exists."""
        return None

    @property
    def update_rank(self) -> int | None:
        """r of `low_rank_update`, where there is one."""
        return None

    def low_rank_update(
        self,
        left: Tensor | None = None,  # noqa: ARG002
        right: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """k (batch, n), P (batch, n, r) and S (batch, r, r) in float64 such that `diag(k) + P S P^T` has the non-zero
        eigenvalues of J J^T, rows and columns of J scaled, where that is less than `gram`; else None."""
        return None

    @property
    def gram_side(self) -> int | None:
        """The side of `gram`, where there is one."""
        return None

    @property
    def gram_copies(self) -> int:
        """How many matrices of its size `gram` holds at once."""
        return 4

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        """Matrices with the non-zero eigenvalues of J J^T by diagonal block, rows and columns of J scaled; (batch,
        blocks, side, side) in float64, where the structure of J gives them without J itself, else None."""
        return None

    def kronecker(self) -> "Kronecker | None":
        """J as a Kronecker product, where it is one."""
        return None

    @property
    def left_factor(self) -> object:
        """What `gram` divides out on the left, None for nothing; the sum of operators' with an equal one is that of the
        operators side by side."""
        return None

    def reduced(self, left: Tensor | None = None) -> "LinearOperator":
        """An operator with the J^T J of diag(left) J; with fewer rows where there need not be more than columns."""
        from eics.linalg.scaled import Scaled

        return self if left is None else Scaled(self, left, left.new_ones(1, self.cols))

    def at(self, places: Tensor) -> "LinearOperator | None":  # noqa: ARG002
        """From one position of each prompt, (B,), to what is written there, where nothing else is read for it."""
        return None

    def through_few(self, places: Tensor) -> "tuple[LinearOperator, LinearOperator] | None":  # noqa: ARG002
        """What is written at one position of each prompt, (B,), as a product over fewer numbers than are written there:
        (from those, to those)."""
        return None

    @property
    def reads(self) -> Tensor | None:
        """The one position of each prompt that is read, (B,); None where more may be."""
        return None

    def written_at(self, places: Tensor) -> "LinearOperator":  # noqa: ARG002
        """The same map for readers of one position of each prompt, (B,): elsewhere it may write zero, if that is
        cheaper."""
        return self

    def remembering(self) -> "LinearOperator":
        """The same map for many products, if it has matrices that pay then."""
        return self

    @property
    def writer(self) -> Writer | None:
        """W where J = (W at every position) K; else None."""
        return None

    def after(self, read: "Sequence[tuple[Writer, Tensor]]") -> Tensor | None:  # noqa: ARG002
        """J (W z) for writes of several nodes, z (B, T, e): (B, nodes, T, n); None where J knows no shorter way than
        through W z."""
        return None

    @property
    def home(self) -> object:
        """Entries whose operators have a writer and an equal one share a junction; None for others."""
        return None

    def junction(
        self,
        entries: "Sequence[Entry]",  # noqa: ARG002
        writers: Mapping[str, Writer],  # noqa: ARG002
        stalks: "Mapping[str, Stalk]",  # noqa: ARG002
    ) -> "Junction":
        """From the parents of entries of one home to the nodes entered; those of `writers` as K's images."""
        raise AssertionError(f"{type(self).__name__} has no writer")

    @property
    def kin(self) -> object:
        """Operators with an equal one can be stacked; None for those that stand alone."""
        return None

    def stack(self, others: "Sequence[LinearOperator]") -> "LinearOperator":
        """One operator whose batch is this one's and the others', one after another. Only among kin."""
        assert not others, f"{type(self).__name__} stands alone"
        return self

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

    def left_ones(self) -> Tensor:
        """Ones for the rows, (1, rows)."""
        return torch.ones(1, self.rows, dtype=self.dtype, device=self.device)

    def _like(self, other: "LinearOperator", rows: int, cols: int, batch: int) -> None:
        self.batch, self.rows, self.cols = batch, rows, cols
        self.dtype, self.device = other.dtype, other.device

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch={self.batch}, rows={self.rows}, cols={self.cols})"


@dataclass(frozen=True)
class Kronecker:
    """J = positions (x) (out into): the same weights between all pairs of positions.

    `positions` is (B, T, T), `out` (d, e) and `into` (e, d) are for all prompts.
    """

    positions: Tensor
    out: Tensor
    into: Tensor

    def scaled(self, left: Tensor, right: Tensor) -> "Kronecker | None":
        """With rows and columns of J scaled; None where scales, (B or 1, T*d), differ within a position."""
        one, two = (scale_by_position(scale, self.positions.shape[1]) for scale in (left, right))
        if one is None or two is None:
            return None
        return replace(self, positions=one.unsqueeze(2) * self.positions * two.unsqueeze(1))


class Dense(LinearOperator):
    """An explicit matrix (rows, cols), or one for each prompt (batch, rows, cols)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix if matrix.ndim == 3 else matrix.unsqueeze(0)
        self.batch, self.rows, self.cols = self.matrix.shape
        self.dtype, self.device = matrix.dtype, matrix.device

    def mv(self, x: Tensor) -> Tensor:
        """Matrix product."""
        return self.matrix @ x

    def rmv(self, y: Tensor) -> Tensor:
        """Product with the transposed matrix."""
        return self.matrix.mT @ y

    def prompt(self, index: int) -> "Dense":
        """One matrix of the batch."""
        return Dense(self.matrix[index % self.batch])

    def double(self) -> "Dense":
        """The matrix in float64."""
        return Dense(self.matrix.double())

    def dense(self) -> Tensor:
        """The matrix itself."""
        return self.matrix

    def frobenius_squared(self) -> Tensor:
        """Sum of squared entries."""
        return self.matrix.square().sum(dim=(1, 2))

    def scaled_frobenius_squared(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum of squared entries, scaled."""
        left, right = by_coordinate(left, self.rows), by_coordinate(right, self.cols)
        return (left.unsqueeze(2) * self.matrix * right.unsqueeze(1)).square().sum(dim=(1, 2))


class Transposed(LinearOperator):
    """J^T."""

    def __init__(self, base: LinearOperator) -> None:
        self.base = base
        self._like(base, rows=base.cols, cols=base.rows, batch=base.batch)

    def mv(self, x: Tensor) -> Tensor:
        """J^T x."""
        return self.base.rmv(x)

    def rmv(self, y: Tensor) -> Tensor:
        """J y."""
        return self.base.mv(y)

    def prompt(self, index: int) -> LinearOperator:
        """One prompt's map, transposed."""
        return Transposed(self.base.prompt(index))

    def double(self) -> LinearOperator:
        """The base in float64, transposed."""
        return Transposed(self.base.double())

    def dense(self) -> Tensor:
        """The base's matrix, transposed."""
        return self.base.dense().mT

    def frobenius_squared(self) -> Tensor | None:
        """The base's."""
        return self.base.frobenius_squared()

    @property
    def T(self) -> LinearOperator:
        """The base itself."""
        return self.base


class Product(LinearOperator):
    """left right: first `right`, then `left`."""

    def __init__(self, left: LinearOperator, right: LinearOperator) -> None:
        check_same("columns of the left factor and rows of the right one", left.cols, right.rows)
        self.left, self.right = left, right
        self._like(left, rows=left.rows, cols=right.cols, batch=_common_batch([left, right]))

    def mv(self, x: Tensor) -> Tensor:
        """left (right x)."""
        return self.left.mv(self.right.mv(x))

    def rmv(self, y: Tensor) -> Tensor:
        """right^T (left^T y)."""
        return self.right.rmv(self.left.rmv(y))

    def prompt(self, index: int) -> LinearOperator:
        """Product of the factors' maps for one prompt."""
        return Product(self.left.prompt(index), self.right.prompt(index))

    def double(self) -> LinearOperator:
        """Product of the factors in float64."""
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
        """Sum of the terms' images."""
        return add(term.mv(x) for term in self.terms)

    def rmv(self, y: Tensor) -> Tensor:
        """Sum of the terms' transposed images."""
        return add(term.rmv(y) for term in self.terms)

    def prompt(self, index: int) -> LinearOperator:
        """Sum of the terms' maps for one prompt."""
        return Sum([term.prompt(index) for term in self.terms])

    def double(self) -> LinearOperator:
        """Sum of the terms in float64."""
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
        """Sum over parts of J_i x_i."""
        pieces = x.split([part.cols for part in self.parts], dim=1)
        return add(part.mv(piece) for part, piece in zip(self.parts, pieces, strict=True))

    def rmv(self, y: Tensor) -> Tensor:
        """The parts' transposed images, stacked."""
        return cat_blocks([part.rmv(y) for part in self.parts])

    def prompt(self, index: int) -> LinearOperator:
        """The parts' maps for one prompt, side by side."""
        return HStack([part.prompt(index) for part in self.parts])

    def double(self) -> LinearOperator:
        """The parts in float64, side by side."""
        return HStack([part.double() for part in self.parts])

    def dense(self) -> Tensor:
        """The parts' matrices, side by side."""
        return cat_blocks([part.dense() for part in self.parts], dim=2)

    @property
    def gram_side(self) -> int | None:
        """That of the parts, where they have the same factor on the left."""
        factors = [part.left_factor for part in self.parts]
        return None if factors[0] is None or any(f != factors[0] for f in factors) else self.parts[0].gram_side

    def gram(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor | None:
        """The sum of the parts'."""
        if self.gram_side is None:
            return None
        sizes = [part.cols for part in self.parts]
        sides = [None] * len(sizes) if right is None else by_coordinate(right, self.cols).split(sizes, dim=1)
        grams = [part.gram(left, side) for part, side in zip(self.parts, sides, strict=True)]
        known = [gram for gram in grams if gram is not None]
        return add(iter(known)) if len(known) == len(grams) else None

    @property
    def kin(self) -> object:
        """Kin where all parts are."""
        kins = tuple(part.kin for part in self.parts)
        return None if None in kins else kins

    def stack(self, others: Sequence[LinearOperator]) -> LinearOperator:
        """Part by part."""
        stacks = [self, *(other for other in others if isinstance(other, HStack))]
        columns = zip(*(stacked.parts for stacked in stacks), strict=True)
        return HStack([first.stack(rest) for first, *rest in columns])

    def frobenius_squared(self) -> Tensor | None:
        """Sum over parts, where each has a closed form."""
        norms = [part.frobenius_squared() for part in self.parts]
        known = [norm for norm in norms if norm is not None]
        return add(iter(known)) if len(known) == len(norms) else None


def hstack(parts: Sequence[LinearOperator]) -> LinearOperator:
    """[J_1 J_2 ...]; one part stays itself."""
    return parts[0] if len(parts) == 1 else HStack(parts)


def vstack(parts: Sequence[LinearOperator]) -> LinearOperator:
    """J_1 above J_2 above ...: one input into stacked outputs."""
    return parts[0] if len(parts) == 1 else HStack([part.T for part in parts]).T


def _common_batch(operators: Sequence[LinearOperator]) -> int:
    batches = {operator.batch for operator in operators} - {1}
    assert len(batches) <= 1, f"operators of different batches: {sorted(batches)}"
    return batches.pop() if batches else 1


def check_same(what: str, left: object, right: object) -> None:
    """Of operators that are put together."""
    assert left == right, f"the {what} must agree: {left} and {right}"
