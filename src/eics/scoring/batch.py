"""Algorithm 1 of the paper, the score of a circuit from a single forward pass, on batches of prompts.

    check       1  input: model M, prompt x, circuit G_M = (V_M, E_M), scale alpha > 0
                2  output: EICS(G_M; a)
    run_model   3  forward and activations: run M(x) and record a_v for every node v in V_M
    linearize   4  edge Jacobians: rho_{u->v} = (d f_v / d a_u) at a for every edge u->v in E_M, as JVPs and VJPs
    compute     5  sheaf inconsistency: C_sh(G_M, a) by equation (2)
                6  Gaussian EI proxy: J_M and all J_v, then dEI_norm by equation (3)
                7  score: return EICS = dEI_norm / (1 + C_sh), equation (7)
    assemble       one result for each prompt and configuration

Read `_score_batch` first: it takes these five steps in this order; `score_prompts` feeds it batches. An explicit
circuit brings its activations and maps along and enters at `compute` (`score_explicit`). On a GPU, lines 4 to 7 are
replayed as a CUDA graph (`cuda_graphs.py`). Line 5 is in `sheaf.py`, line 6 in `emergence.py`, line 7 in `formula.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.linalg.host_device import skip_recording
from eics.linalg.hutchpp import at_least_one
from eics.linalg.memory import memory_limit
from eics.linalg.precision import products
from eics.linearized.circuit import LinearizedCircuit
from eics.linearized.explicit import LinearCircuit
from eics.linearized.sweep import Engine
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.scoring.against_random import compared, random_circuits
from eics.scoring.alpha import AlphaCalibration, calibrate_alpha, dei_curve
from eics.scoring.assemble import assemble, scores_of
from eics.scoring.batching import batch_indices, in_input_order
from eics.scoring.calibration.sheaf.judge import Judge, Judged
from eics.scoring.checks import (
    check_answer,
    check_flag,
    check_ids,
    check_judge,
    check_readout,
    check_whole,
    interventions_by_prompt,
    keeps_positions,
    refusals,
)
from eics.scoring.computed import Computed, ConfigurationResult, EmergenceTerm, Frame
from eics.scoring.cuda_graphs import graph_cache
from eics.scoring.details import details_of
from eics.scoring.emergence import emergence_spectra, macro_spectrum
from eics.scoring.expected_details import expected_of
from eics.scoring.job import ExtraDiagnostics, Job, TokenizedPrompt
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.options import Options
from eics.scoring.out_of_memory import halving
from eics.scoring.result import Scores, with_provenance
from eics.scoring.sheaf import sheaf_terms
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions.donors import with_writes
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means

PREDICTIONS = 5
"""How many of the model's likeliest next tokens a record holds."""


