"""The public checker, and beside it what an operator knows of itself in closed form."""

import torch

from eics.linalg.check import check_operator as public_check
from eics.linalg.structure import structure


def check_operator(operator, truth=None):
    public_check(operator, truth)
    known = structure(operator)
    norm = None if known is None else known.frobenius_squared()
    if norm is not None:
        torch.testing.assert_close(norm, operator.dense().square().sum(dim=(1, 2)))
