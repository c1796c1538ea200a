"""Ways of judging nodes, all against a reference set: the calibrated one, the same with a part left out, baselines.

A way turns runs into squared distances, (judged, R), large if a node did something unusual. What is usual is then
decided for all ways alike, by `Reference`: z by node, conformal p-values by prompt.

| way | the distance of a node |
|---|---|
| `calibrated` | d_v^2 of the learned sheaf |
| `no-context`, `no-explained`, `no-leverage`, `no-metric` | the same with that part left out |
| `joint` | the joint residual a_v - e_v, whitened |
| `activations` | the write, whitened: a monitor of activations |
| `layers` | what the node's layer added to the residual stream, whitened |
| `norms` | the logarithm of the write's norm |
| `recomputed` | the write against the node's own function of what it read |
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.circuits.graph import Node
from eics.scoring.calibration.sheaf.bases import REGRESSORS, Bases, Coordinates, coordinates
from eics.scoring.calibration.sheaf.learned import Distances, Regressions
from eics.scoring.calibration.sheaf.moments import MomentSums
from eics.scoring.calibration.sheaf.samples import Samples
from eics.studies.detection.observations import Observations

_CHUNK = 256  # runs whose coordinates are in memory at once


@dataclass(frozen=True)
class Parts:
    """Which parts of the calibrated distance a way keeps; `joint` predicts a_v - e_v in place of a_v."""

    explained: bool = True
    context: bool = True
    leverage: bool = True
    metric: bool = True
    joint: bool = False


SHEAF_WAYS = {
    "calibrated": Parts(),
    "no-context": Parts(context=False),
    "no-explained": Parts(explained=False),
    "no-leverage": Parts(leverage=False),
    "no-metric": Parts(metric=False),
    "joint": Parts(explained=False, context=False, leverage=False, joint=True),
    "activations": Parts(explained=False, context=False, leverage=False),
}
PLAIN_WAYS = ("layers", "norms", "recomputed")
WAYS = (*SHEAF_WAYS, *PLAIN_WAYS)


@dataclass(frozen=True)
class SheafWay:
    """A learned sheaf of which only some parts are kept."""

    parts: Parts
    bases: Bases
    regressions: Regressions

    @classmethod
    def fit(
        cls, parts: Parts, bases: Bases, samples: Samples, folds: Tensor, width: int, dtype: torch.dtype
    ) -> "SheafWay":
        """Fits the regressions of the parts that are kept to the fit part of a reference."""
        sums = MomentSums(len(bases.places))
        for rows in torch.arange(len(folds)).split(_CHUNK):
            sums.add(kept(parts, bases, samples.rows(rows)), folds[rows])
        regressions = Regressions.of(sums.moments(), bases, width, dtype)
        return cls(parts, bases, regressions if parts.metric else _without_metric(regressions))

    def distances(self, runs: Observations) -> Distances:
        """D_v^2, u_v and d_v^2, (judged, R); without leverage d_v is D_v."""
        chunks = [
            self.regressions.distances(kept(self.parts, self.bases, runs.samples.rows(rows)))
            for rows in torch.arange(len(runs)).split(_CHUNK)
        ]
        found = Distances.cat(chunks)
        return found if self.parts.leverage else replace(found, allowed=found.whole)


def kept(parts: Parts, bases: Bases, samples: Samples) -> Coordinates:
    """Coordinates in which the regressors that are left out are 0."""
    at = coordinates(bases, samples)
    regressors = at.regressors.clone()
    if not parts.explained:
        regressors[..., :REGRESSORS] = 0.0
        at = replace(at, explained_outside=torch.zeros_like(at.explained_outside))
    if not parts.context:
        regressors[..., REGRESSORS:] = 0.0
    if parts.joint:
        at = replace(at, **_joint(bases, samples))
    return replace(at, regressors=regressors)


def _joint(bases: Bases, samples: Samples) -> dict[str, Tensor]:
    """The joint residual in the directions of the write, and its energy outside them."""
    places = bases.places
    given = samples.explained.double() - bases.explained_mean.unsqueeze(1)
    residual = samples.writes[places].double() - bases.write_mean[places].unsqueeze(1) - given
    counted = torch.arange(bases.write.shape[1]) < bases.outputs.unsqueeze(1)
    directions = bases.write[places] * counted.unsqueeze(2)
    outputs = residual @ directions.mT
    return {"outputs": outputs, "outside": (residual - outputs @ directions).square().sum(dim=2)}


def _without_metric(regressions: Regressions) -> Regressions:
    """The covariance of residuals replaced by its mean eigenvalue times the identity."""
    factor = torch.linalg.inv(regressions.whitener)
    size = factor.shape[1]
    counted = (torch.arange(size) < regressions.outputs.unsqueeze(1)).double()
    variances = factor.square().sum(dim=2)  # the diagonal of S
    mean = (variances * counted).sum(dim=1) / counted.sum(dim=1).clamp(min=1)
    return replace(regressions, whitener=torch.eye(size).double() * mean.clamp(min=1e-300).rsqrt()[:, None, None])


@dataclass(frozen=True)
class LayersWay:
    """Whitened changes of the residual stream, layer by layer; a node has the number of its layer.

    Attributes:
        mean: (layers, d). directions: principal ones over the standard deviation of their shrunk covariance, whitened,
            (layers, k, d).
        layer: of each judged node; the read-out has that of the last one, (judged,).
    """

    mean: Tensor
    directions: Tensor
    layer: Tensor

    @classmethod
    def fit(cls, changes: Tensor, judged: tuple[str, ...]) -> "LayersWay":
        """From what layers added in the fit part, (R, layers, d)."""
        from sklearn.covariance import OAS

        changes = changes.double()
        mean, whitened = changes.mean(dim=0), []
        for layer in range(changes.shape[1]):
            centred = changes[:, layer] - mean[layer]
            count = min(32, len(centred) // 4)
            vectors = torch.linalg.svd(centred, full_matrices=False).Vh[:count]
            covariance = torch.from_numpy(OAS(assume_centered=True).fit((centred @ vectors.T).numpy()).covariance_)
            factor = torch.linalg.cholesky(covariance)
            whitened.append(torch.linalg.solve_triangular(factor, vectors, upper=False) / count**0.5)
        last = changes.shape[1] - 1
        layers = [last if (of_node := Node.parse(name).layer) is None else of_node for name in judged]
        return cls(mean, torch.stack(whitened), torch.tensor(layers))

    def distances(self, runs: Observations) -> Distances:
        """(judged, R)."""
        centred = (runs.layers.double() - self.mean).transpose(0, 1)  # (layers, R, d)
        return _plain((centred @ self.directions.mT).square().sum(dim=2)[self.layer])


@dataclass(frozen=True)
class NormsWay:
    """The logarithm of each write's norm, in standard deviations of the fit part."""

    mean: Tensor
    deviation: Tensor
    places: Tensor

    @classmethod
    def fit(cls, samples: Samples, places: Tensor) -> "NormsWay":
        """From the fit part."""
        logs = _log_norms(samples, places)
        return cls(logs.mean(dim=1), logs.std(dim=1).clamp(min=1e-12), places)

    def distances(self, runs: Observations) -> Distances:
        """(judged, R)."""
        logs = _log_norms(runs.samples, self.places)
        return _plain(((logs - self.mean.unsqueeze(1)) / self.deviation.unsqueeze(1)).square())


@dataclass(frozen=True)
class RecomputedWay:
    """The node's own function of what it read; differences below rounding count as none."""

    rounding: float

    def distances(self, runs: Observations) -> Distances:
        """(judged, R)."""
        relative = runs.recomputed.double().T
        return _plain(torch.where(relative > self.rounding, relative, 0.0).square())


def _log_norms(samples: Samples, places: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(samples.writes[places].double(), dim=2)
    return norms.clamp(min=1e-30).log()


def _plain(whole: Tensor) -> Distances:
    """Distances of a way that makes no allowance for unusual inputs."""
    return Distances(whole, torch.ones_like(whole), whole)
