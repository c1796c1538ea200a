"""The table of all prompts of a validation run, as Parquet.

It is written and read one row group at a time, so that memory does not grow with the number of prompts.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from eics.data.json_text import parse_json
from eics.errors import RecordError
from eics.studies.run_folder import Row, whole_file

_GROUP = 256

_TEXTS = ("split", "dropped", "predicted_text", "generated", "failed")
_FLAGS = ("label", "label_given", "answer_split", "clipped", "function_word")
_WHOLE = ("length", "predicted")
_NUMBERS = (
    "log_probability", "entropy", "margin", "answer_probability", "answer_mass", "ensemble_variance",
    "ensemble_information", "ensemble_disagreement", "eics_paper", "c_sh_paper", "a1_paper", "a2_paper", "dei_paper",
    "eics_well_posed", "c_sh_well_posed", "a1_well_posed", "a2_well_posed", "dei_well_posed", "emergence_ratio",
    "propagated", "eac", "ear", "conformal_lac", "conformal_aps", "norm_last", "norm_all",
)  # fmt: skip
_LISTS = ("eics_paper_by_alpha", "norms", "final")
_JSON = ("id", "groups")


def write_table(rows: Iterable[Row], path: Path) -> None:
    """Writes rows; the file appears under its name only once it is complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema(pa)
    remaining = iter(rows)
    with whole_file(path) as part, pq.ParquetWriter(part, schema) as writer:
        while group := list(islice(remaining, _GROUP)):
            writer.write_table(pa.Table.from_pylist([_to_cells(row, schema.names) for row in group], schema=schema))


def read_table(path: Path) -> Iterator[Row]:
    """The rows that `write_table` wrote."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=_GROUP):
                yield from (_from_cells(cells) for cells in batch.to_pylist())
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:  # the last two: another program's columns
        raise RecordError(f"{str(path)!r} must be a Parquet file of scores: {error}. Start without --resume.") from None


def _schema(pa: Any) -> Any:
    return pa.schema(
        [
            *((name, pa.string()) for name in (*_JSON, *_TEXTS)),
            *((name, pa.bool_()) for name in _FLAGS),
            *((name, pa.int64()) for name in _WHOLE),
            *((name, pa.float64()) for name in _NUMBERS),
            *((name, pa.list_(pa.float64())) for name in _LISTS),
        ]
    )


def _to_cells(row: Row, names: list[str]) -> Row:
    unknown = sorted(set(row) - set(names))
    assert not unknown, f"columns without a type: {unknown}"
    return {name: json.dumps(row.get(name)) if name in _JSON else row.get(name) for name in names}


def _from_cells(cells: Row) -> Row:
    return {name: parse_json(value) if name in _JSON else value for name, value in cells.items()}
