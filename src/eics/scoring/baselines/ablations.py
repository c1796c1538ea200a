"""A1 and A2: each factor of the score on its own, in the paper's configuration by default."""

from torch import Tensor

from eics.errors import OptionError
from eics.linearized.circuit import LinearizedCircuit
from eics.scoring.baselines.base import Baseline
from eics.scoring.emergence import emergence_spectra
from eics.scoring.formula import discounted
from eics.scoring.options import PAPER, Options
from eics.scoring.sheaf import sheaf_term


class Consistency(Baseline):
    """A1: 1 / (1 + C_sh) alone, the field `consistency` of a result."""

    name = "a1"
    higher_is_coherent = True

    def __init__(self, options: Options = PAPER) -> None:
        self.options = options

    def measure(self, linearized: LinearizedCircuit) -> Tensor:
        restricted = linearized.restrict(self.options.positions)
        term = sheaf_term(restricted.engine(), residual=self.options.residual, metric=self.options.metric)
        return discounted(1.0, term.c_sh)


class Emergent(Baseline):
    """A2: the emergence term alone, the field `dei_norm` of a result."""

    name = "a2"
    higher_is_coherent = True

    def __init__(self, options: Options = PAPER) -> None:
        if options.alpha == "auto":
            raise OptionError.of("alpha", "a number for A2: calibrate it first", options.alpha)
        self.options = options

    def measure(self, linearized: LinearizedCircuit) -> Tensor:
        spectra = emergence_spectra(linearized.restrict(self.options.positions).engine(), self.options)
        return spectra.at(float(self.options.alpha), self.options.emergence).term.value
