"""The rows of a comparison: one for each prompt that ran, in memory and, if the run has a folder, on disk."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from eics.errors import OptionError
from eics.models.prompts import Prompt
from eics.scoring.batching import batch_indices
from eics.scoring.calibration.calibration import Calibration
from eics.scoring.calibration.file import load_calibration, save_calibration
from eics.studies.comparison.set_passes import Passes, failed_row
from eics.studies.run_folder import Row, RunFolder

ROWS, CALIBRATION, DOCUMENT = "rows.jsonl", "calibration.safetensors", "compare.json"
FILES = (ROWS, CALIBRATION, DOCUMENT)
"""What a run writes, besides its settings; a calibration only if it fits one."""

Tick = Callable[[int], None]


class SetRows(AbstractContextManager["SetRows"]):
    """The rows of both sets by the set's key and the prompt's id; a resumed run has its earlier ones."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        if path is None and resume:
            raise OptionError("--resume needs --out FOLDER, the folder of the run to continue.")
        self._rows: dict[tuple[str, str | int], Row] = {}
        self.folder = (
            None if path is None else RunFolder.open(path, settings, FILES, resume=resume, overwrite=overwrite)
        )
        if self.folder is None:
            return
        try:
            self._file = self.folder.rows(ROWS, "set", "id", "reason", "z", "write")
            self._rows = {(row["set"], row["id"]): row for row in self._file}
        except BaseException:
            self.folder.__exit__()  # nobody else will: a context that failed to open is never left
            raise

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.__exit__()

    def of(self, key: str) -> dict[str | int, Row]:
        """The rows of a set by id."""
        return {id: row for (of, id), row in self._rows.items() if of == key}

    def add(self, key: str, rows: Sequence[Row]) -> None:
        """Keeps rows that are not there yet; they are on disk when this returns."""
        new = [{"set": key, **row} for row in rows if (key, row["id"]) not in self._rows]
        if self.folder is not None and new:
            self._file.append(new)
        self._rows |= {(key, row["id"]): row for row in new}

    def run(self, key: str, passes: Passes, prompts: Sequence[Prompt], batch_size: int, tick: Tick) -> None:
        """Runs what has not run. Batches are those of an uninterrupted run, so that padding, and with it rounding, is
        the same."""
        for indices in batch_indices(prompts, batch_size, sort=True):
            batch = [prompts[index] for index in indices]
            if any((key, prompt.id) not in self._rows for prompt in batch):
                self.add(key, passes.rows(batch))
            tick(len(batch))

    def fitted(self, fit: Callable[[dict[str | int, str]], Calibration]) -> Calibration:
        """The calibration that is fitted on A; the one of an interrupted run is read. Prompts of A that failed get
        their rows."""
        path = None if self.folder is None else self.folder.path / CALIBRATION
        if path is not None and path.exists():
            return load_calibration(path)
        failures: dict[str | int, str] = {}
        calibration = fit(failures)
        self.add("a", [failed_row(id, reason) for id, reason in failures.items()])
        if path is None:
            return calibration
        save_calibration(calibration, path)  # last: it says that the fit is complete
        return load_calibration(path)  # to judge as a resumed run does, to the last digit
