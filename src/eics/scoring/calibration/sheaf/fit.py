"""The fit: a reference set in, a learned sheaf and its reference out, in bounded memory.

    1  bases, from the basis prompts: those of the fit part with the smallest hashes
    2  moments of the whole fit part, by fold
    3  regressions, in closed form
    4  distances of the calibration part

Each prompt goes through the model once. Given the same activations, moments do not depend on the order of the prompts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from eics.circuits.graph import Circuit
from eics.errors import OptionError, PromptError
from eics.linalg.memory import chunk_width
from eics.models.base import Model
from eics.models.prompts import Prompt, tokenize
from eics.scoring.batching import batch_indices
from eics.scoring.calibration.sheaf.assign import FOLDS, Place, assign, group_of_tokens, order
from eics.scoring.calibration.sheaf.bases import Bases, Coordinates, coordinates
from eics.scoring.calibration.sheaf.judge import Kept, Learned
from eics.scoring.calibration.sheaf.learned import ROUNDING, Distances, LearnedSheaf, Regressions
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.reference import Reference
from eics.scoring.calibration.sheaf.samples import Layout, Samples, sample
from eics.scoring.checks import check_answer, keeps_positions
from eics.scoring.nonfinite import zero_nonfinite_rows
from eics.scoring.options import Options
from eics.transformer.forward import run
from eics.transformer.linearize import TransformerRun

Part = TypeVar("Part", Bases, Regressions)

LEAST = 100
"""The fewest prompts that a sheaf is learned from."""

BASIS_PROMPTS = 256
_BASIS_POSITIONS = 4  # of each basis prompt, if every position is judged: bases must fit in memory


@dataclass(frozen=True)
class Item:
    """A reference prompt: its tokens, where it belongs, and its rank among those that fit."""

    id: str | int
    tokens: list[int]
    place: Place
    order: bytes


@dataclass(frozen=True)
class Reader:
    """How prompts become samples.

    Attributes:
        model, circuit: what runs, and whose nodes are judged.
        options: linearization and read-out; answer, tokens: as `score` takes them.
        at: where nodes are judged.
        layout: the nodes.
    """

    model: Model
    circuit: Circuit
    options: Options
    at: str
    batch_size: int
    answer: int | None = None
    tokens: tuple[int, ...] | None = None
    tick: Callable[[int], None] = field(default=lambda _: None)
    failures: dict[str | int, str] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The circuit's nodes as rows."""
        spec = self.model.transformer
        return Layout.of(self.circuit, spec.width, parallel=spec.blocks[0].parallel)

    def items(self, prompts: Sequence[Prompt], groups: Sequence[Any] | None, seed: int) -> list[Item]:
        """The prompts that the model can run, each in its place."""
        items = []
        for index, prompt in enumerate(prompts):
            try:
                tokens = tokenize(self.model, prompt)
                check_answer(self.answer, len(tokens))
                if not keeps_positions(self.circuit, len(tokens), [self.options]):
                    raise PromptError(f"a prompt must be long enough for every node; this has {len(tokens)} tokens")
            except PromptError as error:
                self.failures[prompt.id] = str(error)
                self.tick(1)
                continue
            group = group_of_tokens(tokens) if groups is None else f"group:{groups[index]}"
            items.append(Item(prompt.id, tokens, assign(group, seed), order(group, tokens, seed)))
        return items

    def batches(self, items: Sequence[Item]) -> Iterator[tuple[list[Item], Samples]]:
        """Items that shared a pass, and their samples; prompts on which the model overflows are left out."""
        as_prompts = [Prompt(index, tokens=tuple(item.tokens)) for index, item in enumerate(items)]
        for indices in batch_indices(as_prompts, self.batch_size, sort=True):
            chosen = [items[index] for index in indices]
            samples, bad = self.samples([item.tokens for item in chosen])
            self.tick(len(chosen))
            if bad:
                for row in bad:
                    self.failures[chosen[row].id] = "the model's activations are not finite on this prompt"
                good = [row for row in range(len(chosen)) if row not in bad]
                if not good:
                    continue
                samples, chosen = _without(samples, bad, len(chosen)), [chosen[row] for row in good]
            yield chosen, samples

    def samples(self, token_lists: Sequence[Sequence[int]]) -> tuple[Samples, set[int]]:
        """The samples of one pass, and the rows on which the model overflowed."""
        answer = None if self.answer is None else [self.answer % len(tokens) for tokens in token_lists]
        logits = self.options.readout == "tokens"
        with torch.no_grad():
            state = run(self.model, token_lists, self.circuit, answer=answer, logits=logits)
            bad = zero_nonfinite_rows(state)
            made = TransformerRun(state, self.circuit, self.options.readout, self.tokens)
            return sample(made, self.layout, self.at), bad


