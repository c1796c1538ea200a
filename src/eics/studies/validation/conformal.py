"""Split conformal prediction sets over the next token: how many tokens does it take to include the answer?

Calibrated on n development prompts with an answer, so that the set contains the answer with the required probability.
With `p` the model's probabilities, `y` the answer and q the ceil((n + 1) coverage)-th smallest conformity score:

    LAC   score 1 - p_y                                        set {k: 1 - p_k <= q}
    APS   score sum of p_k with p_k >= p_y, less u p_y         set: most probable tokens up to a mass of q, including
          (u uniform in [0, 1], drawn once per prompt)         the one that reaches it

A larger set means a less certain model.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from eics.errors import OptionError
from eics.studies.statistics import Numbers


class Conformal(NamedTuple):
    """The calibrated quantiles of both methods."""

    lac: float
    aps: float


def least_prompts(coverage: float) -> int:
    """How many calibration prompts a coverage needs; with fewer, the quantile would lie beyond all of them.

    >>> least_prompts(0.9), least_prompts(0.95)
    (9, 19)
    """
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def calibrate(probability: Numbers, mass: Numbers, coverage: float, seed: int) -> Conformal:
    """Calibrates on the answers' probabilities and the total probability of all tokens at least as probable."""
    least = least_prompts(coverage)
    if len(probability) < least:
        raise OptionError(
            f"Conformal calibration for a coverage of {coverage:g} must have at least {least} development prompts with "
            f"an answer. Got {len(probability)}: lower --coverage, or add prompts."
        )
    drawn = np.random.RandomState(seed).uniform(size=len(probability))
    rank = math.ceil((len(probability) + 1) * coverage - 1e-9)
    lac, aps = (np.sort(scores)[rank - 1] for scores in (1.0 - probability, mass - drawn * probability))
    return Conformal(float(lac), float(aps))


def set_sizes(probabilities: Tensor, conformal: Conformal) -> tuple[Tensor, Tensor]:
    """Sizes of the LAC and APS sets for rows of probabilities, (B, V): (B,) each."""
    lac = (1.0 - probabilities <= conformal.lac + 1e-12).sum(dim=1)
    cumulative = probabilities.sort(dim=1, descending=True).values.cumsum(dim=1)
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    aps = (before < conformal.aps - 1e-12).sum(dim=1).clamp(min=1)
    return lac, aps
