"""The public checker, and beside it what an operator knows of itself in closed form."""

import torch

from eics.linalg.check import check_operator as public_check
from eics.linalg.operators import hstack
from eics.linalg.structure import structure


def check_operator(operator, truth=None):
    public_check(operator, truth)
    known = structure(operator)
    norm = None if known is None else known.frobenius_squared()
    if norm is not None:
        torch.testing.assert_close(norm, operator.dense().square().sum(dim=(1, 2)))


def node_map(linearized, node):
    """J_v: the maps of a node's entries side by side; None if nothing enters."""
    operators = [entry.operator for entry in linearized.entries[node]]
    return hstack(operators) if operators else None
