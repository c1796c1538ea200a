"""`eics.score`: the arguments, checked and handed to `eics.scoring.batch`, where Algorithm 1 runs."""

from collections.abc import Sequence
from typing import Any

from eics.circuits.graph import Circuit, check_kind
from eics.errors import OptionError
from eics.linearized.explicit import LinearCircuit
from eics.models.out_of_memory import memory_explained
from eics.models.prompts import single_or_many
from eics.scoring.batch import score_explicit, score_prompts
from eics.scoring.calibration.file import as_calibration
from eics.scoring.options import PAPER, Options, resolve
from eics.scoring.result import Score, Scores
from eics.transformer.adapt import adapt


@memory_explained
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
    allow_changed_weights: bool = False,
    against_random: int = 0,
    details: bool = False,
    **options: Any,
) -> Score | Scores:
    """Scores a circuit of a model on a prompt, or on each prompt of a list; or an explicit circuit.

    Args:
        model: from `eics.load_model` or `eics.adapt`, or a loaded transformers model; or, alone, a `LinearCircuit`,
            which brings its activations along.
        circuit: the heads and MLPs, and the edges between them.
        prompts: text, token ids (a list, or a 1-d tensor or array), an `eics.Prompt` or an object with `prompt` or
            `tokens` gives one result. A list, iterator, `Series` or array of those gives a list of results, and so
            does a tokenizer's output with a row per prompt. What could mean several things is refused.
        preset: `eics.PAPER`, `eics.WELL_POSED`, `eics.CALIBRATED`, their names, or any `Options`.
        ids: names for the prompts; numbers from 0 by default.
        answer: position of the answer, counted from the end if negative; the last token by default.
        tokens: token ids for `readout="tokens"`.
        batch_size: prompts that share a forward pass.
        interventions: interventions on the nodes' writes (`eics.interventions`): one list for all prompts, or a
            dictionary from prompt ids to lists.
        calibration: an `eics.Calibration` of the same model, circuit and options, or its file. Its alpha is used,
            results get a `percentile`, and under `residual="propagated"` its means stand in for everything outside
            the circuit. Under `residual="calibrated"` (`preset="calibrated"`) its learned sheaf says what is usual.
        allow_changed_weights: whether to go on if the model's weights have changed since the calibration.
        against_random: how many random circuits of the same size to score on the same prompts, as many scores more;
            `diagnostics["against_random"]` says what they give.
        details: whether results get their `details`: shares by token position, the heads' attention patterns, and the
            top tokens of each write. Needs a model.
        **options: changes to the preset, by the names of `eics.Options`.

    Two aligned branches carry 1/2 log(1 + 4) in each direction together, and 1/2 log(1 + 1) each on their own:

    >>> import eics, torch
    >>> W = torch.eye(2)
    >>> circuit = eics.LinearCircuit(
    ...     maps={"x->b1": W, "x->b2": W, "b1->y": W, "b2->y": W},
    ...     activations={"x": [1, 0], "b1": [1, 0], "b2": [1, 0], "y": [2, 0]},
    ... )
    >>> eics.score(circuit, parts="branches")
    Score(0, ok: eics=0.101, c_sh=0.378, dei_norm=0.139, dei=0.223 nats, alpha=1)
    """
    chosen = resolve(preset, options)
    if circuit is None:
        if not isinstance(model, LinearCircuit):
            raise OptionError.of("circuit", "given, unless a LinearCircuit is scored", circuit)
        if interventions is not None:
            raise OptionError.of("interventions", "given with a model: an explicit circuit runs nothing", interventions)
        if calibration is not None:
            raise OptionError("A calibration belongs to a model: an explicit circuit has no prompts to calibrate on.")
        if against_random:
            raise OptionError.of("against_random", "0 without a model to draw random circuits from", against_random)
        if details:
            raise OptionError("Details need a model: an explicit circuit has no tokens, heads or vocabulary.")
        scores = score_explicit(model, chosen, ids)
        return scores if model.batched else scores[0]
    check_kind(circuit)
    listed, single = single_or_many(prompts, ids)
    adapted, means, judge = adapt(model), None, None
    if calibration is not None:
        calibration = as_calibration(calibration)
        calibration.check_alpha(options.get("alpha"))
        chosen = calibration.fit(chosen, circuit.label(), answer, tokens)
        calibration.check_model(adapted, allow_changed_weights=allow_changed_weights)
        means, judge = calibration.means, calibration.judge
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
        judge=judge,
        against_random=against_random,
        details=details,
    )
    scores = Scores(score if calibration is None else calibration.place(score) for (score,) in rows)
    return scores[0] if single else scores
