"""Whether nodes differ between two sets of prompts: shifts, p-values, q-values and roles, from numbers alone.

    shift   the mean over B minus the mean over A; its interval from resampling units
    p       Mann-Whitney on the means of units; Wilcoxon's signed ranks on those of the differences of pairs
    q       Benjamini-Hochberg over nodes
    role    `entry` if the q of z_v is below the level: unusual given what the node read. `inherits` if only that of its
            whitened write is: unusual, but as what it read predicts

A unit is a group of prompts (of one subject, of one template), which are not independent. Prompts that were given no
group are a group if their tokens are equal, as in a calibration, so a prompt that is repeated counts once.

Numbers of both sets must come from one affine map of `log d_v^2`. If A's prompts were standardised over the *others*,
as their own z in a calibration is, and B's over all of A, then A's numbers would be spread a little wider, by a factor
of about (n + 1) / n and more in a long tail, and equal sets would not have equal distributions. With one map, A's
calibration part and B are exchangeable, and the test is exact: neither taught anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from scipy.stats import false_discovery_control, mannwhitneyu, wilcoxon

from eics.studies.statistics import LEVEL, Indices, Numbers, resampled_counts

ENTRY, INHERITS = "entry", "inherits"

_STREAM = 17  # random stream of the bootstrap
_TOGETHER = 200  # resamples at a time


@dataclass(frozen=True)
class Sample:
    """Numbers of one set, (n, nodes), and the unit of each row, (n,), from 0 without gaps."""

    values: Numbers
    unit: Indices

    @classmethod
    def of(cls, values: Numbers, groups: Sequence[str]) -> "Sample":
        """Units in the order of their names, so that nothing depends on the order of the prompts."""
        return cls(values, np.unique(np.asarray(groups, dtype=str), return_inverse=True)[1].astype(np.int64))

    def with_values(self, values: Numbers) -> "Sample":
        """Other numbers of the same prompts."""
        return Sample(values, self.unit)

    @property
    def units(self) -> int:
        """How many there are."""
        return int(self.unit.max()) + 1

    @property
    def sizes(self) -> Numbers:
        """How many prompts each unit has."""
        return np.bincount(self.unit, minlength=self.units).astype(float)

    @property
    def sums(self) -> Numbers:
        """Of each unit, (units, nodes)."""
        sums = np.zeros((self.units, self.values.shape[1]))
        np.add.at(sums, self.unit, self.values)
        return sums

    @property
    def means(self) -> Numbers:
        """Of each unit, (units, nodes)."""
        means: Numbers = self.sums / self.sizes[:, None]
        return means

    def resampled(self, times: int, draw: np.random.Generator) -> Numbers:
        """Means over prompts when units are drawn with replacement, (times, nodes)."""
        sums, sizes, means = self.sums, self.sizes, []
        for start in range(0, times, _TOGETHER):
            counts = resampled_counts(self.units, min(_TOGETHER, times - start), draw)
            means.append(counts @ sums / (counts @ sizes)[:, None])
        return np.concatenate(means)


@dataclass(frozen=True)
class Shifts:
    """Of every node, (nodes,): B minus A, its 95% interval, p and q."""

    value: Numbers
    low: Numbers
    high: Numbers
    p: Numbers
    q: Numbers


def shifts(a: Sample, b: Sample, *, paired: bool = False, resamples: int = 1000, seed: int = 0) -> Shifts:
    """How far the nodes of B lie from those of A. In paired sets, row i of both is one pair, and units are those of A.

    >>> a, b = (Sample.of(np.arange(20.0)[:, None] + add, range(20)) for add in (0.0, 3.0))
    >>> paired, apart = shifts(a, b, paired=True), shifts(a, b)
    >>> paired.value, bool(paired.p < 1e-4), bool(apart.p < 0.05)
    (array([3.]), True, False)
    """
    draw = np.random.default_rng([seed, _STREAM])
    if paired:
        difference = a.with_values(b.values - a.values)
        value, samples = difference.values.mean(axis=0), difference.resampled(resamples, draw)
        p = signed_ranks(difference.means)
    else:
        value = b.values.mean(axis=0) - a.values.mean(axis=0)
        samples = b.resampled(resamples, draw) - a.resampled(resamples, draw)
        p = rank_sums(a.means, b.means)
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Shifts(value, low, high, p, false_discovery_control(p))


def rank_sums(a: Numbers, b: Numbers) -> Numbers:
    """Two-sided p of Mann-Whitney's test, column by column; 1 where all numbers are equal."""
    equal = (np.concatenate([a, b]) == a[:1]).all(axis=0)
    p = np.ones(a.shape[1])
    if not equal.all():
        p[~equal] = mannwhitneyu(b[:, ~equal], a[:, ~equal], axis=0).pvalue
    return p


def signed_ranks(differences: Numbers) -> Numbers:
    """Two-sided p of Wilcoxon's signed-rank test, column by column; 1 where all differences are 0."""
    equal = (differences == 0).all(axis=0)
    p = np.ones(differences.shape[1])
    if not equal.all():
        p[~equal] = wilcoxon(differences[:, ~equal], axis=0).pvalue
    return p


def least_p(units_a: int, units_b: int, *, paired: bool) -> float:
    """The smallest p that so many units can give.

    >>> least_p(2, 2, paired=False), least_p(5, 5, paired=True)
    (0.3333333333333333, 0.0625)
    """
    arrangements = 2**units_a if paired else comb(units_a + units_b, units_a)
    return min(1.0, 2 / arrangements)


def role(q: float, write_q: float, level: float) -> str | None:
    """What a node is to the difference between the sets."""
    if q < level:
        return ENTRY
    return INHERITS if write_q < level else None


def standardised(values: Numbers, reference: Numbers) -> Numbers:
    """In standard deviations of the reference, about its mean; a constant has none."""
    spread = np.maximum(reference.std(axis=0, ddof=1), 1e-12)
    result: Numbers = (values - reference.mean(axis=0)) / spread
    return result
