"""The folder of a run: settings first, rows as they are made, tables and figures last.

| file | holds |
|---|---|
| `settings.json` | model, circuit, options, what is damaged; `--resume` goes on only with the same |
| `damage.jsonl` | a flat row for each prompt and damage, undamaged ones (`kind` none) among them |
| `undamaged.jsonl` | whole records of the undamaged prompts, as `eics score` writes them |
| `damage.parquet` | the rows again, once all are there |
| `summary.json`, `damage.md` | curves, AUROCs, ranks with intervals; tables and plain words |
| `dose-response.png`, `auroc.png` | figures |
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eics.errors import OptionError, RecordError
from eics.scoring.records import append_record, drop_half_line
from eics.scoring.result import Score

if TYPE_CHECKING:
    from eics.studies.damage.summary import Summary

ROWS, SETTINGS, UNDAMAGED = "damage.jsonl", "settings.json", "undamaged.jsonl"


@dataclass
class Folder:
    """Rows in memory, and on disk where there is a folder."""

    path: Path | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    known: set[Any] = field(default_factory=set)

    @classmethod
    def open(cls, path: Path | None, settings: dict[str, Any], *, resume: bool) -> "Folder":
        """A new folder, or one of the same settings to go on with."""
        if path is None:
            if resume:
                raise OptionError("--resume needs --out DIR, the folder of the run to continue.")
            return cls(None)
        if path.exists() and not path.is_dir():
            raise OptionError.of("out", "a folder", str(path))
        there = (path / SETTINGS).exists()
        if there and not resume:
            raise OptionError(f"{str(path)!r} holds a run already: go on with --resume, or take another --out.")
        path.mkdir(parents=True, exist_ok=True)
        found = cls(path)
        if there:
            _check_same(path / SETTINGS, settings)
            found._read()
        else:
            (path / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
            for name in (ROWS, UNDAMAGED):
                (path / name).write_text("", encoding="utf-8")
        return found

    def has(self, prompt: str | int, key: tuple[Any, ...]) -> bool:
        """Whether a prompt's row for this damage is there."""
        return (prompt, *key) in self.known

    def add(self, row: dict[str, Any], records: Sequence[Score] = ()) -> dict[str, Any]:
        """Keeps a row, and whole records with it; on disk at once."""
        if self.path is not None:
            if records:
                append_record(records, self.path / UNDAMAGED)
            with (self.path / ROWS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n")
        self._keep(row)
        return row

    def finish(self, summary: "Summary") -> None:
        """Writes what is made of the rows."""
        if self.path is None:
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        from eics.reporting.plots import save
        from eics.studies.damage.figures import auroc_figure, dose_figure
        from eics.studies.damage.words import markdown

        columns = dict.fromkeys(name for row in self.rows for name in row)
        rows = [{name: row.get(name) for name in columns} | {"id": json.dumps(row["id"])} for row in self.rows]
        pq.write_table(pa.Table.from_pylist(rows), self.path / "damage.parquet")
        text = json.dumps(summary.to_record(), indent=1, allow_nan=False)
        (self.path / "summary.json").write_text(text + "\n", encoding="utf-8")
        (self.path / "damage.md").write_text(markdown(summary), encoding="utf-8")
        save(dose_figure(summary), self.path / "dose-response.png")
        save(auroc_figure(summary), self.path / "auroc.png")

    def _read(self) -> None:
        assert self.path is not None
        file = self.path / ROWS
        if not file.exists():
            return
        drop_half_line(file)
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                self._keep(json.loads(line))
            except (json.JSONDecodeError, KeyError, TypeError):
                raise RecordError(f"Line {number} of {str(file)!r} must be a row of this run: remove it.") from None

    def _keep(self, row: dict[str, Any]) -> None:
        self.known.add((row["id"], *(row[name] for name in ("kind", "strength", "node", "place", "like"))))
        self.rows.append(row)


def _check_same(file: Path, settings: dict[str, Any]) -> None:
    try:
        theirs = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        theirs = None
    if not isinstance(theirs, dict):
        raise RecordError(f"{str(file)!r} must hold the settings of a run: take another --out.")
    ours = json.loads(json.dumps(settings))
    for name in ours:
        if name == "circuit" and isinstance(theirs.get(name), dict):
            same = theirs[name].get("sha256") == ours[name]["sha256"]
        else:
            same = theirs.get(name) == ours[name]
        if not same:
            raise RecordError(
                f"--resume must continue with the same settings. {name!r} differs from that in {str(file)!r}: "
                "use another --out."
            )
