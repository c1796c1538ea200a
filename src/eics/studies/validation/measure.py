"""The second stage: every score of the circuit on each prompt; both presets and the baselines from one pass."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import CircuitError
from eics.linearized.circuit import LinearizedCircuit, Stalk
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.scoring.alpha import GRID
from eics.scoring.baselines import EdgeActivationCorrelation, EdgeAlignmentResidual
from eics.scoring.batch import score_prompts
from eics.scoring.formula import discounted
from eics.scoring.options import PAPER, WELL_POSED, Options
from eics.scoring.result import Score
from eics.scoring.sheaf import EPS, sheaf_term
from eics.studies.run_folder import Row
from eics.studies.validation.conformal import Conformal, set_sizes
from eics.transformer.forward import ForwardState, run
from eics.transformer.linearize import TransformerRun

ALPHAS = GRID[::4]
"""The values of alpha to choose from on the development split: 17 from 1e-4 to 1e4, including the paper's 1."""

REFERENCE = 256
"""The most development prompts that EAR's maps are fitted on: its memory grows with their number."""


@dataclass(frozen=True)
class Measuring:
    """What is measured, including what was fitted on the development split."""

    model: Model
    circuit: Circuit
    mode: str = "lanczos"
    memory: float = 64.0
    seed: int = 0
    batch_size: int = 8
    conformal: Conformal | None = None
    ear: "FittedEAR | None" = None


def measured_rows(how: Measuring, prompts: Sequence[Prompt]) -> Iterator[list[Row]]:
    """The rows of each batch, in order; the row of a prompt that cannot be scored gives the reason."""
    common = {"mode": how.mode, "memory": how.memory, "seed": how.seed}
    configurations = [PAPER.with_(**common, curve=True), WELL_POSED.with_(**common)]
    scored = score_prompts(
        how.model,
        how.circuit,
        prompts,
        configurations,
        batch_size=how.batch_size,
        extra_diagnostics=partial(_from_pass, how),
    )
    pairs = zip(prompts, scored, strict=True)
    while batch := list(islice(pairs, how.batch_size)):
        yield [_row(prompt.id, *scores) for prompt, scores in batch]


def _row(id: str | int, paper: Score, well_posed: Score) -> Row:
    failures = [score.reason for score in (paper, well_posed) if score.status == "failed"]
    if failures:
        return {"id": id, "failed": failures[0]}
    assert paper.c_sh is not None
    assert paper.curve is not None
    return {
        "id": id,
        "clipped": paper.status == "clipped",
        "eics_paper_by_alpha": _by_alpha(paper.curve, paper.c_sh),
        "emergence_ratio": well_posed.emergence_ratio,
        **_numbers(paper, "paper"),
        **_numbers(well_posed, "well_posed"),
        **paper.diagnostics["from_pass"],
        **well_posed.diagnostics["from_pass"],
    }


def _numbers(score: Score, name: str) -> Row:
    return {
        f"eics_{name}": score.eics,
        f"c_sh_{name}": score.c_sh,
        f"a1_{name}": score.consistency,
        f"a2_{name}": score.dei_norm,
        f"dei_{name}": score.dei,
    }


def _by_alpha(curve: dict[str, list[float]], c_sh: float) -> list[float]:
    """max(0, dEI(alpha)) / (eps + EI(J_M)) / (1 + C_sh) at each of `ALPHAS`."""
    points = list(zip(curve["dei"], curve["ei_macro"], strict=True))[::4]
    return [discounted(max(0.0, dei) / (EPS + macro), c_sh) for dei, macro in points]


def _from_pass(
    how: Measuring, state: ForwardState, prompts: Sequence[Prompt], linearized: LinearizedCircuit, options: Options
) -> list[Row]:
    """What else is measured in the same pass: baselines, norms, the propagated residual and conformal set sizes."""
    if options.linearization == "frozen":
        columns = {"propagated": sheaf_term(linearized.engine(), residual="propagated", metric="relative").c_sh}
    else:  # with the whole circuit: what looks at activations alone knows no edge that carries nothing
        columns = _baselines(how, state, prompts, linearized)
    return [
        {"from_pass": {n: c[row].double().tolist() if c[row].isfinite().all() else None for n, c in columns.items()}}
        for row in range(len(prompts))
    ]


