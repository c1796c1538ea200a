"""Prompts on a circuit of a model: tokens, one forward pass a batch, then Algorithm 1 for each configuration."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import torch

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.linalg.host_device import skip_recording, to_host
from eics.linalg.hutchpp import at_least_one
from eics.linalg.memory import memory_limit
from eics.linalg.precision import products
from eics.linearized.circuit import LinearizedCircuit
from eics.models.base import Model
from eics.models.prompts import Prompt, token_texts, tokenize
from eics.scoring.alpha import AlphaCalibration, calibrate_alpha
from eics.scoring.api import computed
from eics.scoring.assemble import Computed, assemble
from eics.scoring.cuda_graphs import recordings_of
from eics.scoring.emergence import macro_spectrum
from eics.scoring.options import Options
from eics.scoring.result import Score, Scores, failed
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions import Intervention, as_interventions
from eics.transformer.interventions.donors import bind, with_writes
from eics.transformer.linearize import TransformerRun
from eics.transformer.means import Means

Item = tuple[Prompt, list[int]]
Also = Callable[[ForwardState, Sequence[Prompt], LinearizedCircuit, Options], Sequence[dict[str, Any]]]
"""More numbers from a pass, logits at the answer positions included, and its linearized circuit: an object for each
prompt, for its record's diagnostics."""


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
    also: Also | None = None,
    means: Means | None = None,
) -> Iterator[Scores]:
    """For each prompt, in order, its score in each configuration; all of them from one forward pass.

    A prompt that cannot be scored gives results that say why; the others are scored. `interventions` are for all
    prompts, or by prompt id; `also` adds to the diagnostics. `means` stand in for what lies off the circuit where the
    residual is `propagated`.
    """
    model.check_circuit(circuit)
    if means is not None:
        means.check(circuit, model.transformer.width)
    readouts = {options.readout for options in configurations}
    _check_readout(model, readouts, tokens)
    job = _Job(
        model,
        circuit,
        circuit.label(),
        tuple(configurations),
        answer,
        None if tokens is None else tuple(tokens),
        _by_prompt(model, prompts, interventions),
        also,
        means=means,
    )
    batches = [prompts[start : start + batch_size] for start in range(0, len(prompts), batch_size)]
    job = replace(job, calibrations=tuple(_calibrate(job, options, batches) for options in configurations))
    for batch in batches:
        yield from map(Scores, _score_some(job, batch))


class _Itself:
    """Equal to what holds the same object."""

    def __init__(self, held: object) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


@dataclass(frozen=True)
class _Job:
    """What is the same for every batch."""

    model: Model
    circuit: Circuit
    label: dict[str, str]
    configurations: tuple[Options, ...]
    answer: int | None
    tokens: tuple[int, ...] | None
    interventions: Mapping[str | int, tuple[Intervention, ...]]
    also: Also | None
    means: Means | None = None
    calibrations: tuple[AlphaCalibration | None, ...] = ()

    @property
    def recordable(self) -> bool:
        """Whether all that is computed is that of a plain score in `fast` mode."""
        plain = not self.interventions and self.also is None and self.means is None
        return plain and all(o.mode == "fast" and not o.curve and not o.laplacian for o in self.configurations)

    @property
    def key(self) -> tuple[object, ...]:
        """What the numbers depend on besides the pass."""
        return (_Itself(self.circuit), self.configurations, self.tokens, self.calibrations)

    def failed(self, prompt: Prompt, reason: str) -> list[Score]:
        """A failed result in every configuration."""
        return [self.failed_one(prompt, reason, options) for options in self.configurations]

    def failed_one(self, prompt: Prompt, reason: str, options: Options) -> Score:
        """A failed result in one configuration."""
        used = ("mode", "linearization", "residual", "parts", "metric", "emergence", "positions", "readout", "seed")
        said = prompt.said | self.about | {"interventions": [one.to_record() for one in self.done_to(prompt)]}
        return failed(prompt.id, reason, **said, **{name: options[name] for name in used})

    @property
    def about(self) -> dict[str, Any]:
        """What every result says of the model and the circuit."""
        return {"model": self.model.name, "circuit": dict(self.label)}

    def done_to(self, prompt: Prompt) -> tuple[Intervention, ...]:
        """What is done to nodes' writes on this prompt."""
        return self.interventions.get(prompt.id, ())

    def run(self, items: Sequence[Item], options: Sequence[Options]) -> ForwardState:
        """One forward pass."""
        lists = [ids for _, ids in items]
        at = None if self.answer is None else [self.answer % len(ids) for ids in lists]
        needs_logits = any(one.readout != "final_norm" for one in options) or self.also is not None
        rows, passes = with_writes(self.model, [self.done_to(prompt) for prompt, _ in items])
        state = run(self.model, lists, self.circuit, answer=at, logits=needs_logits, interventions=rows)
        state.forward_passes += passes
        return state

    def products(self, options: Options) -> AbstractContextManager[None]:
        """How products are rounded."""
        return products(self.model.transformer.unembed.dtype, self.model.device, options.mode)

    def linearize(self, state: ForwardState, options: Options) -> LinearizedCircuit:
        """The circuit at that pass's state."""
        tokens = self.tokens if options.readout == "tokens" else None
        means = self.means if options.residual == "propagated" else None
        return TransformerRun(state, self.circuit, options.readout, tokens, means).linearize(options.linearization)


