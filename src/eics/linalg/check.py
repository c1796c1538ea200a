"""The conformance test of an operator: does it do what a linear map must?"""

import torch
from torch import Tensor

from eics.linalg.operators import LinearOperator


def check_operator(operator: LinearOperator, matrix: Tensor | None = None, *, seed: int = 7) -> None:
    """Checks an operator against its own matrix, and that against `matrix` if one is given, (batch, rows, cols).

    The adjoint test `<J v, u> = <v, J^T u>`; `dense` against products with a block of vectors; a block against single
    vectors; the transposed operator; every prompt alone against the batch; and float64. Raises an `AssertionError` that
    names the property and the operator. The matrix is formed: use small sizes, and float64 to see errors.

    >>> import torch
    >>> from eics.linalg.operators import Dense
    >>> check_operator(Dense(torch.eye(3)), torch.eye(3).unsqueeze(0))
    """
    stream = torch.Generator().manual_seed(seed)

    def block(size: int) -> Tensor:
        drawn = torch.randn(operator.batch, size, 3, generator=stream, dtype=torch.float64)
        return drawn.to(operator.dtype).to(operator.device)

    def agree(what: str, ours: Tensor, theirs: Tensor) -> None:
        torch.testing.assert_close(ours, theirs, msg=lambda error: f"{operator!r}: {what} must agree. {error}")

    v, u = block(operator.cols), block(operator.rows)
    image, back = operator.mv(v), operator.rmv(u)
    agree("<J v, u> and <v, J^T u>", (image * u).sum(dim=1), (v * back).sum(dim=1))
    dense = operator.dense()
    if matrix is not None:
        agree("dense() and the given matrix", dense.expand_as(matrix), matrix)
    agree("dense() and mv", dense @ v, image.expand(operator.batch, -1, -1))
    agree("dense() and its transpose's", operator.T.dense(), dense.mT)
    agree("a block and a single vector", operator.mv(v[:, :, :1]), image[:, :, :1])
    for index in range(operator.batch):
        agree(f"prompt({index}) and the batch", operator.prompt(index).dense()[0], dense[index])
    agree("double() and the operator", operator.double().dense().to(operator.dtype), dense)
