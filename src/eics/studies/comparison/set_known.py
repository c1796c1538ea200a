"""Prompts of a set that a calibration was made from: nodes look more usual on those that taught it.

A calibration keeps no prompts, but the distances of those that say what is usual, a quarter of them. A row of a set
with the same numbers at nearly every node is one of these. If a set has a fair share of such rows, the calibration was
made from it, and the rest may have taught it: then only the prompts that are known to have taught nothing are compared.
"""

import numpy as np

from eics.scoring.calibration.sheaf.learned import TINY, Distances
from eics.scoring.calibration.sheaf.reference import Reference
from eics.studies.statistics import Flags, Numbers

_SAME = 1e-3  # in z: what rounding in another batch does is far smaller
_NEARLY_EVERY = 0.9  # node
_FEWEST_NODES = 4  # with fewer, numbers may agree by chance
_SHARE = 0.1  # of a set that may have taught without being noticed much
_PARTS = 4  # a quarter of a reference says what is usual


def of_the_reference(z: Numbers, reference: Reference) -> Flags:
    """Which rows (n, judged) are calibration prompts of the reference; `z` has its judged nodes only."""
    flags = np.zeros(len(z), dtype=bool)
    if z.shape[1] < _FEWEST_NODES:
        return flags
    known = usual_z(reference)
    for row, own in enumerate(z):
        flags[row] = ((np.abs(known - own) < _SAME).mean(axis=1) >= _NEARLY_EVERY).any()
    return flags


def made_from(flags: Flags) -> bool:
    """Whether a set with these rows taught the calibration, in good part."""
    return bool(_PARTS * flags.sum() > _SHARE * len(flags))


def usual_z(reference: Reference) -> Numbers:
    """z of the calibration prompts themselves, over all of them, (n, judged)."""
    allowed, whole, given = (
        (logs.exp() - TINY).mT for logs in (reference.log_allowed, reference.log_whole, reference.log_input)
    )
    z = reference.judge(Distances(whole, given, allowed), level=0.5).z
    numbers: Numbers = z[:, reference.judged].double().cpu().numpy()
    return numbers
