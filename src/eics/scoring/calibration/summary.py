"""What a calibration says of itself: how well each node is explained, what would be noticed, and what looks odd.

r2        1 - cross-fitted squared error over squared deviation of the node's write
notices   the smallest change of a write that would be noticed, over the rms of what the write varies by:
          sqrt(k^2 (q95 - mean D_v^2) / tr S_v^-1) over the rms of P_v (a_v - mean); q95, the 95% quantile of
          D_v^2, and its mean are those of the calibration part. Where a few prompts stand out so far that the mean
          is above q95, there is no such number
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eics.scoring.calibration.sheaf.breadth import NARROW
from eics.scoring.calibration.sheaf.judge import Learned
from eics.scoring.calibration.sheaf.learned import TINY
from eics.scoring.numbers import number, percent
from eics.scoring.options import CALIBRATED

FEW = 300
"""With fewer prompts, few components are learned and p-values are coarse."""

FIRST = {100: (0.52, 0.57), 200: (0.71, 0.75), 800: (0.83, 0.83)}
"""How often the damaged node of `facts` comes first (patched writes, three references of each size), by size of the
reference; docs/validation-calibrated.md#what-a-reference-needs."""

_ODD = 5.0  # robust standard deviations of the largest z
_NAMED = 10
_TO_SIGMA = 1.4826  # what makes the median absolute deviation of a normal distribution its standard deviation


@dataclass(frozen=True)
class NodeSummary:
    """One node: r2, the smallest change that would be noticed, if there is one; or why the node cannot be judged."""

    node: str
    r2: float
    notices: float | None
    reason: str | None


@dataclass(frozen=True)
class Contamination:
    """Calibration prompts that stand out: their share, and the most unusual ones by id, with their robust z."""

    share: float
    most_unusual: tuple[tuple[str | int, float], ...]


def node_summaries(learned: Learned) -> list[NodeSummary]:
    """All judged nodes, those that would notice least first; unjudged ones last."""
    regressions, reasons = learned.sheaf.regressions, learned.sheaf.reasons
    whole = (learned.reference.log_whole.exp() - TINY).clamp(min=0)  # (n, nodes)
    excess = _quantiles(whole, 0.95) - whole.mean(dim=0)
    outputs = regressions.outputs.double()
    change = (outputs.square() * excess.clamp(min=0) / regressions.spread.clamp(min=1e-300)).sqrt()
    notices = (change / regressions.deviation.clamp(min=1e-300)).tolist()
    rows = [
        NodeSummary(node, r2, notice if known and node not in reasons else None, reasons.get(node))
        for node, r2, notice, known in zip(
            learned.sheaf.layout.judged, regressions.r2.tolist(), notices, (excess >= 0).tolist(), strict=True
        )
    ]
    return sorted(rows, key=lambda row: (row.reason is not None, -(row.notices or 0.0)))


def contamination(learned: Learned) -> Contamination:
    """How many calibration prompts have a largest z that is far from those of the others, by median and MAD."""
    largest = learned.reference.largest
    robust = _robust(largest)
    order = robust.argsort(descending=True)[:_NAMED].tolist()
    most = tuple((learned.ids[index], float(robust[index])) for index in order)
    return Contamination(float((robust > _ODD).double().mean()), most)


def sheaf_sentences(learned: Learned) -> Iterator[str]:
    """What a person should know of a learned sheaf before trusting it."""
    sheaf, count = learned.sheaf, len(learned.ids)
    judged = len(sheaf.layout.judged) - len(sheaf.reasons)
    shortest, longest = learned.breadth.lengths
    where = {"answer": "the answer position", "all": f"every position{' but the first' * sheaf.first}"}[sheaf.at]
    yield (
        f"{learned.fitted} prompts taught the sheaf, {count} say what is usual; prompts of {shortest} to {longest} "
        "tokens."
    )
    yield f"{judged} nodes can be judged, at {where}: median r2 {number(float(_median_r2(learned)))}."
    if sheaf.reasons:
        names = ", ".join(list(sheaf.reasons)[:6]) + (", ..." if len(sheaf.reasons) > 6 else "")
        yield f"{len(sheaf.reasons)} nodes cannot be judged ({names}): {next(iter(sheaf.reasons.values()))}."
    odd = contamination(learned)
    if odd.share > 0:
        names = ", ".join(f"{id} ({number(z)})" for id, z in odd.most_unusual if z > _ODD)
        yield (
            f"{percent(odd.share)} of the calibration prompts stand out from the others by more than {_ODD:g} robust "
            f"standard deviations: {names}. Look at them before you call this reference usual."
        )
    least = learned.reference.least_level
    if least > CALIBRATED.level:
        yield (
            f"Only {count} prompts say what is usual: `eics score` must be given a --level of at least {least:g} (the "
            f"default is {CALIBRATED.level:g}). Take more prompts or finer groups."
        )
    total = learned.fitted + count
    if total < FEW:
        yield (
            f"{total} prompts are few: at most {learned.fitted // 4} components of a write are predicted, from at most "
            f"{learned.fitted // 8} of what the circuit explains, and no p-value is below {number(1 / (1 + count))}. "
            f"In our study a damaged node came first {_found()}."
        )
    if learned.breadth.is_narrow:
        yield (
            f"This reference is narrow: its prompts end in {number(learned.breadth.effective_endings)} tokens, each "
            f"counted by its share; {NARROW:g} are recommended. It is good for prompts of the same kind. Others will "
            "raise too many alarms: to judge those too, add prompts of other kinds and group by kind (--group)."
        )


def _found() -> str:
    """How often the damaged node comes first, by size of the reference.

    >>> _found()
    'in 52 to 57% of cases with 100 prompts, 71 to 75% with 200, 83% with 800'
    """
    shown: list[str] = []
    for size, (low, high) in FIRST.items():
        share = f"{100 * low:.0f} to {100 * high:.0f}%" if low < high else f"{100 * high:.0f}%"
        shown.append(f"in {share} of cases with {size} prompts" if not shown else f"{share} with {size}")
    return ", ".join(shown)


def _median_r2(learned: Learned) -> Tensor:
    kept = learned.sheaf.regressions.r2.cpu()[learned.reference.judged.cpu()]
    return kept.median()


def _robust(values: Tensor) -> Tensor:
    """Each value less the median of the others, over their MAD, scaled to a standard deviation."""
    middle = _medians_of_the_others(values)
    spread = torch.empty_like(values)
    for one in middle.unique():  # at most three: leaving a value out moves the median by a place at most
        here = middle == one
        spread[here] = _medians_of_the_others((values - one).abs())[here]
    return (values - middle) / (_TO_SIGMA * spread).clamp(min=1e-12)


def _medians_of_the_others(values: Tensor) -> Tensor:
    """For each value the median of all others, from one sort: past the value left out, places move by one."""
    ordered, order = values.sort()
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(values), device=values.device))
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    below, above = (ordered[place + (rank <= place)] for place in (low, high))
    return torch.lerp(below, above, 0.5 if low < high else 0.0)


def _quantiles(values: Tensor, share: float) -> Tensor:
    """The quantile of each column; one at a time, because all together would be sorted in a copy of everything."""
    return torch.stack([column.quantile(share) for column in values.unbind(dim=1)])
