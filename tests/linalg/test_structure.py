"""Each structure against the dense matrix it stands for: norm, singular values, log-determinant, scales."""

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eics.linalg.operators import Dense, HStack, LinearOperator, Product, hstack
from eics.linalg.scaled import Scaled
from eics.linalg.spectrum import exact, exact_at
from eics.linalg.stacking import stack, stack_key
from eics.linalg.structure import BlockDiagonal, GramOnly, Kronecker, LowRankUpdate, structure, with_cached_blocks

ALPHA = 0.7


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Known(Dense):
    """A dense map that says more of itself than its norm."""

    def __init__(self, matrix, known):
        super().__init__(matrix)
        self.known = known

    def prompt(self, index):
        return Known(self.matrix[index], self.known)


@structure.register
def _(operator: Known):
    return operator.known(operator)


def scaled_matrix(operator, left, right):
    """diag(left) J diag(right), for scales by coordinate, by position or None."""
    matrix = operator.matrix
    for scale, size, axis in ((left, operator.rows, 2), (right, operator.cols, 1)):
        if scale is not None:
            matrix = matrix * scale.repeat_interleave(size // scale.shape[1], dim=1).unsqueeze(axis)
    return matrix


def gram_only(operator):
    def gram(left, right):
        matrix = scaled_matrix(operator, left, right)
        return (matrix @ matrix.mT).unsqueeze(1)

    return GramOnly(operator.rows, operator.cols, side=operator.rows, gram=gram, left_factor="same")


def kronecker(operator):
    """3 positions of 2 numbers: a 3 x 3 matrix over positions and a 2 x 2 one of weights."""
    positions, weights = operator.factors

    def scaled(left, right):
        if any(scale is not None and scale.shape[1] > 3 for scale in (left, right)):
            return None
        out = positions
        out = out if left is None else left.unsqueeze(2) * out
        return out if right is None else out * right.unsqueeze(1)

    known = gram_only(operator)
    return Kronecker(
        operator.rows, operator.cols, side=known.side, gram=known.gram, positions=scaled,
        weight_squares=lambda: torch.linalg.svdvals(weights).square(),
    )  # fmt: skip


def low_rank(operator):
    """J J^T = diag(k) + P S P^T: here with k = 0 and S = I, P the scaled matrix itself."""

    def update(left, right):
        matrix = scaled_matrix(operator, left, right)
        eye = torch.eye(operator.cols, dtype=matrix.dtype).expand(len(matrix), -1, -1)
        return matrix.new_full(matrix.shape[:2], 0.25), matrix, eye

    return LowRankUpdate(operator.rows, operator.cols, side=operator.rows, columns=operator.cols, update=update)


def block_diagonal(operator):
    def matrices():
        return torch.stack([operator.matrix[:, 2 * i : 2 * i + 2, 2 * i : 2 * i + 2] for i in range(3)], dim=1)

    return BlockDiagonal(operator.rows, operator.cols, blocks=3, matrices=matrices)


def make(kind, seed):
    """An operator of 6 x 6 numbers for 2 prompts with that structure."""
    if kind == "kronecker":
        positions, weights = drawn(seed, 2, 3, 3), drawn(seed + 1, 2, 2, 2)
        operator = Known(torch.stack([torch.kron(p, w) for p, w in zip(positions, weights, strict=True)]), kronecker)
        operator.factors = (positions, weights)
        return operator
    if kind == "block diagonal":
        blocks = drawn(seed, 2, 3, 2, 2)
        return Known(torch.stack([torch.block_diag(*own) for own in blocks]), block_diagonal)
    return Known(drawn(seed, 2, 6, 6), {"gram": gram_only, "low rank": low_rank}[kind])


def truth(matrix):
    return torch.linalg.svdvals(matrix).square()


@settings(max_examples=20)
@given(st.sampled_from(["gram", "kronecker", "block diagonal"]), st.integers(0, 1000), st.sampled_from([None, 1, 3, 6]))
def test_closed_forms_are_those_of_the_matrix_and_follow_its_scales(kind, seed, scales):
    operator = make(kind, seed)
    left, right = (None, None) if scales is None else (drawn(seed + i, 2, scales).abs() + 0.1 for i in (5, 6))
    matrix = scaled_matrix(operator, left, right)
    known = structure(operator).scaled(left, right)
    if kind == "block diagonal":
        blocks = known.diagonal_blocks()
        torch.testing.assert_close(torch.stack([torch.block_diag(*own) for own in blocks]), matrix)
        return
    squares = known.singular_squares()
    if kind == "kronecker" and scales == 6:
        assert squares is None  # scales within a position leave no Kronecker product
        squares = torch.linalg.eigvalsh(known.gram_matrix()).flatten(1)
    torch.testing.assert_close(squares.sort(dim=1, descending=True).values, truth(matrix))
    if known.singular_squares() is not None:
        expected = torch.log1p(ALPHA * truth(matrix)).sum(dim=1)
        torch.testing.assert_close(known.log_determinant(ALPHA), expected)


@given(st.integers(0, 1000))
def test_a_low_rank_update_by_the_determinant_lemma(seed):
    operator = make("low rank", seed)
    gram = operator.matrix @ operator.matrix.mT + 0.25 * torch.eye(6, dtype=torch.float64)
    expected = torch.logdet(torch.eye(6, dtype=torch.float64) + ALPHA * gram)
    torch.testing.assert_close(structure(operator).log_determinant(ALPHA), expected)
    torch.testing.assert_close(exact(operator).ei(ALPHA).value, 0.5 * expected)


@given(st.integers(0, 1000))
def test_maps_side_by_side_add_their_norms_and_grams(seed):
    parts = [make("gram", seed), make("gram", seed + 1)]
    left = drawn(seed, 2, 6)
    wide = hstack([Scaled(part, left, drawn(seed + 2, 2, 6)) for part in parts])
    known = structure(wide)
    assert isinstance(known, GramOnly)  # the same scales on the left, hence the same factor
    torch.testing.assert_close(known.singular_squares().sort(dim=1, descending=True).values, truth(wide.dense()))
    unlike = hstack([Scaled(parts[0], left, left), Scaled(parts[1], left + 1, left)])
    assert not isinstance(structure(unlike), GramOnly)
    dense = HStack([Dense(drawn(seed, 2, 3, 4)), Dense(drawn(seed + 1, 2, 3, 2))])
    right = drawn(seed + 3, 2, 6)
    norm = structure(Scaled(dense, drawn(seed + 4, 2, 3), right)).frobenius_squared()
    scaled = drawn(seed + 4, 2, 3).unsqueeze(2) * dense.dense() * right.unsqueeze(1)
    torch.testing.assert_close(norm, scaled.square().sum(dim=(1, 2)))
    torch.testing.assert_close(structure(dense.T).frobenius_squared(), dense.dense().square().sum(dim=(1, 2)))


class Plain(Product):
    """A map of which nothing is known."""

    def __init__(self, matrix):
        super().__init__(Dense(matrix), Dense(torch.eye(matrix.shape[-1], dtype=matrix.dtype)))


def row(operator):
    """The row of the table that an operator belongs to."""
    known = structure(operator)
    if isinstance(known, GramOnly) and not isinstance(known, BlockDiagonal):
        return (type(known).__name__, "any")
    side = min(operator.rows, operator.cols) // (known.blocks if isinstance(known, BlockDiagonal) else 1)
    return ("none", "up to 128" if side <= 128 else "above 128")


def test_the_table_of_methods_is_what_the_code_does():
    """Every row of the docstring of `exact` is met by an operator, whose spectra say so."""
    lines = re.findall(r"^\s*\| (\w+) \| ([\w ]+) \| ([\w ]+) \| ([\w ]+) \|$", exact.__doc__, re.M)
    table = {(kind, size): methods for kind, size, *methods in lines}
    assert len(table) == 5
    operators = [make(kind, 0) for kind in ("gram", "kronecker", "low rank", "block diagonal")]
    operators += [Plain(drawn(0, 2, 5, 7)), Plain(drawn(0, 2, 130, 140))]
    assert {row(operator) for operator in operators} == set(table)
    for operator in operators:
        assert [exact(operator, how).method for how in ("svd", "cholesky")] == table[row(operator)]
        small = table[row(operator)][0 if row(operator)[1] != "above 128" else 1]
        assert exact_at(operator, 1.0).method == small


def test_nothing_is_known_of_a_product():
    assert structure(Plain(drawn(0, 2, 3, 3))) is None


def test_stacking_needs_a_key():
    first, second = Dense(drawn(0, 2, 3, 3)), Dense(drawn(1, 2, 3, 3))
    assert stack_key(first) is None
    assert stack([first]) is first
    with pytest.raises(AssertionError, match="Dense cannot be stacked"):
        stack([first, second])


def test_an_operator_without_blocks_caches_none():
    operator: LinearOperator = Plain(drawn(0, 2, 3, 3))
    assert with_cached_blocks(operator) is operator
