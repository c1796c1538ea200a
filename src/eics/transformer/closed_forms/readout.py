"""What is known of the read-out's map: it reads one position, so its Gram matrix has at most d rows; and a final norm
that is frozen is a Kronecker product of that position and of weights alone."""

from typing import Any

import torch
from torch import Tensor

from eics.linalg.blocks import scale_by_position
from eics.linalg.structure import GramOnly, Kronecker, LowRankUpdate, structure
from eics.transformer.readout import ReadoutMap


@structure.register
def readout_structure(readout: ReadoutMap) -> GramOnly:
    """Kronecker for a frozen final norm, diagonal plus rank two for its Jacobian, else a Gram matrix."""
    known: dict[str, Any] = {
        "rows": readout.rows,
        "cols": readout.cols,
        "side": min(readout.rows, readout.read.shape[2]),
        "gram": lambda left, right: _gram(readout, left, right),
    }
    if readout.readout != "final_norm":
        return GramOnly(**known)
    if not readout.frozen:
        return LowRankUpdate(**known, columns=2, update=lambda left, right: _update(readout, left, right))
    return Kronecker(
        **known,
        positions=lambda left, right: _frozen_position(readout, left, right),
        weight_squares=lambda: _frozen_weights(readout).unsqueeze(0),
    )


def at_answer(scale: Tensor | None, readout: ReadoutMap) -> Tensor | None:
    """Scales of what is read, at the answer position: (B, 1) or (B, d); a single scale is itself."""
    if scale is None or scale.shape[1] == 1:
        return scale
    rows = scale.unflatten(1, (readout.read.shape[1], -1)).expand(readout.batch, -1, -1)
    own: Tensor = rows[torch.arange(readout.batch, device=readout.device), readout.answer]
    return own


def _frozen_position(readout: ReadoutMap, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """1 / s at the answer position with its scales, (B, 1, 1); zero positions change no singular value."""
    position = 1.0 / readout.norm.scale.double()  # (B, 1, 1)
    for scale in (left, at_answer(right, readout)):
        by_position = None if scale is None else scale_by_position(scale, 1)
        if scale is not None and by_position is None:
            return None
        position = position if by_position is None else position * by_position.double().unsqueeze(2)
    return position


def _update(readout: ReadoutMap, left: Tensor | None, right: Tensor | None) -> tuple[Tensor, Tensor, Tensor] | None:
    """`N N^T = diag(w) (I / s^2 - 1 1^T / (d s^2) + beta c c^T) diag(w)`, the second term if the norm centres: a
    diagonal and two columns, in float64."""
    wide = readout.double().norm
    scale = _frozen_position(readout, left, right)
    if scale is None:
        return None
    square = scale.square().squeeze(2)  # (B, 1): scales and 1 / s^2
    weight, point = wide.weight, wide.point.squeeze(1)  # (d,), (B, d)
    assert wide.beta is not None
    ones = torch.full_like(point, len(weight) ** -0.5) if wide.spec.centred else torch.zeros_like(point)
    middle = torch.cat([-square, wide.beta / wide.inverse * square], dim=1)  # (B, 2)
    return square * weight.square(), weight.unsqueeze(1) * torch.stack([ones, point], dim=2), torch.diag_embed(middle)


def _frozen_weights(readout: ReadoutMap) -> Tensor:
    """Squared singular values of diag(w) P, (d,): weights alone, and cached."""
    norm = readout.spec.final_norm

    def make() -> Tensor:
        weight = norm.weight.double()
        if not norm.centred:
            return weight.square()
        squares: Tensor = torch.linalg.eigvalsh(torch.diag(weight**2) - torch.outer(weight, weight) / len(weight))
        return squares.clamp(min=0)

    return readout.spec.cache.get("final norm", [norm.weight], make)


def _gram(readout: ReadoutMap, left: Tensor | None, right: Tensor | None) -> Tensor:
    """K K^T with K the reduced map at the answer position, (B, 1, side, side)."""
    matrix = readout.double().at_answer().reduced(None if left is None else left.double()).dense()
    columns = at_answer(right, readout)
    matrix = matrix if columns is None else matrix * columns.double().unsqueeze(1)
    return (matrix @ matrix.mT).unsqueeze(1)
