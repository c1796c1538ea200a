"""The verdict of a damage run in sentences, by fixed rules, and the page with its tables.

At the strongest dose of a kind, a measure *moves as it should* if the whole 95% interval of its change lies on the side
fixed in advance, *moves the wrong way* if it lies on the other side; otherwise there is *no evidence* that it moves. It
*singles out the circuit* if the interval of its change less that under equal damage outside lies on that side too. A
ranking *points at the damaged node* if the whole interval of its top-1 rate lies above chance. With fewer than ten
prompts there is no verdict, because such intervals cannot be trusted. Intervals are not corrected for their number.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

from eics.studies.damage.measures import Measure
from eics.studies.damage.plan import CIRCUIT, OUTSIDE
from eics.studies.damage.summary import Point, Rank, Summary
from eics.studies.statistics import Interval
from eics.studies.words import enumerate_words, markdown_list, markdown_page, markdown_table

_Dosed = TypeVar("_Dosed", Point, Rank)

FEWEST = 10
"""Prompts that a verdict needs."""

REPORTED = ("eics", "c_sh", "propagated", "max_probability", "entropy", "activation_norm")
"""Measures that get a sentence and a line in the terminal."""

_RANKINGS = {
    "joint": "share of the joint residual",
    "joint_change": "change of that share's residual",
    "propagated": "share of the propagated error",
    "propagated_change": "change of that share's error",
    "edge": "best edge into or out of it, by residual",
    "edge_change": "best edge, by change of residual",
}


def sentences(summary: Summary) -> list[str]:
    """What a reader may conclude, and no more."""
    lines = [_setup(summary)]
    lines += [f"{count} runs failed: {reason}." for reason, count in summary.failed.items()]
    if summary.prompts < FEWEST:
        lines.append(f"{summary.prompts} prompts are too few for a verdict: at least {FEWEST} are needed.")
        return lines
    for measure in summary.measures:
        if measure.column.split(".")[-1] in REPORTED:
            lines += _moves(summary, measure)
    return lines + list(_points_at(summary))


def _setup(summary: Summary) -> str:
    nodes = summary.settings["partners"]
    damaged = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} of {summary.settings['circuit']['name']}"
    sizes = ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in summary.sizes.items())
    ratios = f" Median ratio of the damage outside to that on the circuit: {sizes}." if sizes else ""
    return f"{summary.prompts} prompts, {damaged} damaged one at a time ({', '.join(nodes)}).{ratios}"


def _moves(summary: Summary, measure: Measure) -> Iterable[str]:
    """One sentence on a measure, with each kind at its strongest dose."""
    verdicts: dict[str, list[str]] = {}
    for kind in summary.kinds:
        inside, outside = (_strongest(summary.curve(measure.column, kind, place)) for place in (CIRCUIT, OUTSIDE))
        if inside is not None:
            verdicts.setdefault(_verdict(inside, outside, measure.sign), []).append(kind)
    if verdicts:
        parts = [f"{verdict} ({enumerate_words(kinds)})" for verdict, kinds in verdicts.items()]
        yield f"{measure.label}: {'; '.join(parts)}."


def _verdict(inside: Point, outside: Point | None, sign: int) -> str:
    moves = {1: "rises", -1: "falls"}
    side = inside.change.side()
    if side == 0:
        return f"no evidence that it {moves[sign]} with damage to the circuit"
    if side != sign:
        return f"{moves[side]} with damage to the circuit, the wrong way"
    if outside is None or inside.difference is None:
        return f"{moves[sign]} with damage to the circuit"
    if inside.difference.side() == sign:
        reaction = {0: "stays put", sign: "moves less", -sign: "moves the other way"}[outside.change.side()]
        return f"{moves[sign]} with damage to the circuit and {reaction} under equal damage outside"
    return f"{moves[sign]} with damage to the circuit, but no evidence that by more than under equal damage outside"


def _points_at(summary: Summary) -> Iterable[str]:
    for name in summary.configurations:
        for ranking, title in _RANKINGS.items():
            by_kind = (
                _strongest([r for r in summary.ranks if (r.configuration, r.ranking, r.kind) == (name, ranking, kind)])
                for kind in summary.kinds
            )
            ranks = [rank for rank in by_kind if rank is not None]
            if not ranks:
                continue
            rates = ", ".join(f"{rank.kind} {rank.first.value:.0%}" for rank in ranks)
            above = [rank.kind for rank in ranks if rank.first.low > rank.chance_first]
            points = (
                f"points at the damaged node under {enumerate_words(above)}" if above else "no evidence that it points"
            )
            yield f"Damaged node by {title}, {name}: {points}; first in {rates}, by chance {ranks[0].chance_first:.0%}."


def _strongest(points: Sequence[_Dosed]) -> _Dosed | None:
    return max(points, key=lambda point: point.strength, default=None)


def markdown(summary: Summary) -> str:
    """The whole page."""
    return markdown_page(
        [
            "# Circuit damage",
            markdown_list(sentences(summary)),
            "## Dose and response",
            markdown_table(_DOSE_HEADER, _dose_rows(summary)),
            "## Rank of the damaged node",
            markdown_table(_RANK_HEADER, _rank_rows(summary)),
            f"95% intervals over prompts, not corrected for their number. Seed {summary.settings['damage_seed']}. "
            "Rules: `eics.studies.damage.words`.",
        ]
    )


_DOSE_HEADER = (
    "measure", "kind", "strength", "undamaged", "change, circuit", "change, outside", "difference", "AUROC, circuit",
    "AUROC, outside", "paired, circuit",
)  # fmt: skip
_RANK_HEADER = ("configuration", "ranking", "kind", "strength", "first", "chance", "mean reciprocal rank", "chance")


def _dose_rows(summary: Summary) -> Iterable[list[str]]:
    labels = {measure.column: measure.label for measure in summary.measures}
    by_cell = {(p.measure, p.kind, p.strength): p for p in summary.points if p.place == OUTSIDE}
    for point in summary.points:
        if point.place != CIRCUIT:
            continue
        outside = by_cell.get((point.measure, point.kind, point.strength))
        yield [
            labels[point.measure], point.kind, f"{point.strength:g}", f"{point.undamaged:.4g}", _cell(point.change),
            _cell(outside.change if outside else None), _cell(point.difference), _cell(point.auroc, ".2f"),
            _cell(outside.auroc if outside else None, ".2f"), _cell(point.paired, ".2f"),
        ]  # fmt: skip


def _rank_rows(summary: Summary) -> Iterable[list[str]]:
    for rank in summary.ranks:
        yield [
            rank.configuration, _RANKINGS[rank.ranking], rank.kind, f"{rank.strength:g}", _cell(rank.first, ".2f"),
            f"{rank.chance_first:.2f}", _cell(rank.reciprocal, ".2f"), f"{rank.chance_reciprocal:.2f}",
        ]  # fmt: skip


def _cell(interval: Interval | None, spec: str = ".3g") -> str:
    return "-" if interval is None else format(interval, spec)
