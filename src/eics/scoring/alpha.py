"""Choosing alpha, and what other choices would give: calibration, the curve dEI(alpha), its zeros."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.errors import OptionError
from eics.scoring.emergence import EmergenceSpectra

RANGE = (1e-12, 1e12)
"""The range in which `auto` searches for alpha."""

GRID = tuple(float(a) for a in torch.logspace(-4, 4, 65, dtype=torch.float64))
"""The alphas of a curve: eight decades around 1, the paper's prior."""

_HALVINGS = 80


@dataclass(frozen=True)
class AlphaCalibration:
    """An alpha chosen on a set of prompts, and the macro EI it gives there, in nats for each read-out dimension.

    Attributes:
        alpha: the number to reuse.
        target: the median that was wanted.
        median: the median that was reached.
        quartiles: first and third quartile over the prompts.
        prompts: how many prompts there were.
    """

    alpha: float
    target: float
    median: float
    quartiles: tuple[float, float]
    prompts: int


def calibrate_alpha(per_dimension: Callable[[float], Tensor], target: float) -> AlphaCalibration:
    """The alpha at which the median prompt's macro EI for each read-out dimension equals `target`.

    `per_dimension` maps an alpha to that EI of each prompt, as `EmergenceSpectra.macro_per_dimension` does. It grows
    with alpha on every prompt, so the median does too, and bisection of log(alpha) finds the target.
    """
    low, high = RANGE
    for alpha, extreme, wrong in ((high, "zero or nearly so", -1), (low, "enormous", 1)):
        median = float(_median(per_dimension(alpha)))
        if wrong * median >= wrong * target:
            raise OptionError(
                f"alpha='auto' must reach a median of {target:g} nats for each read-out dimension. At alpha "
                f"= {alpha:g} it is {median:g}: the macro maps are {extreme}. Give alpha as a number."
            )
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        below = float(_median(per_dimension(middle))) < target
        low, high = (middle, high) if below else (low, middle)
    alpha = (low * high) ** 0.5
    reached = per_dimension(alpha)
    first, third = torch.nanquantile(reached, torch.tensor([0.25, 0.75], dtype=reached.dtype, device=reached.device))
    return AlphaCalibration(alpha, target, float(_median(reached)), (float(first), float(third)), len(reached))


@dataclass(frozen=True)
class Curve:
    """dEI as a function of alpha, for each prompt.

    Attributes:
        alphas: (n,).
        ei_macro, dei: (B, n).
        zeros: for each prompt the alphas at which dEI crosses 0 within the range, in order; often none.
    """

    alphas: Tensor
    ei_macro: Tensor
    dei: Tensor
    zeros: list[list[float]]


def dei_curve(spectra: EmergenceSpectra, alphas: tuple[float, ...] = GRID) -> Curve:
    """The whole curve from spectra that are already computed: no further product with any map."""
    points = [spectra.at(alpha, "difference") for alpha in alphas]
    dei = torch.stack([point.dei.value for point in points], dim=1)
    macro = torch.stack([point.ei_macro.value for point in points], dim=1)
    grid = torch.tensor(alphas, dtype=dei.dtype, device=dei.device)
    return Curve(grid, macro, dei, _zeros(spectra, grid, dei))


def _zeros(spectra: EmergenceSpectra, grid: Tensor, dei: Tensor) -> list[list[float]]:
    """Sign changes on the grid, refined by bisection: the i-th changes of all prompts together."""
    sign = dei.sign()
    changes = sign[:, 1:] * sign[:, :-1] < 0
    brackets = [row.nonzero().flatten().tolist() for row in changes]
    zeros: list[list[float]] = [[] for _ in brackets]
    for turn in range(max(map(len, brackets), default=0)):
        index = torch.tensor([row[turn] if turn < len(row) else 0 for row in brackets], device=grid.device)
        low, high = grid[index].clone(), grid[index + 1].clone()
        rising = spectra.dei(high) > 0
        for _ in range(_HALVINGS):
            middle = (low * high).sqrt()
            above = (spectra.dei(middle) > 0) == rising
            high, low = torch.where(above, middle, high), torch.where(above, low, middle)
        for prompt, row in enumerate(brackets):
            if turn < len(row):
                zeros[prompt].append(float((low[prompt] * high[prompt]).sqrt()))
    return zeros


def _median(values: Tensor) -> Tensor:
    """The median over the prompts with a finite number; of an even count, the mean of the middle two."""
    return torch.nanquantile(torch.where(values.isfinite(), values, torch.nan), 0.5)
