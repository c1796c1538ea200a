"""The steps of a comparison on one batch, in the order in which they need the models:

ours      A runs
theirs    B runs; its own functions, and gradients towards A's logits
outcome   A's functions of what both read: made here, inherited, effect
restored  B runs again with A's value of one part written into it, for one part after another
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.batching import batches_by_length
from eics.scoring.calibration.sheaf.learned import ROUNDING
from eics.studies.comparison.attribution import HeadOutputs, Numbers, changes, numbers
from eics.studies.comparison.parts import Parts
from eics.studies.comparison.passes import Tensors, observe, observe_with_gradients, own_functions
from eics.studies.comparison.targets import difference, direction, sampled_directions, uniform
from eics.transformer.write_sites import added, site_of_part

DRAWS = 64
"""Samples of the second order of effects, at least, over all prompts."""

DRAWN = 8
"""Of so many prompts one is sampled: each sample costs another pass back through the model."""


@dataclass(frozen=True)
class Item:
    """A prompt that both models can run, and how many samples of the second order of its effects are drawn."""

    prompt: Prompt
    tokens: list[int]
    draws: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a batch says, on the CPU.

    Attributes:
        numbers: of parts and prompts.
        total: how far the metric moved, (B,). relative: how far the logits did, as a share of their size.
        before, after: the likeliest next token in A and in B.
        finite: whether both models' activations are.
    """

    numbers: Numbers
    total: list[float]
    relative: list[float]
    before: list[int]
    after: list[int]
    finite: list[bool]


@dataclass(frozen=True)
class Step:
    """What all batches share: the parts, the metric, and the seed of what is sampled."""

    parts: Parts
    metric: str
    seed: int = 0

    def ours(self, model: Model, batch: Sequence[Item]) -> Tensors:
        """A plain run, A's."""
        return observe(model, [item.tokens for item in batch], self.parts)

    def theirs(self, model: Model, batch: Sequence[Item], logits: Tensor) -> Tensors:
        """B's run, with gradients of the metric against A's logits, and of a sampled direction where the batch is."""
        prompts, tokens = [item.prompt for item in batch], [item.tokens for item in batch]

        def directions(theirs: Tensor) -> Tensors:
            ways = {"gradient": direction(self.metric, model, prompts, logits.to(theirs), theirs)}
            draws = batch[0].draws  # the same in a batch
            ways |= {f"sampled{k}": way for k, way in enumerate(sampled_directions(theirs, tokens, self.seed, draws))}
            return ways

        return observe_with_gradients(model, tokens, self.parts, directions)

    def reread(self, model: Model, batch: Sequence[Item]) -> Tensors:
        """B's run and its own functions, without gradients: all that restoring needs."""
        tensors = self.ours(model, batch)
        return tensors | own_functions(model, tensors, self.parts, tensors)

    def outcome(
        self, model: Model, batch: Sequence[Item], ours: Tensors, theirs: Tensors, outputs: Mapping[int, HeadOutputs]
    ) -> Outcome:
        """The numbers, from both runs and model A."""
        with torch.no_grad():
            found = numbers(self.parts, model, ours, theirs, outputs)
        logits = [(run["logits"] - run["logits"].mean(dim=1, keepdim=True)).double() for run in (ours, theirs)]
        moved = (logits[1] - logits[0]).norm(dim=1) / logits[0].norm(dim=1).clamp(min=1e-300)
        total = difference(self.metric, model, [item.prompt for item in batch], *logits)
        before, after = (run.argmax(dim=1).cpu().tolist() for run in logits)
        finite = (ours["finite"] & theirs["finite"]).cpu().tolist()
        return Outcome(found, total.cpu().tolist(), moved.cpu().tolist(), before, after, finite)

    def restorations(
        self, model: Model, ours: Tensors, theirs: Tensors, outputs: Mapping[int, HeadOutputs]
    ) -> dict[str, Tensor]:
        """What has to be added to B's write of each part to make it A's function of what B read, (B, T, d)."""
        with torch.no_grad():
            return {
                name: -made
                for change in changes(self.parts, model, ours, theirs, outputs)
                for name, made in zip(change.names, change.made, strict=True)
            }

    def restored(
        self, model: Model, batch: Sequence[Item], ours: Tensor, theirs: Tensor, restorations: Mapping[str, Tensor]
    ) -> dict[str, list[float]]:
        """How much of the metric's move goes away if one part is restored, for each of them; from both logits."""
        prompts, tokens = [item.prompt for item in batch], [item.tokens for item in batch]
        ours = ours.to(model.device)
        moved = difference(self.metric, model, prompts, ours, theirs)
        effects = {}
        for name, restoration in restorations.items():
            site = site_of_part(name)
            if site is None:
                after = theirs + restoration.squeeze(1).to(theirs)
            else:
                with added(model, {site: restoration.to(theirs)}):
                    after = observe(model, tokens, NO_PARTS)["logits"]
            effects[name] = (moved - difference(self.metric, model, prompts, ours, after)).double().cpu().tolist()
        return effects


NO_PARTS = Parts.named(())


def touched(relative: float, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether logits have moved by more than rounding does."""
    return not relative <= max(ROUNDING[dtype] for dtype in dtypes)


def with_samples(items: Sequence[Item], seed: int, samples: int | None = None) -> list[Item]:
    """The prompts with their draws: `samples` in all, as far as there are prompts for them; which prompts have any
    depends on their tokens alone.

    By default one prompt in `DRAWN` has a draw, and there are `DRAWS` in all at least.
    """
    count = max(DRAWS, math.ceil(len(items) / DRAWN)) if samples is None else samples
    ranked = sorted(range(len(items)), key=lambda index: uniform(items[index].tokens, seed + 1))[:count]
    draws = dict.fromkeys(ranked, math.ceil(count / max(1, len(ranked))))
    return [replace(item, draws=draws.get(index, 0)) for index, item in enumerate(items)]


def as_batches(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Batches of prompts of similar length; those with draws are among themselves."""
    kinds = [[item for item in items if item.draws == draws] for draws in sorted({item.draws for item in items})]
    return [
        [kind[index] for index in batch]
        for kind in kinds
        for batch in batches_by_length([len(item.tokens) for item in kind], size)
    ]
