"""The rows of a comparison of two models: in memory and, if the run has a folder, on disk as soon as they are made."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from eics.circuits.formats.shared import json_safe
from eics.errors import OptionError, as_path
from eics.studies.comparison.summary import ModelComparison
from eics.studies.run_folder import Row, RowFile, RunFolder

ROWS, RESTORED, DOCUMENT = "rows.jsonl", "restored.jsonl", "compare.json"
FILES = (ROWS, RESTORED, DOCUMENT)
"""What a run writes, besides its settings."""


class ModelRows:
    """The rows of a run, in memory and, if it has a folder, on disk."""

    def __init__(self, folder: RunFolder | None) -> None:
        self.folder, self._files = folder, {}
        if folder is not None:
            self._files = {ROWS: folder.rows(ROWS, "id", "status"), RESTORED: folder.rows(RESTORED, "id", "node")}
        self.rows, self.restored = (list(self._files.get(name, ())) for name in (ROWS, RESTORED))

    def add(self, rows: Sequence[Row]) -> None:
        """Rows of prompts; on disk when this returns."""
        self._append(ROWS, self.rows, rows)

    def add_restored(self, rows: Sequence[Row]) -> None:
        """Rows of restored parts."""
        self._append(RESTORED, self.restored, rows)

    def _append(self, name: str, held: list[Row], rows: Sequence[Row]) -> None:
        file: RowFile | None = self._files.get(name)
        if file is not None:
            file.append(map(json_safe, rows))
        held += rows

    def write(self, found: ModelComparison) -> None:
        """The whole document, if there is a folder."""
        if self.folder is not None:
            self.folder.write(DOCUMENT, json.dumps(found.to_record(), allow_nan=False, indent=1) + "\n")


@contextmanager
def open_rows(out: Any, settings: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Iterator[ModelRows]:
    """The rows of a run, which its folder keeps if there is one; a resumed run has its earlier rows."""
    if out is None:
        if resume:
            raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
        yield ModelRows(None)
        return
    with RunFolder.open(as_path(out, "output folder"), settings, FILES, resume=resume, overwrite=overwrite) as folder:
        yield ModelRows(folder)
