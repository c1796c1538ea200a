"""Prompts run in batches: for each of them z_v and the logarithm of the whitened write of every judged node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from eics.circuits.formats.shared import json_safe
from eics.circuits.graph import Circuit
from eics.errors import PromptError
from eics.linalg.host_device import to_host
from eics.linalg.memory import memory_limit
from eics.linalg.precision import products
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.batch import check, run_model, transformer_run
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.learned import TINY, mean_by_prompt
from eics.scoring.calibration.sheaf.samples import check_second_token, sample
from eics.scoring.checks import interventions_by_prompt, keeps_positions
from eics.scoring.job import Job, TokenizedPrompt
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.options import Options
from eics.studies.comparison.set_writes import WhitenedWrites
from eics.studies.run_folder import Row

NOT_FINITE = "the model's activations are not finite on this prompt"


@dataclass(frozen=True)
class Passes:
    """How prompts of a set run: on one model, judged by one calibration, with interventions in force or without."""

    job: Job
    learned: Learned

    @classmethod
    def of(
        cls,
        model: Model,
        circuit: Circuit,
        calibration: Calibration,
        options: Options,
        prompts: Sequence[Prompt],
        interventions: Any = None,
    ) -> "Passes":
        """For prompts of one set; `interventions` as `eics.score` takes them."""
        assert calibration.learned is not None
        job = Job(
            model=model,
            circuit=circuit,
            configurations=(options,),
            answer=calibration.answer,
            tokens=calibration.tokens,
            interventions=interventions_by_prompt(model, circuit, prompts, interventions),
            extra_diagnostics=None,
            means=None,
            refusals=(None,),
        )
        return cls(job, calibration.learned)

    @property
    def options(self) -> Options:
        """The calibration's."""
        return self.job.configurations[0]

    def checked(self, prompt: Prompt) -> TokenizedPrompt:
        """The prompt's tokens; a prompt that cannot be judged is a `PromptError`."""
        items, failures = check(self.job, [prompt])
        if not items:
            raise PromptError(failures[0][0].reason or "the prompt cannot be scored")
        if not keeps_positions(self.job.circuit, len(items[0].tokens), [self.options]):
            raise PromptError(f"a prompt must be long enough for every node; this has {len(items[0].tokens)} tokens")
        sheaf = self.learned.sheaf
        check_second_token(sheaf.at, len(items[0].tokens), self.job.answer, sheaf.first)
        return items[0]

    def rows(self, prompts: Sequence[Prompt]) -> list[Row]:
        """A row for each prompt of a batch, in its order: its id, its length, and its numbers or why it has none."""
        items, rows = [], {}
        for prompt in prompts:
            try:
                items.append(self.checked(prompt))
            except PromptError as error:
                rows[prompt.id] = failed_row(prompt.id, str(error))
        rows |= {row["id"]: row for row in self._judged(items)} if items else {}
        return [rows[prompt.id] for prompt in prompts]

    def _judged(self, items: Sequence[TokenizedPrompt]) -> Iterator[Row]:
        model, options = self.job.model, self.options
        with (
            torch.no_grad(),
            memory_limit(options.memory, model.device),
            products(model.transformer.unembed.dtype, model.device, options.mode),
        ):
            state = run_model(self.job, items)
            nonfinite = zero_nonfinite_rows(state)
            sheaf, reference, writes = self._on_device
            samples = sample(transformer_run(self.job, state, options), sheaf.layout, sheaf.at, sheaf.first)
            at = sheaf.coordinates(samples)
            by_row = sheaf.by_row_of(at, samples.prompt)
            distances = mean_by_prompt(by_row, samples.counts, samples.prompt, len(items))
            z = to_host(reference.judge(distances, options.level).z)
            write = to_host((writes.by_prompt(at, samples.prompt, len(items)) + TINY).log().mT)
        for index, item in enumerate(items):
            if index in nonfinite:
                yield failed_row(item.prompt.id, NOT_FINITE)
                continue
            numbers = json_safe({"z": z[index], "write": write[index]})
            yield {"id": item.prompt.id, "length": len(item.tokens), "reason": None, **numbers}

    @cached_property
    def _on_device(self) -> Any:
        device, learned = self.job.model.device, self.learned
        writes = WhitenedWrites.of(learned.sheaf.regressions).to(device)
        return learned.sheaf.to(device), learned.reference.to(device), writes


def failed_row(id: str | int, reason: str) -> Row:
    """The row of a prompt that has no numbers."""
    return {"id": id, "length": None, "reason": reason, "z": None, "write": None}
