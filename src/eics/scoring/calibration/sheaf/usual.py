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
from eics.scoring.calibration.sheaf.learned import Distances, LearnedSheaf
from eics.scoring.calibration.sheaf.moments import Moments
from eics.scoring.calibration.sheaf.reader import Item, Reader, Tick
from eics.scoring.calibration.sheaf.reference import Reference


@dataclass(frozen=True)
class Usual:
    """The calibration part: its distances, (judged, n), its ids, and its coordinates by row, none unless kept."""

    distances: Distances
    ids: tuple[str | int, ...]
    coordinates: Coordinates
    prompt: Tensor

    def and_then(self, other: "Usual") -> "Usual":
        """Both, one after the other."""
        return Usual(
            Distances.cat([self.distances, other.distances]),
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

    def kept(self, moments: Moments) -> Kept:
        """What more prompts can be added to."""
        return Kept(moments, self.coordinates, self.prompt)


def read_usual(reader: Reader, sheaf: LearnedSheaf, items: Sequence[Item], tick: Tick, *, keep: bool) -> Usual:
    """The distances of these prompts and, to `keep`, their coordinates."""
    there, judged = sheaf.to(reader.model.device), len(sheaf.layout.judged)
    distances, rows, prompt = [Distances.none(judged)], [Coordinates.none(judged)], [torch.zeros(0, dtype=torch.long)]
    found: list[Item] = []
    for batch, samples in reader.batches(sorted(items, key=_rank), tick):
        if keep:
            at = there.coordinates(samples)
            distances.append(there.at_coordinates(at, samples.prompt, len(batch)).cpu())
            rows.append(at.cpu())
            prompt.append(samples.prompt.cpu() + len(found))
        else:
            distances.append(there.by_prompt(samples, len(batch)).cpu())
        found += batch
    places = torch.tensor(sorted(range(len(found)), key=lambda place: _rank(found[place])), dtype=torch.long)
    new_place = torch.empty_like(places).scatter_(0, places, torch.arange(len(found)))
    return Usual(
        Distances.cat(distances).columns(places),
        tuple(found[place].id for place in places.tolist()),
        Coordinates.cat(rows),
        new_place[torch.cat(prompt)],
    )


def usual_again(sheaf: LearnedSheaf, learned: Learned, kept: Kept) -> Usual:
    """What was kept of a calibration part, judged by what has been learned since."""
    distances = sheaf.at_coordinates(kept.coordinates, kept.prompt, len(learned.ids))
    return Usual(distances, learned.ids, kept.coordinates, kept.prompt)


def _rank(item: Item) -> tuple[bytes, str]:
    return item.order, str(item.id)
