"""A tracking run on disk: rows as they are made (JSON lines) and together (Parquet), findings, page and figure."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eics.errors import OptionError
from eics.studies.tracking.analysis import over_circuits, over_prompts, to_record
from eics.studies.tracking.costs import Cost
from eics.studies.tracking.measure import Row

ROWS = "rows.jsonl"


def start(folder: Path) -> None:
    """Makes the folder; refuses one that has rows already."""
    if (folder / ROWS).exists():
        raise OptionError(
            f"--out must be a folder without rows of an earlier run. {str(folder)!r} has {ROWS}: take another."
        )
    folder.mkdir(parents=True, exist_ok=True)


def append_rows(rows: Sequence[Row], folder: Path) -> None:
    """Adds lines: a killed run keeps what it measured."""
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        file.write("".join(json.dumps(_plain(row), allow_nan=False) + "\n" for row in rows))


def finish(folder: Path, about: dict[str, Any], rows: Sequence[Row], costs: Sequence[Cost], seed: int) -> str:
    """Writes `rows.parquet`, `track.json`, `track.md` and `track.png`; gives the page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from eics.reporting.plots import save
    from eics.studies.tracking.figure import tracking_figure
    from eics.studies.tracking.page import page

    names = dict.fromkeys(name for row in rows for name in row)
    plain = [dict.fromkeys(names) | _plain(row) for row in rows]
    pq.write_table(pa.Table.from_pylist(plain), folder / "rows.parquet")
    prompts, circuits = over_prompts(rows, seed=seed), over_circuits(rows, seed=seed)
    document = {
        "format": "eics-tracking",
        "version": 1,
        "about": about,
        "over_prompts": [to_record(one) for one in prompts],
        "over_circuits": [to_record(one) for one in circuits],
        "costs": [
            {"what": c.name, "forward_equivalents": c.ratio.to_json(), "seconds": c.seconds, "forward": c.forward}
            for c in costs
        ],
    }
    (folder / "track.json").write_text(json.dumps(document, allow_nan=False, indent=1) + "\n", encoding="utf-8")
    text = page(about, rows, prompts, circuits, costs)
    (folder / "track.md").write_text(text, encoding="utf-8")
    save(tracking_figure(rows, prompts), folder / "track.png")
    return text


def _plain(row: Row) -> Row:
    """JSON has no nan and no infinity."""
    return {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in row.items()}
