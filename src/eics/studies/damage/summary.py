"""From rows to curves: what damage does to each measure, on the circuit and outside it, with intervals over prompts.

For one kind, strength and place, x_pn is a measure on prompt p with node n damaged and x_p the same undamaged:

    change   mean of x_pn - x_p
    auroc    probability that x_pn looks more damaged than x_q of any undamaged prompt q (ties count half)
    paired   the same against the prompt's own undamaged run, x_p

Which way looks damaged is fixed beforehand (scores fall, residuals rise): an AUROC below 0.5 is a measure that goes the
wrong way. Intervals resample prompts, with all their damages; the nodes are those that were damaged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eics.studies.damage.measures import RANKS, Measure, chance, measures
from eics.studies.damage.plan import CIRCUIT, NONE, OUTSIDE
from eics.studies.discovery.faithfulness import Interval

Numbers = NDArray[np.float64]
RESAMPLES = 1000
LEVEL = 0.95


@dataclass(frozen=True)
class Point:
    """A measure under one kind of damage at one strength and place; `difference` is the change less that outside."""

    measure: str
    kind: str
    strength: float
    place: str
    undamaged: float
    change: Interval
    auroc: Interval
    paired: Interval
    difference: Interval | None = None


@dataclass(frozen=True)
class Rank:
    """How often the damaged node comes first in a ranking, and its mean reciprocal rank; what chance gives beside."""

    configuration: str
    ranking: str
    kind: str
    strength: float
    reciprocal: Interval
    first: Interval
    chance_reciprocal: float
    chance_first: float


@dataclass(frozen=True)
class Summary:
    """Everything that a run says, from its rows alone.

    `sizes` has, by kind, the median size of a change outside the circuit over that of its equal on it.
    """

    settings: Mapping[str, Any]
    measures: tuple[Measure, ...]
    points: tuple[Point, ...]
    ranks: tuple[Rank, ...]
    prompts: int
    failed: Mapping[str, int]
    sizes: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]

    def curve(self, measure: str, kind: str, place: str) -> list[Point]:
        """One measure's points over strengths."""
        return [p for p in self.points if (p.measure, p.kind, p.place) == (measure, kind, place)]

    @property
    def configurations(self) -> tuple[str, ...]:
        """Names of the presets."""
        return tuple(self.settings["configurations"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of damage with anything to show."""
        return tuple(kind for kind in self.settings["kinds"] if any(p.kind == kind for p in self.points))

    def to_record(self) -> dict[str, Any]:
        """JSON types only, without the rows."""
        plain = {
            "settings": dict(self.settings),
            "prompts": self.prompts,
            "failed": dict(self.failed),
            "sizes": dict(self.sizes),
        }
        return plain | {"points": [_plain(p) for p in self.points], "ranks": [_plain(r) for r in self.ranks]}

    def to_markdown(self) -> str:
        """Tables and plain words."""
        from eics.studies.damage.words import markdown

        return markdown(self)

    def plot(self) -> Any:
        """A matplotlib figure: change over strength, on the circuit and outside it."""
        from eics.studies.damage.figures import dose_figure

        return dose_figure(self)


def _plain(point: Point | Rank) -> dict[str, Any]:
    return {name: vars(v) if isinstance(v, Interval) else v for name, v in vars(point).items()}


def summarize(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Summary:
    """Curves, AUROCs and ranks of all measures that have numbers."""
    table = _Table(rows, int(settings["damage_seed"]))
    wanted = measures(tuple(settings["configurations"]))
    known = tuple(measure for measure in wanted if np.isfinite(table.calm(measure.column)).any())
    points = [point for measure in known for point in table.points(measure)]
    ranks = [rank for name in settings["configurations"] for column in RANKS for rank in table.ranks(name, column)]
    failed: dict[str, int] = {}
    for row in rows:
        if row["status"] == "failed":
            failed[str(row["reason"])] = failed.get(str(row["reason"]), 0) + 1
    return Summary(settings, known, tuple(points), tuple(ranks), len(table.prompts), failed, table.sizes(), rows)


class _Table:
    """Rows as arrays: prompts down, damaged nodes across, nan where there is nothing."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], seed: int) -> None:
        good = [row for row in rows if row["status"] == "ok"]
        undamaged = {row["id"]: row for row in good if row["kind"] == NONE}
        self.prompts = list(undamaged)
        self.undamaged = [undamaged[name] for name in self.prompts]
        place = {name: number for number, name in enumerate(self.prompts)}
        self.cells: dict[tuple[str, float, str], dict[tuple[int, Any], Mapping[str, Any]]] = {}
        for row in good:
            if row["kind"] != NONE and row["id"] in place:
                cell = self.cells.setdefault((row["kind"], row["strength"], row["place"]), {})
                cell[place[row["id"]], (row["node"], row["like"])] = row
        self.cells = dict(sorted(self.cells.items()))
        self.seed = seed

    @cached_property
    def weights(self) -> Numbers:
        """How often each prompt is drawn in each resample, (resamples, prompts)."""
        draw = np.random.default_rng([self.seed, 1])
        size = len(self.prompts)
        found: Numbers = draw.multinomial(size, np.full(size, 1 / size), size=RESAMPLES).astype(float)
        return found

    def calm(self, column: str) -> Numbers:
        """The measure undamaged, (P,)."""
        return np.array([_number(row.get(column)) for row in self.undamaged])

    def damaged(self, cell: tuple[str, float, str], column: str) -> Numbers:
        """The measure with each node damaged, (P, N)."""
        rows = self.cells[cell]
        nodes = list(dict.fromkeys(node for _, node in rows))
        found = np.full((len(self.prompts), len(nodes)), np.nan)
        for (prompt, node), row in rows.items():
            found[prompt, nodes.index(node)] = _number(row.get(column))
        return found

    def points(self, measure: Measure) -> list[Point]:
        """All cells of one measure."""
        calm = self.calm(measure.column)
        changes = {cell: self.damaged(cell, measure.column) - calm[:, None] for cell in self.cells}
        found = []
        for cell, change in changes.items():
            if not np.isfinite(change).any():
                continue
            outside = changes.get((*cell[:2], OUTSIDE)) if cell[2] == CIRCUIT else None
            found.append(
                Point(
                    measure.column,
                    *cell,
                    undamaged=float(np.nanmean(calm)),
                    change=self.mean(change),
                    auroc=self.auroc(measure.sign * (change + calm[:, None]), measure.sign * calm),
                    paired=self.mean(_wins((measure.sign * change).ravel(), np.zeros(1)).reshape(change.shape)),
                    difference=None if outside is None else self.difference(change, outside),
                )
            )
        return found

    def mean(self, values: Numbers) -> Interval:
        """Over prompts and nodes, (P, N)."""
        sums, counts = np.nansum(values, axis=1), np.isfinite(values).sum(axis=1)
        return self.interval(sums.sum() / counts.sum(), _divide(self.weights @ sums, self.weights @ counts))

    def difference(self, one: Numbers, two: Numbers) -> Interval | None:
        """Of two means, over the same prompts."""
        if not np.isfinite(two).any():
            return None
        parts = [(np.nansum(v, axis=1), np.isfinite(v).sum(axis=1)) for v in (one, two)]
        value = parts[0][0].sum() / parts[0][1].sum() - parts[1][0].sum() / parts[1][1].sum()
        spread = [_divide(self.weights @ sums, self.weights @ counts) for sums, counts in parts]
        return self.interval(value, spread[0] - spread[1])

    def auroc(self, damaged: Numbers, calm: Numbers) -> Interval:
        """Damaged runs against all undamaged ones; larger looks damaged."""
        wins = np.zeros((len(calm), len(calm)))  # (P, Q), node by node: all at once would not fit for many prompts
        for column in damaged.T:
            wins += np.nan_to_num(_wins(column, calm))
        counts, known = np.isfinite(damaged).sum(axis=1), np.isfinite(calm).astype(float)
        spread = ((self.weights @ wins) * self.weights).sum(axis=1)
        pairs = (self.weights @ counts) * (self.weights @ known)
        return self.interval(wins.sum() / (counts.sum() * known.sum()), _divide(spread, pairs))

    def ranks(self, configuration: str, column: str) -> list[Rank]:
        """One ranking in all cells on the circuit."""
        found = []
        for cell in self.cells:
            ranks = self.damaged(cell, f"{configuration}.{column}")
            if cell[2] != CIRCUIT or not np.isfinite(ranks).any():
                continue
            by_edge = column.startswith("rank_edge")
            total = self.damaged(cell, f"{configuration}.{'edges' if by_edge else 'nodes'}")
            ours = self.damaged(cell, f"{configuration}.touching") if by_edge else np.ones_like(total)
            known = np.isfinite(ranks)
            pairs = zip(total[known].tolist(), ours[known].tolist(), strict=True)
            by_chance = np.array([chance(int(m), int(k)) for m, k in pairs]).mean(axis=0)
            first = np.where(known, (ranks == 1).astype(float), np.nan)
            found.append(
                Rank(
                    configuration,
                    column.removeprefix("rank_"),
                    cell[0],
                    cell[1],
                    self.mean(1 / ranks),
                    self.mean(first),
                    *by_chance.tolist(),
                )
            )
        return found

    def sizes(self) -> dict[str, float]:
        """By kind, the median of a change outside over its equal on the circuit."""
        found: dict[str, list[float]] = {}
        for (kind, strength, place), rows in self.cells.items():
            inside = self.cells.get((kind, strength, CIRCUIT), {})
            for (prompt, (_, like)), row in rows.items():
                equal = inside.get((prompt, (like, None)))
                if place == OUTSIDE and equal and equal.get("change_norm") and row.get("change_norm") is not None:
                    found.setdefault(kind, []).append(row["change_norm"] / equal["change_norm"])
        return {kind: float(np.median(ratios)) for kind, ratios in found.items()}

    def interval(self, value: float, spread: Numbers) -> Interval:
        """The value with its quantiles over resamples."""
        usable = spread[np.isfinite(spread)]
        if not usable.size:
            return Interval(float(value), float(value), float(value))
        low, high = np.quantile(usable, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(float(value), float(low), float(high))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _divide(a: Numbers, b: Numbers) -> Numbers:
    found: Numbers = np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)
    return found


def _wins(damaged: Numbers, calm: Numbers) -> Numbers:
    """1 where damaged is above calm, 1/2 where equal; nan where either is missing. (P,) and (Q,): (P, Q)."""
    one, two = damaged[:, None], calm[None, :]
    found: Numbers = (one > two) + 0.5 * (one == two)
    return np.where(np.isfinite(one) & np.isfinite(two), found, np.nan)