def learn(
    reader: Reader, prompts: Sequence[Prompt], groups: Sequence[Any] | None, seed: int, *, keep_moments: bool = False
) -> Learned:
    """Learns the sheaf of the reader's circuit from a reference set."""
    items = reader.items(prompts, groups, seed)
    check_enough(items, len(prompts), reader.failures)
    fitting = sorted((item for item in items if item.place.fits), key=lambda item: item.order)
    layout, device = reader.layout, reader.model.device
    basis = list(reader.batches(fitting[:BASIS_PROMPTS]))
    rows = 1 if reader.at == "answer" else min(len(item.tokens) for item in fitting)
    chosen = _in_order(basis)
    dtype = reader.model.transformer.unembed.dtype
    spread = chosen if reader.at == "answer" else _spread_rows(chosen)
    bases = rounded(Bases.of(spread, layout, rows * len(fitting), ROUNDING[dtype]))
    here, moments = bases.to(device), Moments.zero(len(layout.judged))
    for batch, samples in (pair for pairs in (basis, reader.batches(fitting[BASIS_PROMPTS:])) for pair in pairs):
        moments.add_(_moments(here, layout, batch, samples))
    del basis, chosen, spread
    sheaf = LearnedSheaf(layout, reader.at, bases, _regressions(moments, bases, layout, dtype), dtype)
    usual = _usual(reader, sheaf, [item for item in items if not item.place.fits], keep=keep_moments)
    lengths = [len(item.tokens) for item in items]
    kept = Kept(moments, usual.coordinates, usual.prompt) if keep_moments else None
    fitted = int(moments.prompts)
    return Learned(sheaf, usual.reference(sheaf), usual.ids, fitted, (min(lengths), max(lengths)), kept)


def learn_more(
    reader: Reader, learned: Learned, prompts: Sequence[Prompt], groups: Sequence[Any] | None, seed: int
) -> Learned:
    """Goes on with more prompts, in the bases of what was learned and kept.

    The parts are those that the prompts would have had in one fit with the others; only the bases, which came from the
    first prompts, are not the same.
    """
    kept, sheaf = learned.kept, learned.sheaf
    if kept is None:
        raise OptionError("A calibration must have kept its moments before prompts can be added: use --keep-moments.")
    if reader.layout != sheaf.layout or reader.at != sheaf.at:
        raise OptionError("Prompts can be added to a calibration of the same circuit and positions only.")
    items = reader.items(prompts, groups, seed)
    fitting = sorted((item for item in items if item.place.fits), key=lambda item: item.order)
    here, moments = sheaf.bases.to(reader.model.device), kept.moments + Moments.zero(len(sheaf.layout.judged))
    for batch, samples in reader.batches(fitting):
        moments.add_(_moments(here, sheaf.layout, batch, samples))
    sheaf = replace(sheaf, regressions=_regressions(moments, sheaf.bases, sheaf.layout, sheaf.dtype))
    before = sheaf.at_coordinates(kept.coordinates, kept.prompt, len(learned.ids))
    added = _usual(reader, sheaf, [item for item in items if not item.place.fits], keep=True)
    usual = _Usual(before, learned.ids, kept.coordinates, kept.prompt).and_then(added)
    lengths = [len(item.tokens) for item in items] or list(learned.lengths)
    shortest, longest = min(learned.lengths[0], *lengths), max(learned.lengths[1], *lengths)
    kept = Kept(moments, usual.coordinates, usual.prompt)
    return Learned(sheaf, usual.reference(sheaf), usual.ids, int(moments.prompts), (shortest, longest), kept)


def _regressions(moments: Moments, bases: Bases, layout: Layout, dtype: torch.dtype) -> Regressions:
    return rounded(Regressions.of(moments, bases, layout.width, dtype))


@dataclass(frozen=True)
class _Usual:
    """The calibration part: its distances, (judged, n), its ids, and its coordinates by row."""

    distances: Distances
    ids: tuple[str | int, ...]
    coordinates: Coordinates
    prompt: Tensor

    def and_then(self, other: "_Usual") -> "_Usual":
        """Both, one after the other."""
        parts = zip(self.distances.parts, other.distances.parts, strict=True)
        return _Usual(
            Distances(*(torch.cat(pair, dim=1) for pair in parts)),
            self.ids + other.ids,
            Coordinates.cat([self.coordinates, other.coordinates]),
            torch.cat([self.prompt, other.prompt + len(self.ids)]),
        )

    def reference(self, sheaf: LearnedSheaf) -> Reference:
        """What is usual; refuses a part that can say nothing."""
        judged = torch.tensor([name not in sheaf.reasons for name in sheaf.layout.judged])
        if not bool(judged.any()):
            raise OptionError(
                "A calibration must have a node whose write varies over its prompts. None does: take prompts that "
                "differ."
            )
        if len(self.ids) < 2:
            raise OptionError(
                f"The calibration part must have at least 2 prompts. It has {len(self.ids)}: give more prompts or "
                "groups."
            )
        return Reference.of(self.distances, judged)


