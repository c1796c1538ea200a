"""From rows to curves: what damage does to each measure, on and outside the circuit, with intervals over prompts.

For one kind, strength and place, let x_pn be a measure on prompt p with node n damaged, and x_p the same undamaged:

    change   mean of x_pn - x_p
    auroc    probability that x_pn looks more damaged than x_q of any undamaged prompt q (ties count half)
    paired   the same against the prompt's own undamaged run, x_p

Which direction looks damaged is fixed in advance (scores fall, residuals rise), so that an AUROC below 0.5 is a measure
that moves the wrong way. Intervals resample prompts with all their damages; the damaged nodes are not resampled.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from eics.studies.damage.measures import RANKS, Measure, chance, measures
from eics.studies.damage.plan import CIRCUIT, NONE, OUTSIDE
from eics.studies.statistics import Interval, Numbers, resampled_counts, wins

RESAMPLES = 1000

Cell = tuple[str, float, str]
"""Kind, strength and place."""


@dataclass(frozen=True)
class Point:
    """A measure under one kind of damage at one strength and place.

    `difference` is the change less the change under equal damage outside the circuit.
    """

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
    """How often the damaged node ranks first, and its mean reciprocal rank, beside the values expected by chance."""

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
    """Everything that follows from the rows of a run.

    `sizes` has, by kind, the median ratio of a change outside the circuit to the equal change on it.
    """

    settings: Mapping[str, Any]
    measures: tuple[Measure, ...]
    points: tuple[Point, ...]
    ranks: tuple[Rank, ...]
    prompts: int
    failed: Mapping[str, int]
    sizes: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]

    def __repr__(self) -> str:
        failed = f", {sum(self.failed.values())} failed" if self.failed else ""
        return f"Summary({self.prompts} prompts, {len(self.rows)} rows, {len(self.measures)} measures{failed})"

    def curve(self, measure: str, kind: str, place: str) -> list[Point]:
        """One measure's points over strengths."""
        return [p for p in self.points if (p.measure, p.kind, p.place) == (measure, kind, place)]

    @property
    def configurations(self) -> tuple[str, ...]:
        return tuple(self.settings["configurations"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of damage that have points."""
        return tuple(kind for kind in self.settings["kinds"] if any(p.kind == kind for p in self.points))

    def to_record(self) -> dict[str, Any]:
        """JSON types only, without the rows."""
        return {
            "settings": dict(self.settings),
            "prompts": self.prompts,
            "failed": dict(self.failed),
            "sizes": dict(self.sizes),
            "points": [_plain(point) for point in self.points],
            "ranks": [_plain(rank) for rank in self.ranks],
        }

    def to_markdown(self) -> str:
        """Sentences and tables."""
        from eics.studies.damage.words import markdown

        return markdown(self)

    def plot(self) -> Any:
        """A matplotlib figure of change over strength, on and outside the circuit."""
        from eics.studies.damage.figures import dose_figure

        return dose_figure(self)


def _plain(point: Point | Rank) -> dict[str, Any]:
    return {name: vars(v) if isinstance(v, Interval) else v for name, v in vars(point).items()}


def summarize(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Summary:
    """Curves, AUROCs and ranks of every measure that has numbers."""
    table = _Table(rows, int(settings["damage_seed"]))
    candidates = measures(tuple(settings["configurations"]))
    measured = tuple(measure for measure in candidates if np.isfinite(table.undamaged(measure.column)).any())
    points = [point for measure in measured for point in table.points(measure)]
    ranks = [rank for name in settings["configurations"] for column in RANKS for rank in table.ranks(name, column)]
    failed = dict(Counter(str(row["reason"]) for row in rows if row["status"] == "failed"))
    return Summary(settings, measured, tuple(points), tuple(ranks), len(table.prompts), failed, table.sizes(), rows)


class _Table:
    """Rows as arrays of prompts by damaged nodes; nan where a row is missing or failed."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], seed: int) -> None:
        succeeded = [row for row in rows if row["status"] == "ok"]
        undamaged = {row["id"]: row for row in succeeded if row["kind"] == NONE}
        self.prompts = list(undamaged)
        self.undamaged_rows = list(undamaged.values())
        index = {prompt: number for number, prompt in enumerate(self.prompts)}
        cells: dict[Cell, dict[tuple[int, Any], Mapping[str, Any]]] = {}
        for row in succeeded:
            if row["kind"] != NONE and row["id"] in index:
                cell = cells.setdefault((row["kind"], row["strength"], row["place"]), {})
                cell[index[row["id"]], (row["node"], row["like"])] = row
        self.cells = dict(sorted(cells.items()))
        self.seed = seed

    @cached_property
    def weights(self) -> Numbers:
        """How often each prompt is drawn in each resample, (resamples, prompts)."""
        draw = np.random.default_rng([self.seed, 1])
        return resampled_counts(len(self.prompts), RESAMPLES, draw, multinomial=True)

    def undamaged(self, column: str) -> Numbers:
        """A column of the undamaged runs, (P,)."""
        return np.array([_number(row.get(column)) for row in self.undamaged_rows])

    def damaged(self, cell: Cell, column: str) -> Numbers:
        """A column with each node damaged, (P, N)."""
        rows = self.cells[cell]
        nodes = list(dict.fromkeys(node for _, node in rows))
        values = np.full((len(self.prompts), len(nodes)), np.nan)
        for (prompt, node), row in rows.items():
            values[prompt, nodes.index(node)] = _number(row.get(column))
        return values

    def points(self, measure: Measure) -> list[Point]:
        """One measure in all cells."""
        undamaged = self.undamaged(measure.column)
        changes = {cell: self.damaged(cell, measure.column) - undamaged[:, None] for cell in self.cells}
        points = []
        for cell, change in changes.items():
            if not np.isfinite(change).any():
                continue
            outside = changes.get((*cell[:2], OUTSIDE)) if cell[2] == CIRCUIT else None
            points.append(
                Point(
                    measure.column,
                    *cell,
                    undamaged=float(np.nanmean(undamaged)),
                    change=self.mean(change),
                    auroc=self.auroc(measure.sign * (change + undamaged[:, None]), measure.sign * undamaged),
                    paired=self.mean(wins(measure.sign * change, np.zeros(1))),
                    difference=None if outside is None else self.difference(change, outside),
                )
            )
        return points

    def mean(self, values: Numbers) -> Interval:
        """Over prompts and nodes, (P, N)."""
        return _interval(*self._means(values))

    def difference(self, inside: Numbers, outside: Numbers) -> Interval | None:
        """Difference of two means over the same resampled prompts."""
        if not np.isfinite(outside).any():
            return None
        (value, samples), (less, less_samples) = self._means(inside), self._means(outside)
        return _interval(value - less, samples - less_samples)

    def _means(self, values: Numbers) -> tuple[float, Numbers]:
        sums, counts = np.nansum(values, axis=1), np.isfinite(values).sum(axis=1)
        return sums.sum() / counts.sum(), _divide(self.weights @ sums, self.weights @ counts)

    def auroc(self, damaged: Numbers, undamaged: Numbers) -> Interval:
        """Damaged runs, (P, N), against all undamaged ones, (Q,); a larger value looks damaged."""
        won = np.zeros((len(undamaged), len(undamaged)))  # (P, Q), summed node by node to bound memory
        for column in damaged.T:
            won += np.nan_to_num(wins(column[:, None], undamaged[None, :]))
        counts, usable = np.isfinite(damaged).sum(axis=1), np.isfinite(undamaged).astype(float)
        resampled = ((self.weights @ won) * self.weights).sum(axis=1)
        pairs = (self.weights @ counts) * (self.weights @ usable)
        return _interval(won.sum() / (counts.sum() * usable.sum()), _divide(resampled, pairs))

    def ranks(self, configuration: str, column: str) -> list[Rank]:
        """One ranking in all cells on the circuit."""
        results = []
        for cell in self.cells:
            ranks = self.damaged(cell, f"{configuration}.{column}")
            ranked = np.isfinite(ranks)
            if cell[2] != CIRCUIT or not ranked.any():
                continue
            by_edge = column.startswith("rank_edge")
            total = self.damaged(cell, f"{configuration}.{'edges' if by_edge else 'nodes'}")
            candidates = self.damaged(cell, f"{configuration}.touching") if by_edge else np.ones_like(total)
            counts = zip(total[ranked].tolist(), candidates[ranked].tolist(), strict=True)
            by_chance = np.array([chance(int(n), int(k)) for n, k in counts]).mean(axis=0)
            first = np.where(ranked, (ranks == 1).astype(float), np.nan)
            intervals = self.mean(1 / ranks), self.mean(first)
            results.append(
                Rank(configuration, column.removeprefix("rank_"), *cell[:2], *intervals, *by_chance.tolist())
            )
        return results

    def sizes(self) -> dict[str, float]:
        """By kind, the median ratio of a change outside the circuit to the equal change on it."""
        ratios: dict[str, list[float]] = {}
        for (kind, strength, place), rows in self.cells.items():
            inside = self.cells.get((kind, strength, CIRCUIT), {})
            for (prompt, (_, like)), row in rows.items():
                equal = inside.get((prompt, (like, None)))
                if place == OUTSIDE and equal and equal.get("change_norm") and row.get("change_norm") is not None:
                    ratios.setdefault(kind, []).append(row["change_norm"] / equal["change_norm"])
        return {kind: float(np.median(values)) for kind, values in ratios.items()}


def _interval(value: float, samples: Numbers) -> Interval:
    return Interval.of(value, samples, without_samples=float(value))


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _divide(a: Numbers, b: Numbers) -> Numbers:
    quotient: Numbers = np.divide(a, b, out=np.full_like(a, np.nan), where=b > 0)
    return quotient
