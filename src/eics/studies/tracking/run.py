"""Measures all subjects into a run folder and writes the findings.

| file | holds |
|---|---|
| `settings.json` | model, tasks, circuits, options; `--resume` requires the same |
| `rows.jsonl` | one row per prompt and circuit, as they are made |
| `rows.parquet` | all rows again, once the run is complete |
| `track.json`, `track.md`, `track.png` | correlations and costs; verdict and tables; figure |
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eics.circuits.formats.shared import json_safe
from eics.models.base import Model
from eics.models.out_of_memory import memory_explained
from eics.scoring.job import fingerprint_of
from eics.scoring.options import PAPER
from eics.studies.run_folder import Row, RunFolder, digest
from eics.studies.tracking.analysis import over_circuits, over_prompts, to_record
from eics.studies.tracking.measure import Cost, Subject, costs, measure_subject, references

ROWS = "rows.jsonl"
FILES = (ROWS, "rows.parquet", "track.json", "track.md", "track.png")
"""What a run writes, besides its settings."""


@memory_explained
def track(
    model: Model,
    subjects: Sequence[Subject],
    setup: Mapping[str, Any],
    out: Path,
    *,
    batch_size: int = 8,
    memory: float = 512,
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    tick: Callable[[int], None] = lambda _: None,
) -> str:
    """Measures every subject, resuming or replacing an earlier run if told to, and writes the findings.

    Returns the page.

    `setup` is what the page says about the run.
    """
    PAPER.with_(memory=memory, seed=seed)  # refuses what they cannot be before a folder is made
    settings = _settings(model, subjects, seed, memory)
    with RunFolder.open(out, settings, FILES, resume=resume, overwrite=overwrite) as folder:
        file = folder.rows(ROWS, "task", "prompt", "circuit")
        rows = [_from_json(row) for row in file]
        tick(len(rows))
        done = {(row["task"], row["prompt"], row["circuit"]) for row in rows}
        timed: list[Cost] = []
        how: dict[str, Any] = {"batch_size": batch_size, "memory": memory}
        for subject in subjects:
            means = references(model, subject, batch_size)
            for batch in measure_subject(model, subject, means, seed=seed, tick=tick, done=done, **how):
                file.append(map(json_safe, batch))
                rows += batch
            timed += costs(model, subject, means, **how)
        return _finish(folder, setup, rows, timed, seed)


def _settings(model: Model, subjects: Sequence[Subject], seed: int, memory: float) -> Row:
    return {
        "model": model.name,
        "fingerprint": fingerprint_of(model),
        "dtype": str(model.transformer.unembed.dtype).removeprefix("torch."),
        "seed": seed,
        "memory": memory,
        "subjects": [
            {
                "task": subject.task.name,
                "prompts": _hash(subject.task.pairs),
                "reference": _hash(subject.reference.pairs),
                "circuits": [member.circuit.sha256 for member in subject.members],
                "metric": subject.metric,
                "family_prompts": subject.family_prompts,
                "all_eics": subject.all_eics,
            }
            for subject in subjects
        ],
    }


def _hash(pairs: Sequence[Any]) -> str:
    return digest([vars(pair) for pair in pairs])


def _finish(folder: RunFolder, setup: Mapping[str, Any], rows: Sequence[Row], timed: Sequence[Cost], seed: int) -> str:
    from eics.reporting.plots import save
    from eics.studies.tracking.figure import tracking_figure
    from eics.studies.tracking.words import page

    folder.write_parquet("rows.parquet", [json_safe(row) for row in rows])
    prompts, circuits = over_prompts(rows, seed=seed), over_circuits(rows, seed=seed)
    document = {
        "format": "eics-tracking",
        "version": 1,
        "about": dict(setup),
        "over_prompts": [to_record(finding) for finding in prompts],
        "over_circuits": [to_record(finding) for finding in circuits],
        "costs": [
            {
                "what": name,
                "forward_equivalents": timing.ratio.to_json(),
                "seconds": timing.seconds.median,
                "forward": timing.forward.median,
            }
            for name, timing in timed
        ],
    }
    folder.write("track.json", json.dumps(document, allow_nan=False, indent=1) + "\n")
    text = page(setup, rows, prompts, circuits, timed)
    folder.write("track.md", text)
    save(tracking_figure(rows, prompts), folder.path / "track.png")
    return text


def _from_json(row: Row) -> Row:
    return {n: math.nan if v is None and n != "group" else v for n, v in row.items()}
