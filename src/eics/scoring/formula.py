"""Equation (7): how the two terms make the score."""

from typing import overload

from torch import Tensor


@overload
def discounted(term: float, c_sh: float) -> float: ...
@overload
def discounted(term: Tensor | float, c_sh: Tensor) -> Tensor: ...
def discounted(term: Tensor | float, c_sh: Tensor | float) -> Tensor | float:
    """A term discounted by the inconsistency along the circuit's edges.

        EICS = dEI_norm / (1 + C_sh)                                              (equation 7)

    With 1 for the term this is the `consistency` of a record; with the standard error of dEI_norm, that of EICS.

    >>> discounted(0.5, 0.25)
    0.4
    """
    return term / (1.0 + c_sh)