def _baselines(
    how: Measuring, state: ForwardState, prompts: Sequence[Prompt], linearized: LinearizedCircuit
) -> dict[str, Tensor]:
    """What needs activations and logits alone."""
    last = at_answer(linearized, state.answer)
    columns = _norms(linearized, last)
    with suppress(CircuitError):  # without an edge between stalks of one length, the report says so
        columns["eac"] = EdgeActivationCorrelation().measure(linearized)
    if how.ear is not None:
        columns["ear"] = how.ear.measure(last, prompts)
    if how.conformal is not None and state.logits is not None:
        sizes = set_sizes(state.logits.double().softmax(dim=1), how.conformal)
        columns |= dict(zip(("conformal_lac", "conformal_aps"), sizes, strict=True))
    return columns


def _norms(linearized: LinearizedCircuit, last: LinearizedCircuit) -> dict[str, Tensor]:
    """Log norms of the nodes' activations: each at the answer position, their mean, and the mean at all positions."""
    at_last, overall = (
        torch.stack([stalk.flat.double().norm(dim=1).clamp(min=1e-30).log() for stalk in c.stalks.values()], dim=1)
        for c in (last, linearized)
    )
    return {"norms": at_last, "norm_last": at_last.mean(dim=1), "norm_all": overall.mean(dim=1)}


def at_answer(linearized: LinearizedCircuit, answer: Tensor) -> LinearizedCircuit:
    """The circuit's activations at the answer position only, without its maps."""
    rows = torch.arange(len(answer), device=answer.device)
    stalks = {}
    for node, stalk in linearized.stalks.items():
        activation = stalk.activation
        at_position = activation if stalk.positions is None else activation[rows, answer].unsqueeze(1)
        stalks[node] = Stalk(at_position, torch.zeros_like(at_position[:1]))
    return replace(linearized, stalks=stalks, entries={})


class FittedEAR:
    """EAR with edge maps fitted at the answer position of development prompts.

    Full stalks grow with the number of tokens, so that a map between them fits only one prompt length: maps are fitted
    and measured at the answer position. On a prompt that it was fitted on, a map would have a residual near 0, so the
    EAR of those prompts comes from maps fitted without their fold.
    """

    def __init__(
        self,
        how: Measuring,
        prompts: Sequence[Prompt],
        folds: Mapping[str | int, int],
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        kept = prompts[:REFERENCE]
        reference = self._reference(how, kept, tick)
        self.fit = EdgeAlignmentResidual().fit(reference)
        fold_of = torch.tensor([folds[prompt.id] for prompt in kept])
        self.held_out: dict[str | int, Tensor] = {}
        for fold in sorted(set(fold_of.tolist())):
            inside = (fold_of == fold).nonzero().flatten()
            outside = (fold_of != fold).nonzero().flatten()
            if len(outside):
                fit = EdgeAlignmentResidual().fit(_subset(reference, outside))
                values = fit.measure(_subset(reference, inside))
                self.held_out |= {kept[int(index)].id: value for index, value in zip(inside, values, strict=True)}

    def measure(self, last: LinearizedCircuit, prompts: Sequence[Prompt]) -> Tensor:
        values = self.fit.measure(last)
        held = [self.held_out.get(prompt.id, value) for prompt, value in zip(prompts, values, strict=True)]
        return torch.stack(held)

    @staticmethod
    def _reference(how: Measuring, prompts: Sequence[Prompt], tick: Callable[[int], None]) -> LinearizedCircuit:
        """The activations of all prompts at their answer positions, as one batch."""
        batches = []
        for start in range(0, len(prompts), how.batch_size):
            batch = prompts[start : start + how.batch_size]
            with torch.no_grad():
                state = run(how.model, [tokenize(how.model, prompt) for prompt in batch], how.circuit)
                batches.append(at_answer(TransformerRun(state, how.circuit).linearize("jacobian"), state.answer))
            tick(len(batch))
        stalks = {
            node: replace(stalk, activation=torch.cat([batch.stalks[node].activation for batch in batches]))
            for node, stalk in batches[0].stalks.items()
        }
        return replace(batches[0], stalks=stalks)


def _subset(reference: LinearizedCircuit, rows: Tensor) -> LinearizedCircuit:
    stalks = {
        node: replace(stalk, activation=stalk.activation[rows.to(stalk.activation.device)])
        for node, stalk in reference.stalks.items()
    }
    return replace(reference, stalks=stalks)