def score_prompts(
    model: Model,
    circuit: Circuit,
    prompts: Sequence[Prompt],
    configurations: Sequence[Options],
    *,
    answer: int | None = None,
    tokens: Sequence[int] | None = None,
    batch_size: int = 8,
    interventions: Any = None,
    extra_diagnostics: ExtraDiagnostics | None = None,
    means: Means | None = None,
    judge: Judge | None = None,
    against_random: int = 0,
    details: bool = False,
    sort: bool = True,
) -> Iterator[Scores]:
    """For each prompt, in order, its score in each configuration, all from one forward pass.

    A prompt that cannot be scored gives failed results that say why; the others are scored. `interventions` apply to
    all prompts, or come by prompt id. Under the residual `propagated`, `means` stand in for everything outside the
    circuit; under `calibrated`, `judge` knows what is usual. The diagnostics say what `against_random` random circuits
    of the same size give, each scored in a pass of its own; `details` fills the records' field of that name
    (`details.py`). With `sort`, prompts of similar length share a pass.
    """
    model.check_circuit(circuit)
    if means is not None:
        means.check(circuit, model.transformer.width)
    others = random_circuits(model, circuit, against_random, configurations[0].seed)
    if others and means is not None and any(options.residual == "propagated" for options in configurations):
        raise OptionError.of("against_random", "0 with a calibration's means: random circuits have none", len(others))
    if others and any(options.residual == "calibrated" for options in configurations):
        raise OptionError.of(
            "against_random", "0 with residual 'calibrated': random circuits have no sheaf", len(others)
        )
    batch_size = check_whole("batch_size", batch_size, least=1)
    check_judge(judge, configurations, circuit)
    job = Job(
        model=model,
        circuit=circuit,
        configurations=tuple(configurations),
        answer=None if answer is None else check_whole("answer", answer),
        tokens=check_readout(model, configurations, tokens),
        interventions=interventions_by_prompt(model, circuit, prompts, interventions),
        extra_diagnostics=extra_diagnostics,
        means=means,
        judge=judge,
        refusals=refusals(circuit, configurations),
        details=check_flag("details", details),
        against_random=len(others),
    )
    indices = batch_indices(prompts, batch_size, sort=sort)
    batches = [[prompts[index] for index in batch] for batch in indices]
    job = replace(job, calibrations=tuple(_auto_alpha(job, index, batches) for index in range(len(configurations))))
    score_batch, release = partial(_score_batch, job), graph_cache(model).forget

    def scored(batch: Sequence[Prompt]) -> list[Scores]:
        rows = list(halving(score_batch, batch, release=release, failed=job.failures))
        return list(compared(rows, others, partial(_score_other, job, batch, batch_size))) if others else rows

    yield from in_input_order(zip(indices, map(scored, batches), strict=True))


def score_explicit(
    circuit: LinearCircuit, options: Options, ids: Sequence[str | int] | None = None, name: str | None = None
) -> Scores:
    """The score of an explicit circuit for each of its prompts; `alpha="auto"` is calibrated on all of them."""
    ids = check_ids(ids, circuit.batch)
    if options.residual == "calibrated":
        raise OptionError.of("residual", "edge, joint or propagated without a model to calibrate", options.residual)
    with memory_limit(options.memory):
        computed = compute(circuit.linearize(options.linearization), options)
    asked = [{"options": dict(**options)}] * len(ids)
    return with_provenance(scores_of(computed, ids, asked), circuit.circuit.label(name))


def _score_other(job: Job, prompts: Sequence[Prompt], batch_size: int, circuit: Circuit) -> Iterator[Scores]:
    """The same prompts on another circuit, at the same alpha."""
    pairs = zip(job.configurations, job.calibrations, strict=True)
    same = [options if chosen is None else options.with_(alpha=chosen.alpha) for options, chosen in pairs]
    return score_prompts(
        job.model,
        circuit,
        prompts,
        same,
        answer=job.answer,
        tokens=job.tokens,
        batch_size=batch_size,
        interventions={prompt.id: job.interventions_on(prompt) for prompt in prompts} if job.interventions else None,
    )


def _score_batch(job: Job, prompts: Sequence[Prompt]) -> list[Scores]:
    """The five steps on one batch: for each prompt, its result in each configuration."""
    items, scores = check(job, prompts)  # lines 1 and 2
    for group in _groups(job, items):
        state = run_model(job, group)  # line 3
        work = partial(_linearize_and_compute, job, group)  # lines 4 to 7
        nonfinite, results = graph_cache(job.model).run(job.graph_key, state, work)
        scores |= assemble(job, group, state, nonfinite, results)
    return [scores[row] for row in range(len(prompts))]


