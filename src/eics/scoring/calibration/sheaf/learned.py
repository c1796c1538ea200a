"""The learned sheaf: how unusual a node's write is, given what the circuit gave the node.

    D_v^2 = (1/k) r^T S_v^-1 r + 0.03 (energy of a_v outside P_v / its mean)         r = P_v (a_v - mean) - B_v x_v
    u_v   = (leverage of x_v / its mean + 0.1 (energy of e_v outside its directions / its mean)) / 1.1
    d_v^2 = D_v^2 / ((1 + 30 u_v) / 31)

A regression is less certain far from its data: `d_v` allows for that, which keeps the children of a broken node quiet,
and prompts of a form that the reference never saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from eics.linalg.memory import chunk_width
from eics.scoring.calibration.sheaf.bases import REGRESSORS, Bases, Coordinates, coordinates
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.ridge import fit_ridge
from eics.scoring.calibration.sheaf.samples import FIRST, Layout, Samples

OUTSIDE = 0.03  # weight of a write's energy outside its principal directions
EXPLAINED_OUTSIDE = 0.1  # weight of the same for what is explained
ALLOWANCE = 30.0  # how much an unusual input excuses
TINY = 1e-9  # added inside logarithms, and as a share of the variance to means that are divided by
_STILL = 0.01  # of its rms: a node that varies less cannot be judged

ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""What rounding does to a write, as a share of its rms, by the dtype of the weights."""


@dataclass(frozen=True)
class Distances:
    """For each judged node and sample, (judged, R): D_v^2, u_v, and d_v^2."""

    whole: Tensor
    unusual_input: Tensor
    allowed: Tensor

    @classmethod
    def none(cls, judged: int) -> "Distances":
        """No sample yet."""
        return cls(*(torch.zeros(judged, 0, dtype=torch.float64) for _ in range(3)))

    @classmethod
    def cat(cls, distances: "Sequence[Distances]") -> "Distances":
        """The samples of one after those of another."""
        return cls(*(torch.cat(parts, dim=1) for parts in zip(*(one.parts for one in distances), strict=True)))

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """All three."""
        return self.whole, self.unusual_input, self.allowed

    def columns(self, chosen: Tensor) -> "Distances":
        """Some of the samples, in another order."""
        return Distances(*(part[:, chosen] for part in self.parts))

    def cpu(self) -> "Distances":
        """The distances on the host."""
        return Distances(*(part.cpu() for part in self.parts))


