"""Algorithm 1 of the paper: the score of a circuit from one forward state.

EICS = dEI_norm / (1 + C_sh)                                                     (equation 7)
"""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import CircuitError, OptionError
from eics.linalg.memory import memory_limit
from eics.linearized.circuit import LinearizedCircuit
from eics.linearized.explicit import LinearCircuit
from eics.scoring.alpha import AlphaCalibration, calibrate_alpha, dei_curve
from eics.scoring.assemble import Computed, Parts, assemble
from eics.scoring.emergence import emergence_spectra
from eics.scoring.options import PAPER, Options, resolve
from eics.scoring.result import Score, Scores, about
from eics.scoring.sheaf import sheaf_terms


def score(
    model: Any,
    circuit: Circuit | None = None,
    prompts: Any = None,
    *,
    preset: Options | str = PAPER,
    ids: Sequence[str | int] | None = None,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    batch_size: int = 8,
    interventions: Any = None,
    calibration: Any = None,
    **options: Any,
) -> Score | Scores:
    """Scores a circuit of a model on a prompt, or on each prompt of a list; or an explicit circuit.

    Args:
        model: from `eics.load_model` or `eics.adapt`, or a loaded transformers model; or, alone, a `LinearCircuit`,
            which has its activations already.
        circuit: which heads and MLPs, and the edges between them.
        prompts: a string or a list of token ids gives one result; a list of them gives a list.
        preset: `eics.PAPER`, `eics.WELL_POSED`, their names, or any `Options`.
        ids: names for the prompts; numbers from 0 if not given.
        answer: position of the answer, counted from the end if negative; the last token if not given.
        tokens: token ids for `readout="tokens"`.
        batch_size: prompts that share a forward pass.
        interventions: what is done to nodes' writes (`eics.interventions`), a list for all prompts; or a dictionary
            from a prompt's id to its own list.
        calibration: an `eics.Calibration` of the same model, circuit and options, or its file. Its alpha is used,
            results have a `percentile`, and under `residual="propagated"` its means stand in for what lies off the
            circuit.
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
    if circuit is None:
        if not isinstance(model, LinearCircuit):
            raise OptionError.of("circuit", "given, unless a LinearCircuit is scored", circuit)
        if interventions is not None:
            raise OptionError.of("interventions", "given with a model: an explicit circuit runs nothing", interventions)
        if calibration is not None:
            raise OptionError("A calibration is of a model: an explicit circuit has no prompts to be calibrated on.")
        with memory_limit(chosen.memory):
            scores = about(score_batch(model.linearize(chosen.linearization), chosen, ids), model.circuit.label())
        return scores if model.batched else scores[0]
    from eics.models.prompts import as_prompts, is_single
    from eics.scoring.batch import score_prompts
    from eics.scoring.calibration.file import as_calibration
    from eics.transformer.adapt import adapt

    single = is_single(prompts)
    listed = as_prompts([prompts] if single else prompts, ids)
    adapted, means = adapt(model), None
    if calibration is not None:
        calibration = as_calibration(calibration)
        chosen = calibration.fit(chosen, adapted.name, circuit.label(), answer, tokens)
        means = calibration.means
    found = score_prompts(
        adapted,
        circuit,
        listed,
        [chosen],
        answer=answer,
        tokens=tokens,
        batch_size=batch_size,
        interventions=interventions,
        means=means,
    )
    scores = Scores(score if calibration is None else calibration.place(score) for (score,) in found)
    return scores[0] if single else scores


def score_batch(
    linearized: LinearizedCircuit,
    options: Options,
    ids: Sequence[str | int] | None = None,
    calibration: AlphaCalibration | None = None,
) -> Scores:
    """Algorithm 1 after its forward pass (line 3): a linearized circuit in, a result for each prompt out.

    `alpha="auto"` is calibrated on these prompts, unless it has been on a larger set.
    """
    names = _check_ids(ids, linearized.batch)
    return assemble(computed(linearized, options, calibration), names)


def computed(linearized: LinearizedCircuit, options: Options, calibration: AlphaCalibration | None = None) -> Computed:
    """All numbers of the results, on the device still."""
    linearized = linearized.restrict(options.positions)  # line 4: edge maps, as operators
    _check_carries(linearized)
    engine = linearized.engine()
    sheaf, by_edge = sheaf_terms(engine, residual=options.residual, metric=options.metric)  # line 5
    spectra = emergence_spectra(engine, options)  # line 6: J_M and the parts
    if options.alpha == "auto" and calibration is None:
        calibration = calibrate_alpha(spectra.macro_per_dimension, options.target)
    alpha = calibration.alpha if calibration else float(options.alpha)
    emergence = spectra.at(alpha, options.emergence)
    eics = emergence.term.value / (1.0 + sheaf.c_sh)  # line 7
    curve = dei_curve(spectra) if options.curve else None
    return Computed(Parts(linearized, sheaf, by_edge, spectra, emergence, alpha, calibration, curve, eics), options)


def _check_carries(linearized: LinearizedCircuit) -> None:
    if not linearized.edges:
        raise CircuitError(
            f"At least one edge must carry something under linearization {linearized.linearization!r}. All "
            f"{linearized.edges_left_out} edges enter through <q> or <k>, which are held there: use 'jacobian'."
        )


def _check_ids(ids: Sequence[str | int] | None, batch: int) -> Sequence[str | int]:
    if ids is None:
        return range(batch)
    names = [name if isinstance(name, str) else index(name) for name in ids] if isinstance(ids, Iterable) else None
    if names is None or len(names) != batch:
        raise OptionError.of("ids", f"a list with one for each of the {batch} prompts", ids)
    return names