def _linearize_and_compute(
    job: Job, items: Sequence[TokenizedPrompt], state: ForwardState
) -> tuple[set[int], list[ConfigurationResult]]:
    """Everything after the pass that runs on the device: the rows that are not finite, and each configuration."""
    nonfinite, results = zero_nonfinite_rows(state), []
    for options, calibration, refusal in zip(job.configurations, job.calibrations, job.refusals, strict=True):
        if refusal is not None:
            results.append(ConfigurationResult(refusal))
            continue
        try:
            with _settings(job.model, options):
                judged = judge_nodes(job, state, options)  # line 5, against what is usual
                if judged is not None and options.terms == "sheaf" and not (job.extra_diagnostics or job.details):
                    results.append(ConfigurationResult(judged_alone(job, state, options, judged)))
                    continue
                linearized = linearize(job, state, options)  # line 4
                computed, extra = compute(linearized, options, calibration, state.likeliest, judged), None  # 5 to 7
                if job.extra_diagnostics is not None:
                    extra = job.extra_diagnostics(state, [item.prompt for item in items], linearized, options)
                details = make_details(job, state, linearized, options) if job.details else None
            results.append(ConfigurationResult(computed, extra, details))
        except OptionError as error:
            if len(items) > 1:
                raise
            skip_recording()
            results.append(ConfigurationResult(str(error)))
    return nonfinite, results


def check(job: Job, prompts: Sequence[Prompt]) -> tuple[list[TokenizedPrompt], dict[int, Scores]]:
    """Lines 1 and 2: the prompts that can be scored, and, by row, the results of those that cannot."""
    items: list[TokenizedPrompt] = []
    failures: dict[int, Scores] = {}
    for row, prompt in enumerate(prompts):
        try:
            items.append(TokenizedPrompt(row, prompt, _checked_tokens(job, prompt)))
        except PromptError as error:
            failures[row] = job.failures(prompt, str(error))
    return items, failures


def _checked_tokens(job: Job, prompt: Prompt) -> list[int]:
    tokens = tokenize(job.model, prompt)
    check_answer(job.answer, len(tokens))
    if job.judge is not None and any(options.residual == "calibrated" for options in job.configurations):
        job.judge.check_length(len(tokens), job.answer)
    for intervention in job.interventions_on(prompt):
        intervention.check_length(len(tokens))
    return tokens


def _groups(job: Job, items: Sequence[TokenizedPrompt]) -> list[list[TokenizedPrompt]]:
    """Prompts that share a pass. One that is too short for some node runs alone: its failure must not affect others."""
    together = _long_enough(job, items)
    rows = {item.row for item in together}
    alone = [[item] for item in items if item.row not in rows]
    return [together, *alone] if together else alone


def _long_enough(job: Job, items: Sequence[TokenizedPrompt]) -> list[TokenizedPrompt]:
    return [item for item in items if keeps_positions(job.circuit, len(item.tokens), job.configurations)]


def run_model(job: Job, items: Sequence[TokenizedPrompt]) -> ForwardState:
    """Line 3: one forward pass, with the interventions in force (patches take one more, over their other prompts)."""
    tokens = [item.tokens for item in items]
    answer = None if job.answer is None else [job.answer % len(ids) for ids in tokens]
    logits = any(options.readout != "final_norm" for options in job.configurations) or job.extra_diagnostics is not None
    interventions, passes = with_writes(job.model, [job.interventions_on(item.prompt) for item in items])
    nodes = ("logits",) if job.details else None  # a write is read through the final norm, on the circuit or not
    state = run(
        job.model,
        tokens,
        job.circuit,
        answer=answer,
        logits=logits,
        likeliest=PREDICTIONS,
        nodes=nodes,
        interventions=interventions,
    )
    state.forward_passes += passes
    return state


def linearize(job: Job, state: ForwardState, options: Options) -> LinearizedCircuit:
    """Line 4: the circuit's activations and edge maps at the state that the pass left behind."""
    return transformer_run(job, state, options).linearize(options.linearization)


def compute(
    linearized: LinearizedCircuit,
    options: Options,
    calibration: AlphaCalibration | None = None,
    likeliest: tuple[Tensor, Tensor] | None = None,
    judged: Judged | None = None,
) -> Computed:
    """Lines 5 to 7: every number of the results, still on the device.

    `alpha="auto"` is calibrated on these prompts unless a calibration on a larger set is given. `likeliest` has the
    model's predictions, which are copied to the host with the rest. If nodes were `judged` against what is usual, that
    is line 5, and edges are measured as the metric says.
    """
    linearized = linearized.restrict(options.positions)
    engine = linearized.engine()
    residual = options.residual if judged is None else "edge"
    sheaf, by_edge = sheaf_terms(engine, residual=residual, metric=options.metric)  # line 5
    if judged is not None:
        sheaf = judged.sheaf
    term = None if options.terms == "sheaf" else emergence_term(engine, options, calibration)  # line 6
    frame = Frame.of(linearized, options)
    return Computed(frame, options, sheaf=sheaf, by_edge=by_edge, term=term, judged=judged, likeliest=likeliest)


