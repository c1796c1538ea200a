"""`eics.score`: the arguments, checked and handed to `eics.scoring.batch`, where Algorithm 1 runs."""

from collections.abc import Sequence
from typing import Any

from eics.circuits.graph import Circuit
from eics.errors import OptionError
from eics.linearized.explicit import LinearCircuit
from eics.models.prompts import as_prompts, is_single
from eics.scoring.batch import score_explicit, score_prompts
from eics.scoring.calibration.file import as_calibration
from eics.scoring.options import PAPER, Options, resolve
from eics.scoring.result import Score, Scores
from eics.transformer.adapt import adapt


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
            which brings its activations along.
        circuit: the heads and MLPs, and the edges between them.
        prompts: a string or a list of token ids gives one result; a list of prompts gives a list of results.
        preset: `eics.PAPER`, `eics.WELL_POSED`, their names, or any `Options`.
        ids: names for the prompts; numbers from 0 by default.
        answer: position of the answer, counted from the end if negative; the last token by default.
        tokens: token ids for `readout="tokens"`.
        batch_size: prompts that share a forward pass.
        interventions: interventions on the nodes' writes (`eics.interventions`): one list for all prompts, or a
            dictionary from prompt ids to lists.
        calibration: an `eics.Calibration` of the same model, circuit and options, or its file. Its alpha is used,
            results get a `percentile`, and under `residual="propagated"` its means stand in for everything outside
            the circuit.
        **options: changes to the preset, by the names of `eics.Options`.

    Two aligned branches carry 1/2 log(1 + 4) in each direction together, and 1/2 log(1 + 1) each on their own:

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
            raise OptionError("A calibration belongs to a model: an explicit circuit has no prompts to calibrate on.")
        scores = score_explicit(model, chosen, ids)
        return scores if model.batched else scores[0]
    single = is_single(prompts)
    listed = as_prompts([prompts] if single else prompts, ids)
    adapted, means = adapt(model), None
    if calibration is not None:
        calibration = as_calibration(calibration)
        chosen = calibration.fit(chosen, adapted.name, circuit.label(), answer, tokens)
        means = calibration.means
    rows = score_prompts(
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
    scores = Scores(score if calibration is None else calibration.place(score) for (score,) in rows)
    return scores[0] if single else scores
