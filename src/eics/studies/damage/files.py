"""The run folder of `eics damage`: settings first, rows as they are made, tables and figures last.

| file | holds |
|---|---|
| `settings.json` | model, circuit, options, what is damaged; `--resume` requires the same |
| `damage.jsonl` | one flat row per prompt and damage, including the undamaged runs (`kind` none) |
| `undamaged.jsonl` | full records of the undamaged prompts, as `eics score` writes them |
| `damage.parquet` | all rows again, once the run is complete |
| `summary.json`, `damage.md` | curves, AUROCs and ranks with intervals; tables and sentences |
| `dose-response.png`, `auroc.png` | figures |
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eics.errors import OptionError, RecordError
from eics.scoring.result import Score
from eics.studies.damage.plan import NONE
from eics.studies.run_folder import Row, RunFolder, whole_file

if TYPE_CHECKING:
    from eics.studies.damage.summary import Summary

ROWS, UNDAMAGED = "damage.jsonl", "undamaged.jsonl"


class DamageRows:
    """The rows of a run, in memory and, if it has a folder, on disk; a resumed run has its earlier rows."""

    def __init__(self, path: Path | None, settings: dict[str, Any], *, resume: bool) -> None:
        if path is None and resume:
            raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
        self.rows: list[Row] = []
        self._keys: set[Any] = set()
        self.folder = None
        if path is not None:
            self.folder = RunFolder.open(path, settings, (ROWS, UNDAMAGED), resume=resume)
            self._row_file, self._records = self.folder.rows(ROWS), self.folder.rows(UNDAMAGED)
            self._read()

    def has(self, prompt: str | int, key: tuple[Any, ...]) -> bool:
        return (prompt, *key) in self._keys

    def add(self, row: Row, scores: Sequence[Score] = ()) -> Row:
        """Keeps a row and the full scores that belong to it; both are on disk when this returns."""
        if self.folder is not None:
            self._records.append(score.to_record() for score in scores)
            self._row_file.append([row])
        self._keep(row)
        return row

    def finish(self, summary: "Summary") -> None:
        """Writes what is computed from the rows."""
        if self.folder is None:
            return
        from eics.reporting.plots import save
        from eics.studies.damage.figures import auroc_figure, dose_figure
        from eics.studies.damage.words import markdown

        self.folder.write_parquet("damage.parquet", [row | {"id": json.dumps(row["id"])} for row in self.rows])
        self.folder.write("summary.json", json.dumps(summary.to_record(), indent=1, allow_nan=False) + "\n")
        self.folder.write("damage.md", markdown(summary))
        for name, figure in (("dose-response.png", dose_figure), ("auroc.png", auroc_figure)):
            with whole_file(self.folder.path / name) as path:
                save(figure(summary), path)

    def _keep(self, row: Row) -> None:
        self._keys.add((row["id"], *(row[name] for name in ("kind", "strength", "node", "place", "like"))))
        self.rows.append(row)

    def _read(self) -> None:
        for number, row in enumerate(self._row_file, start=1):
            try:
                self._keep(row)
            except (KeyError, TypeError):
                raise RecordError(
                    f"Row {number} of {str(self._row_file.path)!r} must be a row of this run: remove it."
                ) from None
        # Records are written before their row: a run killed in between left records that will be written again.
        records = list(self._records)
        finished = {row["id"] for row in self.rows if row["kind"] == NONE}
        kept = [record for record in records if record.get("id") in finished]
        if len(kept) < len(records):
            self._records.replace(kept)