def emergence_term(engine: Engine, options: Options, calibration: AlphaCalibration | None) -> EmergenceTerm:
    """Line 6: dEI_norm, or its intensive form, at the alpha to use."""
    spectra = emergence_spectra(engine, options)
    if options.alpha == "auto" and calibration is None:
        calibration = calibrate_alpha(spectra.macro_per_dimension, options.target)
    alpha = calibration.alpha if calibration else float(options.alpha)
    curve = dei_curve(spectra) if options.curve else None
    return EmergenceTerm(spectra, spectra.at(alpha, options.emergence), alpha, calibration, curve)


def judge_nodes(job: Job, state: ForwardState, options: Options) -> Judged | None:
    """Line 5 under `calibrated`: the nodes' writes against what is usual for what the circuit gave them."""
    if options.residual != "calibrated":
        return None
    assert job.judge is not None
    return job.judge.judge(transformer_run(job, state, options), options.level)


def make_details(
    job: Job, state: ForwardState, linearized: LinearizedCircuit, options: Options
) -> list[dict[str, Any]]:
    """What `details` asks for; of judged nodes also what they wrote against what was expected of them."""
    details = details_of(state, linearized, options)
    if options.residual != "calibrated":
        return details
    assert job.judge is not None
    expected = expected_of(job.judge, transformer_run(job, state, options), linearized)
    return [own | {"expected": nodes} for own, nodes in zip(details, expected, strict=True)]


def transformer_run(job: Job, state: ForwardState, options: Options) -> TransformerRun:
    """The circuit at the state that the pass left behind."""
    tokens = job.tokens if options.readout == "tokens" else None
    means = job.means if options.residual == "propagated" else None
    return TransformerRun(state, job.circuit, options.readout, tokens, means)


def judged_alone(job: Job, state: ForwardState, options: Options, judged: Judged) -> Computed:
    """The results of a batch whose nodes were judged and of which nothing else was asked: no map is made."""
    frame = Frame(job.circuit, job.model.dtype, {"length": state.lengths})
    likeliest = state.likeliest
    return Computed(frame, options, sheaf=judged.sheaf, by_edge=None, term=None, judged=judged, likeliest=likeliest)


@contextmanager
def _settings(model: Model, options: Options) -> Iterator[None]:
    """How tensors are computed: without gradients, within the memory bound, products rounded as the mode allows."""
    rounding = products(model.transformer.unembed.dtype, model.device, options.mode)
    with torch.no_grad(), memory_limit(options.memory, model.device), rounding:
        yield


def _auto_alpha(job: Job, index: int, batches: Sequence[Sequence[Prompt]]) -> AlphaCalibration | None:
    """For `alpha="auto"`: one alpha for all prompts together, from one more pass over them, for J_M alone."""
    options = job.configurations[index]
    if options.alpha != "auto" or job.refusals[index] is not None:
        return None
    job = replace(job, configurations=(options,))
    spectra = []
    for batch in batches:
        items = _long_enough(job, check(job, batch)[0])
        if items:
            with _settings(job.model, options):
                state = run_model(job, items)
                zero_nonfinite_rows(state)
                linearized = linearize(job, state, options).restrict(options.positions)
                spectra.append(macro_spectrum(linearized.engine(), options))
    if not spectra:
        return None
    return calibrate_alpha(
        lambda alpha: torch.cat([macro.ei(alpha).value / at_least_one(rows) for macro, rows in spectra]), options.target
    )
