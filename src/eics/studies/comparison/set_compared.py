"""The prompts of two sets that are compared: none that failed, and none that taught the calibration."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eics.errors import OptionError
from eics.models.prompts import Prompt
from eics.scoring.calibration.sheaf.judge import Learned
from eics.studies.comparison.set_input import LEAST, PromptSet, check_enough
from eics.studies.comparison.set_known import made_from, of_the_reference
from eics.studies.comparison.set_passes import NOT_FINITE
from eics.studies.comparison.set_rows import SetRows
from eics.studies.comparison.set_statistics import Sample
from eics.studies.comparison.set_task import Comparison
from eics.studies.statistics import Numbers


@dataclass(frozen=True)
class Compared:
    """What is compared of a set, in the order of its prompts.

    Attributes:
        given: the set. ids, lengths: of its prompts that are compared.
        z, write: z_v and the logarithm of the whitened write, (n, judged), of the nodes that can be judged.
        failures: why the others failed.
        known: how many of them are calibration prompts. apart: whether the calibration was made from this set, so that
            only these are compared.
    """

    given: PromptSet
    ids: tuple[str | int, ...]
    lengths: tuple[int, ...]
    z: Numbers
    write: Numbers
    failures: dict[str | int, str]
    known: int = 0
    apart: bool = False

    def pick(self, places: Sequence[int]) -> "Compared":
        """Some of the prompts."""
        ids, lengths = tuple(self.ids[place] for place in places), tuple(self.lengths[place] for place in places)
        return replace(self, ids=ids, lengths=lengths, z=self.z[places], write=self.write[places])

    @property
    def sample(self) -> Sample:
        """z_v with the groups of the prompts."""
        return Sample.of(self.z, [self.given.group_of[id] for id in self.ids])


def prompts_to_run(task: Comparison, learned: Learned) -> tuple[list[Prompt], list[Prompt]]:
    """Of both sets: all prompts, or, if the calibration was fitted on A, those that taught nothing and whose group did
    not."""
    a, b = task.a, task.b
    if not task.fits:
        return list(a.prompts), list(b.prompts)
    apart = set(learned.ids)
    if task.paired:
        return a.only(apart), b.only(apart)
    taught = a.taught(task.options.seed)
    return a.only(apart), b.only({id for id, group in b.group_of.items() if group not in taught})


def to_compare(task: Comparison, rows: SetRows, learned: Learned) -> tuple[Compared, Compared]:
    """What is compared of both sets; in paired sets, row i of both is one pair."""
    a, b = (_with_numbers(one, rows, learned, task) for one in (task.a, task.b))
    if task.paired:
        a, b = _matched(a, b, 2 if task.fits else LEAST)
    for one in (a, b):
        units = one.sample.units
        if units < 2:
            raise OptionError(f"{one.given.subject()} must have at least 2 groups to compare. It has {units}.")
    return a, b


def _with_numbers(one: PromptSet, rows: SetRows, learned: Learned, task: Comparison) -> Compared:
    """The prompts of a set that have numbers, without those that may have taught a given calibration."""
    judged = learned.reference.judged.cpu().numpy()
    by_id = rows.of(one.key)
    failures, good = {}, []
    for row in (by_id[prompt.id] for prompt in one.prompts if prompt.id in by_id):
        if row["reason"] is not None:
            failures[row["id"]] = row["reason"]
            continue
        numbers = np.array([row["z"], row["write"]], dtype=float)[:, judged]
        if np.isfinite(numbers).all():
            good.append((row["id"], row["length"], *numbers))
        else:
            failures[row["id"]] = NOT_FINITE
    check_enough(one, len(good), 2 if task.fits and one is task.a else LEAST, failures)
    ids, lengths, z, write = zip(*good, strict=True)
    found = Compared(one, ids, lengths, np.stack(z), np.stack(write), failures)
    return found if task.fits else _untaught(found, learned)


def _untaught(found: Compared, learned: Learned) -> Compared:
    """Only the calibration prompts of a set that the calibration was made from."""
    flags = of_the_reference(found.z, learned.reference)
    known = int(flags.sum())
    if not made_from(flags):
        return replace(found, known=known)
    if known < LEAST:
        raise OptionError(
            f"{found.given.subject()} must have at least {LEAST} prompts that did not teach the calibration, which was "
            f"made from it. It has {known}: give other prompts, or no calibration, and one is fitted on set A."
        )
    return replace(found.pick(np.flatnonzero(flags).tolist()), known=known, apart=True)


def _matched(a: Compared, b: Compared, least: int) -> tuple[Compared, Compared]:
    """The pairs of which both prompts are compared, in the order of A."""
    place = {id: row for row, id in enumerate(b.ids)}
    rows = [row for row, id in enumerate(a.ids) if id in place]
    if len(rows) < least:
        raise OptionError(
            f"Paired sets must have at least {least} pairs of which both prompts can be compared. Of "
            f"{len(a.given.prompts)}, {len(rows)} are such: give more, or paired=False."
        )
    return a.pick(rows), b.pick([place[a.ids[row]] for row in rows])
