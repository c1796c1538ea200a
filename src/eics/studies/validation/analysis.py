"""From the table of scores to the verdict; needs no model."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eics.circuits.formats.shared import json_safe
from eics.studies.run_folder import Row
from eics.studies.validation.columns import Columns, gather
from eics.studies.validation.compare import Result, WithinGroup, compare, strongest_suspect, within_groups
from eics.studies.validation.fitted import with_fitted
from eics.studies.validation.incremental import Gain, gains
from eics.studies.validation.split import FAILED, check_split

LEAST_RESAMPLES = 1200
"""With fewer, no p-value could be below 0.05 after correction for all scores: B resamples show 2/B at the least."""


@dataclass(frozen=True)
class Counts:
    """How many prompts there were, why some are excluded, and the labels of the others (correct, wrong)."""

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
        return sum(self.development) + sum(self.test)


@dataclass(frozen=True, repr=False)
class Validation:
    """The outcome of a validation run.

    `results` has each score on the test split by column name, `gains` what each score adds to each base, `within` the
    AUROCs within groups of similar prompts, and `sentences` the verdict in words.
    """

    settings: dict[str, Any]
    counts: Counts
    columns: Columns
    results: dict[str, Result]
    gains: list[Gain]
    within: dict[str, WithinGroup]
    resamples: int

    @property
    def suspect(self) -> Result:
        """The self-deception baseline that was best on development."""
        return self.results[strongest_suspect({name: result.decision for name, result in self.results.items()})]

    @property
    def sentences(self) -> list[str]:
        from eics.studies.validation.sentences import verdict

        return verdict(self)

    def to_record(self) -> dict[str, Any]:
        """JSON types only."""
        record: dict[str, Any] = json_safe(
            {
                "settings": self.settings,
                "counts": asdict(self.counts),
                "alpha": self.columns.alpha,
                "not_compared": self.columns.missing,
                "strongest_suspect": self.suspect.name,
                "resamples": self.resamples,
                "clustered": self.columns.clustered,
                "scores": {name: asdict(result) for name, result in self.results.items()},
                "gains": [asdict(gain) for gain in self.gains],
                "within": {grouping: asdict(within) for grouping, within in self.within.items()},
                "sentences": self.sentences,
            }
        )
        return record

    def write_report(self, folder: str | Path) -> None:
        """Writes `results.json`, `report.md`, `report.html` and the figures into a folder that exists."""
        from eics.studies.validation.report import write

        write(self, Path(folder))

    def __repr__(self) -> str:
        lines = [f"{r.kind.title:<28} AUROC {r.auroc}" for r in self.results.values()]
        return "\n".join([f"Validation on {self.counts.kept} prompts", *lines])


def analyse(
    rows: Iterable[Row], settings: dict[str, Any], group: str | None, matched: str | None, *, resamples: int
) -> Validation:
    """Fits on development and compares on test; `group` is the field to split by, `matched` the one to match by."""
    seed = settings["seed"]
    kept, counts = _count(rows)
    columns = gather(kept, group or matched, clustered=group is not None)
    check_split(columns.labels, columns.development)
    columns = with_fitted(columns, seed=seed)
    results = compare(columns, resamples=resamples, seed=seed)
    added = gains(columns, resamples=resamples, seed=seed)
    within = within_groups(columns, results, resamples=resamples, seed=seed)
    return Validation(settings, counts, columns, results, added, within, resamples)


def _count(rows: Iterable[Row]) -> tuple[list[Row], Counts]:
    """The rows that count, with their long lists as arrays, and the tally of all rows."""
    kept, dropped, sides, failure = [], Counter[str](), Counter[tuple[str, bool]](), None
    total = given = splits = clipped = 0
    for row in rows:
        total += 1
        if row["dropped"]:
            dropped[row["dropped"]] += 1
            failure = failure or (row["failed"] if row["dropped"] == FAILED else None)
            continue
        sides[row["split"], bool(row["label"])] += 1
        given += bool(row["label_given"])
        splits += bool(row["answer_split"]) and not row["label_given"]
        clipped += bool(row["clipped"])
        lists = {name: np.asarray(row[name], np.float32) for name in ("final", "norms")}
        kept.append(row | lists)
    development, test = ((sides[side, True], sides[side, False]) for side in ("development", "test"))
    return kept, Counts(total, dict(dropped), failure, given, splits, clipped, development, test)
