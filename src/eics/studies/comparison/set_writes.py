"""The whitened write: how unusual a node's write is, whatever the circuit gave it.

    w_v = (1/k) (y - ybar)^T C_v^-1 (y - ybar)        y = P_v (a_v - mean), ybar its mean over the fit
    C_v = B_v^T Cov(x) B_v + S_v                      Cov(x) = (gram - penalty) / N

Beside `D_v^2`, which measures what the circuit does not explain of a write, this measures all of it. `C_v` is the
covariance of y that the learned sheaf implies, so a calibration needs to keep nothing more than it does. `N` is read
off the diagonal of the Gram matrix: regressors are standardised. The exact `Cov(y)` of a ridge regression has a term
more, `2 penalty B^T B / N`; it is left out, because `S_v` is the covariance of cross-fitted residuals, which are larger
than those of the fit: with the term, `C_v` lies further from the covariance of the fit.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eics.scoring.calibration.sheaf.bases import Coordinates
from eics.scoring.calibration.sheaf.learned import Regressions


@dataclass(frozen=True)
class WhitenedWrites:
    """What whitens the writes of the judged nodes.

    Attributes:
        mean: ybar, (n, y). factor: L with `C_v = L L^T`, (n, y, y). outputs: k, (n,).
    """

    mean: Tensor
    factor: Tensor
    outputs: Tensor

    @classmethod
    def of(cls, regressions: Regressions) -> "WhitenedWrites":
        """From the regressions of a learned sheaf."""
        factor: Tensor = torch.linalg.cholesky(implied_covariance(regressions))
        return cls(regressions.intercept, factor, regressions.outputs.clamp(min=1))

    def to(self, device: torch.device) -> "WhitenedWrites":
        """The same on another device."""
        return WhitenedWrites(self.mean.to(device), self.factor.to(device), self.outputs.to(device))

    def by_prompt(self, at: Coordinates, prompt: Tensor, prompts: int) -> Tensor:
        """w_v of each judged node and prompt, (n, prompts): means over the rows at which a node is judged."""
        centred = at.outputs.double() - self.mean.unsqueeze(1)
        whitened = torch.linalg.solve_triangular(self.factor, centred.mT, upper=False)  # (n, y, R)
        rows = whitened.square().sum(dim=1) / self.outputs.unsqueeze(1)
        counts, belongs = at.counts.double(), one_hot(prompt, prompts).double()
        means: Tensor = (rows * counts) @ belongs / (counts @ belongs).clamp(min=1)
        return means


def implied_covariance(regressions: Regressions) -> Tensor:
    """C_v, (n, y, y); the identity beyond a node's outputs, where y is 0."""
    gram = _unwhitened(regressions.leverage_whitener)
    products = gram - torch.diag_embed(regressions.penalty.unsqueeze(1).expand(-1, gram.shape[1]))  # X^T X
    samples = products.diagonal(dim1=1, dim2=2).amax(dim=1).clamp(min=1)
    covariance = products / samples[:, None, None]
    explained: Tensor = regressions.weight.mT @ covariance @ regressions.weight
    return explained + _unwhitened(regressions.whitener)


def _unwhitened(whitener: Tensor) -> Tensor:
    """`L L^T` of L^-1."""
    eye = torch.eye(whitener.shape[1], dtype=whitener.dtype, device=whitener.device)
    factor: Tensor = torch.linalg.solve_triangular(whitener, eye.expand_as(whitener), upper=False)
    return factor @ factor.mT
