"""The public checker, and beside it what an operator knows of itself in closed form."""

import torch

from eics.linalg.check import check_operator as public_check


def check_operator(operator, truth=None):
    public_check(operator, truth)
    dense = operator.dense()
    closed = operator.frobenius_squared()
    if closed is not None:
        torch.testing.assert_close(closed, dense.square().sum(dim=(1, 2)))