def _calibrate(job: _Job, options: Options, batches: Sequence[Sequence[Prompt]]) -> AlphaCalibration | None:
    """For `alpha="auto"`: one alpha for all prompts together, from a pass over them for J_M alone."""
    if options.alpha != "auto":
        return None
    spectra = []
    for batch in batches:
        items = [item for item in (_checked(job, prompt)[0] for prompt in batch) if item is not None]
        items = [item for item in items if _has_room(job.circuit, len(item[1]), [options])]
        if items:
            with torch.no_grad(), memory_limit(options.memory, job.model.device), job.products(options):
                state = job.run(items, [options])
                _repair(state)
                linearized = job.linearize(state, options).restrict(options.positions)
                spectra.append(macro_spectrum(linearized.engine(), options))
    if not spectra:
        return None
    return calibrate_alpha(
        lambda a: torch.cat([s.ei(a).value / at_least_one(rows) for s, rows in spectra]), options.target
    )


def _checked(job: _Job, prompt: Prompt) -> tuple[Item | None, str]:
    """The prompt with its tokens, or why it cannot be scored."""
    try:
        ids = tokenize(job.model, prompt)
        _check_answer(job.answer, len(ids))
        for one in job.done_to(prompt):
            one.check_length(len(ids))
    except PromptError as error:
        return None, str(error)
    return (prompt, ids), ""


def _score_some(job: _Job, prompts: Sequence[Prompt]) -> list[list[Score]]:
    good: list[Item] = []
    found: dict[int, list[Score]] = {}
    for place, prompt in enumerate(prompts):
        item, reason = _checked(job, prompt)
        if item is None:
            found[place] = job.failed(prompt, reason)
        elif _has_room(job.circuit, len(item[1]), job.configurations):
            good.append(item)
        else:  # alone, so that what it lacks stays its own trouble
            found[place] = _score_whole(job, [item])[0]
    scored = iter(_score_batch(job, good))
    return [found[place] if place in found else next(scored) for place in range(len(prompts))]


def _has_room(circuit: Circuit, length: int, configurations: Sequence[Options]) -> bool:
    """Whether every node keeps a position of a prompt of this length."""
    least = 1 if any(options.positions == "no_sink" for options in configurations) else 0
    kept = [max(positions) for positions in circuit.positions.values()]
    return length > max([least, *kept])


def _score_batch(job: _Job, items: Sequence[Item]) -> list[list[Score]]:
    """A batch; halved where memory runs out, down to a prompt that fails alone."""
    if not items:
        return []
    try:
        return _score_whole(job, items)
    except torch.OutOfMemoryError:
        if recordings_of(job.model).forget():  # what was kept to be fast comes first
            return _score_batch(job, items)
        if len(items) == 1:
            reason = "out of memory, even alone: lower --memory, restrict positions or shorten the prompt"
            return [job.failed(items[0][0], reason)]
    half = len(items) // 2
    return [*_score_batch(job, items[:half]), *_score_batch(job, items[half:])]


@dataclass(frozen=True)
class _Way:
    """One configuration's numbers for a batch; `more` for its diagnostics. A string says why there are none."""

    computed: Computed | str
    more: Sequence[dict[str, Any]] | None = None


def _score_whole(job: _Job, items: Sequence[Item]) -> list[list[Score]]:
    state = job.run(items, job.configurations)
    prompts = [prompt for prompt, _ in items]
    work = partial(_compute, job, prompts)
    broken, ways = recordings_of(job.model).run(job.key, state, work) if job.recordable else work(state)
    said = [_said(job, item, state, row) for row, item in enumerate(items)]
    columns = []
    for options, way in zip(job.configurations, ways, strict=True):
        columns.append(_scores(job, way, prompts, said, options, state.forward_passes))
    rows = [list(row) for row in zip(*columns, strict=True)]
    for row in broken:
        rows[row] = job.failed(items[row][0], "the model's activations are not finite on this prompt")
    return rows


