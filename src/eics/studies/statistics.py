"""Bootstrap intervals, p-values and rank correlations, shared by every study.

A bootstrap draws `n` of `n` items with replacement, many times over. Studies that recompute a statistic take the drawn
indices; studies whose statistic is a sum over items take how often each item was drawn. An `Interval` spans the
2.5% and 97.5% quantiles of the statistic over the resamples.

Spearman's correlation is Pearson's correlation of ranks, with ties at their mean rank. Given covariates, it is
Pearson's correlation of what remains of both ranks after regressing them on the covariates' ranks, a constant and one
indicator per group. scipy offers neither for a stack of resamples: all functions here work along the last axis.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]

LEVEL = 0.95
"""Coverage of every interval."""

LEAST_RESIDUAL = 8
"""Prompts beyond the number of covariates that a partial correlation needs: fewer, and the regression fits them all."""

_WEIGHTS_STREAM = 4  # random stream of the stratified bootstrap
_BLOCK = 2_000_000  # weights in memory at once
_FLAT = 1e-9  # spread of ranks, relative to their number, below which a variable counts as constant


@dataclass(frozen=True)
class Interval:
    """A number with its 95% bootstrap interval.

    >>> f"{Interval(0.5, 0.25, 0.75)}", f"{Interval(0.5, 0.25, 0.75):+.1f}"
    ('0.500 (0.250 to 0.750)', '+0.5 (+0.2 to +0.8)')
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, samples: Numbers, *, without_samples: float = float("nan")) -> Self:
        """Percentile interval over the finite samples; both bounds are `without_samples` if there are none."""
        finite = samples[np.isfinite(samples)]
        if not len(finite):
            return cls(float(value), without_samples, without_samples)
        low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return cls(float(value), float(low), float(high))

    @property
    def is_known(self) -> bool:
        return bool(np.isfinite(self.value))

    def side(self) -> int:
        """1 if the whole interval lies above 0, -1 if it lies below, otherwise 0."""
        return int(self.low > 0) - int(self.high < 0)

    def __format__(self, spec: str) -> str:
        """All three numbers in the given format, `.3f` by default."""
        value, low, high = (format(number, spec or ".3f") for number in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"

    def __str__(self) -> str:
        return format(self)


@dataclass(frozen=True)
class CorrectedInterval(Interval):
    """An interval beside a wider one, Bonferroni-corrected for the number of scores that are compared."""

    wide_low: float
    wide_high: float

    @classmethod
    def corrected(cls, value: float, samples: Numbers, compared: int) -> Self:
        """All nan if the value is nan, or if the statistic is undefined on more than half of the resamples."""
        finite = samples[np.isfinite(samples)]
        if not np.isfinite(value) or len(finite) < len(samples) / 2:
            return cls(*[float("nan")] * 5)
        tail, narrow = (1 - LEVEL) / 2, (1 - LEVEL) / 2 / max(1, compared)
        low, high, wide_low, wide_high = np.quantile(finite, [tail, 1 - tail, narrow, 1 - narrow])
        return cls(float(value), float(low), float(high), float(wide_low), float(wide_high))

    def side(self) -> int:
        """Judged by the corrected interval."""
        return int(self.wide_low > 0) - int(self.wide_high < 0)


def resampled_indices(size: int, times: int, draw: np.random.Generator) -> Indices:
    """Indices of `times` bootstrap resamples of `size` items, (times, size)."""
    return draw.integers(0, size, size=(times, size))


def resampled_counts(size: int, times: int, draw: np.random.Generator, *, multinomial: bool = False) -> Numbers:
    """How often each item is drawn in each resample, (times, size).

    Both ways of drawing have the same distribution; results that were published depend on which one a study uses.
    """
    if multinomial:
        return draw.multinomial(size, np.full(size, 1 / size), size=times).astype(float)
    flat = resampled_indices(size, times, draw) + size * np.arange(times)[:, None]
    return np.bincount(flat.ravel(), minlength=times * size).reshape(times, size).astype(float)


def stratified_weights(labels: Flags, clusters: Sequence[str] | None, times: int, seed: int) -> Iterator[Numbers]:
    """How often each prompt is drawn in each of `times` resamples, in blocks of bounded size.

    Prompts are drawn within each label, so that every resample has both labels. Given clusters, whole clusters are
    drawn regardless of their labels, because prompts of one cluster are not independent.
    """
    draw = np.random.default_rng([seed, _WEIGHTS_STREAM])
    block = max(1, _BLOCK // len(labels))
    strata = [np.flatnonzero(labels), np.flatnonzero(~labels)]
    if clusters is not None:
        names, cluster = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    for start in range(0, times, block):
        rows = min(block, times - start)
        if clusters is not None:
            yield resampled_counts(len(names), rows, draw)[:, cluster]
        else:
            weights = np.empty((rows, len(labels)))
            for members in strata:
                weights[:, members] = resampled_counts(len(members), rows, draw)
            yield weights


def two_sided(samples: Numbers) -> float:
    """Bootstrap p-value of "the difference is 0": twice the smaller tail, never below what the resamples can show."""
    finite = samples[np.isfinite(samples)]
    tail = min(int((finite <= 0).sum()), int((finite >= 0).sum()))
    return min(1.0, 2 * (tail + 1) / (len(finite) + 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the k-th smallest of m p-values times m - k + 1, never below the one before.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted: dict[str, float] = {}
    least = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda key: p_values[key])):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in p_values}


def wins(x: Numbers, y: Numbers) -> Numbers:
    """1 where x > y, 1/2 where they are equal, otherwise 0; nan where either is not finite. Their mean is the AUROC.

    >>> wins(np.array([1.0, 2.0, 3.0]), np.array([2.0]))
    array([0. , 0.5, 1. ])
    """
    return np.where(np.isfinite(x) & np.isfinite(y), (x > y) + 0.5 * (x == y), np.nan)


def spearman(x: Numbers, y: Numbers) -> Numbers:
    """Rank correlation along the last axis; nan where one of the two is constant.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    array(1.)
    """
    return _pearson(rankdata(x, axis=-1), rankdata(y, axis=-1))


def partial_spearman(x: Numbers, y: Numbers, covariates: Sequence[Numbers], groups: Indices | None = None) -> Numbers:
    """Rank correlation of x, (R, n) or (S, R, n), with y given covariates and group numbers, each (R, n).

    nan if there are too few prompts for the number of covariates.
    """
    columns = [np.ones_like(y), *(_centred(rankdata(c, axis=-1)) / y.shape[-1] for c in covariates)]
    if groups is not None:
        columns += [(groups == number).astype(float) for number in range(int(groups.max()) + 1)]
    design = np.stack(columns, axis=-1)  # (R, n, q)
    if y.shape[-1] - design.shape[-1] < LEAST_RESIDUAL:
        return np.full(x.shape[:-1], np.nan)
    transposed = np.swapaxes(design, -1, -2)
    inverse = np.linalg.pinv(transposed @ design, rcond=1e-10, hermitian=True)

    def residual(values: Numbers) -> Numbers:
        ranks = rankdata(values, axis=-1)[..., None]
        remaining: Numbers = (ranks - design @ (inverse @ (transposed @ ranks)))[..., 0]
        return remaining

    return _pearson(residual(x), residual(y))


def _pearson(x: Numbers, y: Numbers) -> Numbers:
    x, y = _centred(x), _centred(y)
    sizes = np.sqrt((x * x).sum(axis=-1)), np.sqrt((y * y).sum(axis=-1))
    flat = np.minimum(*sizes) < _FLAT * x.shape[-1] ** 1.5
    return np.where(flat, np.nan, (x * y).sum(axis=-1) / np.where(flat, 1.0, sizes[0] * sizes[1]))


def _centred(x: Numbers) -> Numbers:
    centred: Numbers = x - x.mean(axis=-1, keepdims=True)
    return centred
