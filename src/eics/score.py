"""Algorithm 1 of the paper: the score of a circuit from one forward state.

EICS = dEI_norm / (1 + C_sh)                                                     (equation 7)
"""

from collections.abc import Sequence
from typing import Any, Protocol

from eics.alpha import calibrate_alpha, dei_curve
from eics.assemble import Parts, assemble
from eics.emergence import emergence_spectra
from eics.errors import CircuitError, OptionError
from eics.linearize import LinearizedCircuit
from eics.options import PAPER, Options, resolve
from eics.result import Score, Scores
from eics.sheaf import sheaf_term


class Linearizable(Protocol):
    """What can be scored: something that ran once and can be linearized at the state that it was in."""

    batched: bool

    def linearize(self, linearization: str) -> LinearizedCircuit:
        """The circuit's activations and maps at the observed state."""


def score(
    state: Linearizable,
    *,
    preset: Options | str = PAPER,
    ids: Sequence[str | int] | None = None,
    **options: Any,
) -> Score | Scores:
    """Scores a circuit on one prompt, or on each prompt of a batch.

    Args:
        state: what to score, for example a `LinearCircuit`.
        preset: `eics.PAPER`, `eics.WELL_POSED`, their names, or any `Options`.
        ids: names for the prompts; numbers from 0 if not given.
        **options: changes to the preset, by the names of `eics.Options`.

    Two aligned branches carry together 1/2 log(1 + 4) for each direction, alone 1/2 log(1 + 1) each:

    >>> import eics, torch
    >>> W = torch.eye(2)
    >>> circuit = eics.LinearCircuit(
    ...     maps={"x->b1": W, "x->b2": W, "b1->y": W, "b2->y": W},
    ...     activations={"x": [1, 0], "b1": [1, 0], "b2": [1, 0], "y": [2, 0]},
    ... )
    >>> eics.score(circuit, parts="branches")
    Score(id=0, eics=0.100617, c_sh=0.377964, dei_norm=0.138647, dei=0.223144 nats, ok)
    """
    chosen = resolve(preset, options)
    scores = Scores(score_batch(state.linearize(chosen.linearization), chosen, ids))
    return scores if state.batched else scores[0]


def score_batch(linearized: LinearizedCircuit, options: Options, ids: Sequence[str | int] | None = None) -> Scores:
    """Algorithm 1 after its forward pass (line 3): a linearized circuit in, a result for each prompt out."""
    names = _check_ids(ids, linearized.batch)
    linearized = linearized.restrict(options.positions)  # line 4: edge maps, as operators
    _check_carries(linearized)
    sheaf = sheaf_term(linearized, residual=options.residual, metric=options.metric)  # line 5
    spectra = emergence_spectra(linearized, options)  # line 6: J_M and the parts
    calibration = calibrate_alpha(spectra, options.target) if options.alpha == "auto" else None
    alpha = calibration.alpha if calibration else float(options.alpha)
    emergence = spectra.at(alpha, options.emergence)
    eics = emergence.term.value / (1.0 + sheaf.c_sh)  # line 7
    by_edge = sheaf if options.residual == "edge" else sheaf_term(linearized, metric=options.metric)
    curve = dei_curve(spectra) if options.curve else None
    parts = Parts(linearized, sheaf, by_edge, spectra, emergence, alpha, calibration, curve, eics)
    return assemble(parts, options, names)


def _check_carries(linearized: LinearizedCircuit) -> None:
    if not linearized.edges:
        raise CircuitError(
            f"At least one edge must carry something under linearization {linearized.linearization!r}. All "
            f"{linearized.edges_left_out} edges enter through <q> or <k>, which are held there: use 'jacobian'."
        )


def _check_ids(ids: Sequence[str | int] | None, batch: int) -> Sequence[str | int]:
    if ids is None:
        return range(batch)
    if len(ids) != batch:
        raise OptionError.of("ids", f"one for each of the {batch} prompts", list(ids))
    return ids