def _compute(job: _Job, prompts: Sequence[Prompt], state: ForwardState) -> tuple[set[int], list[_Way]]:
    """What the device does after the forward pass: rows that are not finite, and each configuration's numbers."""
    broken = _repair(state)
    pairs = zip(job.configurations, job.calibrations, strict=True)
    return broken, [_one_way(job, prompts, state, options, calibration) for options, calibration in pairs]


def _one_way(
    job: _Job, prompts: Sequence[Prompt], state: ForwardState, options: Options, calibration: AlphaCalibration | None
) -> _Way:
    try:
        with torch.no_grad(), memory_limit(options.memory, job.model.device), job.products(options):
            linearized = job.linearize(state, options)
            found = computed(linearized, options, calibration)
            return _Way(found, None if job.also is None else job.also(state, prompts, linearized, options))
    except OptionError as error:
        if len(prompts) > 1:
            raise
        skip_recording()
        return _Way(str(error))


def _scores(
    job: _Job,
    way: _Way,
    prompts: Sequence[Prompt],
    said: Sequence[dict[str, Any]],
    options: Options,
    passes: int,
) -> Scores:
    if isinstance(way.computed, str):
        return Scores([replace(job.failed_one(prompts[0], way.computed, options), **said[0])])
    ran = {"readout": options.readout, "forward_passes": passes}
    scores = assemble(way.computed, [prompt.id for prompt in prompts], said, ran)
    if way.more is None:
        return scores
    return Scores(replace(s, diagnostics=s.diagnostics | m) for s, m in zip(scores, way.more, strict=True))


def _said(job: _Job, item: Item, state: ForwardState, row: int) -> dict[str, Any]:
    """What every result of a prompt says of it, of the model and of what was done to it."""
    prompt, ids = item
    done = state.applied.said[row] if state.applied.said else []
    return prompt.said | job.about | {"tokens": token_texts(job.model, ids), "interventions": done}


def _repair(state: ForwardState) -> set[int]:
    """Rows with numbers that are not finite, which are set to 0 so that the other rows can be factorized."""
    stores = (state.attention_reads, state.mlp_reads, state.z, state.summed, state.mlp_writes)
    tensors = [tensor for store in stores for tensor in store.values()]
    tensors += [change for layer in state.applied.heads.values() for change in layer.values()]
    tensors += [t for t in (state.input, state.final_read, state.final, state.logits) if t is not None]
    norms = torch.stack([torch.linalg.vector_norm(tensor.flatten(1), dim=1) for tensor in tensors])
    doubtful = to_host((~norms.isfinite()).any(dim=1))  # once
    broken: set[int] = set()
    if any(doubtful):
        skip_recording()
    for tensor in compress(tensors, doubtful):  # what is finite may have a norm that is not
        rows = (~tensor.flatten(1).isfinite().all(dim=1)).nonzero().flatten().tolist()
        tensor[rows] = 0.0
        broken.update(rows)
    return broken


def _by_prompt(model: Model, prompts: Sequence[Prompt], given: Any) -> dict[str | int, tuple[Intervention, ...]]:
    """Each prompt's interventions, checked against the model."""
    if given is None:
        return {}
    if isinstance(given, Mapping) and "kind" not in given:
        known = {prompt.id for prompt in prompts}
        strangers = [name for name in given if name not in known]
        if strangers:
            raise OptionError.of("interventions", "a list, or a dictionary by the prompts' ids", strangers[0])
        return {name: bind(model, as_interventions(some)) for name, some in given.items()}
    bound = bind(model, as_interventions(given))
    return {prompt.id: bound for prompt in prompts}


def _check_answer(answer: int | None, length: int) -> None:
    if answer is not None and not -length <= answer < length:
        raise PromptError(f"the answer position must lie in the prompt's {length} tokens; it is {answer}")


def _check_readout(model: Model, readouts: set[str], tokens: Sequence[int] | None) -> None:
    if "tokens" not in readouts:
        return
    if not tokens or any(not 0 <= token < model.vocabulary for token in tokens):
        must = f"a list of ids from 0 to {model.vocabulary - 1} for readout 'tokens'"
        raise OptionError.of("tokens", must, None if tokens is None else list(tokens))
