"""The public checker finds each kind of wrong operator."""

import pytest
import torch

import eics
from eics.linalg.operators import Dense


def matrix(batch=2):
    return torch.randn(batch, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class WrongTranspose(Dense):
    def rmv(self, y):
        return 1.01 * super().rmv(y)


class WrongDense(Dense):
    def dense(self):
        return self.matrix + 0.01


class WrongPrompt(Dense):
    def prompt(self, _):
        return Dense(self.matrix[0])


class WrongBlock(Dense):
    """Right for a block, wrong for a single vector, where the adjoint test does not look."""

    def mv(self, x):
        return super().mv(x) * (1.0 if x.shape[2] > 1 else 2.0)


class WrongDouble(Dense):
    def double(self):
        return Dense(self.matrix.double() * 1.01)


@pytest.mark.parametrize(
    ("operator", "says"),
    [
        (WrongTranspose, "<J v, u> and <v, J^T u>"),
        (WrongDense, "dense() and mv"),
        (WrongPrompt, "prompt(1) and the batch"),
        (WrongBlock, "a block and a single vector"),
        (WrongDouble, "double() and the operator"),
    ],
)
def test_each_fault_is_named(operator, says):
    with pytest.raises(AssertionError) as error:
        eics.check_operator(operator(matrix()))
    assert says in str(error.value)
    assert operator.__name__ in str(error.value)


def test_a_right_operator_passes_and_a_wrong_matrix_does_not():
    eics.check_operator(Dense(matrix()), matrix())
    eics.check_operator(Dense(matrix(1).float()))
    with pytest.raises(AssertionError, match="the given matrix"):
        eics.check_operator(Dense(matrix()), matrix() + 1e-3)
