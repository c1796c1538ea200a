"""Tables in Markdown, and what they say in plain words, by these rules.

At the strongest dose of a kind, a measure *moves as it should* where the whole 95% interval of its change lies on the
side that was fixed beforehand, *moves the wrong way* where it lies on the other, and else there is *no evidence* that
it moves. It *tells the circuit* where the interval of its change less that for equal damage outside lies on that side
too. A ranking *points at the damaged node* where the whole interval of its top-1 rate lies above chance. With fewer
than ten prompts nothing is said: an interval over so few is not to be believed. Intervals are not corrected for their
number.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from eics.studies.damage.measures import Measure
from eics.studies.damage.plan import CIRCUIT, OUTSIDE
from eics.studies.damage.summary import Point, Rank, Summary
from eics.studies.discovery.faithfulness import Interval

_Dosed = TypeVar("_Dosed", Point, Rank)

FEWEST = 10
SAID = ("eics", "c_sh", "propagated", "max_probability", "entropy", "activation_norm")
_RANKINGS = {
    "joint": "share of the joint residual",
    "joint_change": "change of that share's residual",
    "propagated": "share of the propagated error",
    "propagated_change": "change of that share's error",
    "edge": "best edge into or out of it, by residual",
    "edge_change": "best edge, by change of residual",
}


def sentences(summary: Summary) -> list[str]:
    """What a reader may take home, and no more."""
    found = [_about(summary)]
    found += [f"{count} runs failed: {reason}." for reason, count in summary.failed.items()]
    if summary.prompts < FEWEST:
        found.append(f"{summary.prompts} prompts are too few to say anything: at least {FEWEST} are needed.")
        return found
    for measure in summary.measures:
        if measure.column.split(".")[-1] in SAID:
            found += _moves(summary, measure)
    return found + list(_points_at(summary))


def _about(summary: Summary) -> str:
    nodes = summary.settings["partners"]
    sizes = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in summary.sizes.items())
    beside = f" Size of the damage outside over that on the circuit, median: {sizes}." if sizes else ""
    return (
        f"{summary.prompts} prompts, {len(nodes)} nodes of {summary.settings['circuit']['name']} damaged one at a time "
        f"({', '.join(nodes)}).{beside}"
    )


def _moves(summary: Summary, measure: Measure) -> Iterable[str]:
    """One sentence on a measure, kind by kind at its strongest dose."""
    said: dict[str, list[str]] = {}
    for kind in summary.kinds:
        on, off = (_strongest(summary.curve(measure.column, kind, place)) for place in (CIRCUIT, OUTSIDE))
        if on is not None:
            said.setdefault(_verdict(on, off, measure.sign), []).append(kind)
    if said:
        yield f"{measure.label}: {'; '.join(f'{verdict} ({_and(kinds)})' for verdict, kinds in said.items())}."


def _verdict(on: Point, off: Point | None, sign: int) -> str:
    way = {1: "rises", -1: "falls"}
    side = _side(on.change)
    if side == 0:
        return f"no evidence that it {way[sign]} with damage to the circuit"
    if side != sign:
        return f"{way[side]} with damage to the circuit, the wrong way"
    if off is None or on.difference is None:
        return f"{way[sign]} with damage to the circuit"
    if _side(on.difference) == sign:
        put = "stays put" if _side(off.change) == 0 else "moves less" if _side(off.change) == sign else "moves back"
        return f"{way[sign]} with damage to the circuit and {put} for equal damage outside"
    return f"{way[sign]} with damage to the circuit, but no evidence that by more than for equal damage outside"


def _points_at(summary: Summary) -> Iterable[str]:
    for name in summary.configurations:
        for ranking, words in _RANKINGS.items():
            ranks = [_strongest([r for r in summary.ranks if _is(r, name, ranking, kind)]) for kind in summary.kinds]
            known = [rank for rank in ranks if rank is not None]
            if not known:
                continue
            rates = ", ".join(f"{rank.kind} {rank.first.value:.0%}" for rank in known)
            sure = [rank.kind for rank in known if rank.first.low > rank.chance_first]
            verdict = f"points at the damaged node under {_and(sure)}" if sure else "no evidence that it points"
            yield f"Place by {words}, {name}: {verdict}; first in {rates}, by chance {known[0].chance_first:.0%}."


def _is(rank: Rank, configuration: str, ranking: str, kind: str) -> bool:
    return (rank.configuration, rank.ranking, rank.kind) == (configuration, ranking, kind)


def _strongest(found: Sequence[_Dosed]) -> _Dosed | None:
    return max(found, key=lambda one: one.strength, default=None)


def _side(interval: Interval) -> int:
    """The side of 0 on which a whole interval lies; 0 for none."""
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def _and(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def markdown(summary: Summary) -> str:
    """The whole page."""
    lines = ["# Circuit damage", "", *(f"- {sentence}" for sentence in sentences(summary)), ""]
    lines += ["## Dose and response", "", *_table(_DOSE, _dose_rows(summary)), ""]
    lines += ["## Rank of the damaged node", "", *_table(_PLACE, _rank_rows(summary)), ""]
    seed = summary.settings["damage_seed"]
    lines.append(
        f"95% intervals over prompts, not corrected for their number. Seed {seed}. Rules: `eics.studies.damage.words`."
    )
    return "\n".join(lines) + "\n"


_DOSE = (
    "measure", "kind", "strength", "undamaged", "change, circuit", "change, outside", "difference", "AUROC, circuit",
    "AUROC, outside", "paired, circuit",
)  # fmt: skip
_PLACE = ("configuration", "ranking", "kind", "strength", "first", "chance", "mean reciprocal rank", "chance")


def _dose_rows(summary: Summary) -> Iterable[list[str]]:
    labels = {measure.column: measure.label for measure in summary.measures}
    outside = {(p.measure, p.kind, p.strength): p for p in summary.points if p.place == OUTSIDE}
    for point in summary.points:
        if point.place != CIRCUIT:
            continue
        off = outside.get((point.measure, point.kind, point.strength))
        yield [
            labels[point.measure], point.kind, f"{point.strength:g}", f"{point.undamaged:.4g}", short(point.change),
            short(off.change if off else None), short(point.difference), short(point.auroc, 2),
            short(off.auroc if off else None, 2), short(point.paired, 2),
        ]  # fmt: skip


def _rank_rows(summary: Summary) -> Iterable[list[str]]:
    for rank in summary.ranks:
        yield [
            rank.configuration, _RANKINGS[rank.ranking], rank.kind, f"{rank.strength:g}", short(rank.first, 2),
            f"{rank.chance_first:.2f}", short(rank.reciprocal, 2), f"{rank.chance_reciprocal:.2f}",
        ]  # fmt: skip


def short(interval: Interval | None, places: int | None = None) -> str:
    """A number with its interval, in few characters."""
    if interval is None:
        return "-"
    value, low, high = (f"{x:.{places}f}" if places else f"{x:.3g}" for x in vars(interval).values())
    return f"{value} ({low} to {high})"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]