def _usual(reader: Reader, sheaf: LearnedSheaf, items: Sequence[Item], *, keep: bool) -> _Usual:
    """The distances of these prompts, sorted by hash so that they do not depend on the order, and, to `keep`, their
    coordinates."""
    there, count = sheaf.to(reader.model.device), len(sheaf.layout.judged)
    distances = [Distances(*(torch.zeros(count, 0, dtype=torch.float64) for _ in range(3)))]
    rows, prompt = [Coordinates.none(count)], [torch.zeros(0, dtype=torch.long)]
    found: list[Item] = []
    for batch, samples in reader.batches(sorted(items, key=lambda item: item.order)):
        at = there.coordinates(samples)
        distances.append(there.at_coordinates(at, samples.prompt, len(batch)).cpu())
        if keep:
            rows.append(at.cpu())
            prompt.append(samples.prompt.cpu() + len(found))
        found += batch
    order_of = sorted(range(len(found)), key=lambda place: (found[place].order, str(found[place].id)))
    sorted_places = torch.tensor(order_of, dtype=torch.long)
    stacked = [torch.cat(parts, dim=1)[:, sorted_places] for parts in zip(*(d.parts for d in distances), strict=True)]
    new_place = torch.empty_like(sorted_places).scatter_(0, sorted_places, torch.arange(len(found)))
    ids = tuple(found[place].id for place in order_of)
    return _Usual(Distances(*stacked), ids, Coordinates.cat(rows), new_place[torch.cat(prompt)])


def rounded(part: Part) -> Part:
    """A part of the sheaf rounded to float32, as files store it: what was loaded judges as what was saved."""
    tensors = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{n: t.float().double() for n, t in tensors.items() if t.is_floating_point()})


def check_enough(items: Sequence[Item], given: int, failures: dict[str | int, str]) -> None:
    """Refuses a reference set that is too small, or has too few groups to be split."""
    if len(items) < LEAST:
        first = next((f" Prompt {id!r} failed: {reason}." for id, reason in failures.items()), "")
        raise OptionError(
            f"A calibrated reference must have at least {LEAST} prompts that the model can run. Of {given}, "
            f"{len(items)} are such.{first}"
        )
    fitting = [item for item in items if item.place.fits]
    folds = {item.place.fold for item in fitting}
    if len(folds) < FOLDS or len(fitting) == len(items):
        raise OptionError(
            f"The groups of a reference must fill {FOLDS} folds and the calibration part. They fill {len(folds)} folds "
            f"and leave {len(items) - len(fitting)} prompts to calibrate on: use finer groups, or another seed."
        )


def _moments(bases: Bases, layout: Layout, batch: Sequence[Item], samples: Samples) -> Moments:
    """The moments of a batch, in chunks within the memory bound."""
    folds = torch.tensor([item.place.fold for item in batch], device=samples.prompt.device)[samples.prompt]
    total = Moments.zero(len(layout.judged))
    width = chunk_width(3 * len(layout.nodes) * layout.width, torch.float64)
    for start in range(0, len(folds), width):
        rows = slice(start, start + width)
        total.add_(Moments.of(coordinates(bases, samples.rows(rows)), folds[rows], 0))
    return replace(total, prompts=total.prompts + len(batch))


def _in_order(basis: Sequence[tuple[list[Item], Samples]]) -> Samples:
    """All rows of the basis prompts, in the order of their hashes, on the CPU."""
    by_prompt = []
    for batch, samples in basis:
        here = samples.to("cpu", samples.writes.dtype)
        by_prompt += [(item.order, str(item.id), here.rows(here.prompt == row)) for row, item in enumerate(batch)]
    by_prompt.sort(key=lambda row: row[:2])
    return Samples.cat([rows.of_prompt(place) for place, (_, _, rows) in enumerate(by_prompt)])


def _spread_rows(samples: Samples) -> Samples:
    """A few rows of each prompt, evenly spread, the last among them."""
    starts = torch.cat([torch.ones(1, dtype=torch.bool), samples.prompt[1:] != samples.prompt[:-1]]).nonzero().flatten()
    ends = torch.cat([starts[1:], torch.tensor([len(samples.prompt)])])
    kept = [
        torch.linspace(end - 1, start, min(_BASIS_POSITIONS, end - start)).round().long()
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    return samples.rows(torch.cat(kept))


def _without(samples: Samples, bad: set[int], prompts: int) -> Samples:
    """The samples without some prompts, the others renumbered."""
    good = [row for row in range(prompts) if row not in bad]
    number = torch.full((prompts,), -1, device=samples.prompt.device)
    number[good] = torch.arange(len(good), device=samples.prompt.device)
    kept = samples.rows(number[samples.prompt] >= 0)
    return replace(kept, prompt=number[kept.prompt])
