"""The fit: a reference set in, a learned sheaf and its reference out, in bounded memory.

    1  bases, from the basis prompts: those of the fit part with the smallest hashes
    2  moments of the whole fit part, by fold
    3  regressions, in closed form
    4  distances of the calibration part

Each prompt goes through the model once; if every position is judged, the basis prompts go twice, because all their
positions would not fit in memory. Given the same activations, moments do not depend on the order of the prompts. What
grows with the reference set is one `Item` for each prompt and three numbers for each node and calibration prompt; if
every position is judged, seven.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from math import ceil
from typing import Any, TypeVar

import torch

from eics.errors import OptionError
from eics.linalg.memory import chunk_width
from eics.models.prompts import Prompt
from eics.scoring.calibration.sheaf.assign import FOLDS
from eics.scoring.calibration.sheaf.bases import Bases, coordinates
from eics.scoring.calibration.sheaf.breadth import Breadth
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.learned import ROUNDING, LearnedSheaf, Regressions
from eics.scoring.calibration.sheaf.moments import Moments, MomentSums
from eics.scoring.calibration.sheaf.reader import Item, Reader, Tick
from eics.scoring.calibration.sheaf.samples import FIRST, Layout, Samples
from eics.scoring.calibration.sheaf.usual import read_usual, usual_again
from eics.scoring.options import Options

Part = TypeVar("Part", Bases, Regressions)
Batches = Iterable[tuple[list[Item], Samples]]

LEAST = 100
"""The fewest prompts that a sheaf is learned from."""

BASIS_PROMPTS = 256
_BASIS_POSITIONS = 4  # of each basis prompt, if every position is judged: bases must fit in memory


def learn(
    reader: Reader, prompts: Sequence[Prompt], groups: Sequence[Any] | None, seed: int, *, keep_moments: bool = False
) -> Learned:
    """Learns the sheaf of the reader's circuit from a reference set."""
    items = reader.items(prompts, groups, seed)
    check_enough(items, len(prompts), reader)
    fitting, calibrating = _parts(items)
    _check_level(calibrating, reader.options)
    tick = _pass_over(reader, prompts, items)
    basis, batches = _basis(reader, fitting, tick)
    dtype = reader.model.transformer.unembed.dtype
    rows = 1 if reader.at == "answer" else min(len(item.tokens) for item in fitting) - FIRST
    bases = rounded(Bases.of(basis, reader.layout, rows * len(fitting), ROUNDING[dtype]))
    moments = _moments(bases, reader, batches)
    del basis, batches
    _check_parts(reader.survivors(items))  # the model may have overflowed on a whole fold
    sheaf = LearnedSheaf(reader.layout, reader.at, bases, _regressions(moments, bases, reader.layout, dtype), dtype)
    usual = read_usual(reader, sheaf, calibrating, tick, keep=keep_moments)
    ran = reader.survivors(items)
    check_enough(ran, len(prompts), reader)
    kept = usual.kept(moments) if keep_moments else None
    return Learned(
        sheaf, usual.reference(sheaf), usual.ids, int(moments.prompts), _breadth(ran), usual.by_position(), kept
    )


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
    if sheaf.at == "all" and learned.positions is None:
        raise OptionError(
            "Prompts can be added to a calibration of all positions only if it sets the first token apart. This one, "
            "of an older version, does not: calibrate again on all prompts."
        )
    items = reader.items(prompts, groups, seed)
    fitting, calibrating = _parts(items)
    tick = _pass_over(reader, prompts, items)
    moments = kept.moments + _moments(sheaf.bases, reader, reader.batches(fitting, tick))
    sheaf = replace(sheaf, regressions=_regressions(moments, sheaf.bases, sheaf.layout, sheaf.dtype))
    added = read_usual(reader, sheaf, calibrating, tick, keep=True)
    usual = usual_again(sheaf, learned, kept).and_then(added)
    breadth = _breadth(reader.survivors(items), learned.breadth)
    return Learned(
        sheaf,
        usual.reference(sheaf),
        usual.ids,
        int(moments.prompts),
        breadth,
        usual.by_position(),
        usual.kept(moments),
    )


def check_enough(items: Sequence[Item], given: int, reader: Reader) -> None:
    """Refuses a reference set that is too small, or has too few groups to be split."""
    if len(items) < LEAST:
        first = next((f" Prompt {id!r} failed: {reason}." for id, reason in reader.failures.items()), "")
        raise OptionError(
            f"A calibrated reference must have at least {LEAST} prompts that the model can run. Of {given}, "
            f"{len(items)} are such.{first}"
        )
    _check_parts(items)


