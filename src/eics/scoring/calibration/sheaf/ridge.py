"""The learned restriction map: ridge regression of a node's write on what the circuit gave it, from moments alone.

    B = (X^T X + penalty)^-1 X^T Y        X standardised, both centred on what the fold was trained on
    S = covariance of y - B^T x, each from a fold that did not see it, shrunk by OAS

One penalty for all outputs of a node, by held-out squared error over the folds.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.bases import OUTPUTS
from eics.scoring.calibration.sheaf.moments import Moments

PENALTIES = (1.0, 1e1, 1e2, 1e3, 1e4, 1e5)


@dataclass(frozen=True)
class Ridge:
    """The regressions of all judged nodes; n of them, x of 2 * REGRESSORS and y of OUTPUTS numbers.

    Attributes:
        mean, scale: of x, (n, x) each: regressors are `(x - mean) * scale`.
        weight: B, (n, x, y). intercept: (n, y).
        penalty: (n,).
        covariance: of cross-fitted residuals, OAS-shrunk, (n, y, y); the identity where a node has fewer outputs.
        gram: `X^T X + penalty` of standardised regressors, (n, x, x).
        leverage: the mean of `x^T gram^-1 x`, (n,).
        r2: 1 - cross-fitted squared error over squared deviation, (n,).
        deviation: rms of the centred outputs, (n,).
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    intercept: Tensor
    penalty: Tensor
    covariance: Tensor
    gram: Tensor
    leverage: Tensor
    r2: Tensor
    deviation: Tensor


def fit_ridge(moments: Moments, outputs: Tensor) -> Ridge:
    """Regressions of nodes with `outputs` components each, (n,)."""
    total, count = _summed(moments), moments.total.clamp(min=1)
    mean = total.mean[:, OUTPUTS:]
    variance = total.centred.diagonal(dim1=1, dim2=2)[:, OUTPUTS:] / count.unsqueeze(1)
    largest = variance.amax(dim=1, keepdim=True)
    scale = torch.where(variance > 1e-18 * largest, variance.clamp(min=1e-300).rsqrt(), 0.0)
    folds = [_Fold.of(moments, index, scale) for index in range(moments.count.shape[1])]
    errors = torch.stack([sum((fold.error(penalty) for fold in folds), count * 0.0) for penalty in PENALTIES])
    penalty = torch.tensor(PENALTIES, dtype=torch.float64)[errors.argmin(dim=0)]
    residuals = [fold.residuals(penalty) for fold in folds]
    squares, sums = (torch.stack(parts).sum(dim=0) for parts in zip(*residuals, strict=True))
    covariance = squares / count[:, None, None] - _outer(sums / count.unsqueeze(1))
    xx, xy, yy = _blocks(total.centred, scale)
    gram = xx + penalty[:, None, None] * torch.eye(xx.shape[1], dtype=torch.float64)
    deviation = yy.diagonal(dim1=1, dim2=2).sum(dim=1)
    squared_error = squares.diagonal(dim1=1, dim2=2).sum(dim=1)
    return Ridge(
        mean,
        scale,
        torch.linalg.solve(gram, xy),
        total.mean[:, :OUTPUTS],
        penalty,
        oas(covariance, count, outputs),
        gram,
        torch.linalg.solve(gram, xx).diagonal(dim1=1, dim2=2).sum(dim=1) / count,
        torch.where(deviation > 0, 1.0 - squared_error / deviation.clamp(min=1e-300), 0.0),
        (deviation / count).sqrt(),
    )


