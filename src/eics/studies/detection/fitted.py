"""A reference set, every way of judging fitted to it, and what each way says of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.models.base import Model
from eics.models.prompts import Prompt
from eics.scoring.calibration.sheaf.assign import Place, assign
from eics.scoring.calibration.sheaf.fit import learn
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.learned import ROUNDING, Distances
from eics.scoring.calibration.sheaf.reader import Reader
from eics.scoring.calibration.sheaf.reference import Judgement, Reference
from eics.scoring.calibration.sheaf.samples import Samples
from eics.scoring.options import CALIBRATED
from eics.studies.detection.observations import Observations, observe
from eics.studies.detection.ways import (
    SHEAF_WAYS,
    WAYS,
    LayersWay,
    NormsWay,
    RecomputedWay,
    SheafWay,
)


class Way(Protocol):
    """Anything that has distances."""

    def distances(self, runs: Observations) -> Distances: ...


@dataclass(frozen=True)
class Prompts:
    """Prompts with their groups, and their undamaged runs."""

    tokens: tuple[tuple[int, ...], ...]
    groups: tuple[str, ...]
    runs: Observations

    @classmethod
    def observed(
        cls,
        model: Model,
        circuit: Circuit,
        tokens: Sequence[Sequence[int]],
        groups: Sequence[str],
        *,
        tick: Callable[[int], None] = lambda _: None,
        distributions: bool = False,
    ) -> "Prompts":
        """Runs the prompts."""
        runs = observe(model, circuit, tokens, tick=tick, distributions=distributions)
        return cls(tuple(map(tuple, tokens)), tuple(map(str, groups)), runs)

    def __len__(self) -> int:
        return len(self.tokens)

    def pick(self, places: Sequence[int]) -> "Prompts":
        """Some of the prompts."""
        rows = torch.tensor(list(places), dtype=torch.long)
        return Prompts(
            tuple(self.tokens[place] for place in places), tuple(self.groups[place] for place in places),
            self.runs.rows(rows),
        )  # fmt: skip

    def split(self, share: float, seed: int) -> "tuple[Prompts, Prompts]":
        """The others, and the prompts of this share of the groups, drawn by the seed."""
        names = sorted(set(self.groups))
        chosen = np.random.default_rng([seed, 1]).permutation(len(names))[: round(share * len(names))]
        apart = {names[index] for index in chosen}
        return (
            self.pick([place for place, group in enumerate(self.groups) if group not in apart]),
            self.pick([place for place, group in enumerate(self.groups) if group in apart]),
        )

    def some(self, size: int, seed: int) -> "Prompts":
        """This many of the prompts, drawn by the seed."""
        drawn = np.random.default_rng([seed, 2]).permutation(len(self))[:size]
        return self.pick(sorted(drawn.tolist()))


@dataclass(frozen=True)
class _StoredReader(Reader):
    """Reads samples that were taken before in place of running the model."""

    stored: Samples | None = None
    place: dict[tuple[int, ...], int] = field(default_factory=dict)

    def samples(self, token_lists: Sequence[Sequence[int]]) -> tuple[Samples, set[int]]:
        assert self.stored is not None
        rows = torch.tensor([self.place[tuple(tokens)] for tokens in token_lists])
        chosen = self.stored.rows(rows)
        return Samples(chosen.writes, chosen.explained, chosen.counts, torch.arange(len(rows))), set()


def places_of(reference: Prompts, seed: int) -> list[Place]:
    """Which prompts fit, and in which fold; the others calibrate."""
    return [assign(f"group:{group}", seed) for group in reference.groups]


def learn_from(model: Model, circuit: Circuit, reference: Prompts, seed: int) -> Learned:
    """What `eics.calibrate` learns from these prompts, from their stored runs."""
    place = {tokens: index for index, tokens in enumerate(reference.tokens)}
    options = CALIBRATED.with_(terms="sheaf")
    reader = _StoredReader(model, circuit, options, "answer", batch_size=64, stored=reference.runs.samples, place=place)
    prompts = [Prompt(index, tokens=tokens) for index, tokens in enumerate(reference.tokens)]
    return learn(reader, prompts, reference.groups, seed)


@dataclass(frozen=True)
class Fitted:
    """Ways of judging, each with its reference.

    Attributes:
        learned: the calibration.
        ways, references: by name.
    """

    learned: Learned
    ways: dict[str, Way]
    references: dict[str, Reference]

    @classmethod
    def of(cls, model: Model, circuit: Circuit, reference: Prompts, seed: int, names: Sequence[str] = WAYS) -> "Fitted":
        """Fits the named ways to a reference set, all on the same parts and in the same bases."""
        learned = learn_from(model, circuit, reference, seed)
        places = places_of(reference, seed)
        fits = torch.tensor([place.fits for place in places])
        fitting = reference.runs.rows(fits)
        folds = torch.tensor([place.fold for place in places])[fits]
        usual = reference.runs.rows(~fits)
        ways = {name: _fit(name, learned, fitting, folds) for name in names}
        judged = learned.reference.judged
        references = {name: Reference.of(way.distances(usual), judged) for name, way in ways.items()}
        return cls(learned, ways, references)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes with parents, judged or not."""
        return self.learned.sheaf.layout.judged

    @property
    def targets(self) -> tuple[str, ...]:
        """The nodes that can be judged and damaged: all but the read-out."""
        reasons = self.learned.sheaf.reasons
        return tuple(name for name in self.nodes if name not in reasons and name != "logits")

    def mean(self, node: str) -> Tensor:
        """A node's mean write over the reference's basis prompts."""
        return self.learned.sheaf.bases.write_mean[self.learned.sheaf.layout.nodes.index(node)]

    def judge(self, runs: Observations, way: str = "calibrated", level: float = 0.05) -> Judgement:
        """What a way says of runs."""
        return self.references[way].judge(self.ways[way].distances(runs), level)


def _fit(name: str, learned: Learned, fitting: Observations, folds: Tensor) -> Way:
    sheaf = learned.sheaf
    if name == "calibrated":
        return SheafWay(SHEAF_WAYS[name], sheaf.bases, sheaf.regressions)
    if name in SHEAF_WAYS:
        return SheafWay.fit(SHEAF_WAYS[name], sheaf.bases, fitting.samples, folds, sheaf.layout.width, sheaf.dtype)
    if name == "layers":
        return LayersWay.fit(fitting.layers, sheaf.layout.judged)
    if name == "norms":
        return NormsWay.fit(fitting.samples, sheaf.bases.places)
    return RecomputedWay(10 * max(ROUNDING[sheaf.dtype], ROUNDING[torch.float32]))  # runs are kept in float32
