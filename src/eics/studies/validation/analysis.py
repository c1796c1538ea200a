"""From the table of scores to the verdict: no model is needed any more."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from eics.circuits.formats.jsonsafe import json_safe
from eics.studies.validation.adds import Gain, gains
from eics.studies.validation.columns import Columns, gather
from eics.studies.validation.compare import Comparison, Result, compare
from eics.studies.validation.fitted import with_fitted
from eics.studies.validation.keep import FAILED
from eics.studies.validation.split import check_split
from eics.studies.validation.store import Row
from eics.studies.validation.within import Within, within

LEAST_RESAMPLES = 1200
"""With fewer no p-value could be below 0.05 after correction for all scores: the least that B resamples show is 2/B."""


@dataclass(frozen=True)
class Counts:
    """How many prompts there were, why some do not count, and what the others are."""

    prompts: int
    dropped: dict[str, int]
    why_failed: str | None
    labels_given: int
    answers_split: int
    clipped: int
    development: tuple[int, int]
    test: tuple[int, int]

    @property
    def kept(self) -> int:
        """Prompts that count."""
        return sum(self.development) + sum(self.test)


@dataclass(frozen=True, repr=False)
class Validation:
    """What came out. `results` go by column name, `gains` by score and base, `within` by what prompts are
    alike in; `sentences` say it in words."""

    settings: dict[str, Any]
    counts: Counts
    columns: Columns
    comparison: Comparison
    gains: list[Gain]
    within: dict[str, Within]

    @property
    def results(self) -> dict[str, Result]:
        """Each score on the test split."""
        return self.comparison.results

    @property
    def sentences(self) -> list[str]:
        """The verdict in plain words, made from the numbers by rule."""
        from eics.studies.validation.sentences import verdict

        return verdict(self)

    def to_record(self) -> dict[str, Any]:
        """JSON types only."""
        found: dict[str, Any] = json_safe(
            {
                "settings": self.settings,
                "counts": asdict(self.counts),
                "alpha": self.columns.alpha,
                "not_compared": self.columns.missing,
                "strongest_suspect": self.comparison.suspect,
                "resamples": self.comparison.resamples,
                "clustered": self.comparison.clustered,
                "scores": {name: asdict(result) for name, result in self.results.items()},
                "gains": [asdict(gain) for gain in self.gains],
                "within": {what: asdict(found) for what, found in self.within.items()},
                "sentences": self.sentences,
            }
        )
        return found

    def write_report(self, folder: str | Path) -> None:
        """`results.json`, `report.md`, `report.html` and the figures, into a folder that exists."""
        from eics.studies.validation.report import write

        write(self, Path(folder))

    def __repr__(self) -> str:
        lines = [f"{r.kind.title:<28} AUROC {r.auroc}" for r in self.results.values()]
        return "\n".join([f"Validation on {self.counts.kept} prompts", *lines])


def analyse(
    rows: Iterable[Row], settings: dict[str, Any], group: str | None, matched: str | None, *, resamples: int
) -> Validation:
    """Fits on development, compares on test; `group` is the field that was split by, `matched` the one matched by."""
    seed = settings["seed"]
    kept, counts = _count(rows)
    columns = gather(kept, group or matched)
    check_split(columns.labels, columns.development)
    columns = with_fitted(columns, torn=group is None, seed=seed)
    clusters = columns.groups if group is not None else None
    comparison = compare(columns, clusters=clusters, count=resamples, seed=seed)
    added = gains(columns, clusters=clusters, count=resamples, seed=seed)
    decisions = {name: result.decision for name, result in comparison.results.items()}
    alike = within(columns, decisions, clusters=clusters, count=resamples, seed=seed)
    counts = replace(counts, development=_both(columns, columns.development), test=_both(columns, columns.test))
    return Validation(settings, counts, columns, comparison, added, alike)


def _count(rows: Iterable[Row]) -> tuple[list[Row], Counts]:
    """The rows that count, with their long lists as arrays, and the tally of all."""
    kept, reasons, why = [], Counter[str](), None
    total = given = splits = clipped = 0
    for row in rows:
        total += 1
        if row["dropped"]:
            reasons[row["dropped"]] += 1
            why = why or (row["failed"] if row["dropped"] == FAILED else None)
            continue
        given += bool(row["label_given"])
        splits += bool(row["answer_split"]) and not row["label_given"]
        clipped += bool(row["clipped"])
        lists = {name: np.asarray(row[name], np.float32) for name in ("final", "norms")}
        kept.append(row | lists)
    return kept, Counts(total, dict(reasons), why, given, splits, clipped, (0, 0), (0, 0))


def _both(columns: Columns, split: Any) -> tuple[int, int]:
    labels = columns.labels[split]
    return int(labels.sum()), int((~labels).sum())
