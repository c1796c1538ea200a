"""A complete `.csv` of records that is resumed: does it hold all that is asked for?

Flat columns lack the edges, so records are not read back from them. But everything that decides a number is in them,
and is compared cell by cell.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eics.data.outputs import journal_of
from eics.data.resume import differs
from eics.errors import RecordError
from eics.models.prompts import Prompt, tokens_or_none
from eics.scoring.flat import Cells, read_cells, to_cells
from eics.scoring.job import fingerprint_of
from eics.scoring.options import Options
from eics.scoring.record_file import Run
from eics.scoring.result import RECORD_VERSION

_NAMES = {"fingerprint": "model", "circuit.sha256": "circuit", "version": "version of the records"}


def is_complete_csv(path: Path) -> bool:
    """Whether this is the `.csv` of a run that came to its end: it has no journal any more."""
    return path.suffix == ".csv" and path.exists() and not journal_of(path).exists()


def check_complete(path: Path, run: Run, prompts: Sequence[Prompt]) -> dict[str | int, str]:
    """Refuses a file that lacks a prompt, or has one of another run; returns why prompts failed, by id."""
    rows = _by_id(path)
    failures: dict[str | int, str] = {}
    missing = [prompt for prompt in prompts if _id_cell(prompt) not in rows]
    if missing:
        raise RecordError(
            f"--resume must find every prompt in a complete .csv. {str(path)!r} lacks {len(missing)}, such as "
            f"{missing[0].id!r}, and its flat columns cannot be continued: use --overwrite, or another --out."
        )
    for prompt in prompts:
        found = rows[_id_cell(prompt)]
        if len(found) != len(run.configurations):
            where = f"{path}, prompt {prompt.id}"
            raise differs("number of presets", len(found), len(run.configurations), where)
        for cells, options in zip(found, run.configurations, strict=True):
            _check(cells, _expected(run, prompt, options), str(path))
            if cells.get("status") == "failed":
                failures[prompt.id] = cells.get("reason", "")
    return failures


def _by_id(path: Path) -> dict[str, list[Cells]]:
    rows: dict[str, list[Cells]] = {}
    try:
        for cells in read_cells(path):
            rows.setdefault(cells.get("id", ""), []).append(cells)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(
            f"--resume must continue records that `eics score` wrote. {str(path)!r} cannot be read: {error}."
        ) from None
    return rows


def _id_cell(prompt: Prompt) -> str:
    return to_cells({"id": prompt.id})["id"]


def _expected(run: Run, prompt: Prompt, options: Options) -> Cells:
    """The cells of this prompt that say what was asked for."""
    tokens = tokens_or_none(run.model, prompt)
    record: dict[str, Any] = {
        "version": RECORD_VERSION,
        "circuit": {"sha256": run.circuit.sha256},
        "options": run.requested(options),
        **{name: prompt.metadata[name] for name in ("prompt", "answer", "label")},
        **({} if tokens is None else {"token_ids": tokens}),
        "fingerprint": fingerprint_of(run.model),  # last: another dtype, named above, has other weights too
    }
    return to_cells(record)


def _check(theirs: Mapping[str, str], ours: Cells, source: str) -> None:
    """Compares the cells that both sides have; an option that only the file has must be empty there."""
    compared = dict.fromkeys((*ours, *(name for name in theirs if name.startswith("options."))))
    for name in compared:
        if name == "token_ids" and not theirs.get(name):  # it failed before it had tokens
            continue
        if theirs.get(name, "") != ours.get(name, ""):
            what = _NAMES.get(name, name.removeprefix("options."))
            raise differs(what, theirs.get(name, ""), ours.get(name, ""), source)
