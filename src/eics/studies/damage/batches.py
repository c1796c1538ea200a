"""Runs a batch of prompts: undamaged once, then under every damage of the plan; keeps the rows, skips those it has."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError, RecordError
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.batch import score_prompts
from eics.scoring.options import Options
from eics.scoring.result import Score
from eics.studies.damage.measures import baselines, more_residuals, numbers_of, ranks_of
from eics.studies.damage.plan import CIRCUIT, NONE, Damage, Plan
from eics.studies.run_folder import Row, RunFolder
from eics.transformer.forward import ForwardState, run
from eics.transformer.interventions import Ablate, Intervention, Noise, Patch, Steer

ROWS, RECORDS = "damage.jsonl", "undamaged.jsonl"
FILES = (ROWS, RECORDS, "damage.parquet", "summary.json", "damage.md", "dose-response.png", "auroc.png")
"""What a run writes, besides its settings."""

UNDAMAGED = Damage(NONE, 0.0, "", NONE)

Id = str | int
Donors = Mapping[tuple[Id, str], Tensor]
"""Writes to patch in, by prompt and node."""


class DamageRows:
    """The rows of a run, in memory and, if it has a folder, on disk; a resumed run has its earlier rows."""

    def __init__(self, path: Path | None, settings: dict[str, Any], *, resume: bool, overwrite: bool = False) -> None:
        if path is None and resume:
            raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
        self.rows: list[Row] = []
        self._keys: set[Any] = set()
        self.folder = None
        if path is not None:
            self.folder = RunFolder.open(path, settings, FILES, resume=resume, overwrite=overwrite)
            try:
                self._row_file, self._records = self.folder.rows(ROWS), self.folder.rows(RECORDS)
                self._read()
            except BaseException:
                self.folder.__exit__()  # nobody else will: a context that failed to open is never left
                raise

    def __enter__(self) -> "DamageRows":
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.__exit__()

    def has(self, prompt: Prompt, damage: Damage) -> bool:
        return (prompt.id, *vars(damage).values()) in self._keys

    def add(self, row: Row, scores: Sequence[Score] = ()) -> Row:
        """Keeps a row and the full scores that belong to it; both are on disk when this returns."""
        if self.folder is not None:
            self._records.append(score.to_record() for score in scores)
            self._row_file.append([row])
        self._keep(row)
        return row

    def _keep(self, row: Row) -> None:
        self._keys.add((row["id"], *(row[field.name] for field in fields(Damage))))
        self.rows.append(row)

    def _read(self) -> None:
        for number, row in enumerate(self._row_file, start=1):
            try:
                self._keep(row)
            except (KeyError, TypeError):
                raise RecordError(
                    f"Row {number} of {str(self._row_file.path)!r} must be a row of this run: remove it."
                ) from None
        # Records are written before their row: a run killed in between left records that will be written again.
        records = list(self._records)
        finished = {row["id"] for row in self.rows if row["kind"] == NONE}
        kept = [record for record in records if record.get("id") in finished]
        if len(kept) < len(records):
            self._records.replace(kept)


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
            if not self.rows.has(prompt, damage)
        ]
        new = {prompt.id for prompt in prompts if not self.rows.has(prompt, UNDAMAGED)}
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
            try:
                possible.append((prompt, damage, self._intervention(prompt, damage, undamaged[prompt.id], donors)))
            except PromptError as error:
                yield self.rows.add(_failed(prompt, damage, str(error)))
        for start in range(0, len(possible), self.batch_size):
            batch = possible[start : start + self.batch_size]
            # One prompt may appear several times in a pass, under different damage: number the runs.
            runs = [Prompt(number, tokens=tuple(self.tokens[p.id])) for number, (p, *_) in enumerate(batch)]
            baselines_of: dict[Id, _Baseline] = {number: undamaged[p.id] for number, (p, *_) in enumerate(batch)}
            interventions = {number: [intervention] for number, (*_, intervention) in enumerate(batch)}
            for (prompt, damage, _), scores in zip(batch, self._score(runs, baselines_of, interventions), strict=True):
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

    def _intervention(self, prompt: Prompt, damage: Damage, undamaged: _Baseline, donors: Donors) -> Intervention:
        """Refuses damage that cannot be done to this prompt."""
        failures = [score.reason for score in undamaged.scores.values() if score.status == "failed"]
        if failures:
            raise PromptError(f"undamaged already: {failures[0]}")
        node, strength, at, seed = damage.node, damage.strength, self.plan.at, self.plan.seed
        norms = None if damage.like is None else undamaged.norms[damage.like]
        length = len(self.tokens[prompt.id])
        intervention: Intervention
        if damage.kind == "noise":
            intervention = Noise(node, strength, at, seed=seed, like=damage.like, norms=norms)
        elif damage.kind == "steer":
            vector = None if self.vector is None else torch.tensor(self.vector, dtype=torch.float64)
            intervention = Steer(node, strength, at, seed=seed, like=damage.like, norms=norms, vector=vector)
        elif damage.kind == "ablate":
            intervention = Ablate(node, strength, at)
        elif (prompt.id, node) in donors:
            intervention = Patch(node, strength, at, write=donors[prompt.id, node])
        else:
            raise PromptError(
                f"no other prompt has its {length} tokens to patch from: add one, or damage the last position only"
            )
        intervention.check_length(length)
        return intervention

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
