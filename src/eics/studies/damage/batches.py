"""Runs a batch of prompts: undamaged once, then under every damage of the plan; skips rows that exist already."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import PromptError
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.batch import score_prompts
from eics.scoring.options import Options
from eics.scoring.result import Score
from eics.studies.damage.files import DamageRows
from eics.studies.damage.measures import baselines, more_residuals, numbers_of, ranks_of
from eics.studies.damage.plan import CIRCUIT, NONE, Damage, Plan
from eics.studies.run_folder import Row
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions import Ablate, Intervention, Noise, Patch, Steer

UNDAMAGED = Damage(NONE, 0.0, "", NONE)

Id = str | int
Donors = Mapping[tuple[Id, str], Tensor]
"""Writes to patch in, by prompt and node."""


@dataclass
class _Baseline:
    """What an undamaged run provides for the damaged ones: scores by configuration, logits, norms of writes."""

    scores: dict[str, Score] = field(default_factory=dict)
    logits: Tensor | None = None
    norms: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Batches:
    """Everything a run needs to turn prompts into rows; `tokens` are those of all prompts, empty if unusable."""

    model: Model
    circuit: Circuit
    configurations: Mapping[str, Options]
    plan: Plan
    tokens: Mapping[Id, list[int]]
    rows: DamageRows
    answer: int | None
    batch_size: int
    vector: list[float] | None

    def run(self, prompts: Sequence[Prompt]) -> Iterator[Row]:
        """Computes and keeps all rows of these prompts that do not exist yet."""
        missing = [
            (prompt, damage)
            for damage in self.plan.damages()
            for prompt in prompts
            if not self.rows.has(prompt.id, damage.key)
        ]
        new = {prompt.id for prompt in prompts if not self.rows.has(prompt.id, UNDAMAGED.key)}
        unfinished = new | {prompt.id for prompt, _ in missing}
        needed = [prompt for prompt in prompts if prompt.id in unfinished]
        undamaged = {prompt.id: _Baseline() for prompt in needed}
        for prompt, scores in zip(needed, self._score(needed, undamaged), strict=True):
            undamaged[prompt.id].scores = scores
            if prompt.id in new:
                yield self.rows.add(self._row(prompt, UNDAMAGED, scores, None), list(scores.values()))
        donors = self._donors(needed) if "patch" in self.plan.kinds else {}
        yield from self._run_damaged(missing, undamaged, donors)

    def _run_damaged(
        self, items: Sequence[tuple[Prompt, Damage]], undamaged: Mapping[Id, _Baseline], donors: Donors
    ) -> Iterator[Row]:
        possible = []
        for prompt, damage in items:
            reason = self._obstacle(prompt, damage, undamaged[prompt.id], donors)
            if reason is None:
                possible.append((prompt, damage))
            else:
                yield self.rows.add(_failed(prompt, damage, reason))
        for start in range(0, len(possible), self.batch_size):
            batch = possible[start : start + self.batch_size]
            # One prompt may appear several times in a pass, under different damage: number the runs.
            runs = [Prompt(number, tokens=tuple(self.tokens[p.id])) for number, (p, _) in enumerate(batch)]
            baselines_of: dict[Id, _Baseline] = {number: undamaged[p.id] for number, (p, _) in enumerate(batch)}
            interventions = {
                number: [self._intervention(p, damage, undamaged[p.id], donors)]
                for number, (p, damage) in enumerate(batch)
            }
            for (prompt, damage), scores in zip(batch, self._score(runs, baselines_of, interventions), strict=True):
                yield self.rows.add(self._row(prompt, damage, scores, undamaged[prompt.id].scores))

    def _score(
        self, prompts: Sequence[Prompt], undamaged: Mapping[Id, _Baseline], interventions: Any = None
    ) -> Iterator[dict[str, Score]]:
        """Scores by configuration for each prompt; an undamaged run also fills its baseline."""

        def measure(
            state: ForwardState, batch: Sequence[Prompt], linearized: Any, options: Options
        ) -> list[dict[str, Any]]:
            if interventions is None:
                self._fill(state, batch, undamaged)
            passes = baselines(state, [undamaged[prompt.id].logits for prompt in batch])
            residuals = more_residuals(linearized, options)
            return [by_residual | {"pass": numbers} for by_residual, numbers in zip(residuals, passes, strict=True)]

        scored = score_prompts(
            self.model,
            self.circuit,
            prompts,
            list(self.configurations.values()),
            answer=self.answer,
            batch_size=self.batch_size,
            interventions=interventions,
            extra_diagnostics=measure,
        )
        for scores in scored:
            yield dict(zip(self.configurations, scores, strict=True))

    def _fill(self, state: ForwardState, prompts: Sequence[Prompt], undamaged: Mapping[Id, _Baseline]) -> None:
        assert state.logits is not None
        writes = {name: torch.linalg.vector_norm(state.write(name), dim=2) for name in self.plan.partners}
        for row, prompt in enumerate(prompts):
            length = int(state.lengths[row])
            undamaged[prompt.id].logits = state.logits[row]
            undamaged[prompt.id].norms = {name: norms[row, :length] for name, norms in writes.items()}

    def _donors(self, prompts: Sequence[Prompt]) -> dict[tuple[Id, str], Tensor]:
        """What each node of the plan wrote on another prompt, from one pass."""
        drawn = {prompt.id: self._draw_donor(prompt.id) for prompt in prompts}
        tokens_of = {id: tokens for id, tokens in drawn.items() if tokens is not None}
        if not tokens_of:
            return {}
        state = run(self.model, list(tokens_of.values()), nodes=self.plan.nodes)
        return {
            (id, node): state.write(node)[row, : len(tokens)]
            for row, (id, tokens) in enumerate(tokens_of.items())
            for node in self.plan.nodes
        }

    def _draw_donor(self, id: Id) -> list[int] | None:
        """Tokens of another prompt of the same length (of any length if only the last position is patched)."""
        own = self.tokens[id]
        candidates = [
            tokens
            for tokens in self.tokens.values()
            if tokens and tokens != own and (self.plan.at == "last" or len(tokens) == len(own))
        ]
        draw = np.random.default_rng([self.plan.seed, list(self.tokens).index(id)])
        return candidates[int(draw.integers(len(candidates)))] if candidates else None

    def _obstacle(self, prompt: Prompt, damage: Damage, undamaged: _Baseline, donors: Donors) -> str | None:
        """Why this damage cannot be done to this prompt, or None."""
        failures = [score.reason for score in undamaged.scores.values() if score.status == "failed"]
        if failures:
            return f"undamaged already: {failures[0]}"
        length = len(self.tokens[prompt.id])
        if damage.kind == "patch" and (prompt.id, damage.node) not in donors:
            return f"no other prompt has its {length} tokens to patch from: add one, or damage the last position only"
        try:
            self._intervention(prompt, damage, undamaged, donors).check_length(length)
        except PromptError as error:
            return str(error)
        return None

    def _intervention(self, prompt: Prompt, damage: Damage, undamaged: _Baseline, donors: Donors) -> Intervention:
        node, strength, at, seed = damage.node, damage.strength, self.plan.at, self.plan.seed
        norms = None if damage.like is None else undamaged.norms[damage.like]
        if damage.kind == "noise":
            return Noise(node, strength, at, seed=seed, like=damage.like, norms=norms)
        if damage.kind == "steer":
            vector = None if self.vector is None else torch.tensor(self.vector, dtype=torch.float64)
            return Steer(node, strength, at, seed=seed, like=damage.like, norms=norms, vector=vector)
        if damage.kind == "ablate":
            return Ablate(node, strength, at)
        return Patch(node, strength, at, write=donors[prompt.id, node])

    def _row(
        self, prompt: Prompt, damage: Damage, scores: Mapping[str, Score], undamaged: Mapping[str, Score] | None
    ) -> Row:
        failures = [score.reason for score in scores.values() if score.status == "failed"]
        if failures:
            return _failed(prompt, damage, str(failures[0]))
        (intervention,) = next(iter(scores.values())).interventions or [{}]
        sizes = {name: intervention.get(name) for name in ("write_norm", "change_norm")}
        row = _key_fields(prompt, damage) | sizes | numbers_of(scores)
        if undamaged is not None and damage.place == CIRCUIT:
            row |= ranks_of(damage.node, scores, undamaged)
        return row


def _key_fields(prompt: Prompt, damage: Damage) -> Row:
    return {"id": prompt.id, **vars(damage), "status": "ok", "reason": None}


def _failed(prompt: Prompt, damage: Damage, reason: str) -> Row:
    return _key_fields(prompt, damage) | {"status": "failed", "reason": reason}