def _check_parts(items: Sequence[Item]) -> None:
    """Refuses parts of which one is empty."""
    fitting, calibrating = _parts(items)
    folds = {item.place.fold for item in fitting}
    if len(folds) < FOLDS or not calibrating:
        raise OptionError(
            f"The groups of a reference must fill {FOLDS} folds and the calibration part. They fill {len(folds)} folds "
            f"and leave {len(calibrating)} prompts to calibrate on: use finer groups, or another seed."
        )


def _check_level(calibrating: Sequence[Item], options: Options) -> None:
    """Refuses a calibration part that cannot be scored, as it will be with both terms."""
    least = ceil(1 / options.level - 1)
    if options.terms != "sheaf" and len(calibrating) < least:
        raise OptionError(
            f"The calibration part, scored at level {options.level:g}, must have at least {least} prompts. It has "
            f"{len(calibrating)}: give more prompts or finer groups, or add --terms sheaf (terms='sheaf')."
        )


def rounded(part: Part) -> Part:
    """A part of the sheaf rounded to float32, as files store it: what was loaded judges as what was saved."""
    tensors = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{n: t.float().double() for n, t in tensors.items() if t.is_floating_point()})


def _parts(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """The part that fits, in the order of its hashes, and the part that calibrates."""
    fitting = sorted((item for item in items if item.place.fits), key=lambda item: item.order)
    return fitting, [item for item in items if not item.place.fits]


def _pass_over(reader: Reader, prompts: Sequence[Prompt], items: Sequence[Item]) -> Tick:
    """Begins the phase in which prompts run; those that cannot are finished already."""
    tick = reader.phase("prompts", len(prompts))
    tick(len(prompts) - len(items))
    return tick


def _breadth(items: Sequence[Item], known: Breadth | None = None) -> Breadth:
    return Breadth.of((item.tokens for item in items), known)


def _basis(reader: Reader, fitting: Sequence[Item], tick: Tick) -> tuple[Samples, Batches]:
    """The rows that the bases come from, and the batches of the whole fit part."""
    first, others = fitting[:BASIS_PROMPTS], fitting[BASIS_PROMPTS:]
    if reader.at == "answer":
        held = list(reader.batches(first, tick))
        return _in_order(held), chain(held, reader.batches(others, tick))
    thinned = ((batch, _spread_rows(samples)) for batch, samples in reader.batches(first))
    return _in_order(thinned), chain(reader.batches(reader.survivors(first), tick), reader.batches(others, tick))


def _moments(bases: Bases, reader: Reader, batches: Batches) -> Moments:
    """The moments of batches, each in chunks within the memory bound."""
    sums, here = MomentSums(len(reader.layout.judged)), bases.to(reader.model.device)
    width = chunk_width(3 * len(reader.layout.nodes) * reader.layout.width, torch.float64)
    for batch, samples in batches:
        folds = torch.tensor([item.place.fold for item in batch], device=samples.prompt.device)[samples.prompt]
        for start in range(0, len(folds), width):
            rows = slice(start, start + width)
            sums.add(coordinates(here, samples.rows(rows)), folds[rows])
        sums.count(len(batch))
    return sums.moments()


def _regressions(moments: Moments, bases: Bases, layout: Layout, dtype: torch.dtype) -> Regressions:
    return rounded(Regressions.of(moments, bases, layout.width, dtype))


def _in_order(basis: Batches) -> Samples:
    """All rows of the basis prompts, in the order of their hashes, on the CPU."""
    by_prompt = [(item.order, str(item.id), rows) for item, rows in _one_by_one(basis)]
    if not by_prompt:
        raise OptionError(
            f"A calibrated reference must have prompts with finite activations. The model overflows on each of the "
            f"first {BASIS_PROMPTS}: load it with another --dtype, or give other prompts."
        )
    by_prompt.sort(key=lambda row: row[:2])
    return Samples.cat([rows.of_prompt(place) for place, (_, _, rows) in enumerate(by_prompt)])


def _one_by_one(basis: Batches) -> Iterator[tuple[Item, Samples]]:
    for batch, samples in basis:
        here = samples.to("cpu", samples.writes.dtype)
        yield from ((item, here.rows(here.prompt == row)) for row, item in enumerate(batch))


def _spread_rows(samples: Samples) -> Samples:
    """A few rows of each prompt, evenly spread, the last among them."""
    changes = samples.prompt[1:] != samples.prompt[:-1]
    starts = [0, *(changes.nonzero().flatten() + 1).tolist()]
    ends = [*starts[1:], len(samples.prompt)]
    kept = [
        torch.linspace(end - 1, start, min(_BASIS_POSITIONS, end - start)).round().long()
        for start, end in zip(starts, ends, strict=True)
    ]
    return samples.rows(torch.cat(kept).to(samples.prompt.device))