def oas(covariance: Tensor, samples: Tensor, features: Tensor) -> Tensor:
    """Oracle-approximating shrinkage (Chen et al. 2010) of covariances (n, k, k) whose first `features` rows count.

        S' = (1 - s) S + s mu I,  mu = tr S / p,  s = (m + mu^2) / ((n + 1) (m - mu^2 / p)),  m = mean of S_ij^2

    Rows that do not count get a 1 on the diagonal.
    """
    size = covariance.shape[1]
    counted = (torch.arange(size) < features.unsqueeze(1)).double()
    p = features.clamp(min=1).double()
    mu = covariance.diagonal(dim1=1, dim2=2).sum(dim=1) / p
    squares = covariance.square().sum(dim=(1, 2)) / p.square()
    below = (samples + 1.0) * (squares - mu.square() / p)
    amount = torch.where(below > 0, (squares + mu.square()) / torch.where(below > 0, below, 1.0), 1.0).clamp(max=1.0)
    shrunk = (1.0 - amount)[:, None, None] * covariance
    return shrunk + torch.diag_embed((amount * mu).unsqueeze(1) * counted + 1.0 - counted)


@dataclass(frozen=True)
class _Sums:
    """Moments of some of the samples: how many, their mean, and second moments about it."""

    count: Tensor
    mean: Tensor
    centred: Tensor


def _summed(moments: Moments, without: int | None = None) -> _Sums:
    """Over all folds, or all but one."""
    kept = [index for index in range(moments.count.shape[1]) if index != without]
    count, first, second = (part[:, kept].sum(dim=1) for part in (moments.count, moments.first, moments.second))
    mean = first / count.clamp(min=1).unsqueeze(1)
    return _Sums(count, mean, second - count[:, None, None] * _outer(mean))


@dataclass(frozen=True)
class _Fold:
    """What one fold is predicted from, and its own moments about the training means; regressors in their units."""

    train_xx: Tensor
    train_xy: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor
    x: Tensor
    y: Tensor

    @classmethod
    def of(cls, moments: Moments, index: int, scale: Tensor) -> "_Fold":
        train = _summed(moments, without=index)
        count, first = moments.count[:, index], moments.first[:, index]
        sums = first - count.unsqueeze(1) * train.mean
        cross = first.unsqueeze(2) * train.mean.unsqueeze(1)
        about = moments.second[:, index] - cross - cross.mT + count[:, None, None] * _outer(train.mean)
        train_xx, train_xy, _ = _blocks(train.centred, scale)
        return cls(train_xx, train_xy, *_blocks(about, scale), sums[:, OUTPUTS:] * scale, sums[:, :OUTPUTS])

    def weight(self, penalty: Tensor | float) -> Tensor:
        """B from the other folds."""
        eye = torch.eye(self.train_xx.shape[1], dtype=torch.float64)
        ridge = penalty[:, None, None] * eye if isinstance(penalty, Tensor) else penalty * eye
        weight: Tensor = torch.linalg.solve(self.train_xx + ridge, self.train_xy)
        return weight

    def error(self, penalty: float) -> Tensor:
        """The fold's squared error, (n,)."""
        weight = self.weight(penalty)
        total = self.yy.diagonal(dim1=1, dim2=2).sum(dim=1) - 2.0 * (weight * self.xy).sum(dim=(1, 2))
        return total + (weight * (self.xx @ weight)).sum(dim=(1, 2))

    def residuals(self, penalty: Tensor) -> tuple[Tensor, Tensor]:
        """The fold's residuals: sum of products, (n, y, y), and sum, (n, y)."""
        weight = self.weight(penalty)
        cross = weight.mT @ self.xy
        products = self.yy - cross - cross.mT + weight.mT @ self.xx @ weight
        return products, self.y - (self.x.unsqueeze(1) @ weight).squeeze(1)


def _blocks(centred: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """xx, xy and yy of second moments (n, y + x, y + x), x in its units."""
    xx = centred[:, OUTPUTS:, OUTPUTS:] * scale.unsqueeze(2) * scale.unsqueeze(1)
    return xx, centred[:, OUTPUTS:, :OUTPUTS] * scale.unsqueeze(2), centred[:, :OUTPUTS, :OUTPUTS]


def _outer(vectors: Tensor) -> Tensor:
    return vectors.unsqueeze(2) * vectors.unsqueeze(1)
