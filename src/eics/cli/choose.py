"""Which record of a file a command looks at."""

from pathlib import Path
from typing import TYPE_CHECKING

from eics.errors import RecordError

if TYPE_CHECKING:
    from eics.result import Score


def choose_record(path: Path, prompt_id: str | None) -> "Score":
    """The record to show: the first that was scored, of the prompt asked for."""
    from eics.records import read_records

    records = [score for score in read_records(path) if prompt_id is None or str(score.id) == prompt_id]
    scored = [score for score in records if score.eics is not None]
    if scored:
        return scored[0]
    if records:
        raise RecordError(f"A record must have been scored. Prompt {records[0].id} failed: {records[0].reason}")
    which = "one record" if prompt_id is None else f"a record of prompt {prompt_id!r}"
    raise RecordError(f"The file {str(path)!r} must have at least {which}. It has none.")
