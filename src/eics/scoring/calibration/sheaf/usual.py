"""The calibration part while it is read: distances and ids in the order of the hashes, and, if asked for, coordinates.

Prompts arrive in batches of similar length; everything here is put in the order of their hashes, so that nothing
depends on the order in which they were given.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.errors import OptionError
from eics.scoring.calibration.sheaf.bases import Coordinates
from eics.scoring.calibration.sheaf.judge import Kept, Learned
from eics.scoring.calibration.sheaf.learned import Distances, LearnedSheaf, mean_by_prompt
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.positions import Positions
from eics.scoring.calibration.sheaf.reader import Item, Reader, Tick
from eics.scoring.calibration.sheaf.reference import Reference


@dataclass(frozen=True)
class Usual:
    """The calibration part: its distances, (judged, n), those of its positions, its ids, and its coordinates by row,
    none unless kept."""

    distances: Distances
    positions: Positions
    ids: tuple[str | int, ...]
    coordinates: Coordinates
    prompt: Tensor

    def and_then(self, other: "Usual") -> "Usual":
        """Both, one after the other."""
        return Usual(
            Distances.cat([self.distances, other.distances]),
            Positions.cat([self.positions, other.positions]),
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

    def by_position(self) -> Positions | None:
        """The calibration part position by position, if all positions are judged."""
        return self.positions if len(self.positions) else None

    def kept(self, moments: Moments) -> Kept:
        """What more prompts can be added to."""
        return Kept(moments, self.coordinates, self.prompt)


def read_usual(reader: Reader, sheaf: LearnedSheaf, items: Sequence[Item], tick: Tick, *, keep: bool) -> Usual:
    """The distances of these prompts and, to `keep`, their coordinates."""
    there, judged = sheaf.to(reader.model.device), len(sheaf.layout.judged)
    distances, positions = [Distances.none(judged)], [Positions.none(judged)]
    rows, prompt = [Coordinates.none(judged)], [torch.zeros(0, dtype=torch.long)]
    found: list[Item] = []
    for batch, samples in reader.batches(sorted(items, key=_rank), tick):
        if keep:
            at = there.coordinates(samples)
            by_row = there.by_row_of(at, samples.prompt)
            rows.append(at.cpu())
            prompt.append(samples.prompt.cpu() + len(found))
        else:
            by_row = there.by_row(samples)
        means, by_text = _by_prompt(sheaf, by_row, samples.counts, samples.prompt, len(batch))
        distances.append(means.cpu())
        positions.append(by_text.cpu())
        found += batch
    places = torch.tensor(sorted(range(len(found)), key=lambda place: _rank(found[place])), dtype=torch.long)
    new_place = torch.empty_like(places).scatter_(0, places, torch.arange(len(found)))
    return Usual(
        Distances.cat(distances).columns(places),
        _in_order(positions, places),
        tuple(found[place].id for place in places.tolist()),
        Coordinates.cat(rows),
        new_place[torch.cat(prompt)],
    )


def usual_again(sheaf: LearnedSheaf, learned: Learned, kept: Kept) -> Usual:
    """What was kept of a calibration part, judged by what has been learned since."""
    by_row = sheaf.by_row_of(kept.coordinates, kept.prompt)
    found = _by_prompt(sheaf, by_row, kept.coordinates.counts, kept.prompt, len(learned.ids))
    return Usual(*found, learned.ids, kept.coordinates, kept.prompt)


def _by_prompt(
    sheaf: LearnedSheaf, by_row: Distances, counts: Tensor, prompt: Tensor, prompts: int
) -> tuple[Distances, Positions]:
    """Means over each prompt's rows and, if all positions are judged, what tracing compares positions with."""
    means = mean_by_prompt(by_row, counts, prompt, prompts)
    if sheaf.at == "answer":
        return means, Positions.none(len(counts))
    return means, Positions.of(by_row.cpu(), counts.cpu(), prompt.cpu(), prompts)  # on a GPU, in any order


def _in_order(positions: list[Positions], places: Tensor) -> Positions:
    together = Positions.cat(positions)
    return together.texts(places) if len(together) else together


def _rank(item: Item) -> tuple[bytes, str]:
    return item.order, str(item.id)
