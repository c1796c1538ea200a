"""Rank correlations, partial ones, and their intervals over resampled prompts (and circuits).

Spearman's correlation is Pearson's of ranks, ties at their mean rank. The partial one, given covariates, is Pearson's
of what is left of the two ranks after regressing them on the covariates' ranks, a constant, and an indicator for each
group. Everything takes a stack of samples at once: the first axis is the resamples'.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

RESAMPLES = 2000
LEVEL = 0.95
LEAST_LEFT = 8
"""Prompts beyond the covariates below which there is no partial correlation: a regression would fit them all."""

_FLAT = 1e-9  # spread of ranks, against their number, below which nothing varies


@dataclass(frozen=True)
class Estimate:
    """A correlation with its 95% interval, and a wider one corrected for how many scores are compared."""

    value: float
    low: float
    high: float
    wide_low: float
    wide_high: float

    @classmethod
    def of(cls, value: float, samples: Numbers, compared: int) -> "Estimate":
        """Percentile intervals; nan where the value is, or where under half of the resamples vary at all."""
        known = samples[np.isfinite(samples)]
        if not np.isfinite(value) or len(known) < len(samples) / 2:
            return cls(*[float("nan")] * 5)
        tail, narrow = (1 - LEVEL) / 2, (1 - LEVEL) / 2 / max(1, compared)
        low, high, wide_low, wide_high = np.quantile(known, [tail, 1 - tail, narrow, 1 - narrow])
        return cls(float(value), float(low), float(high), float(wide_low), float(wide_high))

    @property
    def known(self) -> bool:
        """Whether there is a number at all."""
        return bool(np.isfinite(self.value))

    def side(self) -> int:
        """1 or -1 where the corrected interval lies wholly above or below 0, else 0."""
        return int(self.wide_low > 0) - int(self.wide_high < 0) if self.known else 0

    def __str__(self) -> str:
        return f"{self.value:+.2f} ({self.low:+.2f} to {self.high:+.2f})" if self.known else "none: constant"


def resamples(count: int, seed: int, times: int = RESAMPLES) -> Places:
    """Places of a bootstrap, (1 + times, count); the first row is the sample itself."""
    drawn = np.random.default_rng([seed, count]).integers(0, count, size=(times, count))
    return np.concatenate([np.arange(count)[None], drawn])


def spearman(x: Numbers, y: Numbers) -> Numbers:
    """Rank correlation along the last axis; nan where one does not vary.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    array(1.)
    """
    return _pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def partial(x: Numbers, y: Numbers, covariates: Sequence[Numbers], groups: Places | None = None) -> Numbers:
    """Rank correlation of x, (R, n) or several (S, R, n), with y given covariates and group numbers, (R, n) each.

    nan where the prompts are too few for so many covariates.
    """
    columns = [np.ones_like(y), *(_centred(rankdata(one, axis=-1)) / y.shape[-1] for one in covariates)]
    if groups is not None:
        columns += [(groups == number).astype(float) for number in range(int(groups.max()) + 1)]
    known = np.stack(columns, axis=-1)  # (R, n, q)
    if y.shape[-1] - known.shape[-1] < LEAST_LEFT:
        return np.full(x.shape[:-1], np.nan)
    inverse = np.linalg.pinv(np.swapaxes(known, -1, -2) @ known, rcond=1e-10, hermitian=True)

    def left(values: Numbers) -> Numbers:
        ranks = rankdata(values, axis=-1)[..., None]
        found: Numbers = (ranks - known @ (inverse @ (np.swapaxes(known, -1, -2) @ ranks)))[..., 0]
        return found

    return _pearson(left(x), left(y))


def _pearson(x: Numbers, y: Numbers) -> Numbers:
    x, y = _centred(x), _centred(y)
    sizes = np.sqrt((x * x).sum(axis=-1)), np.sqrt((y * y).sum(axis=-1))
    flat = np.minimum(*sizes) < _FLAT * x.shape[-1] ** 1.5
    found: Numbers = np.where(flat, np.nan, (x * y).sum(axis=-1) / np.where(flat, 1.0, sizes[0] * sizes[1]))
    return found


def _centred(x: Numbers) -> Numbers:
    found: Numbers = x - x.mean(axis=-1, keepdims=True)
    return found