@dataclass(frozen=True)
class Regressions:
    """Everything but the bases, stacked over the judged nodes; float64.

    Attributes:
        mean, scale, weight, intercept: of the ridge regression, as in `ridge.Ridge`.
        whitener: L^-1 with `S = L L^T`, (n, y, y).
        leverage_whitener: the same for `X^T X + penalty`, (n, x, x).
        leverage: its mean over the fit, (n,).
        outside, explained_outside: mean energies outside the directions, (n,); 0 if nothing varies.
        outputs: k, (n,).
        penalty, r2, deviation: as in `ridge.Ridge`; spread: tr S^-1 over the k outputs, (n,).
        varies: centred rms over rms of the write, (n,).
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    intercept: Tensor
    whitener: Tensor
    leverage_whitener: Tensor
    leverage: Tensor
    outside: Tensor
    explained_outside: Tensor
    outputs: Tensor
    penalty: Tensor
    r2: Tensor
    deviation: Tensor
    spread: Tensor
    varies: Tensor

    @classmethod
    def of(cls, moments: Moments, bases: Bases, width: int, dtype: torch.dtype) -> "Regressions":
        """From the moments of the fit; `dtype` is that of the weights, which decides what rounding does."""
        ridge = fit_ridge(moments, bases.outputs)
        size, deviation = moments.mean_energy("size"), moments.mean_energy("deviation")
        floor = ROUNDING[dtype] ** 2 * size / width
        covariance = ridge.covariance + torch.diag_embed(floor.unsqueeze(1).expand(-1, ridge.covariance.shape[1]))
        whitener = _whitener(covariance)
        kept = torch.arange(covariance.shape[1]) < bases.outputs.unsqueeze(1)
        return cls(
            ridge.mean,
            ridge.scale,
            ridge.weight,
            ridge.intercept,
            whitener,
            _whitener(ridge.gram),
            ridge.leverage,
            _divisor(moments.mean_energy("outside"), deviation),
            _divisor(moments.mean_energy("explained_outside"), moments.mean_energy("explained_deviation")),
            bases.outputs,
            ridge.penalty,
            ridge.r2,
            ridge.deviation,
            (whitener.square().sum(dim=1) * kept).sum(dim=1),
            torch.where(size > 0, (deviation / size.clamp(min=1e-300)).sqrt(), 0.0),
        )

    def to(self, device: torch.device) -> "Regressions":
        """The regressions on another device."""
        return Regressions(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    def standardised(self, at: Coordinates) -> Tensor:
        """x_v, (n, R, x)."""
        return (at.regressors - self.mean.unsqueeze(1)) * self.scale.unsqueeze(1)

    def predicted(self, x: Tensor) -> Tensor:
        """B_v x_v: the outputs that x_v leads one to expect, (n, R, y)."""
        return self.intercept.unsqueeze(1) + x @ self.weight

    def distances(self, at: Coordinates) -> Distances:
        """D_v^2, u_v and d_v^2 of every sample."""
        x = self.standardised(at)
        residual = at.outputs - self.predicted(x)
        k = self.outputs.clamp(min=1).unsqueeze(1)
        whole = (residual @ self.whitener.mT).square().sum(dim=2) / k
        whole = whole + OUTSIDE * _over(at.outside, self.outside)
        leverage = _over((x @ self.leverage_whitener.mT).square().sum(dim=2), self.leverage)
        outside = _over(at.explained_outside, self.explained_outside)
        unusual = (leverage + EXPLAINED_OUTSIDE * outside) / (1.0 + EXPLAINED_OUTSIDE)
        return Distances(whole, unusual, whole / ((1.0 + ALLOWANCE * unusual) / (1.0 + ALLOWANCE)))


@dataclass(frozen=True)
class LearnedSheaf:
    """A learned restriction map and inner product for each node with parents.

    Attributes:
        layout: the circuit's nodes.
        at: where they are judged, `answer` or `all`.
        bases, regressions: what was learned.
        dtype: of the weights that it was learned from.
        first: the first position that is judged if all are; 0 in files that did not set the first token apart.
    """

    layout: Layout
    at: str
    bases: Bases
    regressions: Regressions
    dtype: torch.dtype
    first: int = FIRST

    def to(self, device: torch.device) -> "LearnedSheaf":
        """The sheaf on another device."""
        bases, regressions = self.bases.to(device), self.regressions.to(device)
        return replace(self, bases=bases, regressions=regressions)

    def coordinates(self, samples: Samples) -> Coordinates:
        """Samples in the sheaf's bases."""
        return Coordinates.cat([coordinates(self.bases, samples.rows(rows)) for rows in self._chunks(samples.prompt)])

    def by_row(self, samples: Samples) -> Distances:
        """Distances of each node and row, (judged, R)."""
        chunks = self._chunks(samples.prompt)
        return Distances.cat(
            [self.regressions.distances(coordinates(self.bases, samples.rows(rows))) for rows in chunks]
        )

    def by_row_of(self, at: Coordinates, prompt: Tensor) -> Distances:
        """The same from coordinates whose rows belong to these prompts, (R,)."""
        return Distances.cat([self.regressions.distances(at.rows(rows)) for rows in self._chunks(prompt)])

    def by_prompt(self, samples: Samples, prompts: int) -> Distances:
        """Distances of each node and prompt, (judged, prompts): means over the positions at which it is judged."""
        by_row = self.by_row(samples)
        if self.at == "answer":  # a row is a prompt
            return by_row
        return mean_by_prompt(by_row, samples.counts, samples.prompt, prompts)

    def _chunks(self, prompt: Tensor) -> list[slice]:
        """The rows in chunks within the memory bound; no row is one chunk."""
        by_row = max(len(self.layout.nodes) * self.layout.width, len(self.layout.judged) * 2 * REGRESSORS)
        width = chunk_width(3 * by_row, torch.float64)
        return [slice(start, start + width) for start in range(0, max(1, len(prompt)), width)]

    @property
    def reasons(self) -> dict[str, str]:
        """Nodes that cannot be judged, and why."""
        reasons = {}
        columns = zip(
            self.layout.judged, self.regressions.outputs.tolist(), self.regressions.varies.tolist(), strict=True
        )
        for name, outputs, varies in columns:
            if outputs == 0:
                reasons[name] = "its write does not vary over the reference prompts"
            elif varies < _STILL:
                reasons[name] = (
                    f"its write varies by {varies:.2%} of its size over the reference prompts: too little to be judged"
                )
        return reasons


def mean_by_prompt(distances: Distances, counts: Tensor, prompt: Tensor, prompts: int) -> Distances:
    """Means over the rows of each prompt that count, (judged, prompts), from those of rows, (judged, R)."""
    counts = counts.double()

    def summed(values: Tensor) -> Tensor:
        if values.device.type == "cpu":
            return values.new_zeros(len(values), prompts).index_add_(1, prompt, values)
        one_hot = torch.nn.functional.one_hot(prompt, prompts).double()  # on a GPU, index_add_ adds in any order
        return values @ one_hot

    total = summed(counts).clamp(min=1)
    return Distances(*(summed(part * counts) / total for part in distances.parts))


def _whitener(matrix: Tensor) -> Tensor:
    """L^-1 with `matrix = L L^T`."""
    factor: Tensor = torch.linalg.cholesky(matrix)
    eye = torch.eye(matrix.shape[1], dtype=matrix.dtype)
    inverse: Tensor = torch.linalg.solve_triangular(factor, eye.expand_as(matrix), upper=False)
    return inverse


def _divisor(mean: Tensor, variance: Tensor) -> Tensor:
    """A mean to divide by: a small share of the variance more; 0 if nothing varies."""
    return mean + TINY * variance


def _over(values: Tensor, means: Tensor) -> Tensor:
    """Values over their means, (n, R); 1, the usual, if the mean is 0."""
    means = means.unsqueeze(1)
    return torch.where(means > 0, values / torch.where(means > 0, means, 1.0), 1.0)
